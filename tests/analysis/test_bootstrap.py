"""Resampling: what it is deterministic in, and whether its intervals hold what they should."""

import itertools
import math

import numpy as np
import pytest

from xframe.analysis.bootstrap import RESAMPLES, interval, middle, middles, of_rounds


def typical(rounds):
    return of_rounds(np.zeros(len(rounds))) @ middles(rounds)


def test_the_estimate_comes_first_and_the_order_of_samples_does_not_matter():
    found = typical([(3.0, 1.0), (2.0, 10.0, 5.0)])
    assert found.shape == (1 + RESAMPLES,)
    assert found[0] == pytest.approx((2 + 5) / 2)
    assert (found == typical([(1.0, 3.0), (5.0, 2.0, 10.0)])).all()


def test_a_round_counts_as_much_as_another_however_many_samples_it_has():
    """A slow round has fewer in the same time, and a noisy one is timed for longer; each has as many passes."""
    many, few = (typical([(10.0,) * a, (20.0,) * b, (12.0,) * c]) for a, b, c in ((90, 12, 75), (3, 3, 3)))
    assert many[0] == pytest.approx(14)
    assert many == pytest.approx(few)


def test_whole_rounds_are_drawn_and_what_they_are_off_by_is_stretched():
    """Of two rounds a resample has one twice, the other twice, or both."""
    found = typical([(1.0, 2.0, 3.0, 4.0), (2.0, 4.0, 6.0, 8.0)])
    stretch = math.sqrt(2) * 12.706 / 1.96  # Student's, of one degree of freedom
    assert found[0] == pytest.approx((2.5 + 5.0) / 2)
    offs = sorted({round(x, 6) for x in (found[1:] - found[0]) / stretch})
    assert offs == pytest.approx([-1.25, 0.0, 1.25])


def test_one_round_tells_nothing_of_how_rounds_differ():
    found = typical([(1.0, 2.0, 9.0)])
    assert found[0] == pytest.approx(2)
    assert interval(found) == (-math.inf, math.inf)
    assert interval(found - typical([[1.0], [1.0]])) == (-math.inf, math.inf)  # nor of what it is part of
    assert of_rounds(np.zeros(0)).shape == (1 + RESAMPLES, 0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (1, [1]),
        (2, [1 / 2, 1 / 2]),
        (3, [0, 1, 0]),
        (4, [0, 1 / 2, 1 / 2, 0]),
        (9, [0, 0, 1 / 6, 2 / 9, 2 / 9, 2 / 9, 1 / 6, 0, 0]),
    ],
)
def test_what_is_typical_of_a_round_is_its_middle_half(values, expected):
    assert middle(values) == pytest.approx(expected)


@pytest.mark.parametrize("values", range(3, 12))
def test_an_outlier_in_a_round_moves_nothing(values):
    calm = 1 + np.arange(values) / 10
    assert middles([calm]) == pytest.approx(middles([[*calm[:-1], 99.0]]))


def test_rounds_in_which_the_machine_changed_its_speed_in_between_count_less():
    times, walls = np.array([10.0, 15.0, 10.1, 9.9, 20.0]), np.array([10.02, 15.05, 10.0, 9.95, 12.0])
    weights = of_rounds(walls - times, 0.2)
    assert weights.sum(axis=1) == pytest.approx(1)
    assert weights[0, :4] == pytest.approx(weights[0, 0])  # slow in both is slow
    assert 0 < weights[0, 4] < 0.05 * weights[0, 0]
    assert of_rounds(times - walls, 0.2) == pytest.approx(weights)
    assert of_rounds(7 * (walls - times), 1.4) == pytest.approx(weights)


@pytest.mark.parametrize("changes", [[5.0], [1.0, 9.0], [0.0, 0.0, 0.0, 0.0, 0.1]])
def test_of_few_rounds_none_is_unusual_and_of_those_that_hardly_differ(changes):
    assert of_rounds(np.array(changes), 0.1)[0] == pytest.approx(1 / len(changes))


def test_the_same_rounds_are_drawn_for_all_that_has_as_many():
    """So what drifted in two rows alike cancels in their difference."""
    levels = (1.0, 1.2, 0.9)
    one, other = ([[x * level for x in (0.99, 1.0, 1.01)] for level in levels] for x in (1.0, 1.0))
    both = typical(one) - typical([[2 + x - 1 for x in r] for r in other])
    assert interval(both) == pytest.approx((-1.0, -1.0))


def test_an_interval_leaves_a_fortieth_out_at_each_end_and_holds_the_estimate():
    assert interval(np.array([500.0, *np.arange(1001.0)])) == (25.0, 975.0)
    assert interval(np.array([-3.0, *np.arange(1001.0)])) == (-3.0, 975.0)


def held(rounds, scatter, jumps, cases):
    """How often intervals hold the truth: of a wall time, of kernels in the passes, of what the two leave, and of what
    another row takes longer.

    Rounds have a level each, which scatters, and fewer samples where it is slow; ``jumps``: by how much it scatters
    between samples and passes.
    """
    g, found = np.random.default_rng(rounds), np.zeros(4)
    for _ in range(cases):
        level = 1 + scatter * g.standard_normal(rounds)
        then = level + jumps * g.standard_normal(rounds)
        samples, passes = np.where(level > 1, 4, 40), np.full(rounds, max(1, 15 // rounds))

        def seen(time, level, counts):
            noise = 1 + 0.01 * g.standard_normal(counts.sum())
            return middles(np.split(time * np.repeat(level, counts) * noise, np.cumsum(counts)[:-1]))

        times, others, walls = seen(10.0, level, samples), seen(9.0, level, samples), seen(10.0, then, passes)
        kernels = 0.6 * walls * (1 + 0.01 * g.standard_normal(rounds))
        weights, of_others = of_rounds(walls - times, 0.1), of_rounds(np.zeros(rounds))
        quantities = weights @ times, weights @ kernels, weights @ (times - walls), weights @ times - of_others @ others
        found += [a <= x <= b for (a, b), x in zip(map(interval, quantities), (10, 6, 0, 1), strict=True)]
    return found / cases


@pytest.mark.parametrize(
    ("rounds", "scatter", "jumps"),
    [*itertools.product((2, 3, 5), (0.1, 0.01), (0.0, 0.1)), (10, 0.1, 0.0), (10, 0.0, 0.1), (20, 0.04, 0.04)],
)
def test_intervals_hold_the_truth_about_as_often_as_they_promise(rounds, scatter, jumps):
    found = held(rounds, scatter, jumps, 250)
    assert (found >= 0.88).all(), found
    assert found.sum() < 4
