"""Straight-line kernels on a GPU: their parallel units become threads."""

from tvm import s_tir, tirx

#: Threads of a block. Few, as each may need many registers.
BLOCK = 128


def bound(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with each outermost parallel loop spread over blocks of threads; the others stay as they are."""
    root = func.body.block
    body = root.body
    if isinstance(body, tirx.SeqStmt):
        body = tirx.SeqStmt([_bound(part) for part in body.seq])
    else:
        body = _bound(body)
    block = s_tir.SBlock(
        root.iter_vars,
        root.reads,
        root.writes,
        root.name_hint,
        body,
        root.init,
        root.alloc_buffers,
        root.match_buffers,
        root.annotations,
    )
    return func.with_body(s_tir.SBlockRealize([], True, block))


def _bound(loop: tirx.Stmt) -> tirx.Stmt:
    if not isinstance(loop, tirx.For) or loop.kind != tirx.ForKind.PARALLEL:
        return loop
    extent, kind = int(loop.extent), "int32"
    size = min(BLOCK, extent)
    blocks = -(-extent // size)
    block, thread = tirx.Var("block", kind), tirx.Var("thread", kind)
    unit, body = loop.loop_var, loop.body
    if blocks * size > extent:
        body = tirx.IfThenElse(unit < extent, body, None)
    body = tirx.SeqStmt([tirx.Bind(unit, block * size + thread), body])
    for var, count, axis in ((thread, size, "threadIdx.x"), (block, blocks, "blockIdx.x")):
        over = tirx.IterVar(None, tirx.Var("", kind), tirx.IterVar.ThreadIndex, axis)
        body = tirx.For(var, tirx.const(0, kind), tirx.const(count, kind), tirx.ForKind.THREAD_BINDING, body, over)
    return body
