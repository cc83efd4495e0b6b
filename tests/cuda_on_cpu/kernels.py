"""Small kernels scheduled by hand for CUDA: what the tests of the shim run, and break on purpose."""

import numpy as np
from tvm import s_tir, te, tirx


def matmul(
    n: int, k: int, m: int, tile: int = 16, scope: str = "shared", pipelined: bool | str = False
) -> tirx.PrimFunc:
    """``C = A @ B``: blocks of ``tile`` x ``tile`` threads, 2 x 2 outputs each, both operands through shared memory.

    ``pipelined`` fetches the next step's operands before the products of this one; "async" by asynchronous copies.
    """
    a, b = te.placeholder((n, k), name="A"), te.placeholder((k, m), name="B")
    r = te.reduce_axis((0, k), "r")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], r), name="C")
    sch = s_tir.Schedule(te.create_prim_func([a, b, c]))
    block = sch.get_sblock("C")
    i, j, r = sch.get_loops(block)
    by, ty, yi = sch.split(i, [None, tile, 2])
    bx, tx, xi = sch.split(j, [None, tile, 2])
    ro, ri = sch.split(r, [None, 8])
    sch.reorder(by, bx, ty, tx, ro, ri, yi, xi)
    for loop, axis in ((by, "blockIdx.y"), (bx, "blockIdx.x"), (ty, "threadIdx.y"), (tx, "threadIdx.x")):
        sch.bind(loop, axis)
    local = sch.cache_write(block, 0, "local")
    sch.reverse_compute_at(local, tx)
    for operand in (0, 1):
        shared = sch.cache_read(block, operand, scope)
        sch.compute_at(shared, ro)
        fused = sch.fuse(*sch.get_loops(shared)[5:])
        _, y, x = sch.split(fused, [None, tile, tile])
        sch.bind(y, "threadIdx.y")
        sch.bind(x, "threadIdx.x")
    sch.decompose_reduction(block, ro)
    if pipelined:
        sch.annotate(ro, "software_pipeline_stage", [0, 0, 1])
        sch.annotate(ro, "software_pipeline_order", [0, 1, 2])
    if pipelined == "async":
        sch.annotate(ro, "software_pipeline_async_stages", [0])
    return sch.mod["main"]


def scaled(n: int, threads: int = 32) -> tirx.PrimFunc:
    """``B = 2 A``, four elements at a time; the last block is partly empty."""
    a = te.placeholder((n,), name="A")
    b = te.compute((n,), lambda i: a[i] * 2.0, name="B")
    sch = s_tir.Schedule(te.create_prim_func([a, b]))
    (i,) = sch.get_loops(sch.get_sblock("B"))
    bx, tx, v = sch.split(i, [None, threads, 4])
    sch.bind(bx, "blockIdx.x")
    sch.bind(tx, "threadIdx.x")
    sch.vectorize(v)
    return sch.mod["main"]


def row_sums(n: int, m: int, threads: int = 32) -> tirx.PrimFunc:
    """``B[i] = sum of A[i]``: the threads of a block add with shuffles, and through shared memory above a warp."""
    a = te.placeholder((n, m), name="A")
    r = te.reduce_axis((0, m), "r")
    b = te.compute((n,), lambda i: te.sum(a[i, r], r), name="B")
    sch = s_tir.Schedule(te.create_prim_func([a, b]))
    i, r = sch.get_loops(sch.get_sblock("B"))
    _, tx = sch.split(r, [None, threads])
    sch.bind(i, "blockIdx.x")
    sch.bind(tx, "threadIdx.x")
    return sch.mod["main"]


def staged(n: int, threads: int = 32, scope: str = "shared.dyn") -> tirx.PrimFunc:
    """``A`` backwards, by one block, all of it through shared memory: 4 ``n`` bytes."""
    a = te.placeholder((n,), name="A")
    b = te.compute((n,), lambda i: a[n - 1 - i], name="B")
    sch = s_tir.Schedule(te.create_prim_func([a, b]))
    block = sch.get_sblock("B")
    one = sch.add_unit_loop(sch.get_loops(block)[0])
    sch.bind(one, "blockIdx.x")
    copy = sch.cache_read(block, 0, scope)
    sch.compute_at(copy, one)
    for stage in (copy, block):
        _, thread = sch.split(sch.get_loops(stage)[-1], [None, threads])
        sch.bind(thread, "threadIdx.x")
    return sch.mod["main"]


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype="float32")
