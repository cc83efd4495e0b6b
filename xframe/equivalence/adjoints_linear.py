"""Reverse mode of the operators that sum products, and of pooling: each written straight from its definition."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from xframe.equivalence import kernels
from xframe.equivalence.adjoints import Adjoint, choice, constant, scaled, shaped, summed, unbroadcast
from xframe.equivalence.bounds import FLOOR, UNIT, Quantity
from xframe.equivalence.graph import Node
from xframe.equivalence.kernels import Window
from xframe.equivalence.linear import window_of

Array = np.ndarray
Args = Sequence[Any]

#: Elements of a product's weight gradient that are made at a time.
BLOCK = 1 << 22


def _within(window: Window, padded: Array, size: Sequence[int]) -> Array:
    """The part of a padded image that is not padding."""
    cuts: list[Any] = [slice(b, b + n) for b, n in zip(window.pads, size, strict=False)]
    return padded[(..., *cuts)]


def _grouped(a: Array, groups: int) -> Array:
    """[N, C, *spatial] -> [N, groups, C / groups, pixels]."""
    return a.reshape(a.shape[0], groups, a.shape[1] // groups, -1)


def _filters(a: Array, images: Array, window: Window, groups: int, shape: tuple[int, ...]) -> Array:
    """Sum over images and positions of ``a`` [N, O, *out] times what the window shows: weights of ``shape``."""
    outputs = a.shape[2:]
    out, flat = np.empty((groups, shape[0] // groups, shape[1], math.prod(window.kernel))), _grouped(a, groups)
    padded = window.pad(images, 0.0)
    for t, view in enumerate(window.offsets(padded, slice(0, outputs[0]), outputs)):
        out[..., t] = (flat @ _grouped(view, groups).swapaxes(2, 3)).sum(axis=0)
    return out.reshape(shape)


def conv(node: Node, args: Args, outs: Args, gs: Args) -> list[Quantity | None]:
    x, w, g = args[0], args[1], gs[0]
    groups, size = node.attrs.get("group", 1), x.value.shape[2:]
    window = window_of(node, size, w.value.shape[2:])
    outputs, taps = window.outputs(size), math.prod(window.kernel)
    shape = (groups, w.value.shape[0] // groups, w.value.shape[1])
    empty = np.zeros_like(window.pad(np.zeros(x.value.shape), 0.0))

    def image(a: Array, weights: Array) -> Array:
        out, flat = empty.copy(), _grouped(a, groups)
        kernel = weights.reshape(*shape, taps)
        for t, view in enumerate(window.offsets(out, slice(0, outputs[0]), outputs)):
            view += (kernel[..., t].transpose(0, 2, 1) @ flat).reshape(view.shape)
        return _within(window, out, size)

    def filters(a: Array, images: Array) -> Array:
        return _filters(a, images, window, groups, w.value.shape)

    pixels = x.value.shape[0] * math.prod(outputs)
    results: list[Quantity | None] = [summed(g, w, image, shape[1] * taps), summed(g, x, filters, pixels)]
    bias = len(args) > 2 and args[2] is not None
    axes = (0, *range(2, 2 + len(size)))
    return results + ([summed(g, constant(1.0), lambda a, b: (a * b).sum(axis=axes), pixels)] if bias else [])


def conv_transpose(node: Node, args: Args, outs: Args, gs: Args) -> list[Quantity | None]:
    """The transposed convolution of a transposed convolution is the convolution."""
    x, w, g = args[0], args[1], gs[0]
    if node.attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or node.attrs.get("output_shape"):
        raise node.refuse("the gradient is known with explicit pads only")
    rank, groups = x.value.ndim - 2, node.attrs.get("group", 1)
    stride, dilation = (tuple(node.attrs.get(k) or (1,) * rank) for k in ("strides", "dilations"))
    pads = tuple(node.attrs.get("pads") or (0,) * 2 * rank)
    window = Window(w.value.shape[2:], stride, pads, dilation)
    axes, pixels = (0, *range(2, 2 + rank)), g.value.size // g.value.shape[1]
    results: list[Quantity | None] = [
        summed(g, w, lambda a, v: kernels.conv(a, v, window, groups), math.prod(w.value.shape[1:])),
        summed(g, x, lambda a, v: _filters(v, a, window, groups, w.value.shape), x.value.size // x.value.shape[1]),
    ]
    bias = len(args) > 2 and args[2] is not None
    return results + ([summed(g, constant(1.0), lambda a, v: (a * v).sum(axis=axes), pixels)] if bias else [])


def _outer(x: Quantity, g: Quantity) -> Quantity:
    """``x.T @ g`` of two matrices, a block of rows at a time: it may be the gradient of a very large weight."""
    rows, columns = x.value.shape[1], g.value.shape[1]
    value, variance = np.empty((rows, columns)), np.empty((rows, columns))
    step = max(1, BLOCK // max(columns, 1))
    for part in (slice(i, i + step) for i in range(0, rows, step)):
        block = summed(g, x.moved(operator.itemgetter((slice(None), part))), lambda a, b: b.T @ a, g.value.shape[0])
        value[part], variance[part] = block.value, block.variance
    return Quantity(value, variance)


def matmul(node: Node, args: Args, outs: Args, gs: Args) -> list[Quantity | None]:
    a, b, g = args[0], args[1], gs[0]
    left = a.moved(lambda v: v[None, :]) if a.value.ndim == 1 else a
    right = b.moved(lambda v: v[:, None]) if b.value.ndim == 1 else b
    if b.value.ndim == 1:
        g = g.moved(lambda v: v[..., None])
    if a.value.ndim == 1:
        g = g.moved(lambda v: v[..., None, :])
    of_left = summed(
        g, right, lambda v, w: unbroadcast(v @ w.swapaxes(-1, -2), left.value.shape), right.value.shape[-1]
    )
    if right.value.ndim == 2:
        flat, gradient = (q.moved(lambda v: v.reshape(-1, v.shape[-1])) for q in (left, g))
        of_right = _outer(flat, gradient)
    else:
        terms = math.prod(g.value.shape[:-1])
        of_right = summed(g, left, lambda v, w: unbroadcast(w.swapaxes(-1, -2) @ v, right.value.shape), max(1, terms))
    return [shaped(of_left, a), shaped(of_right, b)]


def gemm(node: Node, args: Args, outs: Args, gs: Args) -> list[Quantity | None]:
    alpha, beta = (constant(node.attrs.get(name, 1.0)) for name in ("alpha", "beta"))
    turned = [bool(node.attrs.get(name, 0)) for name in ("transA", "transB")]
    a, b = (q.moved(np.transpose) if t else q for q, t in zip(args, turned, strict=False))
    g = gs[0] if alpha.value == 1 else scaled(gs[0], alpha, gs[0].value.shape)
    products = (summed(g, b, lambda v, w: v @ w.T, b.value.shape[1]), _outer(a, g))
    results: list[Quantity | None] = [q.moved(np.transpose) if t else q for q, t in zip(products, turned, strict=True)]
    if len(args) > 2 and args[2] is not None:
        results.append(scaled(gs[0], beta, args[2].value.shape))
    return results


def average_pool(node: Node, args: Args, outs: Args, gs: Args) -> list[Quantity | None]:
    size = args[0].value.shape[2:]
    window = window_of(node, size, node.attrs["kernel_shape"])
    outputs = window.outputs(size)
    count = kernels.pool_count(size, window, bool(node.attrs.get("count_include_pad", 0)))
    empty = np.zeros_like(window.pad(np.zeros(args[0].value.shape), 0.0))

    def spread(g: Array, share: Array) -> Array:
        out, each = empty.copy(), g * share
        for view in window.offsets(out, slice(0, outputs[0]), outputs):
            view += each
        return _within(window, out, size)

    return [summed(gs[0], constant(1.0 / count), spread, math.prod(window.kernel))]


def max_pool(node: Node, args: Args, outs: Args, gs: Args) -> list[Quantity | None]:
    """The gradient goes to the first of the largest; whatever may be the largest may get it instead."""
    x, g = args[0], gs[0]
    size = x.value.shape[2:]
    window = window_of(node, size, node.attrs["kernel_shape"])
    outputs = window.outputs(size)
    padded = window.pad(x.real, -np.inf)
    views = list(window.offsets(padded, slice(0, outputs[0]), outputs))
    deviation = None if x.variance is None else window.pad(np.sqrt(x.variance), 0.0)
    value, variance = np.zeros_like(padded), np.zeros_like(padded)
    targets = zip(*(window.offsets(a, slice(0, outputs[0]), outputs) for a in (value, variance)), strict=True)
    doubts = itertools.repeat(0.0) if deviation is None else window.offsets(deviation, slice(0, outputs[0]), outputs)
    _hand_out(list(zip(views, doubts, targets, strict=False)), g)
    terms = math.prod(math.ceil(k / s) for k, s in zip(window.kernel, window.stride, strict=True))
    variance += UNIT * terms * np.square(value) + FLOOR
    return [Quantity(_within(window, value, size), _within(window, variance, size))]


def _hand_out(candidates: Sequence[tuple[Array, Any, tuple[Array, Array]]], g: Quantity) -> None:
    """Adds ``g`` to the first of the largest candidates: (values, deviations, where value and variance are added)."""
    best, doubt = candidates[0][0].copy(), np.broadcast_to(candidates[0][1], candidates[0][0].shape).copy()
    for values, deviations, _ in candidates[1:]:
        larger = values > best
        np.copyto(best, values, where=larger)
        np.copyto(doubt, deviations, where=larger)
    rivals = np.zeros(best.shape, np.int64)
    for values, deviations, _ in candidates:
        rivals += choice(best - values, deviations + doubt) > 0
    free = np.ones(best.shape, bool)
    square = np.square(g.real)
    for values, deviations, (value, variance) in candidates:
        won = (values == best) & free
        free &= ~won
        open_ = choice(best - values, deviations + doubt) * (rivals > 1)
        value += np.where(won, g.real, 0.0)
        variance += np.square(open_) * square
        if g.variance is not None:
            variance += np.where(won | (open_ > 0), g.variance, 0.0)


def reduced_axes(node: Node, args: Args) -> tuple[int, ...]:
    """The axes that a reduction sums over, an input in newer operator sets."""
    rank = args[0].value.ndim
    given = args[1].value.tolist() if len(args) > 1 and args[1] is not None else node.attrs.get("axes")
    if not given:
        return () if node.attrs.get("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(int(a) % rank for a in given)


def reduce_max(node: Node, args: Args, outs: Args, gs: Args) -> list[Quantity | None]:
    """``ReduceMax``, ``ReduceMin`` and ``GlobalMaxPool``."""
    x, rank = args[0], args[0].value.ndim
    x = x if node.op != "ReduceMin" else Quantity(-x.real, x.variance)
    axes = tuple(range(2, rank)) if node.op == "GlobalMaxPool" else reduced_axes(node, args)
    if not axes:
        return [gs[0]]
    kept = tuple(a for a in range(rank) if a not in axes)
    sizes = [x.value.shape[a] for a in (*axes, *kept)]

    def front(a: Array) -> Array:
        """The reduced axes as one, first."""
        return a.transpose(*axes, *kept).reshape(-1, *sizes[len(axes) :], 1)

    values, deviations = front(x.real), front(np.broadcast_to(x.deviation, x.value.shape))
    value, variance = np.zeros(values.shape), np.zeros(values.shape)
    targets = zip(value, variance, strict=True)
    _hand_out(list(zip(values, deviations, targets, strict=True)), gs[0].moved(lambda a: a.reshape(values.shape[1:])))
    order = np.argsort((*axes, *kept))
    found = Quantity(value, variance + FLOOR)
    return [found.moved(lambda a: a.reshape(sizes).transpose(order))]


def average(node: Node, args: Args, outs: Args, gs: Args) -> list[Quantity | None]:
    """``ReduceMean``, ``ReduceSum`` and ``GlobalAveragePool``: the same gradient for all that was summed."""
    shape = args[0].value.shape
    axes = tuple(range(2, len(shape))) if node.op == "GlobalAveragePool" else reduced_axes(node, args)
    kept = tuple(1 if a in axes else n for a, n in enumerate(shape))
    if not axes:
        return [gs[0]]
    share = 1.0 if node.op == "ReduceSum" else 1.0 / math.prod(shape[a] for a in axes)
    each = scaled(gs[0].moved(lambda a: a.reshape(kept)), constant(share), kept)
    return [each.moved(lambda a: np.broadcast_to(a, shape))]


def sum_of_squares(node: Node, args: Args, outs: Args, gs: Args) -> list[Quantity | None]:
    """``ReduceSumSquare``: 2 x g; ``ReduceL2``: x g / y."""
    x, shape = args[0], args[0].value.shape
    axes = reduced_axes(node, args)
    kept = tuple(1 if a in axes else n for a, n in enumerate(shape))
    each = gs[0].moved(lambda a: np.broadcast_to(a.reshape(kept), shape))
    if node.op == "ReduceSumSquare":
        return [scaled(each, Quantity(2 * x.real, None if x.variance is None else 4 * x.variance), shape)]
    y = outs[0].moved(lambda a: np.broadcast_to(a.reshape(kept), shape))
    inverse = 1 / y.real
    relative = y.deviation * inverse + 4 * math.sqrt(UNIT)
    return [scaled(scaled(each, Quantity(inverse, np.square(relative * inverse)), shape), x, shape)]


ADJOINTS: dict[str, Adjoint] = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "MatMul": matmul,
    "Gemm": gemm,
    "MaxPool": max_pool,
    "AveragePool": average_pool,
    "GlobalAveragePool": average,
    "GlobalMaxPool": reduce_max,
    "ReduceMean": average,
    "ReduceSum": average,
    "ReduceMax": reduce_max,
    "ReduceMin": reduce_max,
    "ReduceSumSquare": sum_of_squares,
    "ReduceL2": sum_of_squares,
}
