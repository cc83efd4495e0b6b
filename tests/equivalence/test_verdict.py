"""What a verdict says."""

import numpy as np
import pytest

from xframe.equivalence.reference import Judged
from xframe.equivalence.verdict import judge

VALUE = np.arange(1, 13, dtype=np.float64).reshape(3, 4)
WANT = [Judged("prob", VALUE, np.full((3, 4), 1e-3))]


def changed(at, value):
    out = VALUE.astype(np.float32)
    out[at] = value
    return [out]


def test_within_the_bound():
    verdict = judge(changed((1, 2), VALUE[1, 2] + 5e-4), WANT)
    assert verdict.ok
    assert not verdict.reason
    assert verdict.error == pytest.approx(5e-4, rel=1e-2)
    assert verdict.ratio == pytest.approx(0.5, rel=1e-2)
    assert verdict.bound == 1e-3


def test_beyond_the_bound_names_the_element():
    verdict = judge(changed((1, 2), 9.0), WANT)
    assert not verdict.ok
    assert verdict.ratio == pytest.approx(2000)
    for word in ("prob", "[1, 2]", "is 9", "expected 7", "0.001", "1 of 12"):
        assert word in verdict.reason


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_not_finite_never_passes(value):
    verdict = judge(changed((2, 0), value), WANT)
    assert not verdict.ok
    assert verdict.ratio is None
    for word in ("prob", "[2, 0]", str(value), "expected 9"):
        assert word in verdict.reason
    for value_, bound in ((np.full((3, 4), value), np.ones((3, 4))), (VALUE, np.full((3, 4), abs(value)))):
        verdict = judge([VALUE], [Judged("prob", value_, bound)])
        assert not verdict.ok
        assert "not finite" in verdict.reason


def test_shapes_and_counts():
    assert "(4, 3)" in judge([VALUE.T], WANT).reason
    assert "2 outputs" in judge([VALUE, VALUE], WANT).reason
    for empty in (judge([], []), judge([np.ones(0)], [Judged("y", np.ones(0), np.ones(0))])):
        assert not empty.ok
        assert empty.reason


def test_a_bound_that_could_not_fail_is_not_passed():
    verdict = judge([VALUE], [Judged("prob", VALUE, VALUE * 2)])
    assert not verdict.ok
    assert "unchecked" in verdict.reason


def test_the_worst_of_several_outputs():
    both = [*WANT, Judged("aux", VALUE, np.full((3, 4), 1e-6))]
    good = VALUE + 1e-7
    verdict = judge([VALUE + 5e-4, good], both)
    assert verdict.ok
    assert (verdict.error, verdict.bound) == (pytest.approx(5e-4), 1e-3)
    verdict = judge([VALUE + 5e-4, VALUE + 1e-5], both)
    assert not verdict.ok
    assert "aux" in verdict.reason
    assert verdict.bound == 1e-6
    assert verdict.error == pytest.approx(5e-4)
