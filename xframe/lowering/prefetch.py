"""Weights fetched ahead: while one block of a product is computed, the next comes from memory into the near caches.

The hardware fetches ahead too, but by itself hides little of a product's reading: a register tile waits for its first
pass over new weights, then computes its other passes while memory rests. So each step of a pass asks for its share of
the weights that follow, and both work all the time.
"""

import math

from tvm import s_tir, tirx
from tvm.tirx import op

from xframe.lowering.knobs import Knobs
from xframe.lowering.target import Target

#: Annotations of the reduction loop of a product: whether it fetches ahead; turns of the outermost loop in a row that
#: use the same block of weights; values of a block; blocks that the outermost loop passes in a row.
_MARK, _AGAIN, _BLOCK, _ROW = "xframe.fetch_ahead", "xframe.again", "xframe.block", "xframe.row"
#: Cache lines that one turn may ask for at most: each is an instruction.
MOST_LINES = 64
#: Cache lines to ask for at a time: a core waits for about so many at once. LLVM keeps sums in memory across a request,
#: so the more steps lie between two, the better.
LINES, MOST_STEPS, LEAST_STEPS = 12, 64, 4
#: float32 values of a cache line.
LINE = 16
#: Arguments of llvm.prefetch. Level 2, as what is for later would push the current weights out of a level-1 cache.
_READ, _LEVEL_2, _DATA = 0, 2, 1


def mark(
    sch, knobs: Knobs, reduction, cpu: Target, block: int, row: int, passes: int, again: int = 1, turns_again=None
):
    """Have the loop ``reduction`` fetch ahead: ``passes`` of it over ``block`` weights a turn of the outermost loop.

    ``again`` turns of that loop in a row use the same block by hand, ``turns_again`` as the template has it if that is
    a knob; it passes ``row`` blocks in a row before it may begin anew. The knob ``steps``: steps of the reduction
    between two requests. The knob ``fetch``: 0 for none at all; by hand where weights are passed over so often that
    reading them is hardly any work. Without knobs where the level-2 cache has no room for the next block beside the
    current one. Returns the loop that is now the first of the reduction.
    """
    extent = int(sch.get(reduction).extent)
    steps = math.gcd(extent, MOST_STEPS)
    while steps > LEAST_STEPS and steps * block > LINES * LINE * again * passes * extent:
        steps //= 2

    def lines(steps):
        return -(-block * steps // (LINE * again * passes * extent))

    possible = [2**i for i in range(7) if extent % 2**i == 0 and (2**i >= LEAST_STEPS or extent % LEAST_STEPS)]
    possible = [s for s in possible if s == steps or lines(s) <= MOST_LINES]
    if 4 * 4 * block > cpu.cache(2) or steps not in possible:
        return reduction
    worth = again * passes * extent <= 2 * steps * block // LINE
    turns, _ = sch.split(reduction, [None, knobs("steps", possible, steps)])
    sch.annotate(turns, _MARK, knobs("fetch", (0, 1), int(worth)))
    sch.annotate(turns, _AGAIN, again if turns_again is None else turns_again)
    sch.annotate(turns, _BLOCK, block)
    sch.annotate(turns, _ROW, row)
    return turns


def fetch(element):
    """Ask for the cache line of a buffer's ``element``, which may lie beyond the buffer's end."""
    how = (tirx.const(n, "int32") for n in (_READ, _LEVEL_2, _DATA))
    return op.call_llvm_intrin("void", "llvm.prefetch", op.address_of(element), *how)


def inserted(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with its marked loop, if it has one, fetching ahead from its second parameter, the weights.

    They must lie in the order in which the outermost loop reads them, a contiguous block for each turn of it, or for
    as many turns as the marks say.
    """
    loops: list[tirx.For] = []

    def visit(node):
        if isinstance(node, tirx.SeqStmt):
            return tirx.SeqStmt([visit(s) for s in node.seq])
        if not isinstance(node, tirx.For):
            return node
        loops.append(node)
        marks = {k: int(v) for k, v in node.annotations.items() if k in (_MARK, _AGAIN, _BLOCK, _ROW)}
        if marks.get(_MARK):
            body = tirx.SeqStmt([*_lines(func.params[1], loops, marks), node.body])
        else:
            body = visit(node.body)
        loops.pop()
        kept = {k: v for k, v in node.annotations.items() if k not in marks}
        return tirx.For(node.loop_var, node.min, node.extent, node.kind, body, node.thread_binding, kept)

    root = func.body.block
    block = s_tir.SBlock(
        root.iter_vars, root.reads, root.writes, root.name_hint, visit(root.body), root.init, root.alloc_buffers
    )
    return func.with_body(s_tir.SBlockRealize([], True, block))


def _lines(weights, loops: list[tirx.For], marks: dict[str, int]) -> list[tirx.Stmt]:
    """What a turn of the last of ``loops`` fetches: its share of the next block."""
    (outer, *passes), again, block, row = loops, marks[_AGAIN], marks[_BLOCK], marks[_ROW]
    turn, turns = outer.loop_var % again, again
    for loop in passes:
        turn, turns = turn * loop.extent + loop.loop_var, turns * int(loop.extent)
    count = -(-block // LINE // turns)
    blocks = math.prod(int(d) for d in weights.shape) // block
    passing = row * max(1, int(outer.extent) // (again * blocks))  # each row of blocks, as often as it is passed over
    following = outer.loop_var // again + 1
    first = (following // passing * row + following % row) * block + turn * count * LINE
    zeros = [0] * (len(weights.shape) - 1)
    return [tirx.Evaluate(fetch(weights[(*zeros, first + i * LINE)])) for i in range(count)]
