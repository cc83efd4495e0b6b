"""Operators that make one number of many: sums, means, norms, products, extremes, and where the extremes are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from xframe.equivalence.bounds import UNIT, Quantity, Z, accumulated, rounded
from xframe.equivalence.graph import Node, Operator, Roundings
from xframe.equivalence.pointwise import LIBRARY, root

Array = np.ndarray
Args = Sequence[Quantity]


def average(
    x: Quantity, add: Callable[[Array], Array], terms: int, count: Array | float, bounded: bool = True
) -> Quantity:
    """``add(x) / count``, where ``add`` sums ``terms`` elements; without ``bounded`` the value alone."""
    total = add(x.real)
    if not bounded:
        return Quantity(total / count)
    arriving = None if x.variance is None else add(x.variance)
    variance = accumulated(total, add(np.square(x.real)), arriving, terms, None, x.coherence)
    return rounded(total / count, np.sqrt(variance) / count, 1.0, x)


def squares_of(x: Quantity, add: Callable[[Array], Array], terms: int) -> Quantity:
    """``add(x ** 2)``, as a sum of products of x with itself: errors arrive twice."""
    square = np.square(x.real)
    arriving = None if x.variance is None else add(4 * square * x.variance)
    total = add(square)
    return Quantity(total, accumulated(total, add(np.square(square)), arriving, terms, None, x.coherence), x.coherence)


def _axes(node: Node, args: Args) -> tuple[int, ...]:
    rank = args[0].value.ndim
    given = args[1].value.tolist() if len(args) > 1 and args[1] is not None else node.attrs.get("axes")
    if not given:
        return () if node.attrs.get("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(int(a) % rank for a in given)


_WHOLE: dict[str, Callable[..., Array]] = {
    "ReduceSum": np.sum,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceProd": np.prod,
    "ReduceL1": lambda a, **how: np.sum(np.abs(a), **how),
    "ReduceSumSquare": lambda a, **how: np.sum(np.square(a), **how),
}


def reduce(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    """All of ``Reduce*``. Of an extreme, the largest variance stands for all: a near tie may go either way."""
    x, op = args[0], node.op
    axes, keep = _axes(node, args), bool(node.attrs.get("keepdims", 1))
    if not axes and op not in ("ReduceL1", "ReduceL2", "ReduceSumSquare"):
        return x
    if x.value.dtype.kind in "iu":
        if op not in _WHOLE:
            raise node.refuse("of integers it rounds: cast them to float32 first")
        return Quantity(_WHOLE[op](x.value, axis=axes, keepdims=keep).astype(x.value.dtype))

    def add(a: Array) -> Array:
        return np.sum(a, axis=axes, keepdims=keep)

    terms = math.prod(x.value.shape[a] for a in axes)
    if op in ("ReduceMax", "ReduceMin"):
        variance = None if x.variance is None else x.variance.max(axis=axes, keepdims=keep)
        return Quantity(_WHOLE[op](x.value, axis=axes, keepdims=keep), variance, x.coherence)
    if op == "ReduceProd":
        return _product(x, axes, keep, terms)
    if op in ("ReduceL2", "ReduceSumSquare"):
        squares = squares_of(x, add, terms)
        return squares if op == "ReduceSumSquare" else root(squares)
    if op == "ReduceL1":
        x = Quantity(np.abs(x.real), x.variance, x.coherence)
    return average(x, add, terms, terms if op == "ReduceMean" else 1, roundings is not None)


def _product(x: Quantity, axes: tuple[int, ...], keep: bool, terms: int) -> Quantity:
    """Z deviations of every factor at once are the largest that can arrive."""
    y = np.prod(x.real, axis=axes, keepdims=keep)
    size = np.prod(np.abs(x.real) + Z * x.deviation, axis=axes, keepdims=keep)
    return rounded(y, (size - np.abs(y)) / Z, math.sqrt(terms), x)


def cumulative_sum(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    x, axis = args[0], int(args[1].value.reshape(()))

    def add(a: Array) -> Array:
        if node.attrs.get("reverse", 0):
            a = np.flip(a, axis)
        total = np.cumsum(a, axis, dtype=a.dtype)
        if node.attrs.get("exclusive", 0):
            total = np.roll(total, 1, axis)
            np.moveaxis(total, axis, 0)[:1] = 0
        return np.flip(total, axis) if node.attrs.get("reverse", 0) else total

    if x.value.dtype.kind in "iu":
        return Quantity(add(x.value))
    return average(x, add, x.value.shape[axis], 1, roundings is not None)


def position(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    """``ArgMax`` and ``ArgMin``, where the winner is further from all others than their errors reach."""
    x = args[0].real if node.op == "ArgMax" else -args[0].real
    axis = node.attrs.get("axis", 0) % x.ndim
    if not np.isfinite(x).all():
        raise node.refuse("numbers that are not finite have no largest")
    if node.attrs.get("select_last_index", 0):
        at = x.shape[axis] - 1 - np.expand_dims(np.argmax(np.flip(x, axis), axis), axis)
    else:
        at = np.expand_dims(np.argmax(x, axis), axis)
    if args[0].variance is not None:
        reach = Z * args[0].deviation
        lowest = np.take_along_axis(x - reach, at, axis)
        others = x + reach
        np.put_along_axis(others, at, -np.inf, axis)
        if (others.max(axis, keepdims=True) >= lowest).any():
            raise node.refuse("two computed numbers are as good as equal: rounding decides which is taken")
    return Quantity(at if node.attrs.get("keepdims", 1) else at.squeeze(axis))


def log_sum_exp(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    """max + log(sum(exp(x - max))): its slopes are the softmax of x, which sum to one."""
    x, axes, keep = args[0], _axes(node, args), bool(node.attrs.get("keepdims", 1))
    top = x.real.max(axis=axes, keepdims=True)
    e = np.exp(x.real - top)
    total = e.sum(axis=axes, keepdims=True)
    y = top + np.log(total)
    arrived = (e / total * x.deviation).sum(axis=axes, keepdims=True)
    terms = math.prod(x.value.shape[a] for a in axes)
    own = np.sqrt(UNIT) * (LIBRARY * math.sqrt(terms) + np.abs(x.real - top).max(axis=axes, keepdims=True))
    result = rounded(y, arrived + own, LIBRARY, x)
    return result if keep else result.moved(lambda a: a.squeeze(axes))


OPERATORS: dict[str, Operator] = {
    **{f"Reduce{name}": reduce for name in ("Mean", "Sum", "Max", "Min", "Prod", "L1", "L2", "SumSquare")},
    "ReduceLogSumExp": log_sum_exp,
    "CumSum": cumulative_sum,
    "ArgMax": position,
    "ArgMin": position,
}
