"""The benchmark's arithmetic, on made-up measurements."""

import json
import sys
from dataclasses import replace

import pytest

from benchmarks import attribution, rows
from tests.selftest import made_up
from xframe.results import Measurement, Run
from xframe.selftest.verdict import Finding
from xframe.types import Outcome

HONEST = made_up.row("pytorch", 1)


@pytest.fixture
def printed(monkeypatch, capsys):
    """What the benchmark prints for these measurements, and its exit code."""

    def run(*measurements, options=("--json", "--case", "alexnet:1")):
        monkeypatch.setattr(rows, "compare", lambda *_: Run(1, "now", (), {}, measurements))
        monkeypatch.setattr(sys, "argv", ["attribution.py", *options])
        code = rows.run(attribution.main)
        return code, capsys.readouterr().out

    return run


def test_a_row_has_its_shares_and_a_residual_within_the_bar(printed):
    code, out = printed(HONEST)
    (row,) = map(json.loads, out.splitlines())
    assert code == 0
    assert abs(row["residual_share"]) < attribution.RESIDUAL
    assert row["residual_low_s"] < row["residual_s"] < row["residual_high_s"]
    assert row["unattributed_share"] == 0
    assert row["profiler_share"] == pytest.approx(made_up.COST / row["median_s"], rel=0.01)
    assert row["perturbation_share"] == pytest.approx(row["profiler_share"], rel=0.1)


def test_a_residual_above_its_bar_is_1(printed):
    """Profiled steps that took less than the others, and nobody knows why."""
    short = tuple(replace(p, wall=0.95 * p.wall) for p in HONEST.profiles)
    code, out = printed(replace(HONEST, profiles=short))
    assert code == 1
    assert json.loads(out)["residual_share"] > attribution.RESIDUAL


def test_kernels_of_no_known_kind_above_their_bar_are_1(printed):
    def unknown(one):
        return replace(one, kernels=tuple(replace(k, kind="" if k.name == "relu1" else k.kind) for k in one.kernels))

    code, out = printed(replace(HONEST, profiles=tuple(map(unknown, HONEST.profiles))))
    assert code == 1
    assert json.loads(out)["unattributed_share"] > attribution.UNATTRIBUTED


def test_a_row_without_a_profile_is_1(printed):
    code, out = printed(replace(HONEST, profiles=()))
    assert code == 1
    assert json.loads(out)["residual_share"] is None


def test_the_table_has_each_row_and_why_one_is_not_explained(printed):
    failed = Measurement(replace(HONEST.case, framework="jax"), Outcome.FAILED, "it crashed")
    code, out = printed(HONEST, failed, options=("--table", "--case", "alexnet:1"))
    assert code == 1
    honest, broken = (line for line in out.splitlines() if line.startswith(("| pytorch", "| jax")))
    assert honest.endswith("| yes |")
    assert "FAILED" in broken
    assert broken.endswith("| no |")
    assert "it crashed" in out


def test_lies_that_are_missed_are_1(monkeypatch, capsys):
    found = Finding("spin", "overhead", "1 ms", True, "", 1e-3, 1e-3, 0.9e-3, 1.1e-3, True)
    answers = [[found], [found, Finding("kernel", "quality", "nothing", False, "it is in layout")]]
    monkeypatch.setattr(attribution, "attribution", lambda setting, names, progress: answers.pop(0))
    monkeypatch.setattr(sys, "argv", ["attribution.py", "--lies", "2"])
    assert rows.run(attribution.main) == 1
    out = capsys.readouterr().out
    assert "found 2/2" in out
    assert "run 2, kernel: it is in layout" in out
