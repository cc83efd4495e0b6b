"""Arithmetic that works element by element, on one tensor or several."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xframe.equivalence.bounds import UNIT, Quantity, Z, rounded
from xframe.equivalence.graph import Node, Operator, Roundings

Array = np.ndarray
Args = Sequence[Quantity]

#: Relative error, in u, granted to a function of a math library (two units in the last place).
LIBRARY = 4.0


def root(x: Quantity) -> Quantity:
    """The square root: first order away from zero; at zero an error e becomes at most sqrt(e)."""
    y = np.sqrt(x.real)
    steep = np.sqrt(Z * x.deviation) / Z
    near = np.where(y > 0, np.divide(x.deviation, 2 * y), steep)
    return rounded(y, np.fmin(near, steep), LIBRARY, x)


def sqrt(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    return root(args[0])


def _combine(node: Node, args: Args, y: Array, deviation: Array | float, ulps: float) -> Quantity:
    if all(q.value.dtype.kind in "iu" for q in args):
        return Quantity(np.trunc(y).astype(args[0].value.dtype))
    return rounded(y, deviation, ulps, *args)


def add(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    """``Add``, ``Sum`` and ``Mean`` of any number of tensors, and ``Sub``."""
    y, deviation = args[0].real, args[0].deviation
    ulps = 1.0
    for q in args[1:]:
        y = y - q.real if node.op == "Sub" else y + q.real
        deviation = deviation + q.deviation
        ulps += 0.5
    if len(args) > 2:  # an intermediate sum may be larger than the whole
        size = sum(np.abs(q.real) for q in args)
        deviation = deviation + np.sqrt(UNIT * len(args)) * size
    if node.op == "Mean":
        y, deviation = y / len(args), deviation / len(args)
    return _combine(node, args, y, deviation, ulps)


def multiply(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    a, b = args
    deviation = np.abs(b.real) * a.deviation + np.abs(a.real) * b.deviation
    return _combine(node, args, a.real * b.real, deviation, 1.0)


def divide(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    a, b = args
    y = a.real / b.real
    deviation = (a.deviation + np.abs(y) * b.deviation) / np.abs(b.real)
    return _combine(node, args, y, deviation, LIBRARY)


def power(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    """``x ** p``; libraries compute exp(p log x), whose relative error grows with the exponent of the result."""
    x, p = args
    y = np.power(x.real, p.real)
    growth = np.abs(p.real * np.log(np.abs(x.real)))
    ulps = np.where(np.isfinite(growth), LIBRARY + growth, LIBRARY)
    deviation: Array | float = 0.0
    if x.variance is not None:
        around = Z * x.deviation
        sides = [np.abs(p.real) * np.power(np.abs(x.real + d), p.real - 1) for d in (-around, 0.0, around)]
        deviation = np.maximum.reduce(sides) * x.deviation
    if p.variance is not None:
        deviation = deviation + np.abs(y * np.log(np.abs(x.real))) * p.deviation
    return rounded(y, deviation, ulps, x, p)


def extreme(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    """``Max`` and ``Min``: the largest deviation stands for all, a near tie may go either way."""
    choose = np.maximum if node.op == "Max" else np.minimum
    y, deviation = args[0].value, args[0].deviation
    for q in args[1:]:
        y, deviation = choose(y, q.value), np.maximum(deviation, q.deviation)
    if all(q.variance is None for q in args):
        return Quantity(y)
    variance = np.broadcast_to(np.square(deviation), y.shape)
    return Quantity(y.astype(np.float64), variance, max(q.coherence for q in args))


OPERATORS: dict[str, Operator] = {
    "Sqrt": sqrt,
    "Add": add,
    "Sub": add,
    "Sum": add,
    "Mean": add,
    "Mul": multiply,
    "Div": divide,
    "Pow": power,
    "Max": extreme,
    "Min": extreme,
}
