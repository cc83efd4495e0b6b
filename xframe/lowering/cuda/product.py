"""The schedule of a product on a GPU: a block of threads computes a tile of it, each thread a part of that tile.

Chunks of the reduction pass through shared memory, of which there are two: while one is multiplied, the next comes from
memory into registers. Neighbouring threads have neighbouring columns, and the threads of a warp few rows; what they
read at once lies side by side in shared memory.

A thread of a large tile has 8 x 8 sums: of 4 values that it reads at once, 16 multiply-adds; of 8 x 4 sums, 10.7. A
warp may have its threads read 4 values each in the time of 16 multiply-adds, or of 4 where all read the same.
"""

import math
from collections.abc import Callable, Sequence

from tvm import s_tir

from xframe.lowering.cuda.target import BLOCK, LANES, Gpu
from xframe.lowering.knobs import Knobs, divisors
from xframe.lowering.stage import REDUCTION, Tile, pad_to

#: float32 values of the widest access.
VECTOR = 4
#: Steps of the reduction that are in shared memory at a time, by hand and at most.
DEPTH, DEEPEST = 16, 32
#: Rows of a thread, at most.
MOST_ROWS = 16
#: Where the left operand comes from: it is there, as a matrix; or it is made in shared memory, by a block of its own or
#: out of what the product reads.
MATRIX, COMPUTED, REINDEXED = "matrix", "computed", "reindexed"


