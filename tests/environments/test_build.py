"""Building: whole or not at all, whatever fails, whoever else builds, whenever it is killed."""

import os
import platform
import shutil
import signal

import pytest

from tests.environments import fakes
from xframe.environments import build, downloads, places, recipes
from xframe.errors import Unavailable, UsageError, XframeError

INSTALLS = ["install old-1.0-py3-none-any.whl", "install older-2.0.tar.gz"]
WHOLE = ["venv", "download old", "download older", *INSTALLS, "probe"]


@pytest.fixture
def python(tmp_path, monkeypatch):
    """A Python 3.8 that is found, and the environment ``fake`` that it can build."""
    made = fakes.make(tmp_path / "bin")
    fakes.use(monkeypatch, tmp_path, made)
    return made


def test_an_environment_is_there_once_it_is_built(python):
    with pytest.raises(Unavailable, match=r"the environment fake is not built: run xframe env create fake"):
        places.find("fake")
    built = build.create("fake")
    assert built == places.find("fake")
    assert os.path.realpath(built.python) == str(python)
    assert built.variables == {"FAKE_TOLD": str(places.folder("fake") / "told")}
    assert (places.folder("fake") / "told").exists()
    assert fakes.calls(python) == WHOLE
    assert not (places.folder("fake") / "downloads").exists()


def test_what_is_built_is_not_built_again(python):
    build.create("fake")
    build.create("fake")
    build.create("fake", str(python))
    assert fakes.calls(python) == WHOLE


def test_another_interpreter_is_another_build(python, tmp_path):
    build.create("fake")
    other = fakes.make(tmp_path / "other", "anything", version="3.9")
    built = build.create("fake", str(other))
    assert os.path.realpath(built.python) == str(other)
    assert places.record("fake")["python"] == "3.9"
    assert fakes.calls(other) == WHOLE


def test_progress_tells_what_is_done(python):
    lines = []
    build.create("fake", None, lines.append)
    assert lines[0] == "fake: making a virtual environment of Python 3.8"
    assert "fake: fetching older==2.0 (2 of 2)" in lines
    assert lines[-1] == "fake: trying it"


def test_the_users_settings_do_not_reach_the_build(python, monkeypatch):
    """Nor does the environment that xframe itself runs in."""
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("PIP_TARGET", "/elsewhere")
    build.create("fake")
    told = places.record("fake")["framework"]
    assert told["astray"] == []
    assert told["told"] == str(places.folder("fake") / "told")


@pytest.mark.parametrize("point", ["venv", "old", "older", "install", "probe"])
def test_a_killed_build_is_not_there_and_goes_on(python, tmp_path, point):
    fakes.change(python, hang=point)
    with fakes.builder(tmp_path, python) as process:
        fakes.wait_for(python.parent / "hanging")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    with pytest.raises(Unavailable, match="not built"):
        places.find("fake")
    before = fakes.calls(python)
    fakes.change(python, hang="")
    built = build.create("fake")
    assert os.access(built.python, os.X_OK)
    again = fakes.calls(python)[len(before) :]
    assert again[0] == "venv", "what was half made is made anew"
    fetched = {"install": ["old", "older"], "probe": ["old", "older"], "older": ["old"]}.get(point, [])
    assert again == [call for call in WHOLE if call not in [f"download {name}" for name in fetched]]


def test_two_builders_build_once(python, tmp_path):
    fakes.change(python, hang="install")
    with fakes.builder(tmp_path, python) as first, fakes.builder(tmp_path, python) as second:
        fakes.wait_for(python.parent / "hanging")
        # Whichever of them came second says so before it waits.
        lines = {process: [] for process in (first, second)}
        waiter = _who_waits(lines)
        (python.parent / "go").touch()
        for process in (first, second):
            process.communicate(timeout=60)
            assert process.returncode == 0
        assert waiter
    assert fakes.calls(python) == WHOLE
    places.find("fake")


def _who_waits(lines):
    """Reads what both builders say until one says that it waits."""
    import selectors

    with selectors.DefaultSelector() as selector:
        for process in lines:
            selector.register(process.stdout, selectors.EVENT_READ, process)
        while True:
            ready = selector.select(60)
            assert ready, "nobody waits"
            for key, _ in ready:
                line = key.fileobj.readline()
                if "waiting for another process" in line:
                    return key.data
                assert line, "a builder ended early"


def test_what_a_killed_builder_started_is_waited_for(python, tmp_path):
    """Its pip lives on, and writes where the next builder would."""
    fakes.change(python, hang="older")
    with fakes.builder(tmp_path, python) as first:
        fakes.wait_for(python.parent / "hanging")
        first.kill()
        first.wait()
        with fakes.builder(tmp_path, python) as second:
            assert "waiting for another process" in second.stdout.readline()
            (python.parent / "go").touch()
            second.communicate(timeout=60)
            assert second.returncode == 0
    assert fakes.calls(python).count("venv") == 2
    assert fakes.calls(python).count("download older") == 1, "the orphan had finished it"


