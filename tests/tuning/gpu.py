"""The GPU that ``tests/cuda_on_cpu`` plays, for processes that know nothing of it: TVM as it comes finds the device,
and a stand-in for nvcc compiles for it. And lowerings to tune there: two that can be bettered, one of traps.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import tvm

from tests.cuda_on_cpu import build
from tests.lowering import on_cuda
from xframe.lowering import ir
from xframe.lowering.cuda.target import Gpu
from xframe.lowering.direct import Direct
from xframe.lowering.gemm import Gemm
from xframe.lowering.ir import T
from xframe.lowering.stage import Epilogue, Tile
from xframe.registry import LOWERINGS, Row
from xframe.schedules.device import Identity
from xframe.tuning import cuda

GPU = replace(Gpu.named("sm_80"), multiprocessors=1)
IDENTITY = Identity("acme-gpu-sm80", "cuda", "NVIDIA", "Acme GPU", "sm_80", "acmegpu", (), (), 64)
ROOT = Path(__file__).resolve().parents[2]
NVCC = f"""#!{sys.executable}
import os, sys
if "--version" in sys.argv:
    sys.exit(print("Cuda compilation tools, release 13.0, V13.0.1"))
sys.path.insert(0, {str(ROOT)!r})
from tests.cuda_on_cpu import build, errors
try:
    made = build.kernels(open(sys.argv[-1]).read())
except errors.Refused as e:
    sys.exit(str(e))
open(sys.argv[sys.argv.index("-o") + 1], "wb").write(b"CUDA-ON-CPU:" + os.fsencode(made) + b"\\0")
"""
#: Columns of the tiles that are traps.
WRONG, ASTRAY, GREEDY = 201, 202, 203


def environment(folder: Path) -> dict[str, str]:
    """Variables for processes that are to find the device. Raises Unavailable where it can't be played."""
    nvcc = folder / "nvcc"
    nvcc.write_text(NVCC)
    nvcc.chmod(0o755)
    return {
        "LD_PRELOAD": os.pathsep.join(
            map(str, build.libraries())
        ),  # TVM finds them by their names, kernels their hooks
        "PATH": os.pathsep.join([str(folder), os.environ["PATH"]]),
        "CUDA_ON_CPU_CACHE": str(build.cache()),
    }


class Poor:
    """A lowering whose tile by hand launches more threads than any other, and so takes longest on that device."""

    def define(self, variant, weight, epilogue, layout, cpu):
        wasteful = Tile(1, 128, 1)
        stages = super().define(replace(variant, tile=variant.tile or wasteful), weight, epilogue, layout, cpu)
        return [replace(s, tiles=(wasteful, *s.tiles)) if s.schedule else s for s in stages]


class PoorGemm(Poor, Gemm):
    """``gemm``"""


class PoorDirect(Poor, Direct):
    """``direct``"""


POOR = {"gemm": "PoorGemm", "direct": "PoorDirect"}


def poor():
    """Have these take the places of the lowerings."""
    for name, what in POOR.items():
        LOWERINGS[name] = Row(f"{__name__}:{what}", (), "")


def stepped(*arguments):
    """:func:`tests.lowering.on_cuda.stepped` with them."""
    poor()
    return on_cuda.stepped(*arguments)


def watched(calls, waits):
    """Readings of a call that asks the device for something so many times, until one counts; and what is told of it."""
    stopwatch = cuda.Stopwatch(0)
    tensor = tvm.runtime.tensor(np.zeros(4, np.uint8), stopwatch.device)

    def call():
        for _ in range(calls):
            stopwatch.copy(tensor, tensor, 4)
        if waits:
            stopwatch.sync()

    readings = []
    while not readings or readings[-1] is None:
        stopwatch.shut()
        readings.append(stopwatch.watch(call))
    return readings, stopwatch.note


class Trapped(Gemm):
    """``gemm`` by hand; other tiles do harm in a way of their own."""

    name = "trapped"

    def define(self, variant, weight, epilogue, layout, cpu):
        columns = variant.tile.vectors if variant.tile else 0
        if columns == WRONG:
            epilogue = Epilogue(epilogue.bias + np.float32(0.01), epilogue.relu, epilogue.residual)
        plain = super().define(replace(variant, tile=None), weight, epilogue, layout, cpu)
        *before, product = plain
        product = replace(product, tiles=(product.tiles[0], *(Tile(1, c, 1) for c in (WRONG, ASTRAY, GREEDY))))
        if columns in (ASTRAY, GREEDY):
            shapes = {f"a{i}": tuple(map(int, p.shape)) for i, p in enumerate(product.func.params)}
            func = ir.kernel(shapes, astray if columns == ASTRAY else greedy)
            product = replace(product, func=func, schedule=lambda sch, knobs: None)
        return [*before, product]


def astray(image, *others):
    """Reads far beyond the image."""
    with ir.units(8) as (i,):
        T.buffer_store(others[-1], image[0, 0, i + (1 << 20)], [0, 0, i])


def greedy(image, *others):
    """Wants more shared memory than a block has."""
    with ir.units(8) as (i,), T.sblock("greedy"):
        T.reads([])
        T.writes([])
        kept = T.alloc_buffer((1 << 16,), "float32", scope="shared")
        T.buffer_store(kept, image[0, 0, i], [i * 8192])
        T.buffer_store(others[-1], kept[i * 8192], [0, 0, i])
