"""Resampling: what it is deterministic in, and whether its intervals hold what they should."""

import numpy as np
import pytest

from xframe.analysis.bootstrap import RESAMPLES, generator, interval, middle_weights, middles


def test_the_same_data_give_the_same_resamples_and_others_independent_ones():
    one, again, other = (generator("row", x).random(500) for x in (1.0, 1.0, 2.0))
    assert (one == again).all()
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.2


def test_the_estimate_comes_first_and_the_order_of_samples_and_rounds_does_not_matter():
    rounds = [(3.0, 1.0), (), (2.0, 10.0, 5.0)]
    found = middles(rounds, generator(0))
    assert found.shape == (1 + RESAMPLES,)
    assert found[0] == pytest.approx(0.3 * 2 + 0.4 * 3 + 0.3 * 5)  # a quartile cuts the second and the fourth of five
    assert (found == middles([(5.0, 2.0, 10.0), (1.0, 3.0)], generator(0))).all()
    assert found.min() >= 1
    assert found.max() <= 10


def test_drawing_some_at_a_time_changes_no_number_of_resamples(monkeypatch):
    whole = middles([range(10)], generator(0))
    monkeypatch.setattr("xframe.analysis.bootstrap.CHUNK", 35)
    parts = middles([range(10)], generator(0))
    assert parts.shape == whole.shape
    assert interval(parts[1:]) == pytest.approx(interval(whole[1:]), abs=0.5)


def test_intervals_hold_the_median_about_as_often_as_they_promise():
    g, held = np.random.default_rng(0), 0
    for case in range(200):
        low, high = interval(middles([g.normal(7, 1, 31)], generator(case), 500)[1:])
        held += low <= 7 <= high
    assert 0.88 <= held / 200 <= 0.99


def test_rounds_that_differ_widen_the_interval():
    """Twenty samples of each of three rounds say less than sixty of one."""
    g = np.random.default_rng(0)
    rounds = [level + 0.01 * g.standard_normal(20) for level in (1.0, 1.1, 1.2)]
    low, high = interval(middles(rounds, generator(0))[1:])
    assert low < 1.02
    assert high > 1.18
    low, high = interval(middles([np.concatenate(rounds)], generator(0))[1:])
    assert low > 1.02
    assert high < 1.18


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
    weights = middle_weights(passes, generator(0))
    assert weights.shape == (1 + RESAMPLES, passes)
    assert weights[0] == pytest.approx(expected)
    assert weights.sum(axis=1) == pytest.approx(1)
    assert (weights >= 0).all()


def test_a_resample_of_passes_ranks_them_anew():
    """Against the interquartile mean of what was drawn, which is found again from the weights of pass numbers."""
    values = np.array([1.0, 2.0, 3.0, 4.0])
    found = middle_weights(4, generator(0)) @ values
    drawn = np.sort(generator(0).integers(4, size=(RESAMPLES, 4)), axis=1)
    assert found[1:] == pytest.approx(values[drawn][:, 1:3].mean(axis=1))


def test_an_outlier_among_the_passes_moves_nothing():
    calm, wild = np.array([1.0, 1.1, 1.2, 1.3, 1.4]), np.array([1.0, 1.1, 1.2, 1.3, 99.0])
    weights = middle_weights(5, generator(0))
    assert weights[0] @ calm == pytest.approx(weights[0] @ wild)


def test_an_interval_leaves_a_fortieth_out_at_each_end():
    assert interval(np.arange(1001.0)) == (25.0, 975.0)