def scheduled(
    gpu: Gpu,
    tile: Tile,
    row: int,
    column: int,
    left: str,
    contiguous: int,
    unroll: Sequence[int] = (),
    alone: int = 0,
    after: Callable[[s_tir.Schedule], None] | None = None,
) -> Callable[[s_tir.Schedule, Knobs], None]:
    """The schedule of the reduction block ``product`` and of ``epilogue``, its consumer, for a block's ``tile``.

    ``row``, ``column`` and ``unroll`` are positions of loops as in :func:`xframe.lowering.stage.tile_product`. ``left``
    is one of :data:`MATRIX`, :data:`COMPUTED` (by the block ``column``) and :data:`REINDEXED`; along the last loop of
    its reduction, ``contiguous`` values of it lie side by side at multiples of as many. ``alone``: the
    matrix is made by the block ``column``, for which so many values lie side by side where it reads. ``after``
    schedules what else is in the function.

    Knobs: ``row_threads`` and ``column_threads`` of a block, ``depth``, the steps of the reduction that are in shared
    memory at a time, and ``buffers``, how many chunks of them.
    """
    parts = 2 if unroll else 1

    def schedule(sch: s_tir.Schedule, knobs: Knobs) -> None:
        product, last = sch.get_sblock("product"), sch.get_sblock("epilogue")
        if alone:
            by_value(sch, sch.get_sblock("column"), math.gcd(alone, VECTOR))
        operand = {
            MATRIX: lambda: sch.cache_read(product, 0, "shared"),
            COMPUTED: lambda: sch.get_sblock("column"),
            REINDEXED: lambda: sch.reindex(product, ("read", 0)),
        }[left]()
        if left != MATRIX:
            sch.set_scope(operand, 0, "shared")
        weights = sch.cache_read(product, 1, "shared")
        near = sch.cache_read(product, 0, "local")
        axis = _axis(sch.get(product), row)

        loops = sch.get_loops(product)
        kinds = [int(v.iter_type) for v in sch.get(product).iter_vars]
        inner = [loops[i] for i in unroll]
        outer = [x for i, x in enumerate(loops) if kinds[i] != REDUCTION and i not in (row, column, *unroll)]
        *turns, deep = [x for i, x in enumerate(loops) if kinds[i] == REDUCTION and i not in unroll]
        step = math.gcd(contiguous, VECTOR) if parts == 1 else 1
        extent = int(sch.get(deep).extent)
        others = math.prod(int(sch.get(x).extent) for x in turns)

        row_tile, rows = sch.split(loops[row], [None, tile.rows])
        column_tile, columns = sch.split(loops[column], [None, tile.columns])
        y, x, depth = _by_hand(extent, step, tile, parts, gpu)
        threads = [knobs("row_threads", *y), knobs("column_threads", *x)]
        columns_apart(sch, weights, tile.columns // VECTOR // knobs.decided["column_threads"])
        rows_apart(sch, operand, axis, tile.rows // knobs.decided["row_threads"], step * parts)
        y, rows = sch.split(rows, [threads[0], None])
        x, columns = sch.split(columns, [threads[1], None])
        wide, lane = sch.split(columns, [None, VECTOR])
        deep, steps = sch.split(deep, [None, knobs("depth", *depth)])
        steps, one = sch.split(steps, [None, step])
        sch.reorder(*outer, row_tile, column_tile, y, x, *turns, deep, steps, one, rows, *inner, wide, lane)
        sch.bind(sch.fuse(*outer, row_tile, column_tile), "blockIdx.x")
        sch.bind(y, "threadIdx.y")
        sch.bind(x, "threadIdx.x")
        turn = sch.fuse(*turns, deep)

        sch.set_scope(product, 0, "local")
        sch.reverse_compute_at(last, x, preserve_unit_loops=True)
        whole = int(sch.get(last).iter_vars[-1].dom.extent) % tile.columns == 0
        unrolled(sch, last, x, VECTOR if whole else 1)
        sch.compute_at(near, steps, preserve_unit_loops=True)
        unrolled(sch, near, steps, step * parts)
        fetch(sch, operand, turn, threads, step, apart=parts)
        fetch(sch, weights, turn, threads, VECTOR)
        for loop in (one, rows, *inner, wide):
            sch.unroll(loop)
        sch.vectorize(lane)
        unrolled(sch, sch.decompose_reduction(product, turn), x, VECTOR)
        if others * extent > DEEPEST:
            buffered(sch, knobs, turn, operand, weights)
        if after:
            after(sch)

    return schedule


def fetch(sch: s_tir.Schedule, copy, loop, threads: Sequence, vector: int, apart: int = 1) -> None:
    """Have all ``threads`` of the block bring ``copy`` into shared memory at ``loop``, ``vector`` values at a time.

    ``threads``: extents of threadIdx.y and .x, with that of .z before them if there is one. ``apart`` above 1: values
    that are neighbours in shared memory are not in memory, those of the loop before the last are.
    """
    sch.compute_at(copy, loop, preserve_unit_loops=True)
    loops = sch.get_loops(copy)[-len(sch.get(copy).iter_vars) :]
    if apart > 1:
        loops[-2:] = loops[:-3:-1]
        sch.reorder(*loops[-2:])
    _, *along, lane = sch.split(sch.fuse(*loops), [None, *threads, vector])
    for thread, axis in zip(reversed(along), "xyz", strict=False):
        sch.bind(thread, f"threadIdx.{axis}")
    sch.vectorize(lane)


def columns_apart(sch: s_tir.Schedule, weights, vectors: int) -> None:
    """Lay out ``weights`` in shared memory, of whose columns a thread has so many neighbouring ``vectors``, so that
    those that the threads of a warp read at once are neighbours. Were a thread's, the others' would lie in the same
    banks."""
    if vectors > 1:
        sch.transform_layout(
            weights,
            ("write", 0),
            lambda *i: (*i[:-1], i[-1] // VECTOR % vectors, i[-1] // VECTOR // vectors, i[-1] % VECTOR),
        )


def rows_apart(sch: s_tir.Schedule, operand, axis: int, rows: int, step: int) -> None:
    """The same for ``operand``, whose ``axis`` is its rows, of which a thread has so many, and reads ``step`` values of
    one at once, along the last axis. Writing goes along that: where the next values go is an odd number of steps away,
    thus in other banks. Without such an ``axis`` (-1) there is one row, or one value of each: they are neighbours."""
    if axis == -1:
        return
    sch.transform_layout(
        operand,
        ("write", 0),
        lambda *i: (*i[:axis], i[axis] % rows, *i[axis + 1 : -1], i[-1] // step, i[axis] // rows, i[-1] % step),
    )
    sch.storage_align(operand, 0, -3, 2 * step, step)


def _axis(product, row: int) -> int:
    """Where the loop ``row`` is among the axes of the left operand of the block ``product``; -1 if it is the last, or
    nowhere: an operand that is read in another order has no axis for a loop of one step."""
    *axes, _ = [x.min for x in product.reads[0].region]
    return next((i for i, x in enumerate(axes) if x.same_as(product.iter_vars[row].var)), -1)


def unrolled(sch: s_tir.Schedule, block, loop, vector: int) -> None:
    """Unroll the loops of ``block`` inside ``loop``, the last one in vectors."""
    loops = sch.get_loops(block)
    depth = [sch.get(x) for x in loops].index(sch.get(loop)) + 1
    *others, last = loops[depth:]
    again, lane = sch.split(last, [None, vector])
    for x in (*others, again):
        sch.unroll(x)
    sch.vectorize(lane)


def by_value(sch: s_tir.Schedule, block, vector: int = 1) -> None:
    """Make ``block``, each value of it on its own, a kernel: a thread a value, or ``vector`` values."""
    blocks, threads, lane = sch.split(sch.fuse(*sch.get_loops(block)), [None, BLOCK, vector])
    sch.bind(blocks, "blockIdx.x")
    sch.bind(threads, "threadIdx.x")
    sch.vectorize(lane)


def buffered(sch: s_tir.Schedule, knobs: Knobs, turn, *copies) -> None:
    """:func:`in_turns`, unless the knob ``buffers`` is 1: then a chunk is there when it is asked for, and a block takes
    half the shared memory and fewer registers."""
    knobs("buffers", (1, 2), 2)
    if knobs.decided["buffers"] == 2:
        in_turns(sch, turn, *copies)


def in_turns(sch: s_tir.Schedule, turn, *copies) -> None:
    """Two chunks of ``copies`` in shared memory: in a ``turn`` of the loop, of which there must be two, the next chunk
    is asked for, the current one multiplied, the next one put down."""
    for copy in copies:
        sch.annotate(copy, "tirx.manifest_shared_memory_local_stage", 1)
        sch.annotate(copy, "double_buffer_scope", 0)
    count = len(copies)
    put_down = range(count + 1, 2 * count + 1)
    order = [place for asked, put in zip(range(count), put_down, strict=True) for place in (asked, put)]
    sch.annotate(turn, "software_pipeline_stage", [0, 0] * count + [1])
    sch.annotate(turn, "software_pipeline_order", [*order, count])


def held(tile: Tile, row_threads: int, column_threads: int, depth: int, step: int, parts: int) -> int:
    """Values that a thread holds: its sums, their operands, ``step`` of those on the left at a time, and its share of
    the next ``depth`` steps of the reduction."""
    rows, columns, threads = tile.rows // row_threads, tile.columns // column_threads, row_threads * column_threads
    coming = sum(
        pad_to(-(-n * depth * parts // threads), at_once) for n, at_once in ((tile.rows, step), (tile.columns, VECTOR))
    )
    return parts * (rows * columns + rows * step + columns) + coming


def _by_hand(extent: int, step: int, tile: Tile, parts: int, gpu: Gpu) -> list[tuple[list[int], int]]:
    """Candidates, and the one by hand, of ``row_threads``, ``column_threads`` and ``depth``.

    No candidate, the others being by hand, has a thread hold more than there are registers. By hand, a block has enough
    threads, but each has rows enough to read little, and two vectors of columns if that leaves a thread for each lane.
    """

    def fits(y: int, x: int, depth: int) -> bool:
        return y * x <= gpu.most_threads and held(tile, y, x, depth, step, parts) <= gpu.room(y * x)

    across = max(1, tile.columns // VECTOR)
    depths, depth = _depths(extent, step, tile, parts, gpu)
    few, eighths = across // 2, tile.rows // 8
    x = few if parts == 1 and few * eighths >= LANES and fits(eighths, few, depth) else across
    possible = [n for n in divisors(tile.rows) if tile.rows // n <= MOST_ROWS and fits(n, x, depth)]
    wanted = min(BLOCK // x, eighths)
    y = max([n for n in possible if n <= wanted] or possible[:1])
    columns = [n for n in (few, across) if n and fits(y, n, depth)]
    return [(possible, y), (columns, x), ([d for d in depths if fits(y, x, d)], depth)]


def _depths(extent: int, step: int, tile: Tile, parts: int, gpu: Gpu) -> tuple[list[int], int]:
    """Divisors of the reduction's last loop, so that no chunk is cut: most are 8 or 16, 11 in a row of 11 x 3 taps.

    Two chunks fit shared memory; laid out by :func:`rows_apart`, with a thread's rows more than there are.
    """
    bytes_a_step = 2 * 4 * parts * (tile.rows + MOST_ROWS + tile.columns)
    possible = [d for d in divisors(extent) if d % step == 0 and d <= DEEPEST and d * bytes_a_step <= gpu.shared]
    return possible, max([d for d in possible if d <= DEPTH] or possible[:1])
