"""Reading an ablation off its rows."""

import json

import pytest

from tests.drifting import measurement
from xframe.analysis.ablations import ALONE, DEFAULT, TOGETHER, WORST, ablations, helped, rows, slowest
from xframe.types import Outcome


def row(number, step, seconds, drift=(1.0, 1.0, 1.0), outcome=Outcome.OK, batch=1, threshold=None, **changed):
    rounds = [[seconds * d] * 5 for d in drift] if outcome == Outcome.OK else ()
    options = tuple((k, v) for k, v in changed.items() if k != "threads")
    about = {"ablation": {"set": number, "step": step, "changed": changed}}
    about["ablation"] |= {} if threshold is None else {"threshold": threshold}
    return measurement(rounds, options=options, outcome=outcome, environment=about, batch=batch)


def test_settings_stand_beside_the_default_of_their_own_set():
    (found,) = ablations(
        [
            row(0, DEFAULT, 0.010), row(0, ALONE, 0.005, a="1"),
            row(2, DEFAULT, 0.020, drift=(1, 1.5, 0.8)), row(2, ALONE, 0.015, drift=(1, 1.5, 0.8), b="1"),
        ]
    )  # fmt: skip
    assert [s.speedup.value for s in found.settings] == pytest.approx([2, 4 / 3])
    assert [s.speedup.low for s in found.settings] == pytest.approx([2, 4 / 3])  # what drifts together, goes
    assert found.default.samples[0] == 0.010


def test_the_best_value_of_each_switch_helps_largest_gain_first():
    (found,) = ablations(
        [
            row(0, DEFAULT, 0.010), row(0, ALONE, 0.009, a="1"), row(0, ALONE, 0.008, a="2"),
            row(0, ALONE, 0.005, b="1"),
            row(0, ALONE, 0.0099, c="1"), row(0, ALONE, 0.020, d="1"), row(0, ALONE, 0, outcome=Outcome.FAILED, e="1"),
        ]
    )  # fmt: skip
    assert [str(s) for s in helped(found.settings)] == ["b=1", "a=2"]
    assert str(slowest(found.settings)) == "d=1"
    assert found.together is None
    assert found.worst_to_best.value == pytest.approx(2)


@pytest.mark.parametrize(("threshold", "verdict"), [(None, "faster"), (0.02, "faster"), (0.1, "same"), (0.3, "same")])
def test_verdicts_are_by_the_threshold_that_the_run_was_asked_for(threshold, verdict):
    """Whoever reads it, and whenever: that of the file, or 2 % where it is of before."""
    measured = [row(*about, threshold=threshold, **changed) for about, changed in (
        ((0, DEFAULT, 0.010), {}), ((0, ALONE, 0.0096), {"a": "1"}), ((0, ALONE, 0.0104), {"b": "1"}),
        ((3, DEFAULT, 0.010), {}), ((3, TOGETHER, 0.0096), {"a": "1"}),
    )]  # fmt: skip
    (found,) = ablations(measured)
    good, bad, again = found.settings
    assert (good.verdict, again.verdict) == (verdict, verdict)
    assert bad.verdict == verdict.replace("faster", "slower")
    assert [str(s) for s in helped(found.of(ALONE))] == ["a=1"] * (verdict == "faster")
    assert (slowest(found.of(ALONE)) is None, found.best is None) == (verdict == "same",) * 2
    assert {told["threshold"] for _, told in rows(measured)} == {threshold or 0.02}


def test_fewer_threads_are_not_the_worst_option():
    (found,) = ablations([row(0, DEFAULT, 0.010), row(0, ALONE, 0.020, threads="1"), row(0, ALONE, 0.015, a="1")])
    assert str(found.worst) == "a=1"
    (found,) = ablations([row(0, DEFAULT, 0.010), row(0, ALONE, 0.020, threads="1")])
    assert found.worst is None


def test_the_last_word_have_those_measured_again():
    (found,) = ablations(
        [
            row(0, DEFAULT, 0.010), row(0, ALONE, 0.005, a="1"), row(0, ALONE, 0.020, b="1"),
            row(3, DEFAULT, 0.012), row(3, TOGETHER, 0.008, a="1"), row(3, WORST, 0.016, b="1"),
        ]
    )  # fmt: skip
    assert found.together.speedup.value == pytest.approx(1.5)
    assert found.worst_to_best.value == pytest.approx(2)


def test_runners_and_batches_are_apart_and_other_rows_are_passed_over():
    found = ablations([measurement([[1.0]]), row(0, DEFAULT, 0.01), row(1, DEFAULT, 0.1, batch=16)])
    assert [a.default.case.batch for a in found] == [1, 16]
    assert ablations([row(0, ALONE, 0.01, a="1")]) == []


def test_rows_have_the_same_keys_whatever_became_of_them():
    measured = [
        row(0, DEFAULT, 0.01),
        row(0, ALONE, 0.005, a="1"),
        row(0, ALONE, 0, outcome=Outcome.UNSUPPORTED, b="1"),
    ]
    told = [about for _, about in rows(measured)]
    assert len({tuple(t) for t in told}) == 1
    assert [(t["step"], t["verdict"]) for t in told] == [(DEFAULT, "same"), (ALONE, "faster"), (ALONE, None)]
    assert json.loads(json.dumps(told)) == told
