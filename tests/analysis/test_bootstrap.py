"""Resampling: what it is deterministic in, and whether its intervals hold what they should."""

import itertools
import math

import numpy as np
import pytest

from xframe.analysis.bootstrap import RESAMPLES, interval, middles, weights


def test_the_estimate_comes_first_and_the_order_of_samples_does_not_matter():
    found = middles([(3.0, 1.0), (2.0, 10.0, 5.0)])
    assert found.shape == (1 + RESAMPLES,)
    assert found[0] == pytest.approx((2 + 5) / 2)
    assert (found == middles([(1.0, 3.0), (5.0, 2.0, 10.0)])).all()


def test_a_round_counts_as_much_as_another_however_many_samples_it_has():
    """A slow round has fewer in the same time, and a noisy one is timed for longer; each has as many passes."""
    rounds = [(10.0,) * 90, (20.0,) * 12, (12.0,) * 75]
    passes = weights([3, 3, 3]) @ np.repeat([10.0, 20.0, 12.0], 3)
    assert middles(rounds)[0] == pytest.approx(14)
    assert middles(rounds) == pytest.approx(passes)


def test_whole_rounds_are_drawn_and_what_they_are_off_by_is_stretched():
    """Of two rounds a resample has one twice, the other twice, or both."""
    found = middles([(1.0, 2.0, 3.0, 4.0), (2.0, 4.0, 6.0, 8.0)])
    stretch = math.sqrt(2) * 12.706 / 1.96  # Student's, of one degree of freedom
    assert found[0] == pytest.approx((2.5 + 5.0) / 2)
    offs = sorted({round(x, 6) for x in (found[1:] - found[0]) / stretch})
    assert offs == pytest.approx([-1.25, 0.0, 1.25])


def test_one_round_tells_nothing_of_how_rounds_differ():
    found = middles([(1.0, 2.0, 9.0)])
    assert found[0] == pytest.approx(2)
    assert interval(found) == (-math.inf, math.inf)
    three = weights([3])
    assert three[0].sum() == pytest.approx(1)
    assert interval(three @ np.ones(3)) == (-math.inf, math.inf)
    of_more = three @ np.ones(3) - middles([[1.0], [1.0]])
    assert interval(of_more) == (-math.inf, math.inf)  # nor of what it is part of


@pytest.mark.parametrize(
    ("passes", "expected"),
    [
        (1, [1]),
        (2, [1 / 2, 1 / 2]),
        (3, [0, 1, 0]),
        (4, [0, 1 / 2, 1 / 2, 0]),
        (9, [0, 0, 1 / 6, 2 / 9, 2 / 9, 2 / 9, 1 / 6, 0, 0]),
    ],
)
def test_a_typical_pass_is_the_middle_half_of_each_round(passes, expected):
    assert weights([passes])[0] == pytest.approx(expected)
    found = weights([passes, 1])
    assert found.shape == (1 + RESAMPLES, passes + 1)
    assert found[0] == pytest.approx([*np.array(expected) / 2, 1 / 2])
    assert found.sum(axis=1) == pytest.approx(1)
    assert weights([]).shape == (1 + RESAMPLES, 0)


@pytest.mark.parametrize("count", range(3, 12))
def test_an_outlier_among_the_passes_moves_nothing(count):
    of = weights([count, count])[0]
    calm = np.tile(1 + np.arange(count) / 10, 2)
    assert of @ calm == pytest.approx(of @ np.array([*calm[:-1], 99.0]))


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
    ("rounds", "scatter"), [*itertools.product((2, 3, 5), (0.1, 0.01)), (10, 0.1), (10, 0.0), (20, 0.04)]
)
def test_intervals_hold_the_truth_about_as_often_as_they_promise(rounds, scatter):
    """Of a wall time, of kernels in the passes, of what the two leave, and of what another row takes longer, in rounds
    of which each has a level of its own, and fewer samples where it is slow."""
    g, cases, held = np.random.default_rng(rounds), 250, np.zeros(4)
    for _ in range(cases):
        levels = 1 + scatter * g.standard_normal(rounds)

        def about(time, counts, levels=levels):
            level = np.repeat(levels, counts)
            return time * level * (1 + 0.01 * g.standard_normal(len(level)))

        counts = np.where(levels > 1, 4, 40)
        walls = [middles(np.split(about(time, counts), np.cumsum(counts)[:-1])) for time in (10.0, 9.0)]
        of = np.full(rounds, max(1, 15 // rounds))
        whole = np.sort(about(10.0, of).reshape(rounds, -1)).ravel()
        kernels = weights(of) @ (0.6 * whole * (1 + 0.01 * g.standard_normal(len(whole))))
        quantities = (walls[0], kernels, walls[0] - weights(of) @ whole, walls[0] - walls[1])
        held += [
            low <= truth <= high for (low, high), truth in zip(map(interval, quantities), (10, 6, 0, 1), strict=True)
        ]
    assert (held >= 0.88 * cases).all(), held / cases
    assert held.sum() < 4 * cases
