"""Weights fetched ahead: while one block of a product is computed, the next comes from memory into the near caches.

The hardware fetches ahead too, but by itself hides little of a product's reading: a register tile waits for its first
pass over new weights, then computes its other passes while memory rests. So each step of a pass asks for its share of
the weights that follow, and both work all the time.
"""

import math

from tvm import s_tir, tirx
from tvm.tirx import op

from xframe.lowering.target import Cpu

#: Marks the reduction loop of a product.
_MARK = "xframe.fetch_ahead"
#: Cache lines to ask for at a time: a core waits for about so many at once. LLVM keeps sums in memory across a request,
#: so the more steps lie between two, the better.
LINES, MOST_STEPS, LEAST_STEPS = 12, 64, 4
#: float32 values of a cache line.
LINE = 16
#: Arguments of llvm.prefetch. Level 2, as what is for later would push the current weights out of a level-1 cache.
_READ, _LEVEL_2, _DATA = 0, 2, 1


def mark(sch: s_tir.Schedule, reduction, cpu: Cpu, block: int, passes: int, again: int = 1):
    """Have the loop ``reduction`` fetch ahead: ``passes`` of it over ``block`` weights a turn of the outermost loop.

    ``again`` turns of that loop in a row use the same block.
    Returns the loop that is now the first of the reduction. Nothing changes where weights are passed over so often that
    reading them is hardly any work, or where the level-2 cache has no room for the next block beside the current one.
    """
    if 4 * 4 * block > cpu.cache(2):
        return reduction
    extent = int(sch.get(reduction).extent)
    steps = math.gcd(extent, MOST_STEPS)
    while steps > LEAST_STEPS and steps * block > LINES * LINE * again * passes * extent:
        steps //= 2
    if again * passes * extent > 2 * steps * block // LINE:
        return reduction
    turns, _ = sch.split(reduction, [None, steps])
    sch.annotate(turns, _MARK, again)
    return turns


def fetch(element):
    """Ask for the cache line of a buffer's ``element``, which may lie beyond the buffer's end."""
    how = (tirx.const(n, "int32") for n in (_READ, _LEVEL_2, _DATA))
    return op.call_llvm_intrin("void", "llvm.prefetch", op.address_of(element), *how)


def inserted(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with its marked loop, if it has one, fetching ahead from its second parameter, the weights.

    They must lie in the order in which the outermost loop reads them, a contiguous block for each turn of it, or for
    as many turns as the mark says.
    """
    loops: list[tirx.For] = []

    def visit(node):
        if isinstance(node, tirx.SeqStmt):
            return tirx.SeqStmt([visit(s) for s in node.seq])
        if not isinstance(node, tirx.For):
            return node
        loops.append(node)
        if _MARK in node.annotations:
            body = tirx.SeqStmt([*_lines(func.params[1], loops, int(node.annotations[_MARK])), node.body])
        else:
            body = visit(node.body)
        loops.pop()
        kept = {k: v for k, v in node.annotations.items() if k != _MARK}
        return tirx.For(node.loop_var, node.min, node.extent, node.kind, body, node.thread_binding, kept)

    root = func.body.block
    block = s_tir.SBlock(
        root.iter_vars, root.reads, root.writes, root.name_hint, visit(root.body), root.init, root.alloc_buffers
    )
    return func.with_body(s_tir.SBlockRealize([], True, block))


def _lines(weights, loops: list[tirx.For], again: int) -> list[tirx.Stmt]:
    """What a turn of the last of ``loops`` fetches: its share of the next block."""
    outer, *passes = loops
    block = math.prod(int(d) for d in weights.shape) * again // int(outer.extent)
    turn, turns = outer.loop_var % again, again
    for loop in passes:
        turn, turns = turn * loop.extent + loop.loop_var, turns * int(loop.extent)
    count = -(-block // LINE // turns)
    first = (outer.loop_var // again + 1) * block + turn * count * LINE
    zeros = [0] * (len(weights.shape) - 1)
    return [tirx.Evaluate(fetch(weights[(*zeros, first + i * LINE)])) for i in range(count)]
