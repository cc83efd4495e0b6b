"""Reverse mode of the normalisations: by neighbouring channels, by given numbers, by a tensor's own moments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from xframe.equivalence import kernels
from xframe.equivalence.adjoints import Adjoint, added, constant, scaled, shaped, summed
from xframe.equivalence.adjoints_pointwise import LIBRARY
from xframe.equivalence.bounds import UNIT, Quantity
from xframe.equivalence.graph import Node

Array = np.ndarray
Args = Sequence[Any]


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


def _standardised(
    x: Quantity, g: Quantity, scale: Quantity, shift: Quantity | None, axes: tuple[int, ...], epsilon: float
) -> list[Quantity]:
    """Of z scale + shift with z = (x - mean) / s, s = sqrt(var + epsilon), moments over ``axes``, by x, scale, shift.

    With h = g scale: gx = (h - mean(h) - z mean(h z)) / s.
    """
    terms = math.prod(x.value.shape[a] for a in axes)

    def mean(a: Array, b: Array) -> Array:
        return np.broadcast_to(a * b, x.value.shape).mean(axis=axes, keepdims=True)

    centre = x.real.mean(axis=axes, keepdims=True)
    s = np.sqrt(np.square(x.real - centre).mean(axis=axes, keepdims=True) + epsilon)
    z = (x.real - centre) / s
    noise = np.broadcast_to(np.square(x.deviation), x.value.shape)
    common, along = (np.sqrt(mean(noise, weight) / terms) for weight in (np.ones(()), np.square(z)))
    # Moments may be those of x itself, which cancel where their mean is large.
    own = math.sqrt(UNIT) * (LIBRARY + (np.abs(x.real) + np.abs(centre)) / s + np.square(centre / s))
    deviation = (np.sqrt(noise) + common + np.abs(z) * along) / s + own * (1 + np.abs(z))
    standard = Quantity(z, np.square(deviation))
    relative = along / s + own.max(axis=axes, keepdims=True)
    h = scaled(g, scale, x.value.shape)
    middle = summed(h, constant(-1.0), mean, terms)
    projected = scaled(summed(h, standard, mean, terms), Quantity(-z, standard.variance), x.value.shape)
    whole = added([h, middle.moved(lambda a: np.broadcast_to(a, x.value.shape)), projected])
    results = [
        scaled(whole, Quantity(1 / s, np.square(relative / s)), x.value.shape),
        scaled(g, standard, scale.value.shape),
    ]
    return results if shift is None else [*results, scaled(g, constant(1.0), shift.value.shape)]


def layer_norm(node: Node, args: Args, outs: Args, gs: Args) -> list[Quantity | None]:
    x, rank = args[0], args[0].value.ndim
    axes = tuple(range(node.attrs.get("axis", -1) % rank, rank))
    shift = args[2] if len(args) > 2 else None
    return list(_standardised(x, gs[0], args[1], shift, axes, node.attrs.get("epsilon", 1e-5)))


def group_norm(node: Node, args: Args, outs: Args, gs: Args) -> list[Quantity | None]:
    """``InstanceNormalization``, where each channel is a group, and ``GroupNormalization``."""
    x, shape = args[0], args[0].value.shape
    groups = shape[1] if node.op == "InstanceNormalization" else node.attrs["num_groups"]
    split = (shape[0], groups, shape[1] // groups, *shape[2:])
    each = (groups, -1, *(1,) * (len(shape) - 2))  # before opset 21 one number a group
    scale, shift = (q.moved(lambda a: a.reshape(each)) for q in args[1:3])
    x, g = (q.moved(lambda a: a.reshape(split)) for q in (x, gs[0]))
    found = _standardised(x, g, scale, shift, tuple(range(2, len(split))), node.attrs.get("epsilon", 1e-5))
    return [shaped(f, q) for f, q in zip(found, args, strict=False)]


ADJOINTS: dict[str, Adjoint] = {
    "LRN": lrn,
    "BatchNormalization": batch_norm,
    "LayerNormalization": layer_norm,
    "InstanceNormalization": group_norm,
    "GroupNormalization": group_norm,
    "Softmax": softmax,
    "LogSoftmax": softmax,
}
