"""Ratios of times: their interval knows of drift between visits, and verdicts need all of it."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from tests.drifting import Noise
from xframe.analysis.ratios import Ratio, Verdict, checked, ratio
from xframe.errors import UsageError

ROUNDS = st.lists(st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=6), min_size=2, max_size=5)


def test_of_steady_times_it_is_exact():
    found = ratio([[0.2, 0.2], [0.2]], [[0.1], [0.1, 0.1, 0.1]])
    assert (found.value, found.low, found.high) == pytest.approx((2, 2, 2))


def test_it_is_of_medians_and_a_geometric_mean_over_visits():
    found = ratio([[1.0, 2.0, 50.0], [8.0, 8.0]], [[1.0], [1.0]])
    assert found.value == pytest.approx(math.sqrt(2 * 8))
    assert found.low < 2
    assert found.high > 8  # two visits that disagree by so much decide nothing


def test_one_visit_tells_nothing_of_drift():
    found = ratio([[1.0] * 100], [[2.0] * 100, [2.0] * 100])
    assert (found.value, found.low, found.high) == (pytest.approx(0.5), 0.0, math.inf)
    assert found.verdict() == Verdict.AMBIGUOUS
    assert (found.inverse.low, found.inverse.high) == (0.0, math.inf)


def test_drift_that_hits_both_alike_goes_where_visits_are_paired():
    drift = [1.0, 1.4, 0.8]
    above, below = ([[t * d] * 5 for d in drift] for t in (1.1, 1.0))
    assert ratio(above, below, paired=True).low == pytest.approx(1.1)
    assert ratio(above, below).low < 0.9
    assert ratio([*above, [9.0]], below, paired=True) == ratio(above, below, paired=True)


@given(ROUNDS, ROUNDS, st.floats(0.01, 100.0))
def test_a_scale_and_a_side_do_not_matter(above, below, scale):
    found, inverse = ratio(above, below), ratio(below, above)
    assert found.low <= found.value <= found.high
    assert found.value == pytest.approx(1 / inverse.value)
    scaled = ratio([[s * scale for s in r] for r in above], below)
    assert (scaled.value, scaled.low, scaled.high) == pytest.approx(
        (found.value * scale, found.low * scale, found.high * scale), rel=1e-6
    )


@given(ROUNDS)
def test_nothing_differs_from_itself(rounds):
    found = ratio(rounds, rounds)
    assert found.value == pytest.approx(1)
    assert found.verdict() in (Verdict.SAME, Verdict.AMBIGUOUS)
    assert ratio(rounds, rounds, paired=True).low <= 1 <= ratio(rounds, rounds, paired=True).high


@pytest.mark.parametrize(("visits", "paired"), [(2, False), (3, False), (5, False), (3, True), (5, True)])
def test_the_interval_holds_the_truth_as_often_as_it_says(visits, paired):
    """Without drift between results, which no result shows: 95 % nominal, at least 90 % of 400 here."""
    rng, inside = np.random.default_rng(visits), 0
    noise = Noise(between=0.0, process=0.0)
    for _ in range(400):
        one, other = noise.rows(rng, [0.011, 0.010], visits) if paired else (
            noise.rows(rng, [t], visits)[0] for t in (0.011, 0.010)
        )  # fmt: skip
        found = ratio(one, other, paired)
        inside += found.low <= 1.1 <= found.high
    assert 360 <= inside < 400


@pytest.mark.parametrize(
    ("value", "low", "high", "verdict"),
    [
        (1.10, 1.03, 1.20, Verdict.SLOWER),
        (1.10, 1.01, 1.20, Verdict.AMBIGUOUS),  # part of it is below the threshold
        (0.90, 0.80, 0.97, Verdict.FASTER),
        (0.97, 0.95, 0.99, Verdict.AMBIGUOUS),
        (1.00, 0.99, 1.01, Verdict.SAME),
        (1.015, 1.012, 1.018, Verdict.SAME),  # surely slower, and by less than matters
        (1.00, 0.90, 1.10, Verdict.AMBIGUOUS),
    ],
)
def test_verdicts(value, low, high, verdict):
    assert Ratio(value, low, high).verdict(0.02) == verdict


def test_the_ratio_of_ratios_adds_their_errors():
    found = Ratio(1.2, 1.1, 1.3).over(Ratio(1.2, 1.2, 1.2))
    assert (found.value, found.low, found.high) == pytest.approx((1, 1.1 / 1.2, 1.3 / 1.2))
    wider = Ratio(1.2, 1.1, 1.3).over(Ratio(1.2, 1.1, 1.3))
    assert (wider.low, wider.high) < (found.low, 9)
    assert wider.high > found.high
    unknown = Ratio(1.0, 0.0, math.inf).over(Ratio(2.0, 0.0, math.inf))
    assert (unknown.value, unknown.low, unknown.high) == (0.5, 0.0, math.inf)


@pytest.mark.parametrize("threshold", [-0.1, math.nan, math.inf])
def test_a_senseless_threshold_is_refused(threshold):
    with pytest.raises(UsageError, match="makes no sense"):
        checked(threshold)
