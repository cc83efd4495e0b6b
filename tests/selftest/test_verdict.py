"""A lie is found only where it was planted, with the size that it had."""

from dataclasses import replace

import pytest

from xframe.analysis.terms import TERMS, Decomposition, Term
from xframe.results import Measurement
from xframe.selftest import verdict
from xframe.selftest.lies import LIES
from xframe.types import Case, Outcome, Plan

CASE = Case("tiny", "pytorch", "native", Plan(), "cpu", 1, 1)


def term(name, seconds, spread=0.01, parts=()):
    return Term(name, seconds, seconds - spread, seconds + spread, tuple(parts))


def difference(**given):
    """Of two rows, in ms: terms that are not given are 0 within 0.01."""
    terms = tuple(given.get(name, term(name, 0.0)) for name in TERMS)
    return Decomposition("lying - honest", term("wall", sum(t.seconds for t in terms)), terms)


def convolutions(*parts):
    return term("convolutions", sum(t.seconds for t in parts), parts=parts)


def overhead(**parts):
    return term("overhead", sum(parts.values()), parts=[term(name, seconds) for name, seconds in parts.items()])


MISSED_AND_FOUND = (Outcome.FAILED, Outcome.MISMATCH)
PLANTED = [0.99, 1.0, 1.3]  # one step was disturbed


def test_a_lie_in_its_term_is_found():
    found = verdict.timed("spin", LIES["spin"], PLANTED, difference(overhead=term("overhead", 1.005)))
    assert (found.ok, found.reason, found.within) == (True, "", True)
    assert (found.planted, found.seconds) == (1.0, 1.005)
    assert found.lands == "overhead"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "1000.000 ms were planted and 0.000 ms (-10.000 to 10.000) are in overhead"),
        ({"overhead": term("overhead", 0.5)}, "were planted and 500.000 ms"),
        ({"overhead": term("overhead", 1.5)}, "were planted and 1500.000 ms"),
        ({"overhead": term("overhead", 1.0, spread=1.1)}, "(-100.000 to 2100.000) are in overhead"),
        (
            {"overhead": term("overhead", 1.0), "layout": term("layout", 0.2)},
            "200.000 ms (190.000 to 210.000) are in l",
        ),
        (
            {"overhead": term("overhead", 1.0), "residual": term("residual", -0.2)},
            "(-210.000 to -190.000) are in resid",
        ),
        ({"quality": term("quality", 1.0)}, "are in quality"),
    ],
)
def test_a_lie_elsewhere_or_of_another_size_is_missed(given, words):
    """By any term: too little, too much, an interval that tells nothing, time in a term where there should be none."""
    found = verdict.timed("spin", LIES["spin"], PLANTED, difference(**given))
    assert not found.ok
    assert found.within is False
    assert words in found.reason


def test_what_lies_between_the_interval_and_the_tolerance_is_found_and_told():
    found = verdict.timed("spin", LIES["spin"], PLANTED, difference(overhead=term("overhead", 1.05)))
    assert (found.ok, found.within) == (True, False)
    found = verdict.timed(
        "spin", LIES["spin"], PLANTED, difference(overhead=term("overhead", 1.0), operators=term("operators", 0.05))
    )
    assert (found.ok, found.within) == (True, False)


def test_a_slowed_kernel_is_at_its_site_and_no_other():
    lie = LIES["kernel"]
    given = difference(convolutions=convolutions(term("conv2", 1.0), term("conv1", 0.0)))
    found = verdict.timed("kernel", lie, PLANTED, given, "conv2")
    assert (found.ok, found.lands) == (True, "convolutions, conv2")
    given = difference(convolutions=convolutions(term("conv2", 0.0), term("conv1", 1.0)))
    found = verdict.timed("kernel", lie, PLANTED, given, "conv2")
    assert found.reason.startswith("most of convolutions is not at conv2, but at conv1")
    given = difference(convolutions=convolutions(term("conv2", 1.3), term("conv1", -0.3)))
    found = verdict.timed("kernel", lie, PLANTED, given, "conv2")
    assert found.reason == "-300.000 ms (-310.000 to -290.000) of convolutions are at conv1"
    found = verdict.timed("kernel", lie, PLANTED, difference(convolutions=term("convolutions", 1.0)), "conv2")
    assert found.reason == "most of convolutions is not at conv2"


