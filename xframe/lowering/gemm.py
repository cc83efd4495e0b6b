"""im2col + GEMM: the column matrix is written out, then multiplied by the weight matrix."""

import math
from dataclasses import replace

import numpy as np
from tvm import te

from xframe.lowering import prefetch
from xframe.lowering.cuda.product import COMPUTED, MATRIX, scheduled
from xframe.lowering.knobs import part_sizes
from xframe.lowering.padding import gathered
from xframe.lowering.pointwise import is_pointwise, pointwise_stage
from xframe.lowering.stage import Epilogue, Stage, Tile, clear_product, kernel_runs, packed, pad_to, tile_product
from xframe.lowering.target import Gpu, Target
from xframe.lowering.variants import Variant
from xframe.types import ConvSite, Device, Rounding

#: The last index of 32 bits.
INDICES = (1 << 31) - 1


class Gemm:
    """Any stride, dilation, padding and grouping. For 1x1 at stride 1 the image is the column matrix: no copy."""

    name = "gemm"
    parts = frozenset({"column"})

    def refuses(self, site: ConvSite, device: Device) -> str | None:
        return None

    def variants(self, site: ConvSite) -> list[Variant]:
        """One accumulator an output, over the whole reduction. On a GPU the column matrix may be made where it is
        multiplied, a chunk at a time in shared memory: an implicit GEMM."""
        h, w = site.out_hw
        moved = 8 * site.batch * h * w * site.groups * site.reduction
        return [
            Variant(site, Rounding(site.reduction), "im2col", cache_bytes=moved, geometry=MATRIX),
            Variant(site, Rounding(site.reduction), "implicit", geometry=COMPUTED, device="cuda"),
        ]

    def define(self, variant: Variant, weight: np.ndarray, epilogue: Epilogue, layout: str, cpu: Target):
        """See ``xframe.protocols.Lowering``."""
        site = variant.site
        if is_pointwise(site) and layout == "NHWC":  # its column matrix is the image
            return [pointwise_stage(site, weight, epilogue, cpu, variant.tile)]
        n, g, (oh, ow), (kh, kw) = site.batch, site.groups, site.out_hw, site.kernel
        (sh, sw), (dh, dw) = site.stride, site.dilation
        c, ic, oc = site.in_channels, site.in_channels // g, site.out_channels // g
        height, width, pad = gathered(site, layout, cpu)

        rows = n * oh * ow
        alternatives = Tile.ranked(rows, oc, cpu, batch=g)
        tile = variant.tile or alternatives[0]
        columns, tiles = pad_to(oc, tile.columns), -(-rows // tile.rows)
        taps, run = kernel_runs(site)

        x = te.placeholder((n, height, width * c), name="x")
        w = te.placeholder((g, columns // tile.columns, kh, taps, run, tile.columns), name="w")
        b = te.placeholder((g, columns), name="b")

        def pixel(m, q, ry, rx, k):
            m = te.min(m, rows - 1)  # the last tile repeats the last row; the epilogue drops it
            return x[m // (oh * ow), m // ow % oh * sh + ry * dh, (m % ow * sw + rx * dw) * c + q * ic + k]

        column = te.compute((tiles * tile.rows, g, kh, taps, run), pixel, name="column")
        ry, rx, k = te.reduce_axis((0, kh), "ry"), te.reduce_axis((0, taps), "rx"), te.reduce_axis((0, run), "k")
        acc = te.compute(
            (g, tiles * tile.rows, columns),
            lambda q, m, o: te.sum(
                column(m, q, ry, rx, k) * w[q, o // tile.columns, ry, rx, k, o % tile.columns], axis=[ry, rx, k]
            ),
            name="product",
        )
        image = epilogue.placeholders((rows, g, oc))
        out = te.compute(
            (rows, g, oc), lambda m, q, o: epilogue(acc[q, m, o], b[q, o], image, m, q, o), name="epilogue"
        )

        bytes_a_tile = tile.rows * kh * kw * ic * 4
        by_rows = oc * 4 * kh * kw * ic < bytes_a_tile * tiles or tiles >= 8 * cpu.threads

        def on_cpu(sch, knobs):
            near = cpu.cache(2) // 2  # bytes of column matrix that a thread makes, and reads back, at a time
            chunks = pad_to(-(-tiles * bytes_a_tile // near), cpu.threads)
            product, last = sch.get_sblock("product"), sch.get_sblock("epilogue")
            around, row, reduction = tile_product(
                sch, product, last, tile, row=1, column=2, order=lambda column, q: [q, column]
            )
            q, column = around
            copy = sch.get_sblock("column")
            if run % cpu.lanes == 0:
                _, lane = sch.split(sch.get_loops(copy)[-1], [None, cpu.lanes])
                sch.vectorize(lane)
            if by_rows:  # a thread makes its part of the columns and multiplies it with all weights
                size = knobs("rows", part_sizes(tiles, cpu.threads), max(1, -(-tiles // chunks)))
                chunk, row = sch.split(row, [None, size])
                sch.reorder(q, chunk, column, row)
                sch.compute_at(copy, chunk, preserve_unit_loops=True)
                sch.parallel(sch.fuse(q, chunk))
            else:  # few rows and many weights: threads share the columns and split the weights
                sch.parallel(sch.get_loops(copy)[0])
                sch.parallel(sch.fuse(q, column))
                block = tile.columns * kh * kw * ic
                reduction = prefetch.mark(sch, knobs, reduction, cpu, block, columns // tile.columns, tiles)
            clear_product(sch, knobs, product, reduction)

        schedule = on_cpu
        if isinstance(cpu, Gpu):
            pixels = math.gcd(c, ic)  # that lie side by side in the image
            matrix = variant.geometry == MATRIX
            schedule = scheduled(cpu, tile, 1, 2, variant.geometry, run if matrix else pixels, alone=matrix and pixels)
        weights = packed(weight.reshape(g, oc, ic, kh, kw).transpose(0, 3, 4, 2, 1), columns, tile.columns)
        weights = weights.reshape(g, columns // tile.columns, kh, taps, run, tile.columns)
        biases = np.pad(epilogue.bias.reshape(g, oc), ((0, 0), (0, columns - oc)))
        func = te.create_prim_func([x, w, b, *image, out])
        product = Stage("product", func, (weights, biases), (rows, g, oc), schedule, alternatives)
        return [pad, product] if pad else [product]


class ExplicitGemm(Gemm):
    """On a GPU as on a CPU: the column matrix is written to memory, by a kernel of its own, and read back."""

    name = "gemm_explicit"

    def refuses(self, site: ConvSite, device: Device | None) -> str | None:
        if device and device.kind != "cuda":
            return "on a CPU it is gemm itself that writes its column matrix to memory"
        h, w = site.out_hw
        values = site.batch * h * w * site.groups * site.reduction
        return f"its column matrix has {values} values, and indices end at {INDICES}" if values > INDICES else None

    def variants(self, site: ConvSite) -> list[Variant]:
        return [replace(v, device="cuda") for v in super().variants(site) if v.geometry == MATRIX]
