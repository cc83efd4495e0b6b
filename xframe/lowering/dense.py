"""Fully connected layers: a product with few rows, bound by reading its weights once."""

import numpy as np

from xframe.lowering import ir
from xframe.lowering.ir import T
from xframe.lowering.stage import Stage, activate, packed, pad_to
from xframe.lowering.target import Cpu

#: Rows that share a register tile: all of a small batch, so that the weights pass once, or else a few with many vectors
#: of weights, which the next rows find in a near cache after ``DEPTH`` steps of the reduction.
SMALL_BATCH, ROWS, VECTORS, DEPTH = 16, 4, 8, 256
#: Steps ahead at which weights and inputs are fetched: the next is computed while memory answers.
WEIGHTS_AHEAD, INPUTS_AHEAD = 64, 16


def dense_stages(rows: int, weight: np.ndarray, bias: np.ndarray, relu: float | None, cpu: Cpu) -> list[Stage]:
    """``x @ weight + bias`` for x of (rows, inputs) and weight of (inputs, outputs), float32."""
    inputs, outputs = weight.shape
    r = rows if rows <= min(SMALL_BATCH, cpu.registers - 2) else min(rows, ROWS)
    vectors = min(VECTORS, (cpu.registers - 1) // (r + 1), -(-outputs // cpu.lanes))
    block, padded = vectors * cpu.lanes, pad_to(rows, r)
    columns = pad_to(outputs, block)
    depth = DEPTH if padded > r else inputs

    def body(x, w, b, y):
        left, turned = x, rows > 1
        if turned:  # a step of the product reads one value of each row: put them side by side
            left = T.alloc_buffer((inputs, padded), ir.FLOAT)
            with ir.units(inputs) as (k,):
                for m in range(padded):
                    T.buffer_store(left, x[min(m, rows - 1), k], [k, m])

        with ir.units(columns // block) as (column,):
            total = T.alloc_buffer((padded, block), ir.FLOAT, scope="local")
            with T.serial(0, padded) as m:
                ir.copy(total, lambda j: [m, j], lambda j: b[column * block + j], block, cpu.lanes)

            def ahead(k):
                weights = [w[column, k + WEIGHTS_AHEAD, j] for j in range(0, block, cpu.lanes)]
                return [*weights, left[k + INPUTS_AHEAD, 0]]

            def steps(start, count):
                with T.serial(0, padded // r) as tile:
                    ir.tile_product(
                        r,
                        block,
                        cpu.lanes,
                        count,
                        lambda i, k: left[start + k, tile * r + i] if turned else left[0, start + k],
                        lambda k, j: w[column, start + k, j],
                        lambda i, j: total[tile * r + i, j],
                        lambda i, j, value: T.buffer_store(total, value, [tile * r + i, j]),
                        ahead if turned and padded == r else None,
                    )

            if inputs >= depth:
                with T.serial(0, inputs // depth) as part:
                    steps(part * depth, depth)
            if inputs % depth:
                steps(inputs // depth * depth, inputs % depth)

            def finish(width):
                with T.serial(0, rows) as m:
                    at = column * block
                    ir.copy(y, lambda j: [m, at + j], lambda j: activate(total[m, j], relu), width, cpu.lanes)

            if columns == outputs:
                finish(block)
            else:  # the last tile has columns that do not exist
                with T.If(column < columns // block - 1):
                    with T.Then():
                        finish(block)
                    with T.Else():
                        finish(block - (columns - outputs))

    biases = np.pad(bias, (0, columns - outputs))
    weights = packed(weight[None], columns, block)[0]
    shapes = {"x": (rows, inputs), "w": weights.shape, "b": (columns,), "y": (rows, outputs)}
    return [Stage("product", ir.kernel(shapes, body), (weights, biases), (rows, outputs))]
