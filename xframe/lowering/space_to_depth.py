"""Strided convolutions at stride 1: each block of stride x stride pixels becomes one pixel of as many more channels.

A k x k kernel at stride s over C channels is then one of ceil(k/s) taps a side at stride 1 over s*s*C channels (the
transform of Shi et al. 2016, arXiv:1609.05158, backwards), which opens it to algorithms that share inputs between
neighbouring outputs. Taps that the kernel does not have are zero: the products grow by (s * ceil(k/s) / k)^2.
"""

import numpy as np
from tvm import tirx

from xframe.lowering import ir
from xframe.lowering.ir import T
from xframe.lowering.stage import Stage
from xframe.lowering.target import Target
from xframe.types import ConvSite


def unit(site: ConvSite) -> ConvSite:
    """``site`` as the convolution of stride 1 that it is over its rearranged image, which holds its padding already."""
    if site.stride == (1, 1):
        return site
    (sh, sw), (kh, kw), (oh, ow) = site.stride, site.kernel, site.out_hw
    kernel = -(-kh // sh), -(-kw // sw)
    image = oh - 1 + kernel[0], ow - 1 + kernel[1]
    return ConvSite(site.batch, site.in_channels * sh * sw, image, site.out_channels, kernel)


def one_tap(site: ConvSite) -> str:
    """Why an algorithm that shares inputs between outputs refuses ``site``, whose :func:`unit` has a 1x1 kernel."""
    if site.kernel == (1, 1):
        return "a 1x1 kernel has nothing to transform"
    stride = "x".join(map(str, site.stride))
    return f"a {site.kernel[0]}x{site.kernel[1]} kernel at stride {stride}: no two outputs share an input"


def unit_weight(site: ConvSite, weight: np.ndarray) -> np.ndarray:
    """The OIHW ``weight`` of ``site`` as that of :func:`unit`; channels count (row, column, channel) of a block."""
    o, i, kh, kw = weight.shape
    (sh, sw), (th, tw) = site.stride, unit(site).kernel
    taps = np.pad(weight, ((0, 0), (0, 0), (0, th * sh - kh), (0, tw * sw - kw)))
    return taps.reshape(o, i, th, sh, tw, sw).transpose(0, 3, 5, 1, 2, 4).reshape(o, sh * sw * i, th, tw)


def stage(site: ConvSite, height: int, width: int, channels: int, layout: str, cpu: Target) -> Stage:
    """The rearranged image, (batch, height, width * channels), of the image of ``site`` with its padding around it.

    ``channels`` may be more than there are; those, and what lies outside the image, are zero.
    """
    n, c, (h, w), (top, left, _, _), (sh, sw) = site.batch, site.in_channels, site.in_hw, site.pads, site.stride
    inner = -(-left // sw), max(-(-left // sw), min(width, (w + left) // sw))  # blocks with all columns in the image

    def by_value(x, y):
        with ir.units(n, height, width, channels) as (i, row, col, k):
            source, column, channel = row * sh + k // (sw * c) - top, col * sw + k // c % sw - left, k % c
            inside = tirx.all(source >= 0, source < h, column >= 0, column < w, k < sh * sw * c)
            place = (source, column * c + channel) if layout == "NHWC" else (channel, source, column)
            T.buffer_store(y, tirx.if_then_else(inside, x[(i, *place)], ir.zero()), [i, row, col * channels + k])

    def by_line(x, y):
        def block(line, i, row, down, col, inside):
            """Row ``down`` of the block (row, col), from ``line(k)``, a row of the image channels-last."""
            place, start = col * channels + down * sw * c, col * sw - left

            def pixel(k):
                column = start + k // c
                value = line(start * c + k)
                return value if inside else tirx.if_then_else((column >= 0) & (column < w), value, ir.zero())

            if inside:  # the block's row is one contiguous run
                ir.copy(y, lambda k: [i, row, place + k], pixel, sw * c, cpu.lanes)
            else:
                for k in range(sw * c):
                    T.buffer_store(y, pixel(k), [i, row, place + k])

        def nothing(i, row, col, start, length):
            at = col * channels + start
            ir.copy(y, lambda k: [i, row, at + k], lambda _: ir.zero(), length, cpu.lanes)

        def line_of(i, source):
            """A row of the image, channels-last: LLVM turns whole rows with shuffles, but not a block."""
            if layout == "NHWC":
                return lambda k: x[i, source, k]
            line = T.alloc_buffer((w * c,), ir.FLOAT)
            with T.serial(0, w) as col, T.serial(0, c) as k:
                T.buffer_store(line, x[i, k, source, col], [col * c + k])
            return lambda k: line[k]

        with ir.units(n, height) as (i, row):
            for down in range(sh):
                source = row * sh + down - top
                with T.If(tirx.all(source >= 0, source < h)):
                    with T.Then():
                        line = line_of(i, source)
                        for first, last, inside in ((0, inner[0], False), (*inner, True), (inner[1], width, False)):
                            if first < last:
                                with T.serial(0, last - first) as col:
                                    block(line, i, row, down, first + col, inside)
                    with T.Else(), T.serial(0, width) as col:
                        nothing(i, row, col, down * sw * c, sw * c)
            if channels > sh * sw * c:
                with T.serial(0, width) as col:
                    nothing(i, row, col, sh * sw * c, channels - sh * sw * c)

    source = (n, h, w * c) if layout == "NHWC" else (n, c, h, w)
    shape = (n, height, width * channels)
    body = by_value if cpu.kind == "cuda" else by_line
    return Stage("space_to_depth", ir.kernel({"x": source, "y": shape}, body), (), shape)
