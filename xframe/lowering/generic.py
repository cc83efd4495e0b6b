"""Schedules for what is not a convolution, product or window: element-wise chains, softmax, copies.

The order of the loops is all that matters here: inline what can be, share the outer loops among threads, run the
innermost over vectors. On a GPU each value is a thread's.
"""

import contextlib

import tvm
from tvm import s_tir, tirx

from xframe.lowering.cuda.generic import spread
from xframe.lowering.stage import REDUCTION
from xframe.lowering.target import Gpu, Target


def schedule_rest(mod: tvm.IRModule, cpu: Target) -> tvm.IRModule:
    """A schedule for each PrimFunc of ``mod`` that has none yet."""
    for var, func in list(mod.functions_items()):
        if isinstance(func, tirx.PrimFunc) and "tirx.is_scheduled" not in (func.attrs or {}):
            mod[var] = _scheduled(func, cpu).with_attr("tirx.is_scheduled", True)
    return mod


def _scheduled(func: tirx.PrimFunc, cpu: Target) -> tirx.PrimFunc:
    sch = s_tir.Schedule(tvm.IRModule({"main": func}))
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    for block in blocks[:-1]:
        if all(int(v.iter_type) != REDUCTION for v in sch.get(block).iter_vars):
            _try(sch, lambda b=block: sch.compute_inline(b))
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        if isinstance(cpu, Gpu):
            spread(sch, block, cpu)
        else:
            _try(sch, lambda b=block: _order(sch, b, cpu))
    return sch.mod["main"]


def _try(sch: s_tir.Schedule, step) -> None:
    """A step that TVM may refuse, as when a block feeds two others: then the loops stay as they were."""
    with contextlib.suppress(s_tir.ScheduleError):
        step()


def _order(sch: s_tir.Schedule, block, cpu: Target) -> None:
    loops = sch.get_loops(block)
    kinds = [int(v.iter_type) for v in sch.get(block).iter_vars]
    spatial = [x for x, k in zip(loops, kinds, strict=True) if k != REDUCTION]
    if not spatial:
        return
    *outer, last = spatial
    extent = int(sch.get(last).extent)
    if extent % cpu.lanes == 0 and len(spatial) == len(loops):
        rest, lane = sch.split(last, [None, cpu.lanes])
        sch.vectorize(lane)
        outer.append(rest)
    if outer:
        sch.parallel(sch.fuse(*outer))
    elif len(spatial) == len(loops):
        sch.parallel(last)
