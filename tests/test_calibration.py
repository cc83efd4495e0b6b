"""The roofs of this machine: what is kept and what is not, and that the loops compute what they should."""

import json
import math
import os
import sys
import time
from dataclasses import replace

import pytest

from xframe import calibration, environment, files
from xframe.errors import Unavailable, XframeError
from xframe.results import Level, Machine

MACHINE = Machine(1e9, (Level("L2", 1e6, 2e9), Level("memory", math.inf, 1e9)))


@pytest.fixture
def measuring(monkeypatch, tmp_path):
    """Instead of measuring: a made-up machine, the load meanwhile, and for how many threads it was asked."""
    monkeypatch.setenv("XFRAME_HOME", str(tmp_path))
    asked, load = [], [0.0]

    def measured(threads):
        asked.append(threads)
        return replace(MACHINE, load=load[0])

    monkeypatch.setattr(calibration, "measured", measured)
    return asked, load


def test_roofs_are_measured_once_for_each_number_of_threads(measuring):
    asked, _ = measuring
    said = []
    assert [calibration.machine(n, said.append) for n in (1, 1, 2, 1)] == [MACHINE] * 4
    assert asked == [1, 2]
    assert said == ["roofs of this machine, threads 1", "roofs of this machine, threads 2"]
    texts = [p.read_text() for p in (files.home() / "machine").glob("*.json")]
    kept = {d["of"]["threads"]: d for d in (json.loads(t, parse_constant=pytest.fail) for t in texts)}
    assert sorted(kept) == [1, 2]
    assert kept[2]["levels"][-1] == {"name": "memory", "holds": None, "bytes_per_s": 1e9}


def test_what_is_faster_now_than_what_was_kept_counts_from_then_on(measuring, monkeypatch):
    calibration.machine(1)
    assert calibration.machine(1) == MACHINE
    assert measuring[0] == [1], "what was kept a moment ago is not measured again"
    (path,) = (files.home() / "machine").glob("*.json")
    rates = iter([(0.5e9, 3e9, 0.9e9), (2e9, 1e9, 1.5e9), (1e9, 2e9, 1.2e9)])

    def now(threads):
        flop, near, far = next(rates)
        return Machine(flop, (Level("L2", 1e6, near), Level("memory", math.inf, far)), load=0.5)

    monkeypatch.setattr(calibration, "measured", now)

    def later():
        os.utime(path, (path.stat().st_atime, time.time() - calibration.FRESH - 1))
        found = calibration.machine(1)
        assert calibration.machine(1) == found, "and is fresh then"
        return found.flop_per_s, *(x.bytes_per_s for x in found.levels), found.load

    assert [later() for _ in range(3)] == [(1e9, 3e9, 1e9, 0.0), (2e9, 3e9, 1.5e9, 0.0), (2e9, 3e9, 1.5e9, 0.0)]


def test_roofs_that_can_not_be_measured_again_cost_none_of_what_was_kept(measuring, monkeypatch):
    calibration.machine(1)
    (path,) = (files.home() / "machine").glob("*.json")
    os.utime(path, (path.stat().st_atime, time.time() - calibration.FRESH - 1))

    def late(threads):
        raise XframeError("the roofs of this machine can't be measured: it took too long")

    monkeypatch.setattr(calibration, "measured", late)
    said = []
    assert calibration.machine(1, said.append) == MACHINE
    assert said == [
        "the roofs of this machine are those that were kept: the roofs of this machine can't be measured: it took too"
        " long"
    ]


def test_another_machine_or_version_measures_anew(measuring, monkeypatch):
    asked, _ = measuring
    calibration.machine(1)
    monkeypatch.setattr(environment, "cache_bytes", lambda: {2: 1 << 21})
    calibration.machine(1)
    monkeypatch.setattr(calibration.metadata, "version", lambda _: "another")
    calibration.machine(1)
    assert asked == [1, 1, 1]


def test_disturbed_roofs_are_told_and_not_kept(measuring):
    asked, load = measuring
    load[0] = 0.4
    said = []
    assert calibration.machine(1, said.append) == replace(MACHINE, load=0.4)
    assert said[1] == "other processes used 0.4 CPUs meanwhile: the roofs may be too low, and are not kept"
    load[0] = 0.0
    calibration.machine(1)
    calibration.machine(1)
    assert asked == [1, 1]


@pytest.mark.parametrize("text", ["", "{}", '{"flop_per_s": 1, "levels": []}', '{"flop_per_s": 1, "levels": [1]}'])
def test_a_damaged_file_is_measured_again(measuring, text):
    asked, _ = measuring
    calibration.machine(1)
    (path,) = (files.home() / "machine").glob("*.json")
    path.write_text(text)
    assert calibration.machine(1) == MACHINE
    assert asked == [1, 1]


def test_without_tvm_it_says_what_to_install(measuring, monkeypatch):
    monkeypatch.setattr(calibration.util, "find_spec", lambda _: None)
    with pytest.raises(Unavailable, match=r"Python module tvm is not here: pip install 'xframe-eval\[tvm\]'"):
        calibration.machine(1)


def test_a_process_that_fails_or_hangs_is_one_sentence(monkeypatch):
    monkeypatch.setattr(calibration, "LIMIT", 0.001)
    with pytest.raises(XframeError, match=r"read bandwidth can't be measured: it took more than 0\.001 s"):
        calibration.read_bandwidth(1)
    monkeypatch.setattr(calibration, "LIMIT", 60)
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(XframeError, match="roofs of this machine can't be measured"):
        calibration.measured(1)


def test_a_block_is_larger_than_the_caches(monkeypatch):
    monkeypatch.setattr(environment, "available_bytes", lambda: 64 << 30)
    monkeypatch.setattr(environment, "cache_bytes", lambda: {2: 1 << 21, 3: 1 << 28})
    assert calibration.block_bytes() == 4 << 28
    monkeypatch.setattr(environment, "available_bytes", lambda: 3 << 30)
    assert calibration.block_bytes() == 3 << 28
    monkeypatch.setattr(environment, "cache_bytes", lambda: {})
    assert calibration.block_bytes() == calibration.LEAST


def test_a_process_of_its_own_reads_a_small_block():
    assert calibration.read_bandwidth(1, 1 << 20) > 0


def test_all_roofs_over_small_blocks(monkeypatch):
    """The sums that are timed are checked there."""
    monkeypatch.setattr(calibration, "REPEATS", 2)
    monkeypatch.setattr(calibration, "LEAST", 1 << 22)
    monkeypatch.setattr(calibration, "block_bytes", lambda: 1 << 24)
    monkeypatch.setattr(environment, "cache_bytes", lambda: {2: 1 << 21, 3: 1 << 24})
    found = calibration._roofs(1)
    names = [(x.name, x.holds) for x in found.levels]
    assert names == [("L2", 1 << 20), ("L3 (4 MiB)", 1 << 22), ("memory", math.inf)]
    assert min(found.flop_per_s, *(x.bytes_per_s for x in found.levels)) > 0
    assert found.load >= 0


def test_it_prints_json_for_the_process_that_asked(monkeypatch, capsys):
    monkeypatch.setattr(calibration, "read_rate", lambda threads, size: threads * size)
    monkeypatch.setattr(calibration, "_roofs", lambda threads: MACHINE)
    monkeypatch.setattr(environment, "pinned_cpus", lambda threads: None)
    for args, expected in ((["2"], MACHINE.to_json()), (["2", "10"], 20)):
        monkeypatch.setattr(sys, "argv", ["calibration", *args])
        calibration.main()
        assert json.loads(capsys.readouterr().out) == expected
