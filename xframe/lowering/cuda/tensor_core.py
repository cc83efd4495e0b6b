"""Products on tensor cores, shared by the algorithms: operands of few bits in shared memory, sums in float32.

A block's tile is shared by its warps, and a warp's part of it by fragments of 16 x 16 sums. Chunks of both operands are
rounded on their way to shared memory, where rows are a little longer than they need be, so that those of a fragment are
in different banks. What tensor cores sum goes through shared memory again, a fragment at a time, as nothing is said of
which lane holds which sum.
"""

import importlib
import math
from collections.abc import Callable

from tvm import s_tir

from xframe.lowering.cuda.narrow import FRAGMENT, SUMS, Narrow
from xframe.lowering.cuda.product import VECTOR, fetch, in_turns
from xframe.lowering.cuda.target import Gpu
from xframe.lowering.knobs import Knobs, divisors
from xframe.lowering.stage import ALTERNATIVES, Tile

#: Steps of the reduction that chunks are made of.
STEP = 16
#: Steps of a chunk by hand and at most; warps along a side of a block at most.
DEPTH, DEEPEST, SIDE = 32, 64, 2
#: Bytes by which a row in shared memory is longer than it need be.
PAD = 16


def tiles(rows: int, columns: int, narrow: Narrow, gpu: Gpu, batch: int = 1) -> tuple[Tile, ...]:
    """Tiles of a block for ``batch`` products, whole fragments that fit, best use of the machine first."""
    found = (Tile(r, c, gpu.lanes) for r, c in gpu.tiles(rows, columns, batch=batch) if r >= FRAGMENT)
    return tuple(tile for tile in found if _used(STEP, tile, narrow) <= gpu.shared)[:ALTERNATIVES]


def scheduled(gpu: Gpu, tile: Tile, narrow: Narrow, contiguous: int) -> Callable[[s_tir.Schedule, Knobs], None]:
    """The schedule of ``product``, whose loops are batch, row, column and reduction; of ``left`` and ``right``, its
    fragments; of ``column`` and ``weights``, the rounded operands; and of ``epilogue``.

    ``contiguous`` values of the column matrix lie side by side in memory, at multiples of as many.

    Knobs: ``row_warps`` and ``column_warps`` of a block, and ``depth``, the steps of the reduction that are in shared
    memory at a time.
    """

    def intrinsic(what: str) -> str:
        return f"xframe_{what}_{narrow.name}"

    importlib.import_module("xframe.lowering.cuda.wmma")  # a recorded schedule needs the intrinsics, too

    def schedule(sch: s_tir.Schedule, knobs: Knobs) -> None:
        product, last = sch.get_sblock("product"), sch.get_sblock("epilogue")
        column, weights = sch.get_sblock(f"column_{narrow.name}"), sch.get_sblock("weights")
        left, right = sch.get_sblock("left"), sch.get_sblock("right")
        batch, rows, columns, steps = sch.get_loops(product)
        extent = int(sch.get(steps).extent)

        high, wide = knobs("row_warps", *_warps(tile.rows)), knobs("column_warps", *_warps(tile.columns))
        grid_y, rows, i = sch.split(rows, [None, tile.rows // FRAGMENT, FRAGMENT])
        grid_x, columns, j = sch.split(columns, [None, tile.columns // FRAGMENT, FRAGMENT])
        y, rows = sch.split(rows, [high, None])
        x, columns = sch.split(columns, [wide, None])
        turn, steps = sch.split(steps, [None, knobs("depth", *_depths(extent, tile, narrow, gpu))])
        steps, k = sch.split(steps, [None, narrow.depth])
        sch.reorder(batch, grid_y, grid_x, y, x, turn, steps, rows, columns, i, j, k)
        sch.bind(sch.fuse(batch, grid_y, grid_x), "blockIdx.x")
        warp = sch.fuse(y, x)
        sch.bind(warp, "threadIdx.y")
        threads = [knobs.decided["row_warps"] * knobs.decided["column_warps"], gpu.warp]

        sch.set_scope(product, 0, "wmma.accumulator")
        sums = sch.cache_read(last, 0, SUMS)
        sch.reverse_compute_at(sums, warp, preserve_unit_loops=True)
        down, across, first = _fragments(sch, sums)
        sch.reverse_compute_at(last, across, preserve_unit_loops=True)
        for block, scope in ((left, "wmma.matrix_a"), (right, "wmma.matrix_b")):
            sch.set_scope(block, 0, scope)
            sch.compute_at(block, steps, preserve_unit_loops=True)
        for block, vector in ((column, math.gcd(contiguous, VECTOR)), (weights, VECTOR)):
            sch.set_scope(block, 0, "shared")
            fetch(sch, block, turn, threads, vector)
            sch.storage_align(block, 0, -2, STEP, PAD // narrow.bytes)

        whole = int(sch.get(last).iter_vars[-1].dom.extent) % tile.columns == 0
        near = sch.get_loops(last)
        near = near[[sch.get(n) for n in near].index(sch.get(across)) + 1 :]
        _, lane, values = sch.split(sch.fuse(*near), [None, gpu.warp, VECTOR if whole else 1])
        sch.bind(lane, "threadIdx.x")
        sch.vectorize(values)

        for loop in (steps, rows, columns, down, across):
            sch.unroll(loop)
        clear = sch.decompose_reduction(product, turn)
        sch.tensorize(sch.get_loops(clear)[-2], intrinsic("clear"))
        sch.tensorize(first, intrinsic("store"))
        for block, what, size in ((left, "left", (FRAGMENT, narrow.depth)), (right, "right", (narrow.depth, FRAGMENT))):
            *_, down, across = sch.get_loops(block)
            down, r = sch.split(down, [None, size[0]])
            across, c = sch.split(across, [None, size[1]])
            sch.reorder(down, across, r, c)
            sch.unroll(down)
            sch.unroll(across)
            sch.tensorize(r, intrinsic(what))
        sch.tensorize(i, intrinsic("multiply"))
        if extent > DEEPEST:
            in_turns(sch, turn, column, weights)

    return schedule


def _fragments(sch: s_tir.Schedule, block) -> tuple:
    """The loops over the fragments of what ``block`` copies, and the first one inside a fragment."""
    *_, down, across = sch.get_loops(block)
    down, i = sch.split(down, [None, FRAGMENT])
    across, j = sch.split(across, [None, FRAGMENT])
    sch.reorder(down, across, i, j)
    return down, across, i


def _warps(size: int) -> tuple[list[int], int]:
    """Candidates, and the one by hand, along a side of so many sums: as many as have two fragments or more."""
    possible = [n for n in divisors(size // FRAGMENT) if n <= SIDE]
    return possible, max(n for n in possible if n == 1 or 2 * n * FRAGMENT <= size)


def _depths(extent: int, tile: Tile, narrow: Narrow, gpu: Gpu) -> tuple[list[int], int]:
    """Divisors of the reduction, so that no chunk is cut, of which two fit, beside the sums that warps put down."""
    possible = [d for d in divisors(extent) if d % STEP == 0 and d <= DEEPEST and _used(d, tile, narrow) <= gpu.shared]
    return possible, max([d for d in possible if d <= DEPTH])


def _used(depth: int, tile: Tile, narrow: Narrow) -> int:
    """Bytes of shared memory. Warps put down a fragment each at a time, where it is in the tile: what lies between two
    of them is there, too."""
    chunk = tile.rows * (depth * narrow.bytes + PAD) + depth * (tile.columns * narrow.bytes + PAD)
    return 2 * chunk + 4 * math.prod(side // SIDE + FRAGMENT for side in (tile.rows, tile.columns))
