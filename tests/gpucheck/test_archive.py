"""A check as one file, whole after each step."""

import tarfile

from xframe.gpucheck.archive import CACHE, Archived
from xframe.gpucheck.journal import DONE, Found


def names(path):
    with tarfile.open(path) as tar:
        return sorted(tar.getnames())


def test_the_archive_has_each_step_as_soon_as_it_is_over(tmp_path):
    journal = Archived(tmp_path / "found")
    journal.steps = ["first one", "second"]
    journal.write(Found("first one", DONE))
    assert journal.path == tmp_path / "found.tar.gz"
    assert names(journal.path) == ["found/first-one/step.json", "found/summary.txt"]
    place = journal.place("second")
    place.mkdir()
    (place / "conv1.onnx").touch()
    (place / "run.json").write_text("{}")
    journal.write(Found("second", DONE))
    steps = ["found/first-one/step.json", "found/second/run.json", "found/second/step.json"]
    assert names(journal.path) == [*steps, "found/summary.txt"]
    assert (tmp_path / "found" / "summary.txt").read_text() == "first one: done\nsecond: done\n"
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["found.tar.gz"]


def test_it_can_be_elsewhere(tmp_path):
    journal = Archived(tmp_path / "found", tmp_path / "back" / "a.tar.gz")
    journal.write(Found("one", DONE))
    assert names(tmp_path / "back" / "a.tar.gz") == ["found/one/step.json", "found/summary.txt"]


def test_what_is_cached_there_is_not_brought_back(tmp_path):
    journal = Archived(tmp_path / "found")
    (tmp_path / "found" / CACHE / "exports").mkdir(parents=True)
    (tmp_path / "found" / CACHE / "exports" / "meta.json").touch()
    journal.write(Found("one", DONE))
    assert names(journal.path) == ["found/one/step.json", "found/summary.txt"]


def test_one_that_can_not_be_written_costs_no_step(tmp_path):
    (tmp_path / "file").touch()
    journal = Archived(tmp_path / "found", tmp_path / "file" / "a.tar.gz")
    journal.write(Found("one", DONE))
    assert journal.known("one").state == DONE
    assert str(journal.path) in journal.trouble
    journal.path = tmp_path / "a.tar.gz"
    journal.write(Found("two", DONE))
    assert journal.trouble == ""
