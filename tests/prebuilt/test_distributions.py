"""The files of packages for another Python: taken from here where they run there, fetched where they don't."""

import subprocess
import sys

import pytest

from tests.prebuilt import wheels
from xframe.errors import Unavailable
from xframe.prebuilt import distributions

OWN = f"cp3{sys.version_info.minor}"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Packages that are installed: one for any Python, one that needs it, for this one alone."""
    folder = tmp_path / "site"
    wheels.install(folder, "Xf.Pure", "py3-none-any", "xf_pure")
    needs = ['xf_pure>=1; python_version > "3"', "no-such-one", 'xf-extra; extra == "more"']
    wheels.install(folder, "xf-own", f"{OWN}-{OWN}-linux_x86_64", "xf_own", requires=needs)
    wheels.install(folder, "xf-stable", "cp311-abi3-linux_x86_64", "xf_stable")
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_what_is_required_in_turn_comes_along(site):
    assert distributions.closure(["xf_own", "xf-stable"]) == ["xf-own", "xf-stable", "xf-pure"]
    assert distributions.closure(["xf_own", "no-such-one"], without=["Xf-Pure"]) == ["xf-own"]


def test_what_a_package_was_built_for_says_where_it_runs(site):
    own = f"3.{sys.version_info.minor}"
    assert [distributions.runs("xf-pure", p) for p in ("3.11", "3.99")] == [True, True]
    assert [distributions.runs("xf-stable", p) for p in ("3.10", "3.11", "3.99")] == [False, True, True]
    assert [distributions.runs("xf-own", p) for p in (own, "3.99")] == [True, False]


def test_only_what_is_for_this_python_alone_is_fetched(site, tmp_path, monkeypatch):
    asked = []

    def fetch(specs, python, folder):
        asked.append((specs, python))
        return [wheels.wheel(folder, "xf-own", "cp399-cp399-linux_x86_64", "xf_own", "there = 1\n")]

    monkeypatch.setattr(distributions, "fetch", fetch)
    names, scratch = ["xf-own", "xf-pure"], tmp_path / "scratch"
    scratch.mkdir()
    there = {place: path.read_text() for path, place in distributions.files(names, "3.99", scratch)}
    assert asked == [(["xf-own==1.0"], "3.99")]
    assert there["xf-own/xf_own.py"] == "there = 1\n"
    assert {"xf-pure/xf_pure.py", "xf-own/xf_own-1.0.dist-info/METADATA"} <= set(there)
    here = dict((place, path) for path, place in distributions.files(names, distributions.HERE, scratch))
    assert here["xf-own/xf_own.py"] == site / "xf_own.py"
    assert len(asked) == 1


def test_pip_is_asked_for_wheels_alone_and_what_it_says_is_told(tmp_path, monkeypatch):
    commands = []

    def run(command, **how):
        commands.append(command)
        return subprocess.CompletedProcess(command, len(commands) - 1, "", "ERROR: No matching distribution for xf")

    monkeypatch.setattr(distributions.subprocess, "run", run)
    made = wheels.wheel(tmp_path, "xf", "py3-none-any", "xf")
    assert distributions.fetch(["xf==1"], "3.12", tmp_path) == [made]
    assert {"--only-binary=:all:", "--no-deps", "xf==1"} <= set(commands[0])
    assert commands[0][commands[0].index("--python-version") + 1] == "3.12"
    with pytest.raises(Unavailable, match=r"xf==1 for Python 3.12 can't be had by pip \(ERROR: No .*--without"):
        distributions.fetch(["xf==1"], "3.12", tmp_path)
