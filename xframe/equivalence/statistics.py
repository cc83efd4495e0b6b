"""How far one tensor is from another, in the measures that people ask for."""

from __future__ import annotations

import math

import numpy as np

from xframe.equivalence.reference import Judged
from xframe.equivalence.result import Statistics
from xframe.equivalence.verdict import shares
from xframe.errors import UsageError

Array = np.ndarray

QUANTILES = (0.5, 0.9, 0.99)
#: Elements that are looked at together, so that what is computed of them stays in a cache.
BLOCK = 1 << 15
#: Elements of which quantiles are taken, evenly spaced; of fewer they are exact.
SAMPLE = 1 << 16
#: Smallest normal float32: what is below may be flushed to zero, so that no unit in the last place counts as smaller.
SMALLEST = float(np.finfo(np.float32).tiny)


def statistics(first: Judged, second: np.ndarray) -> Statistics:
    """The deviation of ``second`` from the exact value of ``first``, element by element and as a whole.

    They differ where ``ratio`` is above 1, as :func:`xframe.equivalence.verdict.judge` says too. Where either holds a
    NaN or an infinity, the deviation there counts as infinite.

    Parameters
    ----------
    first
        Value and bound, both float64.
    second
        Any number format, the same shape.

    Raises
    ------
    UsageError
        The shapes differ, or there are no elements.
    """
    if first.value.shape != second.shape or not second.size:
        raise UsageError(f"{first.name}: tensors of shapes {first.value.shape} and {second.shape} can't be compared")
    value, bound, other = first.value.ravel(), first.bound.ravel(), second.ravel()
    some = bool(value.any())
    if second is first.value and np.isfinite(value).all() and np.isfinite(bound).all():
        none, start = (0.0, 0.0, 0.0, 0.0), (0,) * second.ndim
        number = float(value[0])
        return Statistics(
            0.0, 0.0 if some else None, 0.0, 1.0 if some else None, none, 0.0, start, number, number, float(bound[0])
        )
    worst, at, largest, relative, squares, ulps = -1.0, 0, 0.0, 0.0, 0.0, 0.0
    products = np.zeros(3)  # of first with second, first with itself, second with itself
    with np.errstate(all="ignore"):
        for begin in range(0, value.size, BLOCK):
            part = slice(begin, begin + BLOCK)
            v, w = value[part], other[part].astype(np.float64)
            deviation, share = shares(w, Judged(first.name, v, bound[part]))
            top = int(np.argmax(share))
            if share[top] > worst:
                worst, at = float(share[top]), begin + top
            largest = max(largest, float(deviation.max()))
            squares += float(np.square(deviation).sum())
            products += (v * w).sum(), np.square(v).sum(), np.square(w).sum()
            counted, size = _counted(deviation, v, some)
            relative = max(relative, float(np.fmax.reduce(counted / size)))
            ulps = max(ulps, float(np.fmax.reduce(counted / _unit(v))))
        spaced = slice(None, None, -(-value.size // SAMPLE))
        quantiles = _quantiles(shares(other[spaced], Judged("", value[spaced], bound[spaced]))[0], value[spaced], some)
    finite = math.isfinite(largest)
    return Statistics(
        max_abs=largest,
        max_rel=(relative if finite else math.inf) if some else None,
        rms=math.sqrt(squares / value.size),
        cosine=_cosine(*products.tolist()) if largest else 1.0 if some else None,
        ulps=(*quantiles, ulps if finite else math.inf),
        ratio=worst,
        at=tuple(map(int, np.unravel_index(at, second.shape))),
        first=float(value[at]),
        second=float(other[at]),
        bound=float(bound[at]),
    )


def _counted(deviation: Array, value: Array, some: bool) -> tuple[Array, Array]:
    """Deviations, those of zeros taken as none unless there is nothing else, and what they are relative to."""
    zero = value == 0
    return deviation * ~zero if some else deviation, np.abs(value) + zero


def _unit(value: Array) -> Array:
    """Units in the last place of float32: the power of two in a number, 23 bits below."""
    power = (np.abs(value).view(np.int64) & np.int64(0x7FF << 52)).view(np.float64)
    return np.maximum(power * 2.0**-23, SMALLEST)


def _quantiles(deviation: Array, value: Array, some: bool) -> tuple[float, float, float]:
    kept = value != 0 if some else np.ones(value.shape, bool)
    if not kept.any():
        return 0.0, 0.0, 0.0
    found = np.quantile(deviation[kept] / _unit(value[kept]), QUANTILES, method="higher")
    return float(found[0]), float(found[1]), float(found[2])


def _cosine(product: float, first: float, second: float) -> float | None:
    """Of the angle between two vectors, from their products; None when one is zero or not finite."""
    norms = math.sqrt(first) * math.sqrt(second) if first >= 0 and second >= 0 else math.nan
    return min(max(product / norms, -1.0), 1.0) if math.isfinite(norms) and norms > 0 else None
