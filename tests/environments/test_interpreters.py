"""Which Python an environment is built on, and what is said where there is none."""

import pytest

from tests.environments import fakes
from xframe.environments import interpreters
from xframe.errors import Unavailable, UsageError


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """No Python is found, but those that are put below the folder given."""
    fakes.isolate(monkeypatch, tmp_path, tmp_path / "bin")
    return tmp_path


def places(home):
    return {
        "PATH": (home / "bin", "python3.8"),
        "pyenv": (home / ".pyenv/versions/3.8.18/bin", "python"),
        "uv": (home / ".local/share/uv/python/cpython-3.8.20-linux-x86_64-gnu/bin", "python3.8"),
        "conda": (home / "miniconda3/envs/old/bin", "python3.8"),
    }


@pytest.mark.parametrize("place", ["PATH", "pyenv", "uv", "conda"])
def test_it_is_found(alone, place):
    made = fakes.make(*places(alone)[place])
    assert interpreters.find(["3.8"]) == interpreters.Interpreter(str(made), "3.8")


def test_environments_that_conda_has_noted(alone):
    made = fakes.make(alone / "far/away/bin", "python3.8")
    (alone / ".conda").mkdir()
    (alone / ".conda/environments.txt").write_text(f"{alone / 'nowhere'}\n{alone / 'far/away'}\n")
    assert interpreters.find(["3.8"]).path == str(made)


def test_the_preferred_version_and_the_newest_of_it(alone):
    fakes.make(alone / "bin", "python3.8")
    for patch in ("9", "18", "2"):
        fakes.make(alone / f".pyenv/versions/3.9.{patch}/bin", "python", version="3.9")
    assert interpreters.find(["3.9", "3.8"]).path == str(alone / ".pyenv/versions/3.9.18/bin/python")
    assert interpreters.find(["3.8", "3.9"]).version == "3.8"


def test_where_there_is_none_it_says_how_to_get_one(alone):
    with pytest.raises(Unavailable) as e:
        interpreters.find(["3.9", "3.8"])
    assert str(e.value) == (
        "no Python 3.9 or 3.8 on PATH, nor in pyenv, uv or conda: install it (uv python install 3.9, or pyenv install"
        " 3.9, or conda create -n py39 python=3.9), or name one with --python PATH"
    )
    with pytest.raises(Unavailable, match=r"install it \(pyenv install 3.6, or conda create -n py36 python=3.6\)"):
        interpreters.find(["3.6"])


@pytest.mark.parametrize("settings", [{"broken": True}, {"version": "3.9"}, {"lack": "ensurepip"}, {"wide": False}])
def test_one_that_can_not_be_used_is_passed_over(alone, settings):
    """A shim of pyenv; a link to another version; Debian's python3 without its venv package; a 32-bit one."""
    bad = fakes.make(alone / "bin", **settings)
    with pytest.raises(Unavailable) as e:
        interpreters.find(["3.8"])
    told = {"lack": f"{bad} has no module ensurepip", "wide": f"{bad} is a 32-bit Python"}.get(next(iter(settings)))
    assert told is None or told in str(e.value)
    good = fakes.make(*places(alone)["pyenv"])
    assert interpreters.find(["3.8"]).path == str(good)


def test_a_file_that_is_no_program(alone):
    (alone / "bin").mkdir()
    (alone / "bin/python3.8").write_text("not a program")
    (alone / "bin/python3.8").chmod(0o755)
    with pytest.raises(Unavailable):
        interpreters.find(["3.8"])


def test_the_one_that_was_named(alone):
    fakes.make(alone / "bin", "python3.8")
    named = fakes.make(alone / "mine", "py", version="3.9")
    assert interpreters.find(["3.9", "3.8"], str(named)).path == str(named)
    with pytest.raises(UsageError, match=r"--python .*py is Python 3\.9; Python 3\.6 is needed"):
        interpreters.find(["3.6"], str(named))
    with pytest.raises(UsageError, match="--python /no/such: it is no Python that runs here"):
        interpreters.find(["3.9"], "/no/such")
