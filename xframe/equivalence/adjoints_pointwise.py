"""Reverse mode of what works element by element."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from xframe.equivalence.adjoints import EVEN, Adjoint, choice, constant, scaled, slope
from xframe.equivalence.bounds import Quantity
from xframe.equivalence.decisions import undecided
from xframe.equivalence.graph import Node

Array = np.ndarray
Args = Sequence[Any]
Attrs = Mapping[str, Any]
Slope = Callable[[Array, Attrs], Array]

#: Relative error, in u, granted to a slope that a library computes from its function.
LIBRARY = 8.0

_erf = np.frompyfunc(math.erf, 1, 1)


def _sigmoid(x: Array) -> Array:
    return 0.5 + 0.5 * np.tanh(0.5 * x)


def _normal(x: Array) -> Array:
    return np.exp(-0.5 * np.square(x)) / math.sqrt(2 * math.pi)


def _gelu(x: Array, a: Attrs) -> Array:
    if a.get("approximate", "none") in ("tanh", b"tanh"):
        c = math.sqrt(2 / math.pi)
        t = np.tanh(c * (x + 0.044715 * x**3))
        return 0.5 * (1 + t) + 0.5 * x * (1 - np.square(t)) * c * (1 + 3 * 0.044715 * np.square(x))
    return 0.5 * (1 + np.asarray(_erf(x / math.sqrt(2)), np.float64)) + x * _normal(x)


def _mish(x: Array, a: Attrs) -> Array:
    t = np.tanh(np.logaddexp(0.0, x))
    return t + x * _sigmoid(x) * (1 - np.square(t))


def _selu(x: Array, a: Attrs) -> Array:
    alpha, gamma = a.get("alpha", 1.6732632423543772), a.get("gamma", 1.0507009873554805)
    return gamma * np.where(x > 0, 1.0, alpha * np.exp(np.minimum(x, 0.0)))


#: Slope, its error in u of itself, and in u absolutely: 1 - tanh(x)^2 cancels where it is small.
SLOPES: dict[str, tuple[Slope, float, float]] = {
    "Relu": (lambda x, a: x > 0, 0, 0),
    "LeakyRelu": (lambda x, a: np.where(x > 0, 1.0, a.get("alpha", 0.01)), 1, 0),
    "ThresholdedRelu": (lambda x, a: x > a.get("alpha", 1.0), 0, 0),
    "Elu": (
        lambda x, a: np.where(x > 0, 1.0, a.get("alpha", 1.0) * np.exp(np.minimum(x, 0.0))),
        LIBRARY,
        LIBRARY,
    ),
    "Selu": (_selu, LIBRARY, LIBRARY),
    "Celu": (lambda x, a: np.where(x > 0, 1.0, np.exp(np.minimum(x, 0.0) / a.get("alpha", 1.0))), LIBRARY, LIBRARY),
    "Sin": (lambda x, a: np.cos(x), LIBRARY, LIBRARY),
    "Cos": (lambda x, a: -np.sin(x), LIBRARY, LIBRARY),
    "Neg": (lambda x, a: -np.ones_like(x), 0, 0),
    "Abs": (lambda x, a: np.sign(x), 0, 0),
    "Exp": (lambda x, a: np.exp(x), LIBRARY, 0),
    "Log": (lambda x, a: 1.0 / x, LIBRARY, 0),
    "Sqrt": (lambda x, a: 0.5 / np.sqrt(np.maximum(x, 0.0)), LIBRARY, 0),
    "Reciprocal": (lambda x, a: -1.0 / np.square(x), LIBRARY, 0),
    "Sigmoid": (lambda x, a: _sigmoid(x) * _sigmoid(-x), LIBRARY, LIBRARY),
    "Tanh": (lambda x, a: 1.0 - np.square(np.tanh(x)), LIBRARY, LIBRARY),
    "Erf": (lambda x, a: 2 / math.sqrt(math.pi) * np.exp(-np.square(x)), LIBRARY, 0),
    "Softplus": (lambda x, a: _sigmoid(x), LIBRARY, 0),
    "Softsign": (lambda x, a: 1.0 / np.square(1.0 + np.abs(x)), LIBRARY, 0),
    "HardSigmoid": (
        lambda x, a: (
            a.get("alpha", 0.2) * (np.abs(a.get("alpha", 0.2) * x + a.get("beta", 0.5) - 0.5) < 0.5).astype(np.float64)
        ),
        2,
        0,
    ),
    "HardSwish": (
        lambda x, a: np.where(x >= 3, 1.0, np.where(x <= -3, 0.0, x / 3 + 0.5)),
        LIBRARY,
        LIBRARY,
    ),
    "Gelu": (_gelu, LIBRARY, LIBRARY),
    "Mish": (_mish, LIBRARY, LIBRARY),
}


def unary(node: Node, args: Args, outs: Args, gs: Args) -> list[Quantity | None]:
    at, ulps, size = SLOPES[node.op]
    steep = slope(args[0], lambda x: np.asarray(at(x, node.attrs), np.float64), ulps, size)
    return [scaled(gs[0], steep, gs[0].value.shape)]


def clip(node: Node, args: Args, outs: Args, gs: Args) -> list[Quantity | None]:
    low, high = (
        float(args[i].value) if len(args) > i and args[i] is not None else node.attrs.get(name, default)
        for i, name, default in ((1, "min", -np.inf), (2, "max", np.inf))
    )
    steep = slope(args[0], lambda x: ((x > low) & (x < high)).astype(np.float64))
    return [scaled(gs[0], steep, gs[0].value.shape)]


def prelu(node: Node, args: Args, outs: Args, gs: Args) -> list[Quantity | None]:
    x, factor = args
    steep = slope(x, lambda v: np.where(v > 0, 1.0, factor.real))
    below = slope(x, lambda v: np.minimum(v, 0.0))
    return [scaled(gs[0], steep, x.value.shape), scaled(gs[0], below, factor.value.shape)]


def add(node: Node, args: Args, outs: Args, gs: Args) -> list[Quantity | None]:
    """``Add``, ``Sub``, ``Sum`` and ``Mean``: the gradient itself, or a share of it."""
    signs = [1.0] * len(args)
    if node.op == "Sub":
        signs[1] = -1.0
    if node.op == "Mean":
        signs = [1.0 / len(args)] * len(args)
    return [
        gs[0] if sign == 1 and q.value.shape == gs[0].value.shape else scaled(gs[0], constant(sign), q.value.shape)
        for q, sign in zip(args, signs, strict=True)
    ]


def multiply(node: Node, args: Args, outs: Args, gs: Args) -> list[Quantity | None]:
    a, b = args
    return [scaled(gs[0], b, a.value.shape), scaled(gs[0], a, b.value.shape)]


def divide(node: Node, args: Args, outs: Args, gs: Args) -> list[Quantity | None]:
    a, b = args
    inverse = slope(b, lambda v: 1.0 / v, LIBRARY)
    ratio = -a.real / np.square(b.real)
    deviation = np.abs(ratio) * (2 * inverse.deviation * np.abs(b.real)) + a.deviation / np.square(b.real)
    return [
        scaled(gs[0], inverse, a.value.shape),
        scaled(gs[0], Quantity(ratio, np.square(deviation)), b.value.shape),
    ]


def power(node: Node, args: Args, outs: Args, gs: Args) -> list[Quantity | None]:
    """Of the base; an exponent that is computed is refused."""
    x, p = args
    if p.variance is not None:
        raise node.refuse("the gradient of a computed exponent is not known")
    steep = slope(x, lambda v: p.real * np.power(v, p.real - 1), 2 * LIBRARY)
    return [scaled(gs[0], steep, x.value.shape), None]


def extreme(node: Node, args: Args, outs: Args, gs: Args) -> list[Quantity | None]:
    """``Max`` and ``Min``: the first of the largest takes it all; what may be the largest may get it instead."""
    sign, g = (1.0 if node.op == "Max" else -1.0), gs[0]
    shape = g.value.shape
    values = [np.broadcast_to(sign * q.real, shape) for q in args]
    deviations = [np.broadcast_to(q.deviation, shape) for q in args]
    results: list[Quantity | None] = []
    for i, q in enumerate(args):
        others = [j for j in range(len(args)) if j != i]
        if not others:
            return [g]
        best = functools.reduce(np.maximum, (values[j] for j in others))
        doubt = functools.reduce(np.maximum, (deviations[j] for j in others))
        first = np.logical_and.reduce([values[i] > values[j] for j in others if j < i])  # all of none: true
        won = (values[i] >= best) & first
        open_ = choice(np.abs(values[i] - best), deviations[i] + doubt)
        results.append(scaled(g, Quantity(won.astype(np.float64), np.square(open_)), q.value.shape))
    return results


def where(node: Node, args: Args, outs: Args, gs: Args) -> list[Quantity | None]:
    """Where rounding errors decide the condition, either side may get the gradient."""
    condition, a, b = args
    doubt = np.square(EVEN * np.asarray(undecided(condition), np.float64))
    return [
        None,
        scaled(gs[0], Quantity(condition.value.astype(np.float64), doubt), a.value.shape),
        scaled(gs[0], Quantity(1.0 - condition.value, doubt), b.value.shape),
    ]


ADJOINTS: dict[str, Adjoint] = {
    **dict.fromkeys(SLOPES, unary),
    "Clip": clip,
    "PRelu": prelu,
    "Add": add,
    "Sub": add,
    "Sum": add,
    "Mean": add,
    "Mul": multiply,
    "Div": divide,
    "Pow": power,
    "Max": extreme,
    "Min": extreme,
    "Where": where,
}
