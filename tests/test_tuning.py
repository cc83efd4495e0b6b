"""The arithmetic of the tuning benchmark, on made-up kernels; and all of it with a runner that makes its times up."""

import json
import sys

import pytest

from benchmarks import roofline, rows, tuning
from tests.tuning.fake import HOST, FakeRunner, spaces, task
from xframe.results import Level, Machine
from xframe.tuning import search
from xframe.tuning.search import product


def kernel(lowering="winograd", gain=1.2, by_hand=1e-3, **fields):
    tuned = gain is not None and gain != 1
    values = {
        "task": task(lowering=lowering).name,
        "lowering": lowering,
        "gain": gain,
        "by_hand_s": by_hand,
        "tile": None,
    }
    values |= {"tuned_s": by_hand / gain if gain else None, "verdict": "tuned" if tuned else "template"}
    return {**values, **fields}


def by_name(found):
    return {r["bar"]: (r["figure"], r["met"]) for r in found}


def test_the_gain_of_a_lowering_is_a_geometric_mean_in_which_templates_count_as_1():
    found = tuning.gain_rows(
        [kernel(gain=2.0), kernel(gain=0.5), kernel("fft", gain=1.21), kernel("fft", 1), kernel("fft", None)]
    )
    assert [(r["lowering"], r["kernels"], r["tuned"], r["least"]) for r in found] == [
        ("winograd", 2, 2, 0.5),
        ("fft", 2, 1, 1),
    ]
    assert [r["gain"] for r in found] == pytest.approx([1.0, 1.1])
    bars = by_name(tuning.gain_bars(found))
    assert {name: met for name, (_, met) in bars.items()} == {
        "gain of winograd": False,
        "least gain of winograd": False,
        "gain of fft": True,
        "least gain of fft": True,
    }


def test_a_trial_costs_what_all_processes_took():
    sessions = [{"trials": 10, "cpu_s": 10.0, "seconds": 1.0}, {"trials": 30, "cpu_s": 70.0, "seconds": 1.0}]
    one = {"trials": 64, "cpu_s": 1.0, "seconds": 181.0}
    bars = by_name(tuning.cost_bars(sessions, one))
    assert bars == {"CPU seconds of a trial": (2.0, True), "seconds of 64 trials of a kernel": (181.0, False)}
    assert by_name(tuning.cost_bars([], None)) == {"CPU seconds of a trial": (None, False)}


def test_the_share_of_the_peak_counts_the_flop_of_the_tile_that_runs():
    flop = {tile: roofline.flop(product(task(lowering="winograd"), HOST, tile).func) for tile in (None, (1, 1))}
    rows = [kernel(by_hand=1.0, gain=1), kernel(by_hand=1.0, gain=1, tile=[1, 1]), kernel("fft"), kernel(gain=None)]
    found = tuning.peak_rows(rows, flop[None], 2)
    assert [r["share"] for r in found] == [1.0, flop[1, 1] / flop[None]]
    (bar,) = tuning.peak_bars(found, flop[None])
    assert bar["figure"] == pytest.approx((1 + flop[1, 1] / flop[None]) / 2)
    assert tuning.peak_bars([], 1.0) == []


@pytest.mark.parametrize(
    ("ratios", "figure", "met"),
    [([1.04, 0.96], 1.04, True), ([1.0, 0.94], 0.94, False), ([1.0, None], None, False), ([], 0, 0)],
)
def test_the_worst_record_decides_whether_a_log_replays(ratios, figure, met):
    found = [{"ratio": r, "outcome": "OK" if r else "CRASHED", "reason": ""} for r in ratios]
    bars = tuning.replay_bars(found)
    assert [(r["figure"], r["met"]) for r in bars] == ([(figure, met)] if ratios else [])


@pytest.fixture
def printed(monkeypatch, capsys, convnet, tmp_path):
    """What the benchmark prints of a small network, and its exit code."""
    monkeypatch.setenv("XFRAME_HOME", str(tmp_path / "home"))
    peak = Machine(1e12, (Level("memory", float("inf"), 1e10),))
    monkeypatch.setattr(roofline, "machine", lambda threads: peak)
    monkeypatch.setattr(search, "Spaces", spaces)
    monkeypatch.setattr("xframe.tuning.runner.LocalRunner", lambda cpu, workers=1, device="cpu": FakeRunner())

    def run(*options):
        args = [
            "tuning.py",
            "--model",
            str(convnet()),
            "--lowering",
            "direct,winograd",
            "--trials",
            "30",
            "--strategy",
            "replay",
        ]
        monkeypatch.setattr(sys, "argv", [*args, *options])
        code = rows.run(tuning.main)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out

    return run


def test_rows_of_all_kinds_come_as_they_are_known(printed):
    code, out = printed("--json")
    found = [json.loads(line) for line in out.splitlines()]
    kinds = list(dict.fromkeys(r["kind"] for r in found))
    assert kinds == ["kernel", "session", "lowering", "peak", "replay", "bar"]
    assert all(r["threads"] == 2 for r in found)
    bars = {r["bar"]: r["met"] for r in found if r["kind"] == "bar"}
    assert bars["gain of direct"]
    assert not bars["share of peak of winograd's products"]  # a kernel of a microsecond that does next to nothing
    assert code == 1


def test_the_table_has_each_bar_with_its_figure(printed):
    _, out = printed()
    assert "| gain of winograd | 1.250 | at least 1.05 | yes |" in out
    assert "| replay: share of the template's time, over that recorded | 1.000 | within 5% | yes |" in out
