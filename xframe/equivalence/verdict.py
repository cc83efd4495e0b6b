"""Outputs of a candidate against the judge: within the bound everywhere, or why not, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xframe.equivalence.reference import Judged


@dataclass(frozen=True)
class Verdict:
    """``error``: the largest absolute deviation; ``ratio``: the largest of deviation over its own element's bound;
    ``bound``: the bound at that element. The three are None when nothing could be compared. ``reason`` is empty when
    ``ok``.
    """

    ok: bool
    error: float | None = None
    bound: float | None = None
    ratio: float | None = None
    reason: str = ""


def judge(outputs: Sequence[np.ndarray], judged: Sequence[Judged]) -> Verdict:
    """Compare a candidate's outputs with the exact ones, element by element.

    NaN and infinity never pass, nor does a comparison that could not fail: where every bound is as large as its value,
    zeros would pass too.
    """
    if len(outputs) != len(judged):
        return Verdict(False, reason=f"{len(outputs)} outputs, the reference has {len(judged)}")
    verdicts = [_one(np.asarray(got), want) for got, want in zip(outputs, judged, strict=True)]
    failed = [v for v in verdicts if not v.ok]
    if not verdicts or any(v.ratio is None for v in failed):
        return next((v for v in failed if v.ratio is None), Verdict(False, reason="no outputs to compare"))
    worst = max(failed or verdicts, key=lambda v: v.ratio or 0.0)
    return Verdict(not failed, max(v.error or 0.0 for v in verdicts), worst.bound, worst.ratio, worst.reason)


def uncompared(want: Judged) -> str:
    """Why nothing can be judged against this output, in words; empty when something can."""
    if not want.value.size:
        return f"output {want.name} is empty: nothing was compared"
    for what, numbers in (("float64 reference itself", want.value), ("error bound", want.bound)):
        if not np.isfinite(numbers).all():
            return _not_finite(f"the {what} is", numbers, want)
    if (np.abs(want.value) <= want.bound).all() and want.value.any():
        return f"output {want.name}: its error bound is larger than every value, zeros would pass: unchecked"
    return ""


def shares(got: np.ndarray, want: Judged) -> tuple[np.ndarray, np.ndarray]:
    """Absolute deviation of each element, and its share of the element's bound; infinite where anything is not finite.

    Both are float64, of the shape that ``got`` and ``want`` must share.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        deviation = np.abs(got.astype(np.float64) - want.value)
        if deviation.size and want.bound.min() > 0 and np.isfinite(want.bound.max()) and np.isfinite(deviation.max()):
            return deviation, deviation / want.bound
    deviation = np.where(np.isfinite(deviation), deviation, np.inf)
    share = np.divide(deviation, want.bound, out=np.where(deviation > 0, np.inf, 0.0), where=want.bound > 0)
    return deviation, np.where(np.isfinite(want.bound), share, np.inf)


def _one(got: np.ndarray, want: Judged) -> Verdict:
    if got.shape != want.value.shape:
        return Verdict(False, reason=f"output {want.name} has shape {got.shape}, expected {want.value.shape}")
    reason = uncompared(want)
    if not reason and not np.isfinite(got).all():
        reason = _not_finite("the output is", got, want)
    if reason:
        return Verdict(False, reason=reason)
    deviation, ratio = shares(got, want)
    at = tuple(map(int, np.unravel_index(np.argmax(ratio), ratio.shape)))
    error, bound, worst = float(deviation.max()), float(want.bound[at]), float(ratio[at])
    if worst <= 1:
        return Verdict(True, error, bound, worst)
    beyond = int((ratio > 1).sum())
    return Verdict(
        False,
        error,
        bound,
        worst,
        f"output {want.name} at {list(at)} is {float(got[at]):.9g}, expected {want.value[at]:.9g} +- {bound:.3g}: "
        f"{worst:.3g} times the bound; {beyond} of {ratio.size} elements are beyond theirs",
    )


def _not_finite(what: str, numbers: np.ndarray, want: Judged) -> str:
    bad = ~np.isfinite(numbers)
    where, count = tuple(map(int, np.argwhere(bad)[0])), int(bad.sum())
    shown = f"{numbers[where]}, expected {want.value[where]:.9g} +- {want.bound[where]:.3g}"
    more = f" (and {count - 1} more elements)" if count > 1 else ""
    return f"output {want.name}: {what} not finite at {list(where)}: {shown}{more}"
