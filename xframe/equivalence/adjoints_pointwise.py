"""Reverse mode of what works element by element, and of the three normalisations (LRN, batch norm, softmax)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from xframe.equivalence import kernels
from xframe.equivalence.adjoints import Adjoint, added, choice, constant, scaled, slope, summed
from xframe.equivalence.bounds import UNIT, Quantity
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
    return 0.5 * (1 + _erf(x / math.sqrt(2)).astype(np.float64)) + x * _normal(x)


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
        first = functools.reduce(np.logical_and, (values[i] > values[j] for j in others if j < i), True)
        won = (values[i] >= best) & first
        open_ = choice(np.abs(values[i] - best), deviations[i] + doubt)
        results.append(scaled(g, Quantity(won.astype(np.float64), np.square(open_)), q.value.shape))
    return results


def lrn(node: Node, args: Args, outs: Args, gs: Args) -> list[Quantity | None]:
    """With d = bias + alpha/size sum x^2 over neighbours: gx_j = g_j d_j^-beta - 2 alpha beta / size x_j sum_i h_i,

    h_i = g_i x_i d_i^(-beta-1) over all i that have j as a neighbour. Errors of d are those of its sum and of the x.
    """
    x, g = args[0], gs[0]
    size, alpha, beta, bias = (
        node.attrs[k] if k == "size" else node.attrs.get(k, v)
        for k, v in (("size", 0), ("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    )

    def neighbours(a: Array) -> Array:
        return kernels.channel_sum(a[:, ::-1], size)[:, ::-1]

    d = bias + alpha / size * kernels.channel_sum(np.square(x.real), size)
    of_d = 2 * alpha / size * np.sqrt(kernels.channel_sum(np.square(x.real * x.deviation), size)) / d
    relative = (beta + 1) * of_d + np.sqrt(UNIT) * (LIBRARY + (beta + 1) * (np.sqrt(size + 4) + np.abs(np.log(d))))
    scale = d**-beta
    direct = scaled(g, Quantity(scale, np.square(scale * relative)), x.value.shape)
    share = scale / d * x.real
    deviation = np.abs(share) * relative + scale / d * x.deviation
    gathered = summed(g, Quantity(share, np.square(deviation)), lambda a, b: neighbours(a * b), size)
    through = scaled(gathered, Quantity(-2 * alpha * beta / size * x.real, _times(x, 2 * alpha * beta / size)), d.shape)
    return [added([direct, through])]


def _times(x: Quantity, factor: float) -> Array:
    """Variance of ``factor * x``."""
    return np.square(factor * x.deviation) + np.square(factor * x.real) * UNIT


def batch_norm(node: Node, args: Args, outs: Args, gs: Args) -> list[Quantity | None]:
    """With s = 1 / sqrt(var + epsilon): y = (x - mean) s scale + shift. Also in the form x a + b, as in the forward."""
    x, g = args[0], gs[0]
    shape = (1, -1, *(1,) * (x.value.ndim - 2))
    scale, _, mean, var = (q.real.reshape(shape) for q in args[1:])
    inverse = 1.0 / np.sqrt(var + node.attrs.get("epsilon", 1e-5))
    exact = np.square(4 * scale * inverse) * UNIT
    centred = (x.real - mean) * inverse
    # sum g (x - mean) may be computed as sum g x - mean sum g, which cancels.
    spoiled = np.square(inverse) * (UNIT * (np.square(x.real) + np.square(mean)) + np.square(x.deviation))
    normalised = Quantity(centred, np.broadcast_to(16 * UNIT * np.square(centred) + spoiled, x.value.shape))
    axes = tuple(a for a in range(x.value.ndim) if a != 1)
    terms = x.value.size // max(x.value.shape[1], 1)

    def channels(a: Array, b: Array) -> Array:
        return np.broadcast_to(a * b, x.value.shape).sum(axis=axes)

    of_scale, of_shift = summed(g, normalised, channels, terms), summed(g, constant(1.0), channels, terms)
    to_mean, to_var = (-scale * inverse).ravel(), (-0.5 * scale * np.square(inverse)).ravel()
    return [
        scaled(g, Quantity(scale * inverse, exact), x.value.shape),
        of_scale,
        of_shift,
        scaled(of_shift, Quantity(to_mean, exact.ravel()), to_mean.shape),
        scaled(of_scale, Quantity(to_var, np.square(8 * to_var) * UNIT), to_var.shape),
    ]


def softmax(node: Node, args: Args, outs: Args, gs: Args) -> list[Quantity | None]:
    """``Softmax``: gx = p (g - sum p g); ``LogSoftmax``: gx = g - p sum g. Old opsets: all axes from ``axis``."""
    y, g, rank = outs[0], gs[0], args[0].value.ndim
    axis = node.attrs.get("axis", -1 if node.opset >= 13 else 1) % rank
    axes = (axis,) if node.opset >= 13 else tuple(range(axis, rank))
    terms = math.prod(args[0].value.shape[a] for a in axes)
    if node.op == "LogSoftmax":
        p = np.exp(y.real)
        p = Quantity(p, np.square(p) * (np.asarray(y.deviation) ** 2 + LIBRARY**2 * UNIT))
        whole = summed(g, constant(1.0), lambda a, b: (a * b).sum(axis=axes, keepdims=True), terms)
        taken = scaled(whole, Quantity(-p.real, p.variance), p.value.shape)
        return [added([g, taken])]
    whole = summed(g, y, lambda a, b: (a * b).sum(axis=axes, keepdims=True), terms)
    difference = g.real - whole.real
    deviation = g.deviation + whole.deviation + np.sqrt(UNIT) * (np.abs(g.real) + np.abs(whole.real))
    return [scaled(Quantity(difference, np.square(deviation)), y, y.value.shape)]


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
    "LRN": lrn,
    "BatchNormalization": batch_norm,
    "Softmax": softmax,
    "LogSoftmax": softmax,
}
