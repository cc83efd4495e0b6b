"""Two results in the terminal: every row with its verdict, and what has to be known below it."""

import io
import re

from tests.drifting import measurement, run
from xframe.analysis.changes import changes
from xframe.report.diff_terminal import render
from xframe.types import Outcome

STEADY = [[0.010, 0.0101, 0.0099]] * 3


def text(old, new, **how):
    out = io.StringIO()
    render(changes(old, new, **how), out)
    return out.getvalue()


def cells(report, *start):
    (line,) = [x for x in report.splitlines() if x.split()[: len(start)] == list(start)]
    return re.split(r"\s{2,}", line.strip())[len(start) :]


def scaled(by):
    return [[s * by for s in r] for r in STEADY]


def test_rows_have_both_times_and_the_change():
    old = run(measurement(STEADY, "jax"), measurement(STEADY, options=(("jit", "off"),)), measurement(STEADY, batch=2))
    new = run(
        measurement(scaled(1.2), "jax"),
        measurement(scaled(0.9), options=(("jit", "off"),)),
        measurement(STEADY, batch=2),
    )
    report = text(old, new)
    assert cells(report, "jax", "native", "auto")[:3] == ["slower", "10.00", "12.00"]
    assert cells(report, "jax", "native", "auto")[3] == "+20.0 %"
    assert cells(report, "pytorch", "native", "jit=off")[-5:-2] == ["10.00", "9.00", "-10.0 %"]
    assert report.index("batch 1, threads 2") < report.index("batch 2, threads 2")
    assert report.endswith("\n1 slower, 1 faster, 1 same\n")


def test_what_is_not_ok_has_no_time_and_a_reason():
    report = text(run(measurement(STEADY)), run(measurement((), outcome=Outcome.MISMATCH)))
    assert cells(report, "pytorch", "native", "auto") == ["broken", "10.00", "-", "-", "-", "-"]
    assert "pytorch native: MISMATCH: it broke\n" in report


def test_differences_are_told_of_results_above_and_of_rows_below():
    old = run(measurement(STEADY, "jax", environment={"layout": "NCHW"}), measurement(STEADY), git="a")
    new = run(measurement(STEADY, "jax", environment={"layout": "NHWC"}), measurement(STEADY), git="b")
    head, tail = text(old, new).split("batch 1")
    assert "differs: git: a, now b (another state of xframe measured it)\n" in head
    assert "jax native: differs: layout: NCHW, now NHWC (its conversions are in the time)\n" in tail


def test_what_disturbed_a_row_that_moved_is_told():
    old, new = run(measurement(STEADY)), run(measurement(scaled(1.5), notes=("other processes used up to 0.9 CPUs",)))
    assert "pytorch native: new: other processes used up to 0.9 CPUs\n" in text(old, new)
    quiet = run(measurement(STEADY, notes=("a note",)))
    assert "a note" not in text(quiet, quiet)


def test_neighbours_have_a_column():
    names = ("jax", "pytorch", "tensorflow", "torch.compile")
    old, new = (run(*(measurement(scaled(by), f) for f in names)) for by in (1, 1.1))
    report = text(old, new)
    assert cells(report, "jax", "native", "auto")[-1] == "+10.0 %"
    assert "the rows measured in turn with it became 10.0 % slower in the middle" in report
    assert report.endswith("\n4 ambiguous: more --rounds, or a quieter machine, decide more\n")
