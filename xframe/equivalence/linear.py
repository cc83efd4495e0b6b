"""Operators that sum products: convolution, matrix product, averages; and the pooling that shares their windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from xframe.artifact import explicit_pads
from xframe.equivalence import kernels
from xframe.equivalence.bounds import Quantity, accumulated, alikeness, rounded
from xframe.equivalence.graph import Node, Operator, Roundings
from xframe.equivalence.kernels import Window
from xframe.types import ConvSite

Args = Sequence[Quantity]


def window_of(node: Node, size: Sequence[int], kernel: Sequence[int]) -> Window:
    """The sliding window that a convolution's or pooling's attributes describe, over an input of spatial ``size``."""
    ones = (1,) * len(kernel)
    stride = tuple(node.attrs.get("strides") or ones)
    dilation = tuple(node.attrs.get("dilations") or ones)
    auto = node.attrs.get("auto_pad", "")
    pads = explicit_pads(auto, node.attrs.get("pads"), size, kernel, stride, dilation)
    window = Window(tuple(kernel), stride, pads, dilation, bool(node.attrs.get("ceil_mode", 0)))
    if len(size) != len(kernel) or min(window.outputs(size)) < 1:
        raise node.refuse(f"a kernel of {tuple(kernel)} does not fit an input of {tuple(size)} with pads {pads}")
    return window


def conv(node: Node, args: Args, roundings: Roundings) -> Quantity:
    x, w = args[0], args[1]
    bias = args[2] if len(args) > 2 else None
    filters, groups = w.value.shape[0], node.attrs.get("group", 1)
    shape = x.value.shape
    if shape[1] != w.value.shape[1] * groups or filters % groups:
        raise node.refuse(f"weights of shape {w.value.shape} in {groups} groups do not fit an input of shape {shape}")
    window = window_of(node, shape[2:], w.value.shape[2:])

    def product(data: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return kernels.conv(data, weights, window, groups)

    squares = np.square(w.real)
    total = product(x.real, w.real)
    energy = product(np.square(x.real), squares)
    arriving = None if x.variance is None else product(x.variance, squares)
    if w.variance is not None:
        arriving = product(np.square(x.real), w.variance) + (0.0 if arriving is None else arriving)
    rounding = roundings.get(_site(x.value.shape, filters, window, groups)) if len(window.kernel) == 2 else None
    reach = rounding.reach if rounding else ()
    added = np.zeros((1,) * len(window.kernel)) if bias is None else bias.real.reshape(-1, *(1,) * len(window.kernel))
    terms = math.prod(w.value.shape[1:])
    variance = accumulated(
        total, energy, arriving, terms, rounding, x.coherence, added, lambda a: kernels.spread_max(a, reach)
    )
    if bias is not None and bias.variance is not None:
        variance += bias.variance.reshape(added.shape)
    return Quantity(total + added, variance, alikeness(w.value.reshape(filters, -1)))


def _site(shape: tuple[int, ...], filters: int, window: Window, groups: int) -> ConvSite:
    batch, channels, height, width = shape
    (kh, kw), (sh, sw), (dh, dw) = window.kernel, window.stride, window.dilation
    top, left, bottom, right = window.pads
    return ConvSite(
        batch, channels, (height, width), filters, (kh, kw), (sh, sw), (top, left, bottom, right), (dh, dw), groups
    )


def _product(a: Quantity, b: Quantity, bias: np.ndarray | float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """``a @ b`` without the bias, and the variance of the error with it."""
    squared = [np.square(a.real)] + ([] if a.variance is None else [a.variance])
    (total,), (energy, *came) = kernels.dense(b.value, [a.real], squared)
    arriving = came[0] if came else None
    if b.variance is not None:
        ((own,), _) = kernels.dense(b.variance, squared[:1])
        arriving = own if arriving is None else own + arriving
    coherence = max(a.coherence, b.coherence)
    return total, accumulated(total, energy, arriving, a.value.shape[-1], None, coherence, bias)


def _likeness(weights: Quantity) -> float:
    """Likeness of the errors of ``x @ weights``: that of its columns when they are constants."""
    if weights.variance is not None or weights.value.ndim != 2:
        return weights.coherence
    return alikeness(weights.value.T)


def matmul(node: Node, args: Args, roundings: Roundings) -> Quantity:
    a, b = args
    if not a.value.ndim or not b.value.ndim or a.value.shape[-1] != b.value.shape[max(b.value.ndim - 2, 0)]:
        raise node.refuse(f"shapes {a.value.shape} and {b.value.shape} make no product")
    total, variance = _product(a, b)
    return Quantity(total, variance, _likeness(b))


def gemm(node: Node, args: Args, roundings: Roundings) -> Quantity:
    a, b = (
        q.moved(np.transpose) if node.attrs.get(t, 0) else q for q, t in zip(args, ("transA", "transB"), strict=False)
    )
    if a.value.ndim != 2 or b.value.ndim != 2 or a.value.shape[1] != b.value.shape[0]:
        raise node.refuse(f"shapes {a.value.shape} and {b.value.shape} make no product")
    alpha, beta = node.attrs.get("alpha", 1.0), node.attrs.get("beta", 1.0)
    c = args[2] if len(args) > 2 else None
    bias = 0.0 if c is None else c.real * (beta / alpha)
    total, variance = _product(a, b, bias)
    if c is not None and c.variance is not None:
        variance += (beta / alpha) ** 2 * c.variance
    return Quantity(alpha * (total + bias), alpha**2 * variance, _likeness(b))


def max_pool(node: Node, args: Args, roundings: Roundings) -> Quantity:
    """The largest variance in a window stands for its maximum's: a near tie may go either way."""
    window = window_of(node, args[0].value.shape[2:], node.attrs["kernel_shape"])
    return args[0].moved(lambda a: kernels.pool_max(a, window))


