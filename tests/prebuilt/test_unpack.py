"""What is done with the pieces where they are unpacked: once, whole, and beside what that machine has."""

import json
import sys

import pytest

from tests.prebuilt import wheels
from xframe import files
from xframe.prebuilt import pieces, unpack


@pytest.fixture
def about(tmp_path):
    """Three pieces or more, and what is said of them."""
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)) * 40)
    paths = []
    with pieces.archive(tmp_path / "here", 150, paths) as tar:
        tar.add(source, "a/b")
    assert len(paths) > 2
    return {"python": "3.12", "pieces": {p.name: files.sha256(p) for p in paths}, "ours": [], "without": []}


def test_pieces_are_unpacked_once(tmp_path, about):
    here = tmp_path / "here"
    packed = unpack.unpacked(here, about)
    assert (packed / "a" / "b").read_bytes() == bytes(range(256)) * 40
    (packed / "a" / "b").write_text("kept")
    assert (unpack.unpacked(here, about) / "a" / "b").read_text() == "kept"
    (packed / "complete").write_text("of other pieces")
    assert (unpack.unpacked(here, about) / "a" / "b").read_bytes()[:3] == bytes(range(3))


def test_a_piece_that_is_missing_or_damaged_is_named(tmp_path, about):
    last = sorted((tmp_path / "here").glob(f"{pieces.NAME}.*"))[-1]
    data = last.read_bytes()
    last.write_bytes(data[:-1])
    with pytest.raises(unpack.Refused, match=rf"{last.name} is not what was packed"):
        unpack.unpacked(tmp_path / "here", about)
    last.unlink()
    with pytest.raises(unpack.Refused, match=rf"{last.name}, one of {len(about['pieces'])} pieces, is not in"):
        unpack.unpacked(tmp_path / "here", about)
    assert not (tmp_path / "here" / "packed").exists()


def test_a_machine_gets_the_packages_that_it_lacks_and_keeps_its_own(tmp_path, monkeypatch):
    packages, site = tmp_path / "packages", tmp_path / "site"
    any_python = "py3-none-any"
    for name in ("xf-there", "xf-renamed", "xf-lacking", "xf-ours"):
        wheels.install(packages / name, name, any_python, f"{name.replace('-', '_')}_module")
    for name in ("xf-there", "xf-ours"):
        wheels.install(site, name, any_python, f"{name.replace('-', '_')}_module")
    wheels.install(site, "xf-renamed-gpu", any_python, "xf_renamed_module")
    monkeypatch.syspath_prepend(str(site))
    assert [p.name for p in unpack.lacking(packages, ["xf-ours"])] == ["xf-lacking", "xf-ours"]
    monkeypatch.setenv("PYTHONPATH", "before")
    found = unpack.environment(tmp_path, ["xf-ours"])
    places = [str(tmp_path), str(packages / "xf-lacking"), str(packages / "xf-ours"), "before"]
    assert found["PYTHONPATH"].split(":") == places
    assert found["XFRAME_LIBRARIES"] == str(tmp_path / "lib")
    assert found.get("LD_LIBRARY_PATH") == unpack.os.environ.get("LD_LIBRARY_PATH")


def test_what_is_packed_is_run_and_what_was_left_out_must_be_there(tmp_path, monkeypatch, capsys):
    ran = []
    monkeypatch.setattr(unpack.os, "execve", lambda python, command, environment: ran.append(command))
    monkeypatch.setattr(unpack, "__file__", str(tmp_path / "gpu_check.py"))
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--minutes", "3"])
    about = {"python": "3.12", "pieces": {}, "ours": [], "without": ["pytest"]}
    (tmp_path / unpack.ABOUT).write_text(json.dumps(about))
    packed = tmp_path / "packed"
    for folder in ("packages", "built"):
        (packed / folder).mkdir(parents=True)
    (packed / "complete").write_text(json.dumps(about, sort_keys=True))
    unpack.main()
    asked = ["--prebuilt", str(packed / "built"), "--minutes", "3"]
    assert ran[0][1:] == ["-m", "xframe.cli", "gpu-check", *asked]
    (tmp_path / unpack.ABOUT).write_text(json.dumps({**about, "without": ["no-such-one"]}))
    assert unpack.main() == 2
    assert "packed without no-such-one, which" in capsys.readouterr().err
    assert len(ran) == 1