def test_an_allocation_need_not_be_all_of_the_overhead():
    """That tensors are freed is seen as the interpreter's time."""
    lie = LIES["allocation"]
    given = difference(overhead=overhead(allocation=0.4, python=0.5, gaps=0.1))
    assert verdict.timed("allocation", lie, PLANTED, given).ok
    given = difference(overhead=overhead(allocation=0.2, python=0.7, gaps=0.1))
    found = verdict.timed("allocation", lie, PLANTED, given)
    assert found.reason == "200.000 ms (190.000 to 210.000) of overhead is in allocation"
    found = verdict.timed("allocation", lie, PLANTED, difference(overhead=overhead(python=1.0)))
    assert found.reason == "nothing of overhead is in allocation"


def test_an_honest_row_shows_no_lie():
    assert verdict.honest(difference(operators=term("operators", 0.05)), 1.0).ok
    found = verdict.honest(difference(operators=term("operators", 0.05), layout=term("layout", -0.2)), 1.0)
    assert (found.ok, found.within) == (False, False)
    assert found.reason == "-200.000 ms (-210.000 to -190.000) are in layout"
    assert found.found.startswith("at most -200.000 ms")


@pytest.mark.parametrize(
    ("name", "outcome"), [("cached", Outcome.MISMATCH), ("fallback", Outcome.NOT_HONOURED)]
)  # fmt: skip
def test_a_lie_about_results_or_kernels_must_cost_the_row_its_outcome(name, outcome):
    assert verdict.refused(name, LIES[name], Measurement(CASE, outcome, "they differ")).ok
    believed = verdict.refused(name, LIES[name], Measurement(CASE, Outcome.OK, rounds=((1.0,),)))
    assert (believed.ok, believed.reason) == (False, "the row is OK: nothing was noticed")
    broken = verdict.refused(name, LIES[name], Measurement(CASE, Outcome.FAILED, "it crashed"))
    assert (broken.ok, broken.reason) == (False, "the row is FAILED: it crashed")


def test_a_load_must_be_in_the_notes_of_a_row_that_was_timed():
    note = "other processes used up to 1.9 CPUs while it was timed: times are too long"
    row = Measurement(CASE, Outcome.OK, rounds=((1.0,),), notes=("hot", note))
    found = verdict.noted("load", LIES["load"], row)
    assert (found.ok, found.found) == (True, note)
    assert not verdict.noted("load", LIES["load"], replace(row, notes=("hot",))).ok
    failed = verdict.noted("load", LIES["load"], Measurement(CASE, Outcome.FAILED, "it crashed", notes=(note,)))
    assert (failed.ok, failed.reason) == (False, "the row is FAILED: it crashed")


def test_a_miss_tells_what_disturbed_the_rows_behind_it():
    note = "other processes used up to 1.9 CPUs while it was timed: times are too long"
    quiet = Measurement(CASE, Outcome.OK, rounds=((1.0,),), notes=("hot",))
    rows = (quiet, replace(quiet, notes=(note,)), replace(quiet, notes=(note,)))
    missed, found = (verdict.refused("cached", LIES["cached"], Measurement(CASE, o, "why")) for o in MISSED_AND_FOUND)
    assert verdict.excused(missed, rows).reason == f"the row is FAILED: why; {note}"
    assert verdict.excused(missed, rows[:1]) == missed
    assert verdict.excused(found, rows) == found


def test_a_finding_has_every_key_in_json():
    found = verdict.missing("spin", LIES["spin"], "no profile")
    assert set(found.to_json()) == {
        "lie", "lands", "found", "ok", "reason", "planted_s", "found_s", "low_s", "high_s", "within_intervals",
    }  # fmt: skip
