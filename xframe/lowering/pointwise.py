"""1x1 convolutions of stride 1: one product of all pixels with the weights, whatever the algorithm is called."""

import numpy as np
from tvm import te

from xframe.lowering import prefetch
from xframe.lowering.cuda.product import REINDEXED, scheduled
from xframe.lowering.stage import Epilogue, Stage, Tile, clear_product, packed, pad_to, shared_rows, tile_product
from xframe.lowering.target import Gpu, Target
from xframe.types import ConvSite


def is_pointwise(site: ConvSite) -> bool:
    return (site.kernel, site.stride, site.groups, any(site.pads)) == ((1, 1), (1, 1), 1, False)


def pointwise_stage(
    site: ConvSite, weight: np.ndarray, epilogue: Epilogue, cpu: Target, tile: Tile | None = None
) -> Stage:
    """Of an NHWC image; ``weight`` is OIHW. Without a ``tile`` the one that should be fastest."""
    rows, c, o = site.batch * site.in_hw[0] * site.in_hw[1], site.in_channels, site.out_channels
    alternatives = Tile.ranked(rows, o, cpu)
    tile = tile or alternatives[0]
    columns, tiles = pad_to(o, tile.columns), -(-rows // tile.rows)
    blocks = columns // tile.columns
    weights = packed(weight.reshape(1, o, c).transpose(0, 2, 1), columns, tile.columns)[0]

    x = te.placeholder((rows, c), name="x")
    w = te.placeholder(weights.shape, name="w")
    b = te.placeholder((columns,), name="b")
    image = epilogue.placeholders((rows, o))
    k = te.reduce_axis((0, c), "k")
    acc = te.compute(
        (tiles * tile.rows, columns),  # the last tile repeats the last row; the epilogue drops it
        lambda m, q: te.sum(x[te.min(m, rows - 1), k] * w[q // tile.columns, k, q % tile.columns], axis=[k]),
        name="product",
    )
    out = te.compute((rows, o), lambda m, q: epilogue(acc[m, q], b[q], image, m, q), name="epilogue")

    def on_cpu(sch, knobs):
        near = cpu.cache(2) // 2
        product = sch.get_sblock("product")
        around, row, reduction = tile_product(sch, product, sch.get_sblock("epilogue"), tile, row=0, column=1)
        if 4 * rows * c <= near and blocks >= 2 * cpu.threads:
            size = tiles  # the pixels stay near: threads share the weights, which pass once
        else:  # each part of the pixels stays near while all weights pass
            size = -(-tiles // pad_to(max(1, -(-4 * rows * c // near)), cpu.threads))
        shared_rows(sch, knobs, around, row, size, tiles, cpu)
        reduction = prefetch.mark(sch, knobs, reduction, cpu, tile.columns * c, blocks, tiles)
        clear_product(sch, knobs, product, reduction)

    schedule = scheduled(cpu, tile, 0, 1, REINDEXED, c) if isinstance(cpu, Gpu) else on_cpu
    func = te.create_prim_func([x, w, b, *image, out])
    return Stage("product", func, (weights, epilogue.padded(columns)), (rows, o), schedule, alternatives)
