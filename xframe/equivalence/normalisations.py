"""Normalisations: by neighbouring channels (LRN), by given numbers (batch norm), by a tensor's own moments."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from xframe.equivalence import kernels
from xframe.equivalence.bounds import FLOOR, UNIT, Quantity, accumulated, rounded
from xframe.equivalence.graph import Node, Operator, Roundings
from xframe.equivalence.pointwise import LIBRARY, divide, root
from xframe.equivalence.reductions import average, squares_of

Array = np.ndarray
Args = Sequence[Quantity]


def lrn(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
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


def batch_norm(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    """y = (x - mean) a + shift with a = scale / sqrt(var + epsilon)."""
    if node.attrs.get("training_mode", 0):
        raise node.refuse("training mode; export the network for inference")
    x = args[0]
    shape = (-1, *(1,) * (x.value.ndim - 2))
    scale, shift, mean, var = (q.real.reshape(shape) for q in args[1:])
    if any(q.value.shape != (x.value.shape[1],) for q in args[1:]):
        raise node.refuse(f"its parameters do not fit {x.value.shape[1]} channels")
    factor = scale / np.sqrt(var + node.attrs.get("epsilon", 1e-5))
    y, variance = _affine(x.real, mean, factor, shift)
    if x.variance is not None:
        variance += np.square(factor) * x.variance
    return Quantity(y, variance, x.coherence)


def _affine(x: Array, mean: Array, factor: Array, shift: Array | float) -> tuple[Array, Array]:
    """(x - mean) factor + shift, also computed as x factor + (shift - mean factor), and the variance of its rounding.

    Rounding is that of either form: each product and each sum by u, the factor itself by 4 u.
    """
    centred = (x - mean) * factor
    y = centred + shift
    squares = 16 * np.square(centred) + np.square(x * factor) + 16 * np.square(mean * factor) + np.square(y)
    return y, UNIT * (squares + np.square(shift)) + FLOOR


def _standardised(
    x: Quantity, axes: tuple[int, ...], epsilon: float, scale: Quantity | None = None, shift: Quantity | None = None
) -> Quantity:
    """z scale + shift with z = (x - mean) / sqrt(var + epsilon), mean and variance of x over ``axes``.

    With s the root: dz_i = (dx_i - mean(dx) - z_i mean(z dx)) / s; the three parts are added as deviations. The mean
    and the variance round as sums; the variance also as mean(x^2) - mean^2, which cancels when the mean is large.
    """
    terms = math.prod(x.value.shape[a] for a in axes)

    def add(a: Array) -> Array:
        return np.sum(a, axis=axes, keepdims=True)

    exact = Quantity(x.real)
    mean, square = average(exact, add, terms, terms), squares_of(exact, add, terms)
    var = add(np.square(x.real - mean.value)) / terms
    s = np.sqrt(var + epsilon)
    z = (x.real - mean.value) / s
    own = (square.deviation / terms + 2 * np.abs(mean.value) * mean.deviation) / (2 * np.square(s))
    deviation = mean.deviation / s + np.abs(z) * own
    if x.variance is not None:
        common = np.sqrt(add(x.variance)) / terms
        along = np.sqrt(add(np.square(z) * x.variance)) / terms
        deviation = deviation + (x.deviation + common + np.abs(z) * along) / s
    factor = 1.0 if scale is None else scale.real
    y, variance = _affine(x.real, mean.value, factor / s, 0.0 if shift is None else shift.real)
    for q, slope in ((scale, np.abs(z)), (shift, 1.0)):
        if q is not None and q.variance is not None:
            variance += np.square(slope) * q.variance
    return Quantity(y, variance + np.square(deviation * factor), x.coherence)


def _channels(q: Quantity | None, rank: int) -> Quantity | None:
    """One number a channel, as it is broadcast to images of ``rank`` dimensions."""
    return None if q is None else q.moved(lambda a: a.reshape(-1, *(1,) * (rank - 2)))


def instance_norm(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    x, rank = args[0], args[0].value.ndim
    axes = tuple(range(2, rank))
    return _standardised(x, axes, node.attrs.get("epsilon", 1e-5), *(_channels(q, rank) for q in args[1:3]))


def group_norm(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    """Before opset 21 scale and shift are given by group, since then by channel."""
    x, groups = args[0], node.attrs["num_groups"]
    shape = x.value.shape
    if shape[1] % groups:
        raise node.refuse(f"{shape[1]} channels make no {groups} equal groups")
    scale, shift = args[1:3]
    if node.opset < 21:
        scale, shift = (q.moved(lambda a: np.repeat(a, shape[1] // groups)) for q in (scale, shift))
    split = (groups, shape[1] // groups, *(1,) * (len(shape) - 2))
    scale, shift = (q.moved(lambda a: a.reshape(split)) for q in (scale, shift))
    grouped = x.moved(lambda a: a.reshape(shape[0], *split[:2], *shape[2:]))
    axes = tuple(range(2, len(shape) + 1))
    return _standardised(grouped, axes, node.attrs.get("epsilon", 1e-5), scale, shift).moved(lambda a: a.reshape(shape))


def layer_norm(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    x, rank = args[0], args[0].value.ndim
    axes = tuple(range(node.attrs.get("axis", -1) % rank, rank))
    return _standardised(x, axes, node.attrs.get("epsilon", 1e-5), *args[1:3])


def mean_variance_norm(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    """As ONNX defines it, 1e-9 is added to the root of the variance: nothing, beside a variance that is no zero."""
    axes = tuple(a % args[0].value.ndim for a in node.attrs.get("axes", (0, 2, 3)))
    return _standardised(args[0], axes, 1e-18)


def lp_norm(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    x, axis, p = args[0], node.attrs.get("axis", -1), node.attrs.get("p", 2)
    terms = x.value.shape[axis]

    def add(a: Array) -> Array:
        return np.sum(a, axis=axis, keepdims=True)

    if p == 2:
        size = root(squares_of(x, add, terms))
    elif p == 1:
        size = average(Quantity(np.abs(x.real), x.variance, x.coherence), add, terms, 1)
    else:
        raise node.refuse(f"a norm of order {p}: ONNX has 1 and 2")
    y = divide(node, (x, size), roundings)
    zero = (size.value == 0) & (add(x.deviation + np.zeros(x.value.shape)) == 0)  # 0 / 0 counts as 0
    return Quantity(np.where(zero, 0.0, y.value), np.where(zero, 0.0, np.square(y.deviation)), y.coherence)


def softmax(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
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
    "LRN": lrn,
    "BatchNormalization": batch_norm,
    "InstanceNormalization": instance_norm,
    "GroupNormalization": group_norm,
    "LayerNormalization": layer_norm,
    "MeanVarianceNormalization": mean_variance_norm,
    "LpNormalization": lp_norm,
    "Softmax": softmax,
    "LogSoftmax": softmax,
}
