"""Fully connected layers: a product with few rows, bound by reading its weights once."""

import numpy as np

from xframe.lowering import ir
from xframe.lowering.cuda import dense as cuda_dense
from xframe.lowering.ir import T
from xframe.lowering.stage import Stage, Tile, activate, packed, pad_to
from xframe.lowering.target import Gpu, Target


def dense_stages(rows: int, weight: np.ndarray, bias: np.ndarray, relu: float | None, cpu: Target) -> list[Stage]:
    """``x @ weight + bias`` for x of (rows, inputs) and weight of (inputs, outputs), float32."""
    if isinstance(cpu, Gpu):
        return cuda_dense.dense_stages(rows, weight, bias, relu, cpu)
    inputs, outputs = weight.shape
    shape = Tile.choose(rows, outputs, cpu)
    r, block = shape.rows, shape.columns
    padded, columns, depth = pad_to(rows, r), pad_to(outputs, block), min(cpu.cache(1) // 8 // block, inputs)
    tiles = padded // r
    # ``depth``: steps after which the next rows take their turn with the same weights, still in half a level-1 cache.

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

            def steps(start, count):
                with T.serial(0, tiles) as tile:

                    def ahead(k):
                        """This step's share of what comes ``depth`` steps later; indices run on into the next rows."""
                        turn, share = tile * count + k, -(-shape.vectors // tiles)
                        lines = [w[column, start + depth, (turn * share + i) * cpu.lanes] for i in range(share)]
                        return [*lines, left[start + depth, turn * r]] if turned else lines

                    ir.tile_product(
                        r,
                        block,
                        cpu.lanes,
                        count,
                        lambda i, k: left[start + k, tile * r + i] if turned else left[0, start + k],
                        lambda k, j: w[column, start + k, j],
                        lambda i, j: total[tile * r + i, j],
                        lambda i, j, value: T.buffer_store(total, value, [tile * r + i, j]),
                        ahead,
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
