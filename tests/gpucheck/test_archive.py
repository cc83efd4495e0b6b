"""A check as one file, whole after each step."""

import tarfile

from xframe.gpucheck.archive import Archived
from xframe.gpucheck.journal import DONE, Found


def names(path):
    with tarfile.open(path) as tar:
        return sorted(tar.getnames())


def test_the_archive_has_each_step_as_soon_as_it_is_over(tmp_path):
    journal = Archived(tmp_path / "found")
    journal.write(Found("first one", DONE))
    assert journal.path == tmp_path / "found.tar.gz"
    assert names(journal.path) == ["found/first-one/step.json"]
    place = journal.place("second")
    place.mkdir()
    (place / "conv1.onnx").touch()
    (place / "run.json").write_text("{}")
    journal.write(Found("second", DONE))
    assert names(journal.path) == ["found/first-one/step.json", "found/second/run.json", "found/second/step.json"]
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["found.tar.gz"]


def test_it_can_be_elsewhere(tmp_path):
    journal = Archived(tmp_path / "found", tmp_path / "back" / "a.tar.gz")
    journal.write(Found("one", DONE))
    assert names(tmp_path / "back" / "a.tar.gz") == ["found/one/step.json"]
