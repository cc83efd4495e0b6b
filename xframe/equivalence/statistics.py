"""How far one tensor is from another, in the measures that people ask for."""

from __future__ import annotations

import math

import numpy as np

from xframe.equivalence.reference import Judged
from xframe.equivalence.result import Statistics
from xframe.equivalence.verdict import shares
from xframe.errors import UsageError

Array = np.ndarray

QUANTILES = (0.5, 0.9, 0.99, 1.0)
#: Smallest normal and largest float32: units in the last place are taken between them.
SMALLEST, LARGEST = np.finfo(np.float32).tiny, np.finfo(np.float32).max


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
    deviation, share = shares(second, first)
    at = tuple(map(int, np.unravel_index(np.argmax(share), share.shape)))
    size, off = np.abs(first.value), bool(deviation.any())
    counted = size > 0
    with np.errstate(invalid="ignore", over="ignore"):
        shared = np.where(np.isfinite(deviation), deviation / np.where(counted, size, 1.0), np.inf)[counted]
    relative = float(shared.max()) if shared.size else None
    return Statistics(
        max_abs=float(deviation.max()),
        max_rel=relative,
        rms=math.sqrt(float(np.square(deviation).mean())),
        cosine=_cosine(first.value, second) if off else 1.0 if counted.any() else None,
        ulps=_ulps(deviation, size) if off else (0.0, 0.0, 0.0, 0.0),
        ratio=float(share[at]),
        at=at,
        first=float(first.value[at]),
        second=float(second[at]),
        bound=float(first.bound[at]),
    )


def _cosine(a: Array, b: Array) -> float | None:
    """Of the angle between the two as vectors; None when one is zero or not finite."""
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return None
    a, b = (v.astype(np.float64).ravel() for v in (a, b))
    largest = max(np.abs(a).max(), np.abs(b).max())
    if largest == 0:
        return None
    a, b = a / largest, b / largest  # so that no square overflows
    norms = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
    return min(max(float(a @ b) / norms, -1.0), 1.0) if norms > 0 else None


def _ulps(deviation: Array, size: Array) -> tuple[float, float, float, float]:
    """Quantiles of the deviation in units in the last place; zeros, which have none, are left out where they can be."""
    counted = np.isfinite(size) & (size > 0)
    if not counted.any():
        counted = np.ones(size.shape, bool)
    kept = np.nan_to_num(size[counted], nan=0.0)
    units = np.spacing(np.clip(kept, SMALLEST, LARGEST).astype(np.float32)).astype(np.float64)
    found = np.quantile(deviation[counted] / units, QUANTILES, method="higher")
    return float(found[0]), float(found[1]), float(found[2]), float(found[3])
