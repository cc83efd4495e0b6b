"""Operators whose results jump: comparisons, logic, rounding to integers, a choice between two tensors.

An element that the error of its operands may push over the edge may go either way, and its bound is the height of the
jump; every other element is exact. Truth values carry that as a variance too: a bound of 1 means true or false.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from xframe.equivalence.bounds import Quantity, Z
from xframe.equivalence.graph import Node, Operator, Roundings

Array = np.ndarray
Args = Sequence[Quantity]

_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
}
_LOGIC: dict[str, Callable[..., Array]] = {
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
    "Not": np.logical_not,
}
_STEP: dict[str, Callable[[Array], Array]] = {"Floor": np.floor, "Ceil": np.ceil, "Round": np.rint, "Sign": np.sign}


def _open(value: Array, jump: Array | float, undecided: Array) -> Quantity:
    """``value``, exact but for ``undecided`` elements, which may be off by ``jump``."""
    return Quantity(value, np.square(jump / Z) * undecided if undecided.any() else None)


def undecided(q: Quantity) -> Array | bool:
    """Which truth values may be either."""
    return False if q.variance is None else q.variance > 0


def compare(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    a, b = args
    value = _COMPARE[node.op](a.value, b.value)
    if a.variance is None and b.variance is None:
        return Quantity(value)
    reach = Z * (a.deviation + b.deviation)
    return _open(value, 1.0, (np.abs(a.real - b.real) <= reach) & (reach > 0))


def logic(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    """An undecided operand matters where its other value would change the result."""
    value = _LOGIC[node.op](*(q.value for q in args))
    doubt = np.zeros(value.shape, bool)
    for flips in _flips([undecided(q) for q in args]):
        doubt |= _LOGIC[node.op](*(q.value ^ flip for q, flip in zip(args, flips, strict=True))) != value
    return _open(value, 1.0, doubt)


def _flips(doubts: list[Array | bool]) -> list[list[Array | bool]]:
    if len(doubts) == 1:
        return [doubts]
    a, b = doubts
    return [[a, False], [False, b], [a, b]]


def step(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    x = args[0]
    if x.value.dtype.kind in "iu":
        return Quantity(_STEP[node.op](x.value).astype(x.value.dtype))
    return stepped(x, _STEP[node.op])


def stepped(x: Quantity, function: Callable[[Array], Array]) -> Quantity:
    """A monotone function that jumps, of ``x``."""
    y = function(x.real)
    if x.variance is None:
        return Quantity(y)
    reach = Z * x.deviation
    jump = np.maximum(np.abs(function(x.real - reach) - y), np.abs(function(x.real + reach) - y))
    return _open(y, jump, jump > 0)


def where(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    condition, a, b = args
    value = np.where(condition.value, a.value, b.value)
    if all(q.variance is None for q in args):
        return Quantity(value)
    variance = np.where(condition.value, *(0.0 if q.variance is None else q.variance for q in (a, b)))
    doubt = undecided(condition)
    if np.any(doubt):
        if value.dtype.kind in "iu":
            raise node.refuse("rounding errors decide which of two integers is taken")
        deviation = np.maximum(a.deviation, b.deviation) + np.abs(a.real - b.real) / Z
        variance = np.where(doubt, np.square(deviation), variance)
    return Quantity(value, np.broadcast_to(variance, value.shape), max(a.coherence, b.coherence))


OPERATORS: dict[str, Operator] = {
    **dict.fromkeys(_COMPARE, compare),
    **dict.fromkeys(_LOGIC, logic),
    **dict.fromkeys(_STEP, step),
    "Where": where,
}