def average_pool(node: Node, args: Args, roundings: Roundings) -> Quantity:
    x = args[0]
    size = x.value.shape[2:]
    window = window_of(node, size, node.attrs["kernel_shape"])
    count = kernels.pool_count(size, window, bool(node.attrs.get("count_include_pad", 0)))
    return _average(x, lambda a: kernels.pool_sum(a, window), math.prod(window.kernel), count)


def global_average_pool(node: Node, args: Args, roundings: Roundings) -> Quantity:
    return _reduced(args[0], tuple(range(2, args[0].value.ndim)), True, True)


def global_max_pool(node: Node, args: Args, roundings: Roundings) -> Quantity:
    return args[0].moved(lambda a: a.max(axis=tuple(range(2, a.ndim)), keepdims=True))


def _average(x: Quantity, add: Callable[[np.ndarray], np.ndarray], terms: int, count: np.ndarray | float) -> Quantity:
    total = add(x.real)
    arriving = None if x.variance is None else add(x.variance)
    variance = accumulated(total, add(np.square(x.real)), arriving, terms, None, x.coherence)
    return rounded(total / count, np.sqrt(variance) / count, 1.0, x)


def _reduced(x: Quantity, axes: tuple[int, ...], keep: bool, mean: bool) -> Quantity:
    terms = math.prod(x.value.shape[a] for a in axes)
    return _average(x, lambda a: a.sum(axis=axes, keepdims=keep), terms, terms if mean else 1)


def _axes(node: Node, args: Args) -> tuple[int, ...]:
    rank = args[0].value.ndim
    given = args[1].value.tolist() if len(args) > 1 and args[1] is not None else node.attrs.get("axes")
    if not given:
        return () if node.attrs.get("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(int(a) % rank for a in given)


def reduce(node: Node, args: Args, roundings: Roundings) -> Quantity:
    axes, keep = _axes(node, args), bool(node.attrs.get("keepdims", 1))
    if not axes:
        return args[0]
    if args[0].value.dtype.kind in "iu":
        if node.op == "ReduceMean":
            raise node.refuse("a mean of integers")
        move = np.sum if node.op == "ReduceSum" else np.max
        return args[0].moved(lambda a: move(a, axis=axes, keepdims=keep))
    if node.op == "ReduceMax":
        return args[0].moved(lambda a: a.max(axis=axes, keepdims=keep))
    return _reduced(args[0], axes, keep, node.op == "ReduceMean")


OPERATORS: dict[str, Operator] = {
    "Conv": conv,
    "MatMul": matmul,
    "Gemm": gemm,
    "MaxPool": max_pool,
    "AveragePool": average_pool,
    "GlobalAveragePool": global_average_pool,
    "GlobalMaxPool": global_max_pool,
    "ReduceMean": reduce,
    "ReduceSum": reduce,
    "ReduceMax": reduce,
}
