"""Cluster bootstrap (Cameron, Gelbach and Miller 2008) of samples and of passes, by rounds.

A quantity is the mean over rounds of what is typical of a round: of the interquartile mean, the mean of the middle
half, of what was seen in it. That mean is as unmoved by outliers as the quartiles are, and linear in all that was seen
in a pass. Rounds do not count by how many samples they have: a slow round has fewer in the same time, and a noisy one
is timed for longer, but each has its share of the passes. So the speeds between which a machine goes back and forth
weigh as much in the samples as in the passes, and what a round shares by its moment goes out of their difference. A
round between whose samples and passes the machine changed its speed counts less, by Huber's weights (1964): it tells
less of where the samples' time goes.

Whole rounds are drawn: with all that was taken in them, and the same rounds for every row that has as many, as these
were measured in turn, and a drift hit them all. What a resample is off by is stretched as Student's distribution is
wider than the normal one (see :mod:`xframe.analysis.ratios`). One round tells nothing of how rounds differ: its
resamples are not a number, and so are those of all that is made of them; their interval is unbounded.

Simulated, samples and passes within 1 %, rounds that scatter by 0 to 10 %, with fewer samples in slow ones, and speeds
that change by 0 to 10 % between samples and passes, the intervals of wall times, of kernels and of the residual held
the truth in 92 to 98 % of cases, with 2, 3, 5, 10 and 20 rounds alike; those of what two rows differ by in 92 to 100 %.

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
#: Of deviations from the median, in standard deviations: up to here a value has its full weight (Huber); and the median
#: one of normal noise, of which there are so many in one standard deviation.
HUBER, MEDIAN_DEVIATIONS = 1.345, 1.4826
#: Percentiles of the interval.
LOW, HIGH = 2.5, 97.5


@lru_cache
def _draws(rounds: int) -> np.ndarray:
    """The rounds of each resample: (resamples, rounds)."""
    return np.random.default_rng(rounds).integers(rounds, size=(RESAMPLES, rounds))


def of_rounds(changes: np.ndarray, same: float = 1.0) -> np.ndarray:
    """Weights of rounds in their mean, then in those of resamples; of shape (1 + resamples, rounds).

    Parameters
    ----------
    changes
        By what the machine changed in each round, from its samples to its passes.
    same
        A difference of changes that is none; above 0.
    """
    count = changes.size
    estimate = _trust(changes[None], same)
    estimate /= estimate.sum()
    if count < 2:
        return np.concatenate([estimate, np.full((RESAMPLES, count), np.nan)])
    drawn = _draws(count)
    weights = np.zeros((RESAMPLES, count))
    np.add.at(weights, (np.arange(RESAMPLES)[:, None], drawn), _trust(changes[drawn], same))
    weights /= weights.sum(axis=1, keepdims=True)
    return np.concatenate([estimate, estimate + stretch(count) * (weights - estimate)])


def _trust(changes: np.ndarray, same: float) -> np.ndarray:
    """Huber's weights of changes, of each row of them among each other."""
    if not changes.size:
        return np.ones_like(changes)
    off = np.abs(changes - np.median(changes, axis=1, keepdims=True))
    reach = np.maximum(HUBER * MEDIAN_DEVIATIONS * np.median(off, axis=1, keepdims=True), same)
    return reach / np.maximum(off, reach)


def middle(count: int) -> np.ndarray:
    """Weights of so many values, ascending, in their interquartile mean; a value that a quartile cuts has a part. Of
    three it is the median, lest an outlier has one."""
    cut = 1 / 3 if count == 3 else 1 / 4
    return np.diff(np.clip(np.arange(count + 1) / count, cut, 1 - cut)) / (1 - 2 * cut)


def middles(rounds: Sequence[Sequence[float]]) -> np.ndarray:
    """The interquartile mean of each round; at least one sample in each."""
    return np.array([middle(len(r)) @ np.sort(np.asarray(r, np.float64)) for r in rounds])


def interval(values: np.ndarray) -> tuple[float, float]:
    """The ends of the 95 % interval of a quantity, which holds its estimate; infinite where resamples tell nothing."""
    if np.isnan(values).any():
        return -math.inf, math.inf
    low, high = np.percentile(values[1:], [LOW, HIGH])
    return min(float(low), float(values[0])), max(float(high), float(values[0]))
