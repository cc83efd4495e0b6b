"""Fully connected layers on a GPU: the reduction in slices, so that there is work for all multiprocessors."""

import math

import numpy as np
from tvm import te

from xframe.lowering.cuda import product
from xframe.lowering.cuda.target import BLOCK, Gpu
from xframe.lowering.knobs import divisors
from xframe.lowering.stage import Stage, Tile, activate, packed, pad_to

#: Blocks for each multiprocessor to have in flight, where there are so many; steps of a slice at least.
IN_FLIGHT, SHORTEST = 4, 64


def dense_stages(rows: int, weight: np.ndarray, bias: np.ndarray, relu: float | None, gpu: Gpu) -> list[Stage]:
    """``x @ weight + bias`` for x of (rows, inputs) and weight of (inputs, outputs), float32."""
    inputs, outputs = weight.shape
    alternatives = Tile.ranked(rows, outputs, gpu, batch=IN_FLIGHT)
    tile = alternatives[0]
    padded, columns = pad_to(rows, tile.rows), pad_to(outputs, tile.columns)
    blocks = padded // tile.rows * columns // tile.columns
    slices = slices_of(inputs, blocks, gpu)
    length = inputs // slices

    x = te.placeholder((rows, inputs), name="x")
    w = te.placeholder((columns // tile.columns, inputs, tile.columns), name="w")
    b = te.placeholder((outputs,), name="b")
    k, s = te.reduce_axis((0, length), "k"), te.reduce_axis((0, slices), "s")
    acc = te.compute(
        (slices, padded, columns),  # the last tile repeats the last row
        lambda part, m, o: te.sum(
            x[te.min(m, rows - 1), part * length + k] * w[o // tile.columns, part * length + k, o % tile.columns],
            axis=[k],
        ),
        name="product",
    )
    sums = te.compute((slices, rows, outputs), lambda part, m, o: acc[part, m, o], name="epilogue")
    total = te.compute((rows, outputs), lambda m, o: te.sum(sums[s, m, o], axis=[s]), name="total")
    out = te.compute((rows, outputs), lambda m, o: activate(total[m, o] + b[o], relu), name="output")

    def finish(sch):
        output, total = sch.get_sblock("output"), sch.get_sblock("total")
        grid, threads = sch.split(sch.fuse(*sch.get_loops(output)), [None, _threads(rows * outputs, gpu)])
        sch.bind(grid, "blockIdx.x")
        sch.bind(threads, "threadIdx.x")
        sch.set_scope(total, 0, "local")
        sch.compute_at(total, threads)

    schedule = product.scheduled(gpu, tile, 1, 2, product.REINDEXED, length, after=finish)
    weights = packed(weight[None], columns, tile.columns)[0]
    func = te.create_prim_func([x, w, b, out])
    return [Stage("product", func, (weights, bias), (rows, outputs), schedule, alternatives)]


def slices_of(inputs: int, blocks: int, gpu: Gpu) -> int:
    """How many slices ``inputs`` are cut into where a slice has so many ``blocks``.

    Of enough, and of up to twice as many: those of which the multiprocessors' last turn is the fullest.
    """

    def filled(slices: int) -> float:
        turns = blocks * slices / gpu.multiprocessors
        return turns / math.ceil(turns)

    possible = [s for s in divisors(inputs) if inputs // s >= SHORTEST] or [1]
    enough = next((s for s in possible if blocks * s >= IN_FLIGHT * gpu.multiprocessors), possible[-1])
    return max((s for s in possible if enough <= s <= 2 * enough), key=filled)


def _threads(values: int, gpu: Gpu) -> int:
    """Of a block that sums slices, a thread a value: where it can be, so many that each has one. A bound would be
    checked for each term, and none of them asked for before the last one is there."""
    whole = max(n for n in range(1, BLOCK + 1) if values % n == 0)
    return whole if whole >= gpu.warp else BLOCK
