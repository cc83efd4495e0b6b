"""Fully connected layers: a product with few rows, bound by reading the weights once."""

import numpy as np
from tvm import te

from xframe.lowering.stage import Stage, Tile, activate, clear_product, packed, pad_to, tile_product
from xframe.lowering.target import Cpu

#: Vectors of weights read side by side when there is one row: enough independent sums to keep memory busy.
STREAMS = 4


def dense_stages(rows: int, weight: np.ndarray, bias: np.ndarray, relu: bool, cpu: Cpu) -> list[Stage]:
    """``x @ weight + bias`` for x of (rows, inputs) and weight of (inputs, outputs), float32."""
    inputs, outputs = weight.shape
    tile = _tile(rows, outputs, cpu)
    padded, columns = pad_to(rows, tile.rows), pad_to(outputs, tile.columns)
    x = te.placeholder((rows, inputs), name="x")
    w = te.placeholder((columns // tile.columns, inputs, tile.columns), name="w")
    b = te.placeholder((columns,), name="b")
    k = te.reduce_axis((0, inputs), "k")
    if rows == 1:  # already in reading order
        left = lambda m, k: x[0, k]  # noqa: E731
    else:  # a step of the product reads one value of each row: put them side by side
        turned = te.compute((inputs, padded), lambda k, m: x[te.min(m, rows - 1), k], name="turned")
        left = lambda m, k: turned[k, m]  # noqa: E731
    acc = te.compute(
        (padded, columns),
        lambda m, o: te.sum(left(m, k) * w[o // tile.columns, k, o % tile.columns], axis=[k]),
        name="product",
    )
    out = te.compute((rows, outputs), lambda m, o: activate(acc[m, o] + b[o], relu), name="epilogue")

    def schedule(sch):
        product, epilogue = sch.get_sblock("product"), sch.get_sblock("epilogue")
        around, _, reduction = tile_product(sch, product, epilogue, tile, row=0, column=1)
        sch.parallel(around[0])
        if rows > 1:
            sch.parallel(sch.get_loops(sch.get_sblock("turned"))[0])
        clear_product(sch, product, reduction)

    biases = np.pad(bias, (0, columns - outputs))
    weights = packed(weight[None], columns, tile.columns)[0]
    return [Stage("product", te.create_prim_func([x, w, b, out]), (weights, biases), (rows, outputs), schedule)]


def _tile(rows: int, outputs: int, cpu: Cpu) -> Tile:
    """All rows in one tile where the registers allow it, so that the weights pass once."""
    vectors = min(STREAMS, (cpu.registers - 1) // (rows + 1), max(1, outputs // cpu.lanes))
    return Tile(rows, vectors, cpu.lanes) if vectors else Tile.choose(rows, outputs, cpu)
