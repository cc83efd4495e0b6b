"""Schedules on a GPU for what is not a convolution, product or window: element-wise chains, softmax, copies."""

import math

from tvm import s_tir

from xframe.lowering.cuda.target import BLOCK, Gpu
from xframe.lowering.stage import REDUCTION

#: Terms of a sum from which on, and sums up to which, a warp makes one of them together.
LONG, FEW = 64, 16384


def spread(sch: s_tir.Schedule, block, gpu: Gpu) -> None:
    """Make ``block`` a kernel: a thread a value, or a warp where there are few values, long sums each."""
    loops = sch.get_loops(block)
    kinds = [int(v.iter_type) for v in sch.get(block).iter_vars]
    spatial = [x for x, k in zip(loops, kinds, strict=True) if k != REDUCTION]
    terms = [x for x, k in zip(loops, kinds, strict=True) if k == REDUCTION]
    values, length = (math.prod(int(sch.get(x).extent) for x in some) for some in (spatial, terms))
    if not spatial:
        spatial = [sch.add_unit_loop(terms[0] if terms else block)]
    sch.reorder(*spatial, *terms)
    outer = sch.fuse(*spatial)
    if terms and length >= LONG and values <= FEW:
        _, lane = sch.split(sch.fuse(*terms), [None, gpu.warp])
        sch.bind(lane, "threadIdx.x")
        sch.bind(outer, "blockIdx.x")
    else:
        blocks, threads = sch.split(outer, [None, min(BLOCK, values)])
        sch.bind(blocks, "blockIdx.x")
        sch.bind(threads, "threadIdx.x")
