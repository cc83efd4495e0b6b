"""Percentile bootstrap (Efron and Tibshirani 1993, section 13.3) of interquartile means of samples and of passes.

The interquartile mean is the mean of the middle half: as unmoved by outliers as the quartiles are, and linear in all
that was seen in a pass. Where a machine goes back and forth between two speeds, it moves with the share of each; a
median jumps from one to the other, at another share for samples than for passes.

A quantity is one array: its estimate first, then its value in each resample. Sums, differences and minima of quantities
are those of the arrays, and their intervals come with them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

#: Resamples. The ends of a 95 % interval then rest on 50 of them each.
RESAMPLES = 2000
#: Samples that are drawn at a time: of a small network there are thousands.
CHUNK = 1 << 20
#: Percentiles of the interval.
LOW, HIGH = 2.5, 97.5


def generator(*content: object) -> np.random.Generator:
    """Seeded by what is resampled: the same data always give the same resamples, whatever else is in a run, and
    different data independent ones."""
    digest = hashlib.sha256(repr(content).encode()).digest()
    return np.random.default_rng(np.frombuffer(digest, np.uint32))


def middles(rounds: Sequence[Sequence[float]], rng: np.random.Generator, resamples: int = RESAMPLES) -> np.ndarray:
    """The interquartile mean of all samples, then those of resamples: of rounds first, then of the samples in each.

    Samples of one round share its moment on the machine, so that they alone would make the interval too narrow.

    Parameters
    ----------
    rounds
        At least one sample in all; empty rounds don't count.
    """
    filled = [np.sort(np.asarray(r, dtype=np.float64)) for r in rounds if len(r)]
    filled.sort(key=tuple)  # their order means nothing
    values = np.concatenate(filled)
    lengths = np.array([r.size for r in filled])
    firsts = np.cumsum(lengths) - lengths
    weights = _middle(values.size)

    def resampled(count: int) -> np.ndarray:
        rows = rng.integers(len(filled), size=(count, len(filled)))
        rows = np.repeat(rows, -(-values.size // len(filled)), axis=1)[:, : values.size]
        drawn = firsts[rows] + (rng.random(rows.shape) * lengths[rows]).astype(np.int64)
        return np.sort(values[drawn], axis=1) @ weights

    step = max(1, CHUNK // values.size)
    chunks = [resampled(min(step, resamples - first)) for first in range(0, resamples, step)]
    return np.concatenate([[np.sort(values) @ weights], *chunks])


def middle_weights(passes: int, rng: np.random.Generator, resamples: int = RESAMPLES) -> np.ndarray:
    """Weights of passes in their interquartile mean, then in those of resamples; of shape (1 + resamples, passes).

    The passes must be in the order of what they are ranked by; of none there is nothing to weigh.
    """
    if not passes:
        return np.zeros((1 + resamples, 0))
    middle = _middle(passes)
    drawn = np.sort(rng.integers(passes, size=(resamples, passes)), axis=1)
    weights = np.zeros((1 + resamples, passes))
    weights[0] = middle
    np.add.at(weights, (np.arange(1, 1 + resamples)[:, None], drawn), middle[None, :])
    return weights


def _middle(count: int) -> np.ndarray:
    """Weights in the interquartile mean of ``count`` values in ascending order; one that a quartile cuts has a part."""
    ranks = np.arange(count + 1) / count
    return np.diff(np.clip(ranks, 0.25, 0.75)) * 2


def interval(replicates: np.ndarray) -> tuple[float, float]:
    """The ends of the 95 % interval."""
    low, high = np.percentile(replicates, [LOW, HIGH])
    return float(low), float(high)
