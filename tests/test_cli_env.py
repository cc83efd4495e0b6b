"""``xframe env``: what it prints, its exit codes, and what it says where an environment can't be built."""

import json

import pytest

from tests.environments import fakes
from xframe import cli
from xframe.environments import places


@pytest.fixture
def xframe(capsys):
    """Runs ``xframe env`` here; gives its exit code, stdout and stderr."""

    def call(*args):
        code = cli.main(["env", *map(str, args)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return call


@pytest.fixture
def python(tmp_path, monkeypatch):
    made = fakes.make(tmp_path / "bin")
    fakes.use(monkeypatch, tmp_path, made)
    return made


def test_its_life(xframe, python):
    code, out, _ = xframe("list")
    assert (code, out) == (
        0,
        f"fake     not built; can be, on {python}: the environment fake is not built: run xframe env create fake\n",
    )
    code, out, err = xframe("create", "fake")
    assert (code, out) == (0, f"fake     {places.interpreter('fake')}\n")
    assert "fake: fetching older==2.0 (2 of 2)\n" in err
    code, out, _ = xframe("list", "fake")
    assert code == 0
    assert out.startswith("fake     1.0 on Python 3.8, ")
    assert out.endswith(f" MB, in {places.folder('fake')}\n")
    assert xframe("check")[:2] == (0, "fake     1.0 works\n")
    assert xframe("remove", "fake")[:2] == (0, f"fake     removed {places.folder('fake')}\n")
    assert xframe("remove", "fake")[:2] == (0, "fake     there was none\n")


def test_json(xframe, python):
    row = json.loads(xframe("list", "--json")[1])
    assert (row["name"], row["built"], row["can_be_built_on"], row["bytes"]) == ("fake", False, str(python), 0)
    row = json.loads(xframe("create", "--json")[1])
    assert row["interpreter"] == str(places.interpreter("fake"))
    assert row["variables"] == {"FAKE_TOLD": str(places.folder("fake") / "told")}
    row = json.loads(xframe("list", "--json")[1])
    assert (row["built"], row["version"], row["python"], row["reason"]) == (True, "1.0", "3.8", "")
    assert json.loads(xframe("check", "--json")[1])["works"] is True
    assert json.loads(xframe("remove", "fake", "--json")[1])["removed"] == [str(places.folder("fake"))]


def test_without_an_interpreter(xframe, python):
    python.unlink()
    code, out, err = xframe("create")
    assert (code, out) == (1, "")
    assert err.startswith("xframe: no Python 3.9 or 3.8 on PATH, nor in pyenv, uv or conda: install it (")
    code, out, err = xframe("create", "--if-possible")
    assert (code, out) == (0, "")
    assert err.startswith("xframe: fake is left out: no Python 3.9 or 3.8 on PATH")
    code, out, _ = xframe("list")
    assert (code, out.startswith("fake     not built, and can't be: no Python 3.9 or 3.8")) == (0, True)


def test_one_that_does_not_work(xframe, python):
    xframe("create")
    fakes.change(python, probe="fails")
    code, out, err = xframe("check", "--json")
    assert code == 1
    assert json.loads(out)["works"] is False
    assert "libold.so" in json.loads(out)["reason"]
    assert "libold.so" in err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["create", "coffee"], "unknown environment 'coffee': there are: fake"),
        (["list", "fakes"], "unknown environment 'fakes': did you mean fake?"),
        (["create", "fake", "--python", "/no/such"], "--python /no/such: it is no Python that runs here"),
        (["remove"], "Missing argument"),
    ],
)
def test_what_makes_no_sense(xframe, python, args, words):
    code, out, err = xframe(*args)
    assert (code, out) == (2, "")
    assert words in err
    assert fakes.calls(python) == []
