"""Convolution, pooling and products in float64, in numpy alone.

They are the judge's arithmetic, so each is written straight from its definition, for any number of spatial dimensions:
images are [batch, channel, *spatial], weights [out, in / groups, *kernel]. ``pads`` are all begins, then all ends.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray

#: Elements (float64) of one block of gathered columns.
BLOCK = 1 << 20
#: Elements of one block of converted weights: within the second cache, where all products with it find it, and too
#: small for a BLAS to share out among threads, which would wait for each other while workers compile.
WEIGHTS = 1 << 17


@dataclass(frozen=True)
class Window:
    """A sliding window over the spatial dimensions: kernel, stride, pads (begins, then ends), dilation, ceil mode.

    With ``ceil_mode`` a last partial window is kept when it starts inside the input or its begin padding (the rule of
    ONNX and PyTorch).
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pads: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil_mode: bool = False

    def outputs(self, size: Sequence[int]) -> tuple[int, ...]:
        """Spatial size of the output for an input of spatial ``size``."""
        rank, out = len(self.kernel), []
        for i, n in enumerate(size):
            begin, end = self.pads[i], self.pads[rank + i]
            span = n + begin + end - self.dilation[i] * (self.kernel[i] - 1) - 1
            count = span // self.stride[i] + 1
            if self.ceil_mode and span % self.stride[i] and count * self.stride[i] < n + begin:
                count += 1
            out.append(count)
        return tuple(out)

    def pad(self, x: Array, fill: float) -> Array:
        """``x`` with its padding, and as much more at the end as a partial last window reads, all ``fill``."""
        rank, widths = len(self.kernel), [(0, 0), (0, 0)]
        for i, (n, count) in enumerate(zip(x.shape[2:], self.outputs(x.shape[2:]), strict=True)):
            begin, end = self.pads[i], self.pads[rank + i]
            reach = (count - 1) * self.stride[i] + self.dilation[i] * (self.kernel[i] - 1) + 1
            widths.append((begin, max(end, reach - n - begin)))
        return np.pad(x, widths, constant_values=fill) if any(map(any, widths)) else x

    def offsets(self, padded: Array, rows: slice, size: Sequence[int]) -> Iterator[Array]:
        """For each kernel position, in order, the view of ``padded`` that it meets in output rows ``rows``."""
        size = (rows.stop - rows.start, *size[1:])
        for position in itertools.product(*map(range, self.kernel)):
            starts = [k * d for k, d in zip(position, self.dilation, strict=True)]
            starts[0] += rows.start * self.stride[0]
            cuts: list[Any] = [
                slice(b, b + (n - 1) * s + 1, s) for b, n, s in zip(starts, size, self.stride, strict=True)
            ]
            yield padded[(..., *cuts)]


