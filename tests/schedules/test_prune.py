"""What a log need not keep; tests/schedules/test_database.py has those that need real kernels."""

from dataclasses import replace

import pytest

from tests.schedules.logs import DEVICE, OTHER, entry, forged, log, saved, task
from xframe.schedules import find, prune, software
from xframe.schedules.log import META, LogError, read

HERE = replace(DEVICE, model="2")  # its kernels are another machine's here, so that none is defined anew


@pytest.mark.parametrize(("change", "words"), [({"tvm": "0.1"}, "TVM 0.1"), ({"passes": "00"}, "another pass list")])
def test_a_stale_log_goes_as_a_whole(tmp_path, change, words):
    folder = saved(tmp_path / "log", entry(), entry(task(OTHER)), **change)
    would = prune.prune(folder, HERE, dry_run=True)
    assert sorted(d.task for d in would) == sorted([task(), task(OTHER)])
    assert all(words in d.reason for d in would)
    assert len(read(folder).entries) == 2
    assert prune.prune(folder, HERE) == would
    assert not folder.exists()


def test_a_foreign_log_is_not_stale(tmp_path):
    assert prune.prune(saved(tmp_path), HERE) == []
    assert read(tmp_path) == log()


def test_losses_go_and_the_rest_stays(tmp_path):
    saved(tmp_path, entry(), entry(task(OTHER)))
    forged(tmp_path, lambda meta: meta["entries"][0].update(seconds=[1.0]))
    (dropped,) = prune.prune(tmp_path, HERE)
    assert "slower than its baseline" in dropped.reason
    assert set(read(tmp_path).entries) == {task(), task(OTHER)} - {dropped.task}


def test_a_broken_log_is_refused_and_left(tmp_path):
    saved(tmp_path)
    (tmp_path / META).write_text("{")
    for dry_run in (True, False):
        with pytest.raises(LogError, match="not whole JSON"):
            prune.prune(tmp_path, HERE, dry_run)
    assert (tmp_path / META).read_text() == "{"


def test_without_tvm_only_losses_are_found(tmp_path, monkeypatch):
    saved(tmp_path)
    monkeypatch.setattr(software, "tvm_version", lambda: None)
    assert find.stale(read(tmp_path))
    assert prune.prune(tmp_path, DEVICE) == []
