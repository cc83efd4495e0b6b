"""Operators that work element by element, and the three normalisations built on them (LRN, batch norm, softmax)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from xframe.equivalence import kernels
from xframe.equivalence.bounds import FLOOR, UNIT, Quantity, Z, accumulated, rounded
from xframe.equivalence.graph import Node, Operator, Roundings

Array = np.ndarray
Args = Sequence[Quantity]
Attrs = Mapping[str, Any]
Single = Callable[[Node, Args, Roundings], Quantity]

#: Relative error, in u, granted to a function of a math library (two units in the last place).
LIBRARY = 4.0


def unary(value: Callable[[Array, Attrs], Array], slope: Callable[[Array, Attrs], Array], ulps: float) -> Single:
    """An operator of one tensor; its slope is taken where it is steepest: at the value, or Z deviations beside it."""

    def operator(node: Node, args: Args, roundings: Roundings) -> Quantity:
        x, attrs = args[0], node.attrs
        if x.value.dtype.kind in "iu":
            return Quantity(value(x.value, attrs).astype(x.value.dtype))
        y = value(x.real, attrs)
        steepest: Array | float = 0.0
        if x.variance is not None:
            around = Z * x.deviation
            sides = (slope(x.real + d, attrs) for d in (-around, 0.0, around))
            steepest = np.maximum.reduce([np.abs(side, dtype=np.float64) for side in sides])
        if ulps:
            return rounded(y, steepest * x.deviation, ulps, x)
        variance = None if x.variance is None else np.square(steepest) * x.variance
        return Quantity(y, variance, x.coherence)

    return operator


def _hard_sigmoid(x: Array, a: Attrs) -> Array:
    return np.clip(a.get("alpha", 0.2) * x + a.get("beta", 0.5), 0.0, 1.0)


def _hard_sigmoid_slope(x: Array, a: Attrs) -> Array:
    line = a.get("alpha", 0.2) * x + a.get("beta", 0.5)
    return a.get("alpha", 0.2) * ((line > 0) & (line < 1))


def _sigmoid(x: Array, a: Attrs) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


_erf = np.frompyfunc(math.erf, 1, 1)

UNARY: dict[str, Operator] = {
    "LeakyRelu": unary(
        lambda x, a: np.where(x > 0, x, a.get("alpha", 0.01) * x),
        lambda x, a: np.where(x > 0, 1.0, a.get("alpha", 0.01)),
        1,
    ),
    "Elu": unary(
        lambda x, a: np.where(x > 0, x, a.get("alpha", 1.0) * np.expm1(np.minimum(x, 0.0))),
        lambda x, a: np.where(x > 0, 1.0, a.get("alpha", 1.0) * np.exp(np.minimum(x, 0.0))),
        LIBRARY,
    ),
    "Neg": unary(lambda x, a: -x, lambda x, a: np.ones_like(x), 0),
    "Abs": unary(lambda x, a: np.abs(x), lambda x, a: np.ones_like(x), 0),
    "Exp": unary(lambda x, a: np.exp(x), lambda x, a: np.exp(x), LIBRARY),
    "Log": unary(lambda x, a: np.log(x), lambda x, a: 1.0 / x, LIBRARY),
    "Reciprocal": unary(lambda x, a: 1.0 / x, lambda x, a: np.square(1.0 / x), LIBRARY),
    # 1 - sigmoid would cancel; a library's own absolute error near 0 and 1 is within 8 u of the value.
    "Sigmoid": unary(_sigmoid, lambda x, a: _sigmoid(x, a) * _sigmoid(-x, a), 2 * LIBRARY),
    "Tanh": unary(lambda x, a: np.tanh(x), lambda x, a: 1.0 - np.square(np.tanh(x)), 2 * LIBRARY),
    "Erf": unary(
        lambda x, a: _erf(x).astype(np.float64),
        lambda x, a: 2 / math.sqrt(math.pi) * np.exp(-np.square(x)),
        2 * LIBRARY,
    ),
    "HardSigmoid": unary(_hard_sigmoid, _hard_sigmoid_slope, 2),
    "HardSwish": unary(
        lambda x, a: x * np.clip(x / 6 + 0.5, 0, 1),
        lambda x, a: np.where(x >= 3, 1.0, np.where(x <= -3, 0.0, x / 3 + 0.5)),
        LIBRARY,
    ),
}


def relu(node: Node, args: Args, roundings: Roundings) -> Quantity:
    """The same as ``unary`` would make, without trying three slopes on the largest tensors there are."""
    x = args[0]
    y = np.maximum(x.real, 0.0)
    variance = None if x.variance is None else x.variance * (x.real + Z * x.deviation > 0)
    return Quantity(y, variance, x.coherence)


def sqrt(node: Node, args: Args, roundings: Roundings) -> Quantity:
    """First order away from zero; at zero an error e becomes at most sqrt(e)."""
    x = args[0]
    y = np.sqrt(x.real)
    steep = np.sqrt(Z * x.deviation) / Z
    near = np.where(y > 0, np.divide(x.deviation, 2 * y), steep)
    return rounded(y, np.fmin(near, steep), LIBRARY, x)


def clip(node: Node, args: Args, roundings: Roundings) -> Quantity:
    low, high = (
        float(args[i].value) if len(args) > i and args[i] is not None else node.attrs.get(name, default)
        for i, name, default in ((1, "min", -np.inf), (2, "max", np.inf))
    )
    inside = unary(lambda x, a: np.clip(x, low, high), lambda x, a: (x > low) & (x < high), 0)
    return inside(node, args[:1], roundings)


def _combine(node: Node, args: Args, y: Array, deviation: Array | float, ulps: float) -> Quantity:
    if all(q.value.dtype.kind in "iu" for q in args):
        return Quantity(np.trunc(y).astype(args[0].value.dtype))
    return rounded(y, deviation, ulps, *args)


def add(node: Node, args: Args, roundings: Roundings) -> Quantity:
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


def multiply(node: Node, args: Args, roundings: Roundings) -> Quantity:
    a, b = args
    deviation = np.abs(b.real) * a.deviation + np.abs(a.real) * b.deviation
    return _combine(node, args, a.real * b.real, deviation, 1.0)


def divide(node: Node, args: Args, roundings: Roundings) -> Quantity:
    a, b = args
    y = a.real / b.real
    deviation = (a.deviation + np.abs(y) * b.deviation) / np.abs(b.real)
    return _combine(node, args, y, deviation, LIBRARY)


def power(node: Node, args: Args, roundings: Roundings) -> Quantity:
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


def extreme(node: Node, args: Args, roundings: Roundings) -> Quantity:
    """``Max`` and ``Min``: the largest deviation stands for all, a near tie may go either way."""
    choose = np.maximum if node.op == "Max" else np.minimum
    y, deviation = args[0].value, args[0].deviation
    for q in args[1:]:
        y, deviation = choose(y, q.value), np.maximum(deviation, q.deviation)
    if all(q.variance is None for q in args):
        return Quantity(y)
    variance = np.broadcast_to(np.square(deviation), y.shape)
    return Quantity(y.astype(np.float64), variance, max(q.coherence for q in args))


def prelu(node: Node, args: Args, roundings: Roundings) -> Quantity:
    x, slope = args
    leaky = unary(
        lambda v, a: np.where(v > 0, v, slope.real * v), lambda v, a: np.where(v > 0, 1.0, slope.real + 0 * v), 1
    )
    return leaky(node, [x], roundings)


def lrn(node: Node, args: Args, roundings: Roundings) -> Quantity:
    """y = x d^-beta with d = bias + alpha/size sum x_j^2 over neighbouring channels j.

    dy = d^-beta dx - 2 alpha beta / size x d^(-beta-1) sum x_j dx_j; the two parts are taken as independent, as are the
    x_j. The rounding of d (a sum of positive terms) reaches y multiplied by beta, that of exp(-beta log d) grows with
    its exponent.
    """
    x = args[0]
    size, alpha, beta, bias = (
        node.attrs[k] if k == "size" else node.attrs.get(k, v)
        for k, v in (("size", 0), ("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    )
    base = bias + alpha / size * kernels.channel_sum(np.square(x.real), size)
    scale = base**-beta
    y = x.real * scale
    ulps = np.sqrt(LIBRARY**2 + beta**2 * (size + 4) + np.square(beta * np.log(base)))
    deviation: Array | float = 0.0
    if x.variance is not None:
        shared = kernels.channel_sum(np.square(x.real) * x.variance, size)
        through = np.square(2 * alpha * beta / size * y / base) * shared
        deviation = np.sqrt(np.square(scale) * x.variance + through)
    return rounded(y, deviation, ulps, x)


def batch_norm(node: Node, args: Args, roundings: Roundings) -> Quantity:
    """y = (x - mean) a + shift with a = scale / sqrt(var + epsilon), also computed as x a + (shift - mean a).

    Rounding is that of either form: each product and each sum by u, a itself by 4 u.
    """
    if node.attrs.get("training_mode", 0):
        raise node.refuse("training mode; export the network for inference")
    x = args[0]
    shape = (-1, *(1,) * (x.value.ndim - 2))
    scale, shift, mean, var = (q.real.reshape(shape) for q in args[1:])
    if any(q.value.shape != (x.value.shape[1],) for q in args[1:]):
        raise node.refuse(f"its parameters do not fit {x.value.shape[1]} channels")
    factor = scale / np.sqrt(var + node.attrs.get("epsilon", 1e-5))
    centred = (x.real - mean) * factor
    y = centred + shift
    squares = 16 * np.square(centred) + np.square(x.real * factor) + 16 * np.square(mean * factor) + np.square(y)
    variance = UNIT * (squares + np.square(shift)) + FLOOR
    if x.variance is not None:
        variance += np.square(factor) * x.variance
    return Quantity(y, variance, x.coherence)


def softmax(node: Node, args: Args, roundings: Roundings) -> Quantity:
    """``Softmax`` and ``LogSoftmax``; before opset 13 over all axes from ``axis`` on.

    With p the softmax: dp_i = p_i (dx_i - sum p_j dx_j). The subtraction of the maximum rounds by u |x_i - max|.

    Where all x_i are equal and come from identical filters (coherence 1), the channels are one computation done many
    times and their errors are one error, which the softmax does not see. Without this the one-value networks of the
    onnx package, with logits of 1e12 and more, would have no bound at all.
    """
    x = args[0]
    rank = x.value.ndim
    axis = node.attrs.get("axis", -1 if node.opset >= 13 else 1) % rank
    axes = (axis,) if node.opset >= 13 else tuple(range(axis, rank))
    below = x.real - x.real.max(axis=axes, keepdims=True)
    e = np.exp(below)
    total = e.sum(axis=axes, keepdims=True)
    p = e / total
    terms = math.prod(x.value.shape[a] for a in axes)
    energy = np.square(e).sum(axis=axes, keepdims=True)
    of_sum = accumulated(total, energy, (np.square(e * below)).sum(axis=axes, keepdims=True) * UNIT, terms)
    relative = UNIT * (np.square(below) + LIBRARY**2 + 4) + of_sum / np.square(total)
    copies = x.coherence == 1.0 and not below.any()
    if x.variance is not None and not copies:
        shared = np.square(p) * x.variance
        others = np.maximum(shared.sum(axis=axes, keepdims=True) - shared, 0.0)
        relative = relative + np.square(1 - p) * x.variance + others
    if node.op == "LogSoftmax":
        return rounded(below - np.log(total), np.sqrt(relative), LIBRARY, x)
    return rounded(p, p * np.sqrt(relative), LIBRARY, x)


OPERATORS: dict[str, Operator] = {
    **UNARY,
    "Relu": relu,
    "Sqrt": sqrt,
    "Clip": clip,
    "Add": add,
    "Sub": add,
    "Sum": add,
    "Mean": add,
    "Mul": multiply,
    "Div": divide,
    "Pow": power,
    "Max": extreme,
    "Min": extreme,
    "PRelu": prelu,
    "LRN": lrn,
    "BatchNormalization": batch_norm,
    "Softmax": softmax,
    "LogSoftmax": softmax,
}
