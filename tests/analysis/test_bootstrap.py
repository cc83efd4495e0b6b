"""Resampling: what it is deterministic in, and whether its intervals hold what they should."""

import itertools
import math

import numpy as np
import pytest

from xframe.analysis.bootstrap import RESAMPLES, interval, middle_weights, middles


def test_the_estimate_comes_first_and_the_order_of_samples_does_not_matter():
    rounds = [(3.0, 1.0), (2.0, 10.0, 5.0)]
    found = middles(rounds)
    assert found.shape == (1 + RESAMPLES,)
    assert found[0] == pytest.approx(0.3 * 2 + 0.4 * 3 + 0.3 * 5)  # a quartile cuts the second and the fourth of five
    assert (found == middles([(1.0, 3.0), (5.0, 2.0, 10.0)])).all()


def test_drawing_some_at_a_time_changes_nothing(monkeypatch):
    rounds = [range(10), range(5, 30), range(2)]
    whole = middles(rounds)
    monkeypatch.setattr("xframe.analysis.bootstrap.CHUNK", 80)
    assert middles(rounds) == pytest.approx(whole)


def test_whole_rounds_are_drawn_and_what_they_are_off_by_is_stretched():
    """Of two rounds a resample has one twice, the other twice, or both: against their interquartile means."""
    rounds = [(1.0, 2.0, 3.0, 4.0), (2.0, 4.0, 6.0, 8.0)]
    found = middles(rounds)
    stretch = math.sqrt(2) * 12.706 / 1.96  # Student's, of one degree of freedom
    assert found[0] == pytest.approx((2 + 3 + 4 + 4) / 4)
    offs = sorted({round(x, 6) for x in (found[1:] - found[0]) / stretch})
    assert offs == pytest.approx([2.5 - 3.25, 0.0, 5.0 - 3.25])


def test_one_round_tells_nothing_of_how_rounds_differ():
    found = middles([(1.0, 2.0, 9.0)])
    assert found[0] == pytest.approx((1 + 4 * 2 + 9) / 6)
    assert interval(found) == (-math.inf, math.inf)
    weights = middle_weights([0, 0, 0], 1)
    assert weights[0].sum() == pytest.approx(1)
    assert interval(weights @ np.ones(3)) == (-math.inf, math.inf)
    assert interval(weights @ np.ones(3) - middles([[1.0], [1.0]])) == (
        -math.inf,
        math.inf,
    )  # nor of what it is part of


@pytest.mark.parametrize(
    ("passes", "expected"),
    [
        (1, [1]),
        (2, [1 / 2, 1 / 2]),
        (3, [1 / 6, 2 / 3, 1 / 6]),
        (4, [0, 1 / 2, 1 / 2, 0]),
        (9, [0, 0, 1 / 6, 2 / 9, 2 / 9, 2 / 9, 1 / 6, 0, 0]),
    ],
)
def test_a_typical_pass_is_the_middle_half(passes, expected):
    weights = middle_weights(range(passes), passes)
    assert weights.shape == (1 + RESAMPLES, passes)
    assert weights[0] == pytest.approx(expected)
    if passes > 1:
        assert weights.sum(axis=1) == pytest.approx(1)
    assert middle_weights([], 0).shape == (1 + RESAMPLES, 0)


def test_an_outlier_among_the_passes_moves_nothing():
    calm, wild = np.array([1.0, 1.1, 1.2, 1.3, 1.4]), np.array([1.0, 1.1, 1.2, 1.3, 99.0])
    weights = middle_weights([0, 1, 0, 1, 0], 2)
    assert weights[0] @ calm == pytest.approx(weights[0] @ wild)


def test_the_same_rounds_are_drawn_for_all_that_has_as_many():
    """So what drifted in two rows alike cancels in their difference."""
    levels = (1.0, 1.2, 0.9)
    one, other = ([[x * level for x in (0.99, 1.0, 1.01)] for level in levels] for x in (1.0, 1.0))
    both = middles(one) - middles([[2 + x - 1 for x in r] for r in other])
    assert interval(both) == pytest.approx((-1.0, -1.0))


def test_an_interval_leaves_a_fortieth_out_at_each_end_and_holds_the_estimate():
    assert interval(np.array([500.0, *np.arange(1001.0)])) == (25.0, 975.0)
    assert interval(np.array([-3.0, *np.arange(1001.0)])) == (-3.0, 975.0)


@pytest.mark.parametrize(
    ("rounds", "scatter"), [*itertools.product((3, 5), (0.1, 0.04, 0.01)), (10, 0.1), (10, 0.01), (20, 0.04)]
)
def test_intervals_hold_the_truth_about_as_often_as_they_promise(rounds, scatter):
    """Of a wall time, of kernels in the passes, of what the two leave, and of what another row takes longer, in rounds
    of which each has a level of its own."""
    g, cases, held = np.random.default_rng(rounds), 60 if rounds < 10 else 40, np.zeros(4)
    of = np.repeat(np.arange(rounds), max(1, 15 // rounds))
    for _ in range(cases):
        levels = 1 + scatter * g.standard_normal(rounds)

        def about(time, where, levels=levels):
            return time * levels[where] * (1 + 0.01 * g.standard_normal(len(where)))

        walls = [middles(about(time, np.repeat(np.arange(rounds), 6)).reshape(rounds, 6)) for time in (10.0, 9.0)]
        passes = about(10.0, of)
        order = np.argsort(passes)
        weights = middle_weights(of[order], rounds)
        kernels, whole = weights @ about(6.0, of)[order], weights @ passes[order]
        found = zip((walls[0], kernels, walls[0] - whole, walls[0] - walls[1]), (10, 6, 0, 1), strict=True)
        held += [low <= truth <= high for (low, high), truth in ((interval(q), truth) for q, truth in found)]
    assert (held >= 0.87 * cases).all(), held / cases
    assert held.sum() < 4 * cases
