"""The benchmark's arithmetic, on made-up measurements."""

import json
import sys

import pytest

from benchmarks import errors, lowerings
from xframe.lowering.target import Cpu
from xframe.registry import LOWERINGS
from xframe.store import Run
from xframe.types import Case, ConvSite, Measurement, Outcome, Plan


def measurement(runner, label, batch, seconds=(), reason=""):
    case = Case("alexnet", "pytorch", runner, Plan(label), "cpu", batch, 2)
    if seconds:
        return Measurement(case, Outcome.OK, rounds=(tuple(seconds),))
    return Measurement(case, Outcome.FAILED, reason)


@pytest.fixture
def printed(monkeypatch, capsys):
    """What the benchmark prints for these measurements, and its exit code."""

    def run(*measurements, options=("--json",)):
        made = Run(1, "now", (), {}, tuple(measurements))
        monkeypatch.setattr(lowerings, "compare", lambda *_: made)
        monkeypatch.setattr(sys, "argv", ["lowerings.py", *options])
        code = lowerings.main()
        return code, capsys.readouterr().out.splitlines()

    return run


def test_ratio_is_the_peers_median_over_ours(printed):
    code, lines = printed(
        measurement("ort", "auto", 1, (2.0, 3.0, 10.0)),
        measurement("tvm", "winograd", 1, (1.0, 2.0, 2.0)),
        measurement("ort", "auto", 16, (8.0,)),
        measurement("tvm", "winograd", 16, (16.0,)),
    )
    rows = [json.loads(line) for line in lines]
    assert code == 0
    assert [(r["batch"], r["peer"], r["ratio"]) for r in rows] == [
        (1, None, None),
        (1, "ort", 1.5),
        (16, None, None),
        (16, "ort", 0.5),
    ]


def test_a_failed_row_is_shown_without_a_ratio(printed):
    code, lines = printed(measurement("ort", "auto", 1, (2.0,)), measurement("tvm", "fft", 1, reason="it crashed"))
    assert code == 1
    assert json.loads(lines[1])["ratio"] is None
    _, lines = printed(measurement("tvm", "fft", 1, reason="it crashed"), options=())
    assert lines == ["batch 1   tvm  fft       FAILED: it crashed"]


def test_the_table_of_errors_has_every_variant_and_none_beyond_its_prediction():
    site = ConvSite(1, 5, (9, 9), 6, (5, 5))
    rows = list(errors.rows(site, Cpu("llvm -mcpu=x86-64", 2)))
    assert {r.lowering for r in rows} == set(LOWERINGS)
    assert {r.detail for r in rows} >= {"F(2,5)", "F(4,5)", "8x8 tiles", "10x10 image"}
    assert all(0 < r.measured <= r.predicted for r in rows)
    header, _, *lines = errors.table([rows, rows])
    assert len(lines) == len(rows)
    assert {line.count("|") for line in lines} == {header.count("|")} == {9}