def conv(x: Array, w: Array, window: Window, groups: int = 1) -> Array:
    """Cross-correlation of ``x`` [N, C, *in] with ``w`` [O, C / groups, *kernel] -> [N, O, *out], float64.

    Columns are gathered a block of output rows at a time and multiplied by BLAS.
    """
    batch, channels = x.shape[:2]
    size, per_group = window.outputs(x.shape[2:]), channels // groups
    taps, row = math.prod(window.kernel), math.prod(size[1:])
    weights = np.asarray(w, np.float64).reshape(groups, w.shape[0] // groups, per_group * taps)
    padded = window.pad(np.asarray(x, np.float64), 0.0)
    out = np.empty((batch, groups, w.shape[0] // groups, size[0], *size[1:]))
    step = max(1, BLOCK // (channels * taps * row))
    columns = np.empty((channels, taps, min(step, size[0]) * row))
    for n, begin in itertools.product(range(batch), range(0, size[0], step)):
        rows = slice(begin, min(begin + step, size[0]))
        block = columns[:, :, : (rows.stop - begin) * row]
        for t, view in enumerate(window.offsets(padded[n], rows, size)):
            block[:, t].reshape(view.shape)[...] = view
        product = weights @ block.reshape(groups, per_group * taps, -1)
        out[n, :, :, rows] = product.reshape(*product.shape[:2], rows.stop - begin, *size[1:])
    return out.reshape(batch, w.shape[0], *size)


def dense(w: Array, plain: Sequence[Array], squared: Sequence[Array] = ()) -> tuple[list[Array], list[Array]]:
    """``x @ w`` for each of ``plain`` and ``x @ w**2`` for each of ``squared``, in float64.

    A large float32 matrix is converted once for all of them, a few columns at a time.
    """
    xs, squares = ([np.asarray(x, np.float64) for x in group] for group in (plain, squared))
    if w.ndim != 2 or w.size <= WEIGHTS:
        w = np.asarray(w, np.float64)
        return [x @ w for x in xs], [x @ np.square(w) for x in squares]
    outs, out_squares = ([np.empty((*x.shape[:-1], w.shape[1])) for x in group] for group in (xs, squares))
    step = max(1, WEIGHTS // w.shape[0])
    for begin in range(0, w.shape[1], step):
        columns = slice(begin, begin + step)
        block = w[:, columns].astype(np.float64)
        for x, out in zip(xs, outs, strict=True):
            out[..., columns] = x @ block
        np.square(block, out=block)
        for x, out in zip(squares, out_squares, strict=True):
            out[..., columns] = x @ block
    return outs, out_squares


def pool_max(x: Array, window: Window) -> Array:
    """Largest element of each window; padding never wins."""
    return _fold(window.pad(np.asarray(x, np.float64), -np.inf), window, x.shape[2:], np.maximum)


def pool_sum(x: Array, window: Window) -> Array:
    """Sum of each window, padding counted as zero."""
    return _fold(window.pad(np.asarray(x, np.float64), 0.0), window, x.shape[2:], np.add)


def pool_count(size: Sequence[int], window: Window, count_padding: bool) -> Array:
    """Divisors of an average pooling, [1, 1, *out]: the elements of each window that count.

    What a partial last window reads beyond the padding never counts.
    """
    ones = window.pad(np.ones((1, 1, *size)), 0.0)
    if count_padding:
        ends = zip(size, window.pads, window.pads[len(size) :], strict=False)
        declared: list[Any] = [slice(0, n + begin + end) for n, begin, end in ends]
        ones[(..., *declared)] = 1.0
    return _fold(ones, window, size, np.add)


def _fold(padded: Array, window: Window, size: Sequence[int], combine: Callable[..., Array]) -> Array:
    outputs = window.outputs(size)
    views = window.offsets(padded, slice(0, outputs[0]), outputs)
    out = next(views).copy()
    for view in views:
        combine(out, view, out=out)
    return out


def channel_sum(x: Array, size: int) -> Array:
    """Sum over ``size`` neighbouring channels, (size - 1) // 2 of them before (the window of LRN)."""
    channels, before = x.shape[1], (size - 1) // 2
    out = np.zeros_like(x)
    for shift in range(-before, size - before):
        low, high = max(0, -shift), min(channels, channels - shift)
        if low < high:
            out[:, low:high] += x[:, low + shift : high + shift]
    return out


def spread_max(x: Array, reach: Sequence[int]) -> Array:
    """Largest element within ``reach`` pixels, by spatial dimension of ``x`` [N, C, *spatial]."""
    for axis, r in zip(range(2, x.ndim), reach, strict=False):
        r = min(r, x.shape[axis] - 1)
        if r < 1:
            continue
        widths = [(r, r) if a == axis else (0, 0) for a in range(x.ndim)]
        padded, covered, width = np.pad(x, widths, constant_values=-np.inf), 1, 2 * r + 1
        while covered < width:  # doubling: each pass covers twice as many neighbours
            step = min(covered, width - covered)
            n = padded.shape[axis] - step
            padded = np.maximum(padded.take(range(n), axis), padded.take(range(step, n + step), axis))
            covered += step
        x = padded
    return x
