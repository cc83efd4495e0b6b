"""What a GPU can do at most, measured by two kernels that TVM compiles: float32 multiply-adds, and reading of memory.

Every thread keeps sums in registers, and reads nothing while it multiplies; or reads vectors side by side with its
neighbours, and does nothing else. Both are checked: what they sum is known. The kernels are a library in a file, so
that a machine without a compiler measures, too; that is a process of its own, which leaves nothing on the GPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from xframe import nvml
from xframe.errors import XframeError
from xframe.types import gpu_index
from xframe.worker.alone import without_frameworks

if TYPE_CHECKING:
    import tvm

    from xframe.lowering.cuda.target import Gpu

LIBRARY = "roofs.so"
#: Sums of a thread, enough to hide how long one addition takes; multiply-adds that stand one after another in a sum.
SUMS, UNROLLED = 16, 8
#: float32 values of a read, and reads of a thread that are under way.
WIDTH, UNDER_WAY = 4, 8
#: Launches that are timed together. An idle GPU's clocks take their time to rise: launches go on for so many seconds at
#: least, until the best has stood for so many, and for so many at most. The measuring process is given up after LIMIT.
LAUNCHES, LEAST, STANDING, MOST, LIMIT = 10, 1.0, 0.3, 5.0, 60


@dataclass(frozen=True)
class Work:
    """``threads`` in all; ``depth``: multiply-adds of each sum, at most 2^24, as floats count; ``reads`` of each."""

    threads: int
    depth: int = 1 << 13
    reads: int = 128

    @property
    def flop(self) -> int:
        return 2 * self.threads * SUMS * self.depth

    @property
    def bytes(self) -> int:
        return 4 * WIDTH * self.threads * self.reads


def filling(gpu: Gpu) -> Work:
    """All threads that the multiprocessors have room for: 0.5 GB are read on 132 of them, far beyond any cache."""
    return Work(2048 * gpu.multiprocessors)


def module(work: Work) -> tvm.IRModule:
    """The kernels ``peak`` and ``read``, of threads already."""
    import tvm

    from xframe.lowering import ir
    from xframe.lowering.cuda import threads

    def peak(x: Any, y: Any, start: Any, out: Any) -> None:
        with ir.units(work.threads) as (t,):
            sums = ir.Scratch(SUMS, 1).buffer
            for i in range(SUMS):
                ir.T.buffer_store(sums, start[i, t], [i, 0])
            with ir.T.serial(0, work.depth // UNROLLED):
                for i in [*range(SUMS)] * UNROLLED:
                    ir.T.buffer_store(sums, sums[i, 0] * x[t] + y[t], [i, 0])
            for i in range(SUMS):
                ir.T.buffer_store(out, sums[i, 0], [i, t])

    def read(x: Any, out: Any) -> None:
        with ir.units(work.threads) as (t,):
            sums = ir.Scratch(UNDER_WAY, WIDTH).buffer
            for i in range(UNDER_WAY):
                with ir.T.vectorized(0, WIDTH) as v:
                    ir.T.buffer_store(sums, ir.zero(), [i, v])
            with ir.T.serial(0, work.reads // UNDER_WAY) as k:
                for i in range(UNDER_WAY):
                    with ir.T.vectorized(0, WIDTH) as v:
                        ir.T.buffer_store(sums, sums[i, v] + x[k * UNDER_WAY + i, t * WIDTH + v], [i, v])
            total = ir.zero()
            for i in range(UNDER_WAY):
                for v in range(WIDTH):
                    total = total + sums[i, v]
            ir.T.buffer_store(out, total, [t])

    each, many = (work.threads,), (SUMS, work.threads)
    kernels = {
        "peak": ir.kernel({"x": each, "y": each, "start": many, "out": many}, peak),
        "read": ir.kernel({"x": (work.reads, work.threads * WIDTH), "out": each}, read),
    }
    return tvm.IRModule({n: threads.bound(f).with_attr("global_symbol", n) for n, f in kernels.items()})


def write(gpu: Gpu, folder: Path, work: Work | None = None) -> Path:
    """Compile the kernels for ``gpu`` into ``folder/roofs.so``, and say beside it what they do.

    Raises
    ------
    Unavailable
        Nothing compiles CUDA text here.
    """
    import tvm

    from xframe.lowering.cuda import compiler

    compiler.check()
    work = work or filling(gpu)
    with gpu.tvm, compiler.exact():
        made = tvm.compile(module(work), target=gpu.tvm)
    folder.mkdir(parents=True, exist_ok=True)
    made.export_library(str(folder / LIBRARY))
    (folder / LIBRARY).with_suffix(".json").write_text(json.dumps(vars(work)), encoding="utf-8")
    return folder / LIBRARY


def measured(library: Path, device: str) -> dict[str, float]:
    """``{"flop_per_s": ..., "bytes_per_s": ...}`` of ``cuda`` or ``cuda:<number>``, in a process of its own.

    ``sm_clock_mhz``: the multiprocessors' clock while they multiply, where the driver tells.

    Raises
    ------
    XframeError
        There is no such GPU, or it computes something else.
    """
    command = [sys.executable, "-m", "xframe.prebuilt.roofs", str(library), device]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired as e:
        raise XframeError(f"the roofs of {device} can't be measured: it took more than {LIMIT} s") from e
    if done.returncode:
        raise XframeError(f"the roofs of {device} can't be measured: {' '.join(done.stderr.split())[-300:]}")
    return json.loads(done.stdout)


def here(library: Path, device: str, least: float = LEAST, standing: float = STANDING) -> dict[str, float]:
    """As :func:`measured`, in this process. Launches go on for ``least`` seconds, and ``standing`` after the best."""
    with without_frameworks():
        from xframe.backends import tvm_memory

        memory = tvm_memory.of(device)
        import tvm_ffi

    work = Work(**json.loads(library.with_suffix(".json").read_text(encoding="utf-8")))
    loaded = tvm_ffi.load_module(str(library))
    one, nothing = np.ones(work.threads, np.float32), np.zeros((SUMS, work.threads), np.float32)
    block = np.ones((work.reads, work.threads * WIDTH), np.float32)
    arguments = {"peak": [one, one, nothing, nothing], "read": [block, nothing[0]]}
    expected, amounts = {"peak": work.depth, "read": WIDTH * work.reads}, {"peak": work.flop, "read": work.bytes}
    rates, clocks = {}, {}
    for name, arrays in arguments.items():
        tensors, kernel = memory.put_all(arrays), loaded[name]
        seconds = _fastest(partial(kernel, *tensors), memory.sync, least, standing)
        clocks[name] = _clock(partial(kernel, *tensors), memory.sync, device)
        found = memory.get(tensors[-1])
        if (found != expected[name]).any():
            raise XframeError(f"the sums of {name} are {np.unique(found)[:3]}, and should be {expected[name]}")
        rates[name] = amounts[name] / seconds
    clock = {} if clocks["peak"] is None else {"sm_clock_mhz": clocks["peak"]}
    return {"flop_per_s": rates["peak"], "bytes_per_s": rates["read"], **clock}


def _fastest(launch: Callable[[], object], wait: Callable[[], None], least: float, standing: float) -> float:
    """Seconds of a launch, of those that are made one after another without waiting: the fastest time."""
    launch()
    wait()
    began = risen = time.perf_counter()
    best = float("inf")
    while True:
        started = time.perf_counter()
        for _ in range(LAUNCHES):
            launch()
        wait()
        now = time.perf_counter()
        seconds = (now - started) / LAUNCHES
        if seconds < 0.999 * best:
            risen = now
        best = min(best, seconds)
        if now - began >= MOST or (now - began >= least and now - risen >= standing):
            return best


def _clock(launch: Callable[[], object], wait: Callable[[], None], device: str) -> float | None:
    """MHz of the multiprocessors while launches run: asked for when the last was launched and none is waited for."""
    states = nvml.watch(gpu_index(device))
    next(states, None)  # the driver's library is ready: it answers before they are over
    for _ in range(LAUNCHES):
        launch()
    state = next(states, None)
    wait()
    return (state or {}).get("sm_clock_mhz")


if __name__ == "__main__":
    print(json.dumps(here(Path(sys.argv[1]), sys.argv[2])))
