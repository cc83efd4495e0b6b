"""Cluster bootstrap (Cameron, Gelbach and Miller 2008) of samples and of passes, by rounds.

A quantity is the mean over rounds of what is typical of a round: of the interquartile mean, the mean of the middle
half, of what was seen in it. That mean is as unmoved by outliers as the quartiles are, and linear in all that was seen
in a pass. All rounds count alike, however many samples they have: a slow round has fewer in the same time, and a noisy
one is timed for longer, but each has its share of the passes. So the speeds between which a machine goes back and forth
weigh as much in the samples as in the passes, and what a round shares by its moment goes out of their difference. A
round that was disturbed as a whole is in the mean, and makes the interval wide.

Whole rounds are drawn: with all that was taken in them, and the same rounds for every row that has as many, as these
were measured in turn, and a drift hit them all. What a resample is off by is stretched as Student's distribution is
wider than the normal one (see :mod:`xframe.analysis.ratios`). One round tells nothing of how rounds differ: its
resamples are not a number, and so are those of all that is made of them; their interval is unbounded.

Simulated, samples and passes within 1 % and rounds that scatter by 0 to 10 %, fewer samples in slow ones, the intervals
of wall times, of kernels, of the residual and of what two rows differ by held the truth in 92 to 97 % of cases, with 2,
3, 5, 10 and 20 rounds alike.

A quantity is one array: its estimate first, then its value in each resample. Sums, differences and minima of quantities
are those of the arrays, and their intervals come with them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from xframe.analysis.ratios import stretch

#: Resamples. The ends of a 95 % interval then rest on 50 of them each.
RESAMPLES = 2000
#: Percentiles of the interval.
LOW, HIGH = 2.5, 97.5


@lru_cache
def _of_rounds(count: int) -> np.ndarray:
    """Weights of so many rounds in their mean, then in those of resamples; of shape (1 + resamples, rounds)."""
    estimate = np.full((1, count), 1 / max(1, count))
    if count < 2:
        return np.concatenate([estimate, np.full((RESAMPLES, count), np.nan)])
    drawn = np.random.default_rng(count).integers(count, size=(RESAMPLES, count))
    counts = np.zeros((RESAMPLES, count))
    np.add.at(counts, (np.arange(RESAMPLES)[:, None], drawn), 1)
    return np.concatenate([estimate, estimate + stretch(count) * (counts / count - estimate)])


def _middle(count: int) -> np.ndarray:
    """Weights of so many values, ascending, in their interquartile mean; a value that a quartile cuts has a part. Of
    three it is the median, lest an outlier has one."""
    cut = 1 / 3 if count == 3 else 1 / 4
    return np.diff(np.clip(np.arange(count + 1) / count, cut, 1 - cut)) / (1 - 2 * cut)


def weights(counts: Sequence[int]) -> np.ndarray:
    """Weights of values in the mean of their rounds' interquartile means, then in those of resamples.

    Parameters
    ----------
    counts
        How many values each round has, at least one each. They are in the order of the rounds, ascending in each.

    Returns
    -------
    np.ndarray
        Of shape (1 + resamples, values).
    """
    within = np.array([w for count in counts for w in _middle(count)])
    return np.repeat(_of_rounds(len(counts)), counts, axis=1) * within


def middles(rounds: Sequence[Sequence[float]]) -> np.ndarray:
    """The mean of the rounds' interquartile means, then those of resamples; at least one sample in each round."""
    return _of_rounds(len(rounds)) @ np.array([_middle(len(r)) @ np.sort(np.asarray(r, np.float64)) for r in rounds])


def interval(values: np.ndarray) -> tuple[float, float]:
    """The ends of the 95 % interval of a quantity, which holds its estimate; infinite where resamples tell nothing."""
    if np.isnan(values).any():
        return -math.inf, math.inf
    low, high = np.percentile(values[1:], [LOW, HIGH])
    return min(float(low), float(values[0])), max(float(high), float(values[0]))
