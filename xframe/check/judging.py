"""Outputs of one execution held against exact values: a state in words, and how far they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xframe.equivalence.reference import Judged
from xframe.equivalence.result import State, Statistics
from xframe.equivalence.statistics import statistics
from xframe.equivalence.verdict import judge

Outputs = Sequence[np.ndarray]


def compared(outputs: Outputs, judged: Sequence[Judged]) -> tuple[State, str]:
    """The verdict on one feed. What the reference itself can't tell is UNCHECKED; not finite outputs are DIFFERENT."""
    verdict = judge(outputs, judged)
    if verdict.ok:
        return State.EQUIVALENT, ""
    if verdict.ratio is None and len(outputs) == len(judged) and all(map(blind, outputs, judged)):
        return State.UNCHECKED, verdict.reason
    return State.DIFFERENT, verdict.reason


def blind(got: np.ndarray, want: Judged) -> bool:
    """Whether nothing is wrong with an output but what it is compared with."""
    if got.shape != want.value.shape:
        return False
    known = np.isfinite(want.value) & np.isfinite(want.bound)
    with np.errstate(invalid="ignore"):
        return bool((np.abs(got - want.value)[known] <= want.bound[known]).all())


def overall(found: Sequence[tuple[State, str]]) -> tuple[State, str]:
    """One verdict for all feeds: that of the first that is DIFFERENT, else UNCHECKED, else EQUIVALENT."""
    for state in (State.DIFFERENT, State.UNCHECKED):
        for one in found:
            if one[0] is state:
                return one
    return (State.EQUIVALENT, "") if found else (State.UNCHECKED, "nothing was executed")


def worst(outputs: Sequence[Outputs], judged: Sequence[Sequence[Judged]]) -> Statistics | None:
    """The statistics of the output, over all feeds, with the largest share of its bound; None where no shapes fit."""
    found = [
        statistics(want, np.asarray(got))
        for one, exact in zip(outputs, judged, strict=True)
        for got, want in zip(one, exact, strict=False)
        if got.shape == want.value.shape and got.size
    ]
    return max(found, key=lambda s: np.inf if np.isnan(s.ratio) else s.ratio, default=None)
