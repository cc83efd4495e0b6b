"""Direct convolution: every output is accumulated in registers straight from the zero-padded image."""

from dataclasses import replace

import numpy as np
from tvm import te

from xframe.lowering import prefetch
from xframe.lowering.cuda import direct as cuda_direct
from xframe.lowering.cuda.target import Gpu
from xframe.lowering.depthwise import depthwise_stage
from xframe.lowering.knobs import part_sizes
from xframe.lowering.padding import pad_stage
from xframe.lowering.pointwise import is_pointwise, pointwise_stage
from xframe.lowering.stage import (
    ALTERNATIVES,
    Epilogue,
    Stage,
    Tile,
    clear_product,
    kernel_runs,
    packed,
    pad_to,
    tile_product,
)
from xframe.lowering.target import Target
from xframe.lowering.variants import Variant
from xframe.types import ConvSite, Device, Rounding


class Direct:
    """No column matrix and no transform. Any stride, dilation, padding and grouping; depthwise has its own schedule."""

    name = "direct"
    parts: frozenset[str] = frozenset()

    def refuses(self, site: ConvSite, device: Device) -> str | None:
        return cuda_direct.refuses(site) if device and device.kind == "cuda" else None

    def define(self, variant: Variant, weight: np.ndarray, epilogue: Epilogue, layout: str, cpu: Target):
        """See ``xframe.protocols.Lowering``."""
        site = variant.site
        if site.groups == site.in_channels == site.out_channels:
            bare = replace(site, pads=(0, 0, 0, 0))
            channels_last = pad_stage(bare, *site.in_hw, site.in_channels, layout, cpu)
            return [s for s in (channels_last, depthwise_stage(site, weight, epilogue, cpu)) if s]
        if is_pointwise(site) and layout == "NHWC":
            return [pointwise_stage(site, weight, epilogue, cpu, variant.tile)]
        return _grouped(site, weight, epilogue, layout, cpu, variant.tile)

    def variants(self, site: ConvSite) -> list[Variant]:
        """One accumulator an output, over the whole reduction."""
        return [Variant(site, Rounding(site.reduction))]


def _blocks(site: ConvSite, gpu: Gpu) -> tuple[Tile, ...]:
    return tuple(Tile(row, columns, gpu.lanes) for row, columns in cuda_direct.tiles(site, gpu)[:ALTERNATIVES])


def _extent(outputs: int, stride: int, kernel: int, dilation: int) -> int:
    """Rows (or columns) of the image that ``outputs`` outputs read."""
    return (outputs - 1) * stride + (kernel - 1) * dilation + 1


def _grouped(site, weight, epilogue, layout, cpu, tile) -> list[Stage]:
    n, g, (oh, ow), (kh, kw) = site.batch, site.groups, site.out_hw, site.kernel
    (sh, sw), (dh, dw) = site.stride, site.dilation
    ic, oc = site.in_channels // g, site.out_channels // g
    on_gpu = cpu.kind == "cuda"
    alternatives = _blocks(site, cpu) if on_gpu else Tile.ranked(ow, oc, cpu)
    tile = tile or alternatives[0]
    columns, width = pad_to(oc, tile.columns), pad_to(ow, tile.rows)
    rows_in, row_in = _extent(oh, sh, kh, dh), _extent(width, sw, kw, dw)
    if width == ow and not any(site.pads):
        rows_in, row_in = site.in_hw
    pad = pad_stage(site, rows_in, row_in, site.in_channels, layout, cpu)

    taps, run = (kw, ic) if on_gpu else kernel_runs(site)
    line = (row_in, site.in_channels) if on_gpu else (row_in * site.in_channels,)

    x = te.placeholder((n, rows_in, *line), name="x")
    w = te.placeholder((g, columns // tile.columns, kh, taps, run, tile.columns), name="w")
    b = te.placeholder((g, columns), name="b")
    ry, rx, k = te.reduce_axis((0, kh), "ry"), te.reduce_axis((0, taps), "rx"), te.reduce_axis((0, run), "k")

    def term(i, q, y, z, o):
        if on_gpu:  # a patch of it lies in shared memory
            pixel = x[i, y * sh + ry * dh, z * sw + rx * dw, q * ic + k]
        else:
            pixel = x[i, y * sh + ry * dh, (z * sw + rx * dw) * site.in_channels + q * ic + k]
        return te.sum(pixel * w[q, o // tile.columns, ry, rx, k, o % tile.columns], axis=[ry, rx, k])

    acc = te.compute((n, g, oh, width, columns), term, name="product")
    shape = (n, oh, ow, g, oc)
    image = epilogue.placeholders(shape)
    out = te.compute(
        shape, lambda i, y, z, q, o: epilogue(acc[i, q, y, z, o], b[q, o], image, i, y, z, q, o), name="epilogue"
    )

    def on_cpu(sch, knobs):
        product, last = sch.get_sblock("product"), sch.get_sblock("epilogue")
        around, _, reduction = tile_product(
            sch, product, last, tile, row=3, column=4, order=lambda column, i, q, y: [q, column, i, y]
        )
        q, column, *lines = around
        # Lines of the images pass by one block of weights, which stays in cache: all of them by hand.
        together = knobs("lines", part_sizes(n * oh, cpu.threads), n * oh)
        part, line = sch.split(sch.fuse(*lines), [None, together])
        sch.reorder(q, part, column, line)
        sch.parallel(sch.fuse(q, part, column, line))
        block, blocks = tile.columns * site.reduction, columns // tile.columns
        reduction = prefetch.mark(
            sch, knobs, reduction, cpu, block, blocks, width // tile.rows, again=n * oh, turns_again=together
        )
        clear_product(sch, knobs, product, reduction)

    schedule = cuda_direct.scheduled(site, tile.rows, tile.columns, cpu) if on_gpu else on_cpu
    weights = packed(weight.reshape(g, oc, ic, kh, kw).transpose(0, 3, 4, 2, 1), columns, tile.columns)
    weights = weights.reshape(g, columns // tile.columns, kh, taps, run, tile.columns)
    biases = np.pad(epilogue.bias.reshape(g, oc), ((0, 0), (0, columns - oc)))
    func = te.create_prim_func([x, w, b, *image, out])
    stage = Stage("product", func, (weights, biases), shape, schedule, alternatives)
    return [pad, stage] if pad else [stage]
