"""The benchmark of ``diff`` on unchanged code, on made-up runs."""

import json
import sys

import pytest

from benchmarks import repeat, rows
from tests.drifting import measurement, run

STEADY = [[0.010, 0.01001, 0.00999] * 5] * 3


@pytest.fixture
def printed(monkeypatch, capsys):
    """What it prints of runs in which the row took so many times as long, and its exit code."""

    def made(*times, options=()):
        left = [run(measurement([[s * by for s in r] for r in STEADY])) for by in times]
        asked = []
        monkeypatch.setattr(repeat, "compare", lambda request, progress: asked.append(request) or left.pop(0))
        monkeypatch.setattr(sys, "argv", ["repeat.py", "--runs", str(len(times)), *options])
        code = rows.run(repeat.main)
        return code, capsys.readouterr().out, asked

    return made


def test_runs_are_of_fresh_processes_and_each_is_held_against_the_one_before(printed):
    code, out, asked = printed(1.0, 1.001, 1.2, options=("--rounds", "7"))
    assert code == 1
    assert "1 of 2 rows of the same code are called changed (same 1, slower 1)" in out
    assert [(r.budget.rounds, r.budget.fresh, r.model, r.batches) for r in asked] == [(7, True, "alexnet", (1,))] * 3


def test_nothing_changed(printed):
    code, out, _ = printed(1.0, 1.001, options=("--json",))
    assert code == 0
    assert json.loads(out)["verdict"] == "same"


def test_one_run_tells_nothing(printed):
    assert printed(1.0)[0] == 2
