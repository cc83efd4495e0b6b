"""Operators that sum products with weights: convolutions, matrix products, sums of any indices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xframe.artifact import explicit_pads
from xframe.equivalence import kernels
from xframe.equivalence.bounds import Quantity, accumulated, alikeness
from xframe.equivalence.graph import Node, Operator, Roundings
from xframe.equivalence.kernels import Window
from xframe.types import ConvSite, Rounding

Array = np.ndarray
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


def conv(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    x, w = args[0], args[1]
    filters, groups = w.value.shape[0], node.attrs.get("group", 1)
    shape = x.value.shape
    if shape[1] != w.value.shape[1] * groups or filters % groups:
        raise node.refuse(f"weights of shape {w.value.shape} in {groups} groups do not fit an input of shape {shape}")
    window = window_of(node, shape[2:], w.value.shape[2:])
    rounding = None
    if roundings and len(window.kernel) == 2:
        rounding = roundings.get(_site(shape, filters, window, groups))

    def product(data: Array, weights: Array) -> Array:
        return kernels.conv(data, weights, window, groups)

    terms = math.prod(w.value.shape[1:])
    return _convolved(x, w, args[2] if len(args) > 2 else None, product, terms, roundings is not None, rounding)


def _convolved(
    x: Quantity,
    w: Quantity,
    bias: Quantity | None,
    product: Callable[[Array, Array], Array],
    terms: int,
    bounded: bool,
    rounding: Rounding | None = None,
) -> Quantity:
    """``product(x, w)``, a convolution of any kind, with a bias; ``terms`` products make one output."""
    rank = x.value.ndim - 2
    added = np.zeros((1,) * rank) if bias is None else bias.real.reshape(-1, *(1,) * rank)
    total = product(x.real, w.real)
    if not bounded:
        return Quantity(total + added)
    if rounding and rounding.operands:
        x, w = x.narrowed(rounding), w.narrowed(rounding)
    squares = np.square(w.real)
    energy = product(np.square(x.real), squares)
    arriving = None if x.variance is None else product(x.variance, squares)
    if w.variance is not None:
        arriving = product(np.square(x.real), w.variance) + (0.0 if arriving is None else arriving)
    reach = rounding.reach if rounding else ()
    variance = accumulated(
        total, energy, arriving, terms, rounding, x.coherence, added, lambda a: kernels.spread_max(a, reach)
    )
    if bias is not None and bias.variance is not None:
        variance += bias.variance.reshape(added.shape)
    return Quantity(total + added, variance, alikeness(w.value.reshape(w.value.shape[0], -1)))


def _site(shape: tuple[int, ...], filters: int, window: Window, groups: int) -> ConvSite:
    batch, channels, height, width = shape
    (kh, kw), (sh, sw), (dh, dw) = window.kernel, window.stride, window.dilation
    top, left, bottom, right = window.pads
    return ConvSite(
        batch, channels, (height, width), filters, (kh, kw), (sh, sw), (top, left, bottom, right), (dh, dw), groups
    )


def conv_transpose(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    """As a convolution of the input with zeros between its pixels by the turned filters, its edges cut afterwards."""
    x, w = args[0], args[1]
    groups, size, kernel = node.attrs.get("group", 1), x.value.shape[2:], w.value.shape[2:]
    rank = len(size)
    channels, filters = x.value.shape[1] // groups, w.value.shape[1]
    if w.value.shape[0] != x.value.shape[1] or x.value.shape[1] % groups or len(kernel) != rank:
        raise node.refuse(
            f"weights of shape {w.value.shape} in {groups} groups do not fit an input of shape {x.value.shape}"
        )
    stride, dilation = (tuple(node.attrs.get(k) or (1,) * rank) for k in ("strides", "dilations"))
    extra = tuple(node.attrs.get("output_padding") or (0,) * rank)
    reach = tuple(d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
    whole = [s * (n - 1) + r + 1 + e for s, n, r, e in zip(stride, size, reach, extra, strict=True)]
    pads = _transposed_pads(node, size, stride, whole)
    window = Window(kernel, (1,) * rank, (*reach, *(r + e for r, e in zip(reach, extra, strict=True))), dilation)
    apart: list[Any] = [slice(None, None, s) for s in stride]
    cuts: list[Any] = [slice(max(b, 0), n - max(e, 0)) for b, e, n in zip(pads, pads[rank:], whole, strict=False)]
    grown = [(0, 0), (0, 0), *((max(-b, 0), max(-e, 0)) for b, e in zip(pads, pads[rank:], strict=False))]

    def turned(weights: Array) -> Array:
        split = weights.reshape(groups, channels, filters, *kernel).swapaxes(1, 2)
        return np.flip(split.reshape(groups * filters, channels, *kernel), tuple(range(2, rank + 2)))

    def product(data: Array, weights: Array) -> Array:
        spread = np.zeros((*data.shape[:2], *(s * (n - 1) + 1 for s, n in zip(stride, size, strict=True))))
        spread[(..., *apart)] = data
        return np.pad(kernels.conv(spread, weights, window, groups)[(..., *cuts)], grown)

    terms = channels * math.prod(-(-k // s) for k, s in zip(kernel, stride, strict=True))
    bias = args[2] if len(args) > 2 else None
    return _convolved(x, w.moved(turned), bias, product, terms, roundings is not None)


def _transposed_pads(node: Node, size: Sequence[int], stride: Sequence[int], whole: Sequence[int]) -> tuple[int, ...]:
    """What is cut off the ``whole`` result of a transposed convolution, all begins, then all ends."""
    auto, wanted = node.attrs.get("auto_pad", "NOTSET"), node.attrs.get("output_shape")
    if wanted is None and auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [n * s for n, s in zip(size, stride, strict=True)]
    if wanted is None:
        return tuple(node.attrs.get("pads") or (0,) * 2 * len(size))
    totals = [n - out for n, out in zip(whole, wanted[-len(size) :], strict=True)]
    small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return tuple(small + large) if auto == "SAME_UPPER" else tuple(large + small)


def _product(a: Quantity, b: Quantity, bias: Array | float, bounded: bool) -> tuple[Array, Array | None]:
    """``a @ b`` without the bias, and the variance of the error with it."""
    if not bounded:
        return kernels.dense(b.value, [a.real])[0][0], None
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


def matmul(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    a, b = args
    if not a.value.ndim or not b.value.ndim or a.value.shape[-1] != b.value.shape[max(b.value.ndim - 2, 0)]:
        raise node.refuse(f"shapes {a.value.shape} and {b.value.shape} make no product")
    total, variance = _product(a, b, 0.0, roundings is not None)
    return Quantity(total, variance, 0.0 if variance is None else _likeness(b))


def gemm(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    a, b = (
        q.moved(np.transpose) if node.attrs.get(t, 0) else q for q, t in zip(args, ("transA", "transB"), strict=False)
    )
    if a.value.ndim != 2 or b.value.ndim != 2 or a.value.shape[1] != b.value.shape[0]:
        raise node.refuse(f"shapes {a.value.shape} and {b.value.shape} make no product")
    alpha, beta = node.attrs.get("alpha", 1.0), node.attrs.get("beta", 1.0)
    c = args[2] if len(args) > 2 else None
    bias = 0.0 if c is None else c.real * (beta / alpha)
    total, variance = _product(a, b, bias, roundings is not None)
    if variance is None:
        return Quantity(alpha * (total + bias))
    if c is not None and c.variance is not None:
        variance += (beta / alpha) ** 2 * c.variance
    return Quantity(alpha * (total + bias), alpha**2 * variance, _likeness(b))


def einsum(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    """A sum of products of one element of each operand; each operand's errors arrive through the squared others."""
    text = node.attrs["equation"].replace(" ", "")

    def summed(arrays: Sequence[Array]) -> Array:
        return np.asarray(np.einsum(text, *arrays))

    try:
        total = summed([q.real for q in args])
    except ValueError as error:
        raise node.refuse(f"{text!r} does not fit {', '.join(str(q.value.shape) for q in args)}") from error
    if roundings is None:
        return Quantity(total)
    squares = [np.square(q.real) for q in args]
    arriving = [
        summed([*squares[:i], q.variance, *squares[i + 1 :]]) for i, q in enumerate(args) if q.variance is not None
    ]
    # Each output element is the sum of as many products as an all-ones sum counts.
    terms = int(summed([np.broadcast_to(1.0, q.value.shape) for q in args]).max(initial=1.0))
    coherence = max(q.coherence for q in args)
    came = np.sum(arriving, axis=0) if arriving else None
    return Quantity(total, accumulated(total, summed(squares), came, terms, None, coherence), coherence)


OPERATORS: dict[str, Operator] = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "MatMul": matmul,
    "Gemm": gemm,
    "Einsum": einsum,
}
