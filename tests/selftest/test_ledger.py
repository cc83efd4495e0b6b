"""What a lie took, by its own clock."""

import json
import tempfile
from pathlib import Path

import pytest

from xframe.errors import XframeError
from xframe.selftest import ledger


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch, tmp_path):
    """Ledgers that nobody reads go with it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""
    now = [0.0]
    monkeypatch.setattr(ledger.time, "perf_counter", lambda: now[0])
    return now


def test_each_step_is_kept_apart_by_whether_it_was_profiled(clock):
    kept = ledger.Ledger()
    for seconds in (0.5, 0.25):
        with kept.clocked():
            clock[0] += seconds
    with kept.under_a_profiler(), kept.clocked():
        clock[0] += 2.0
    with kept.clocked():
        clock[0] += 0.125
    kept.write()
    assert json.loads(Path(kept.path).read_text())["profiled"] == [2.0]
    assert ledger.taken(kept.path) == [0.5, 0.25, 0.125]
    assert not Path(kept.path).exists()


def test_what_was_cleared_is_not_in_it(clock):
    kept = ledger.Ledger()
    with kept.clocked():
        clock[0] += 1.0
    kept.clear()
    kept.write()
    with pytest.raises(XframeError, match="carried out in no step"):
        ledger.taken(kept.path)
    assert not Path(kept.path).exists()


def test_a_lie_that_left_no_record_is_told(tmp_path):
    with pytest.raises(XframeError, match="left no record"):
        ledger.taken(str(tmp_path / "nowhere.json"))
    half = tmp_path / "half.json"
    half.write_text('{"plain": [1.0')
    with pytest.raises(XframeError, match="left no record"):
        ledger.taken(str(half))


def test_the_least_without_the_first():
    times = iter([0.5, 3.0, 1.0, 2.0, 9.0, 4.0])
    assert ledger.least(lambda: next(times), 5) == 1.0
