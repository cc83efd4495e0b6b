"""Functions of one number, element by element: activations and elementary functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from xframe.equivalence.bounds import UNIT, Quantity, Z, rounded
from xframe.equivalence.graph import Node, Operator, Roundings
from xframe.equivalence.pointwise import LIBRARY

Array = np.ndarray
Args = Sequence[Quantity]
Attrs = Mapping[str, Any]
Function = Callable[[Array, Attrs], Array]
Single = Callable[[Node, Args, "Roundings | None"], Quantity]


def unary(value: Function, slope: Function, ulps: float, size: Function | None = None) -> Single:
    """An operator of one tensor; its slope is taken where it is steepest: at the value, or Z deviations beside it.

    It rounds by ``ulps`` relative to its result, or to ``size`` where an intermediate number is larger and cancels.
    """

    def operator(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
        x, attrs = args[0], node.attrs
        if x.value.dtype.kind in "iu":
            return Quantity(value(x.value, attrs).astype(x.value.dtype))
        y = value(x.real, attrs)
        if roundings is None:
            return Quantity(y)
        deviation: Array | float = 0.0
        if x.variance is not None:
            around = Z * x.deviation
            sides = (slope(x.real + d, attrs) for d in (-around, 0.0, around))
            deviation = np.maximum.reduce([np.abs(side, dtype=np.float64) for side in sides]) * x.deviation
        if ulps:
            if size is not None:
                deviation = deviation + math.sqrt(UNIT) * ulps * np.abs(size(x.real, attrs))
            return rounded(y, deviation, ulps, x)
        return Quantity(y, None if x.variance is None else np.square(deviation), x.coherence)

    return operator


def _hard_sigmoid(x: Array, a: Attrs) -> Array:
    return np.clip(a.get("alpha", 0.2) * x + a.get("beta", 0.5), 0.0, 1.0)


def _hard_sigmoid_slope(x: Array, a: Attrs) -> Array:
    line = a.get("alpha", 0.2) * x + a.get("beta", 0.5)
    return a.get("alpha", 0.2) * ((line > 0) & (line < 1))


def _sigmoid(x: Array, a: Attrs) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def _softplus(x: Array, a: Attrs) -> Array:
    return np.logaddexp(x, 0.0)


def _mish_slope(x: Array, a: Attrs) -> Array:
    t = np.tanh(_softplus(x, a))
    return t + x * _sigmoid(x, a) * (1 - np.square(t))


_erf_of = np.frompyfunc(math.erf, 1, 1)


def _erf(x: Array) -> Array:
    return np.asarray(_erf_of(x), np.float64)


#: The tanh form of GELU: 0.5 x (1 + tanh(C (x + K x^3))).
_C, _K = math.sqrt(2 / math.pi), 0.044715


def _gelu(x: Array, a: Attrs) -> Array:
    inner = np.tanh(_C * (x + _K * x**3)) if a.get("approximate", "none") == "tanh" else _erf(x / math.sqrt(2))
    return 0.5 * x * (1 + inner)


def _gelu_slope(x: Array, a: Attrs) -> Array:
    """Of both forms, at most 0.02 too steep: the normal distribution as a sigmoid, which is much faster."""
    normal = np.exp(-np.square(x) / 2) / math.sqrt(2 * math.pi)
    return np.abs(_sigmoid(1.702 * x, a) + x * normal) + 0.02


def _elu(x: Array, a: Attrs) -> Array:
    return np.where(x > 0, x, a.get("alpha", 1.0) * np.expm1(np.minimum(x, 0.0)))


def _elu_slope(x: Array, a: Attrs) -> Array:
    return np.where(x > 0, 1.0, a.get("alpha", 1.0) * np.exp(np.minimum(x, 0.0)))


_SELU = {"alpha": 1.67326319217681884765625}


def _gamma(a: Attrs) -> float:
    return a.get("gamma", 1.05070102214813232421875)


def _celu(x: Array, a: Attrs) -> Array:
    alpha = a.get("alpha", 1.0)
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0.0) / alpha))


def _celu_slope(x: Array, a: Attrs) -> Array:
    return np.where(x > 0, 1.0, np.exp(np.minimum(x, 0.0) / a.get("alpha", 1.0)))


def _exponential(slope: Function) -> Function:
    """The first term of exp(x) - 1, as libraries write it, where the slope for negative x is that term."""
    return lambda x, a: np.where(x > 0, 0.0, slope(x, a))


UNARY: dict[str, Operator] = {
    "LeakyRelu": unary(
        lambda x, a: np.where(x > 0, x, a.get("alpha", 0.01) * x),
        lambda x, a: np.where(x > 0, 1.0, a.get("alpha", 0.01)),
        1,
    ),
    "Elu": unary(_elu, _elu_slope, LIBRARY, _exponential(_elu_slope)),
    "Selu": unary(
        lambda x, a: _gamma(a) * _elu(x, _SELU | dict(a)),
        lambda x, a: _gamma(a) * _elu_slope(x, _SELU | dict(a)),
        LIBRARY,
        lambda x, a: _gamma(a) * _exponential(_elu_slope)(x, _SELU | dict(a)),
    ),
    "Celu": unary(_celu, _celu_slope, LIBRARY, lambda x, a: a.get("alpha", 1.0) * _exponential(_celu_slope)(x, a)),
    "Neg": unary(lambda x, a: -x, lambda x, a: np.ones_like(x), 0),
    "Abs": unary(lambda x, a: np.abs(x), lambda x, a: np.ones_like(x), 0),
    "Exp": unary(lambda x, a: np.exp(x), lambda x, a: np.exp(x), LIBRARY),
    "Log": unary(lambda x, a: np.log(x), lambda x, a: 1.0 / x, LIBRARY),
    "Sin": unary(lambda x, a: np.sin(x), lambda x, a: np.ones_like(x), LIBRARY),
    "Cos": unary(lambda x, a: np.cos(x), lambda x, a: np.ones_like(x), LIBRARY),
    "Reciprocal": unary(lambda x, a: 1.0 / x, lambda x, a: np.square(1.0 / x), LIBRARY),
    # 1 - sigmoid would cancel; a library's own absolute error near 0 and 1 is within 8 u of the value.
    "Sigmoid": unary(_sigmoid, lambda x, a: _sigmoid(x, a) * _sigmoid(-x, a), 2 * LIBRARY),
    "Softplus": unary(_softplus, _sigmoid, 2 * LIBRARY),
    "Softsign": unary(lambda x, a: x / (1 + np.abs(x)), lambda x, a: 1 / np.square(1 + np.abs(x)), LIBRARY),
    "Mish": unary(lambda x, a: x * np.tanh(_softplus(x, a)), _mish_slope, 3 * LIBRARY),
    # The sum with 1 cancels for negative x.
    "Gelu": unary(_gelu, _gelu_slope, 2 * LIBRARY, lambda x, a: np.abs(x) / 2),
    "Tanh": unary(lambda x, a: np.tanh(x), lambda x, a: 1.0 - np.square(np.tanh(x)), 2 * LIBRARY),
    "Erf": unary(lambda x, a: _erf(x), lambda x, a: 2 / math.sqrt(math.pi) * np.exp(-np.square(x)), 2 * LIBRARY),
    "HardSigmoid": unary(_hard_sigmoid, _hard_sigmoid_slope, 2),
    "HardSwish": unary(
        lambda x, a: x * np.clip(x / 6 + 0.5, 0, 1),
        lambda x, a: np.where(x >= 3, 1.0, np.where(x <= -3, 0.0, x / 3 + 0.5)),
        LIBRARY,
    ),
}


def relu(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    """The same as ``unary`` would make, without trying three slopes on the largest tensors there are."""
    x = args[0]
    y = np.maximum(x.real, 0.0)
    variance = None if x.variance is None else x.variance * (x.real + Z * x.deviation > 0)
    return Quantity(y, variance, x.coherence)


def clip(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    low, high = (
        float(args[i].value) if len(args) > i and args[i] is not None else node.attrs.get(name, default)
        for i, name, default in ((1, "min", -np.inf), (2, "max", np.inf))
    )
    inside = unary(lambda x, a: np.clip(x, low, high), lambda x, a: (x > low) & (x < high), 0)
    return inside(node, args[:1], roundings)


def prelu(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    x, slope = args
    leaky = unary(
        lambda v, a: np.where(v > 0, v, slope.real * v), lambda v, a: np.where(v > 0, 1.0, slope.real + 0 * v), 1
    )
    return leaky(node, [x], roundings)


def thresholded_relu(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    """Near the threshold, where it jumps, either side is right."""
    x, alpha = args[0], node.attrs.get("alpha", 1.0)
    y = np.where(x.real > alpha, x.real, 0.0)
    if x.variance is None:
        return Quantity(y)
    deviation = x.deviation * (x.real + Z * x.deviation > alpha)
    deviation += np.abs(x.real) / Z * (np.abs(x.real - alpha) <= Z * x.deviation)
    return Quantity(y, np.square(deviation), x.coherence)


OPERATORS: dict[str, Operator] = {
    **UNARY,
    "Relu": relu,
    "Clip": clip,
    "PRelu": prelu,
    "ThresholdedRelu": thresholded_relu,
}
