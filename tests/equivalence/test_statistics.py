"""The measures of a deviation, and that they agree with the verdict."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from xframe.equivalence.reference import Judged
from xframe.equivalence.statistics import statistics
from xframe.equivalence.verdict import judge, uncompared
from xframe.errors import UsageError


def judged(value, bound=1e-3):
    value = np.asarray(value, np.float64)
    return Judged("y", value, np.full(value.shape, bound))


def test_each_measure():
    first = judged([[1.0, 2.0], [-4.0, 0.0]])
    second = first.value + np.array([[0, 2e-3], [-1e-3, 5e-4]])
    found = statistics(first, second)
    assert found.max_abs == pytest.approx(2e-3)
    assert found.max_rel == pytest.approx(1e-3)  # the zero is left out
    assert found.rms == pytest.approx(np.sqrt((4e-6 + 1e-6 + 0.25e-6) / 4))
    a, b = first.value.ravel(), second.ravel()
    assert found.cosine == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    assert found.ratio == pytest.approx(2)
    assert (found.at, found.first, found.bound) == ((0, 1), 2.0, 1e-3)
    assert found.second == pytest.approx(2.002)
    assert found.ulps[3] == pytest.approx(2e-3 / 2.0**-22)
    assert found.ulps[0] == pytest.approx(1e-3 / 2.0**-21)


def test_the_element_named_is_the_worst_of_its_own_bound():
    first = Judged("y", np.array([100.0, 1.0]), np.array([1e-1, 1e-6]))
    found = statistics(first, np.array([100.05, 1.00001]))
    assert found.at == (1,)
    assert found.ratio == pytest.approx(10, rel=1e-3)
    assert found.max_abs == pytest.approx(0.05)


def test_equal_tensors():
    found = statistics(judged([1.0, -2.0, 0.0]), np.array([1.0, -2.0, 0.0], np.float32))
    assert (found.max_abs, found.max_rel, found.rms, found.ratio, found.ulps) == (0, 0, 0, 0, (0, 0, 0, 0))
    assert found.cosine == 1
    for value in ([[1.0, -2.0, 0.0]], [[0.0]], 3.0):
        one = judged(value)
        assert statistics(one, one.value) == statistics(one, one.value.copy())  # the same memory is a short cut


def test_large_tensors():
    """Blocks and samples do not show."""
    r = np.random.default_rng(0)
    value = np.maximum(r.standard_normal((3, 41, 1111)), 0)
    second = (value + 1e-6 * r.standard_normal(value.shape)).astype(np.float32)
    second[2, 40, 1000] += 1
    found = statistics(judged(value), second)
    off = np.abs(second.astype(float) - value)
    kept = value > 0
    units = off[kept] / np.spacing(value[kept].astype(np.float32))
    assert (found.at, found.max_abs) == ((2, 40, 1000), off.max())
    assert found.rms == pytest.approx(np.sqrt(np.square(off).mean()))
    assert found.max_rel == pytest.approx((off[kept] / value[kept]).max())
    assert found.ulps[3] == pytest.approx(units.max(), rel=1e-6)
    np.testing.assert_allclose(found.ulps[:3], np.quantile(units, (0.5, 0.9, 0.99)), rtol=0.03)
    a, b = value.ravel(), second.ravel().astype(float)
    assert found.cosine == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-12)


def test_zeros_have_no_angle():
    found = statistics(judged([0.0, 0.0]), np.array([0.0, 1e-5]))
    assert found.cosine is None
    assert found.max_rel is None
    assert np.isfinite(found.ulps).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["first", "second", "both", "bound"])
def test_what_is_not_finite_is_infinitely_far(bad, where):
    value, bound, got = np.array([1.0, 2.0, 3.0]), np.full(3, 1e-3), np.array([1.0, 2.0, 3.0])
    if where in ("first", "both"):
        value[1] = bad
    if where in ("second", "both"):
        got[1] = bad
    if where == "bound":
        bound[1] = abs(bad)
    found = statistics(Judged("y", value, bound), got)
    assert found.ratio == np.inf
    assert found.at == (1,)
    assert not judge([got], [Judged("y", value, bound)]).ok
    if where != "bound":
        assert (found.max_abs, found.cosine) == (np.inf, None)


@pytest.mark.parametrize("second", [np.ones((2, 1)), np.ones(3), np.ones(())])
def test_shapes_must_be_equal(second):
    with pytest.raises(UsageError, match="shapes"):
        statistics(judged([1.0, 2.0]), second)
    with pytest.raises(UsageError, match="shapes"):
        statistics(judged([]), np.ones(0))


finite = st.floats(-1e6, 1e6, width=32)


@given(arrays(np.float64, 5, elements=finite), arrays(np.float64, 5, elements=st.floats(-1, 1)), st.floats(1e-6, 1e-1))
def test_agrees_with_the_verdict(value, off, bound):
    first, second = judged(value, bound), value + bound * 1.5 * off
    verdict, found = judge([second], [first]), statistics(first, second)
    if uncompared(first):
        assert not verdict.ok
        return
    assert verdict.ok == (found.ratio <= 1)
    assert (verdict.ratio, verdict.error) == (found.ratio, found.max_abs)
