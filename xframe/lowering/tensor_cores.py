"""Implicit GEMM on tensor cores: as ``gemm``, but that the operands of products are rounded to fewer bits first.

The network's tensors stay float32, and so do sums: the arithmetic of the products is all that differs. There is a file
and a row of the registry for each type, so that none of them is taken for another.
"""

import math
from typing import ClassVar

import numpy as np
from tvm import te, tirx

from xframe.lowering.cuda import tensor_core
from xframe.lowering.cuda.narrow import STAND_IN, Narrow
from xframe.lowering.cuda.tensor_core import STEP
from xframe.lowering.padding import gathered
from xframe.lowering.stage import Epilogue, Stage, kernel_runs, packed, pad_to
from xframe.lowering.target import Gpu
from xframe.lowering.variants import Variant
from xframe.types import ConvSite, Device, Rounding


class ImplicitGemm:
    """Any stride, dilation, padding and grouping, on a GPU with tensor cores for the type."""

    narrow: ClassVar[Narrow]
    name: ClassVar[str]

    @property
    def parts(self) -> frozenset[str]:
        return frozenset({f"column_{self.narrow.name}"})

    def refuses(self, site: ConvSite, device: Device | None) -> str | None:
        if device is None:
            return None
        if device.kind != "cuda":
            return f"products of {self.narrow.words} are for the tensor cores of a GPU, and this is a CPU"
        return self.narrow.refuses(device.arch)

    def variants(self, site: ConvSite) -> list[Variant]:
        """One accumulator an output, over the whole reduction."""
        rounding = Rounding(site.reduction, operands=self.narrow.unit, floor=self.narrow.floor)
        return [Variant(site, rounding, f"implicit, {self.narrow.words}", device="cuda")]

    def define(self, variant: Variant, weight: np.ndarray, epilogue: Epilogue, layout: str, gpu: Gpu):
        """See ``xframe.protocols.Lowering``."""
        site, narrow = variant.site, self.narrow
        n, g, (oh, ow), (kh, kw) = site.batch, site.groups, site.out_hw, site.kernel
        (sh, sw), (dh, dw) = site.stride, site.dilation
        c, ic, oc = site.in_channels, site.in_channels // g, site.out_channels // g
        height, width, pad = gathered(site, layout, gpu)

        rows, depth = n * oh * ow, pad_to(site.reduction, STEP)
        alternatives = tensor_core.tiles(rows, oc, narrow, gpu, g)
        tile = variant.tile or alternatives[0]
        columns, padded = pad_to(oc, tile.columns), pad_to(rows, tile.rows)
        taps, run = kernel_runs(site)

        x = te.placeholder((n, height, width * c), name="x")
        w = te.placeholder((g, columns // tile.columns, depth, tile.columns), name="w")
        b = te.placeholder((g, columns), name="b")

        def pixel(q, m, s):
            m = te.min(m, rows - 1)  # the last tile repeats the last row; the epilogue drops it
            ry, rx, k = s // (taps * run), s // run % taps, s % run
            value = x[m // (oh * ow), m // ow % oh * sh + ry * dh, (m % ow * sw + rx * dw) * c + q * ic + k]
            return value if depth == site.reduction else tirx.if_then_else(s < site.reduction, value, 0.0)

        column = te.compute((g, padded, depth), lambda *i: narrow(pixel(*i)), name=f"column_{narrow.name}")
        weights = te.compute(w.shape, lambda *i: narrow(w[i]), name="weights")
        left = te.compute(column.shape, lambda *i: column[i].astype(STAND_IN), name="left")
        right = te.compute(weights.shape, lambda *i: weights[i].astype(STAND_IN), name="right")
        s = te.reduce_axis((0, depth), "s")

        def term(q, m, o):
            one, other = left[q, m, s], right[q, o // tile.columns, s, o % tile.columns]
            return te.sum(one.astype("float32") * other.astype("float32"), axis=[s])

        acc = te.compute((g, padded, columns), term, name="product")
        image = epilogue.placeholders((rows, g, oc))
        out = te.compute(
            (rows, g, oc), lambda m, q, o: epilogue(acc[q, m, o], b[q, o], image, m, q, o), name="epilogue"
        )

        contiguous = math.gcd(c, ic) if depth == site.reduction else 1
        schedule = tensor_core.scheduled(gpu, tile, narrow, contiguous)
        matrix = weight.reshape(g, oc, ic, kh * kw).transpose(0, 3, 2, 1).reshape(g, site.reduction, oc)
        matrix = packed(np.pad(matrix, ((0, 0), (0, depth - site.reduction), (0, 0))), columns, tile.columns)
        biases = np.pad(epilogue.bias.reshape(g, oc), ((0, 0), (0, columns - oc)))
        func = te.create_prim_func([x, w, b, *image, out])
        product = Stage("product", func, (matrix, biases), (rows, g, oc), schedule, alternatives)
        return [pad, product] if pad else [product]
