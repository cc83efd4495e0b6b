"""Depthwise convolution of an NHWC image: one filter a channel, so each vector of channels is on its own."""

import numpy as np

from xframe.lowering import ir
from xframe.lowering.ir import T
from xframe.lowering.stage import Epilogue, Stage
from xframe.lowering.target import Target
from xframe.types import ConvSite

#: Neighbouring outputs of a row that share the loads of their weights.
TOGETHER = 4


def depthwise_stage(site: ConvSite, weight: np.ndarray, epilogue: Epilogue, cpu: Target) -> Stage:
    """Windows are clipped to the image, so that no padded copy of it is made."""
    n, c, (h, w), (oh, ow), (kh, kw) = site.batch, site.in_channels, site.in_hw, site.out_hw, site.kernel
    (sh, sw), (dh, dw), (top, left, _, _) = site.stride, site.dilation, site.pads
    inner = min(-(-left // sw), ow)  # first output whose window begins inside the image, and the one after the last
    outer = max(inner, min((w - 1 + left - (kw - 1) * dw) // sw + 1, ow))

    def body(x, u, b, *rest):
        *image, y = rest

        def outputs(i, row, column, count, columns=None, channel=None):
            """``count`` outputs from ``column`` on; ``columns``: (first, last + 1) tap of a clipped window; of all
            channels or of one."""
            rows = ir.clip(row * sh - top, kh, dh, 0, h)

            def vector(base, width):
                sums = ir.Scratch(count, width).buffer
                for j in range(count):
                    with T.vectorized(0, width) as v:
                        T.buffer_store(sums, ir.zero(), [j, v])

                def tap(ky, kx):
                    for j in range(count):
                        place = i, row * sh - top + ky * dh, (column + j) * sw - left + kx * dw
                        with T.vectorized(0, width) as v:
                            product = x[(*place, base + v)] * u[ky, kx, base + v]
                            T.buffer_store(sums, sums[j, v] + product, [j, v])

                with T.serial(*rows) as ky:
                    if columns is None:
                        for kx in range(kw):
                            tap(ky, kx)
                    else:
                        with T.serial(*columns) as kx:
                            tap(ky, kx)
                for j in range(count):
                    with T.vectorized(0, width) as v:
                        at = [i, row, column + j, base + v]
                        T.buffer_store(y, epilogue(sums[j, v], b[base + v], image, *at), at)

            if channel is None:
                ir.vectors(c, cpu.lanes, vector)
            else:
                vector(channel, 1)

        if cpu.kind == "cuda":
            with ir.units(n, oh, ow, c) as (i, row, column, channel):
                outputs(i, row, column, 1, ir.clip(column * sw - left, kw, dw, 0, w), channel)
            return
        with ir.units(n, oh) as (i, row):
            for first, last in ((0, inner), (outer, ow)):
                if first < last:
                    with T.serial(0, last - first) as place:  # from 0: TVM 0.27 loses taps in a loop from elsewhere
                        column = first + place
                        outputs(i, row, column, 1, ir.clip(column * sw - left, kw, dw, 0, w))
            together, alone = divmod(outer - inner, TOGETHER)
            if together:
                with T.serial(0, together) as part:
                    outputs(i, row, inner + part * TOGETHER, TOGETHER)
            if alone:
                outputs(i, row, outer - alone, alone)

    shape = (n, oh, ow, c)
    args = {"x": (n, h, w, c), "u": (kh, kw, c), "b": (c,), **epilogue.image(shape), "y": shape}
    weights = np.ascontiguousarray(weight.reshape(c, kh, kw).transpose(1, 2, 0))
    return Stage("product", ir.kernel(args, body), (weights, epilogue.bias), shape)