def test_without_a_network_what_was_fetched_is_kept(python):
    build.create("fake")
    build.remove("fake")
    fakes.change(python, offline=True)
    with pytest.raises(Unavailable, match=r"old==1\.0 \(1 of 2\): the package index can't be reached; .*kept"):
        build.create("fake")
    with pytest.raises(Unavailable, match="not built"):
        places.find("fake")
    for file in (python.parent / "index").iterdir():
        shutil.copy(file, places.folder("fake") / "downloads")
    build.create("fake")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("fails", r"trying it: exit code 1: ImportError: libold\.so: cannot open shared object file; all of it is in "),
        ("killed", "trying it: killed by SIGSEGV"),
        ("silent", "its probe told nothing"),
    ],
)
def test_an_environment_whose_framework_does_not_work_is_not_there(python, how, words):
    fakes.change(python, probe=how)
    with pytest.raises(Unavailable, match=words):
        build.create("fake")
    with pytest.raises(Unavailable, match="not built"):
        places.find("fake")
    fakes.change(python, probe="")
    before = len(fakes.calls(python))
    build.create("fake")
    assert not [call for call in fakes.calls(python)[before:] if call.startswith("download")]


def test_a_framework_that_stops_working_is_told(python):
    build.create("fake")
    assert build.check("fake")["version"] == "1.0"
    fakes.change(python, probe="fails")
    with pytest.raises(Unavailable, match=r"the environment fake does not work .*: trying it: exit code 1: .*libold"):
        build.check("fake")


def test_a_file_that_is_not_the_pinned_one_is_refused(python):
    (python.parent / "index" / "older-2.0.tar.gz").write_text("something else")
    with pytest.raises(Unavailable, match=r"fetching older==2\.0 .*DO NOT MATCH THE HASHES"):
        build.create("fake")


def test_an_environment_that_lost_its_python_is_built_again(python, tmp_path):
    build.create("fake")
    python.rename(python.with_name("gone"))
    with pytest.raises(Unavailable, match=r"the environment fake has lost its Python, .*python3\.8: run xframe env"):
        places.find("fake")
    fakes.make(tmp_path / "bin", "python3.9", version="3.9")
    build.create("fake")
    assert fakes.calls(python) == WHOLE * 2


def test_another_recipe_is_another_environment(python, monkeypatch):
    build.create("fake")
    old = places.folder("fake")
    monkeypatch.setattr(recipes, "RECIPES", {"fake": fakes.RECIPE._replace(variables=(("FAKE_TOLD", "new"),))})
    assert places.outdated("fake") == [old]
    with pytest.raises(Unavailable, match="was built by another version of xframe: run xframe env create fake"):
        places.find("fake")
    build.create("fake")
    assert sorted(build.remove("fake")) == sorted([old, places.folder("fake")])
    assert not old.exists()
    assert build.remove("fake") == []


def test_removing_takes_no_other_folder(python):
    build.create("fake")
    for name in ("fake-mine", "fake-0123456", "faker-01234567", "other"):
        (places.base() / name).mkdir()
    assert build.remove("fake") == [places.folder("fake")]
    assert len([path for path in places.base().iterdir() if path.is_dir()]) == 4


def test_a_folder_that_cannot_be_written(python, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XFRAME_ENVIRONMENTS", str(tmp_path / "file"))
    with pytest.raises(XframeError, match=r"can't write to the folder .*file.*set XFRAME_HOME"):
        build.create("fake")


def test_a_machine_that_there_are_no_wheels_for(python, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(Unavailable, match=r"its wheels are for Linux x86_64, and this is \w+ aarch64"):
        build.create("fake")
    assert fakes.calls(python) == []


def test_an_unknown_environment(python):
    with pytest.raises(UsageError, match=r"unknown environment 'fak': did you mean fake\?"):
        places.find("fak")
    with pytest.raises(UsageError, match=r"unknown environment '\.\./x': there are: fake"):
        build.remove("../x")


@pytest.mark.parametrize("line", ["numpy", "numpy>=1.0", "numpy==1.0", "numpy==1.0 --hash=sha256:12", "-r other.txt"])
def test_requirements_that_are_not_pinned(tmp_path, line):
    path = tmp_path / "some.txt"
    path.write_text(f"# a comment\n{line}\n")
    with pytest.raises(XframeError, match="is not pinned"):
        downloads.pins(path)
