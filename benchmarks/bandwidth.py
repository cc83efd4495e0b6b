"""The rate at which this machine reads memory: the limit of a fully connected layer at batch 1.

    python benchmarks/bandwidth.py --threads 2,1

Threads pinned as those of a measured row sum a block several times the last-level cache, each its own part, in eight
vector registers, and ask for what comes next: there is nothing else to do than to read. The rate is that of the fastest
of some passes, as in STREAM (McCalpin 1995).
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.rows import options, run
from xframe import environment
from xframe.errors import XframeError
from xframe.worker.host import worker_environment

PASSES, VECTORS, TIMES_CACHE, LEAST = 15, 8, 4, 1 << 28
#: Steps of :data:`VECTORS` vectors after which what is asked for is read.
AHEAD = 8


def read_bandwidth(threads: int, size: int | None = None) -> float:
    """Bytes a second, measured in a process of its own over a block of ``size`` bytes, by default :func:`block_bytes`.

    Raises
    ------
    XframeError
        TVM, which compiles the sum, is not here, or does not work.
    """
    return float(alone(__file__, "the read bandwidth", threads, size or block_bytes()))


def alone(script: str, what: str, threads: int, *args: int) -> Any:
    """What ``script --alone threads *args`` prints as JSON, in a process of its own that is set up like a worker.

    Raises
    ------
    XframeError
        It failed: ``what`` can't be measured.
    """
    done = subprocess.run(
        [sys.executable, script, "--alone", str(threads), *map(str, args)],
        env=worker_environment(threads), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    if done.returncode:
        raise XframeError(f"{what} can't be measured: {' '.join(done.stderr.split())[-300:]}")
    return json.loads(done.stdout)


def block_bytes() -> int:
    """Several times the last-level cache, as long as that is a quarter of the memory there is."""
    size = re.match(r"(\d+)K", (environment.capture()["caches"].get("L3 Unified") or "0K"))
    wanted = TIMES_CACHE * 1024 * int(size[1]) if size else 0
    return max(LEAST, min(wanted, (environment.available_bytes() or wanted) // 4))


def pin(threads: int) -> None:
    """Bind this process to the CPUs of a measured row."""
    cpus = environment.pinned_cpus(threads)
    if cpus is not None:
        os.sched_setaffinity(0, cpus)


def measured(threads: int, size: int) -> float:
    """The rate in this process, bytes a second. A block that is small is read several times a pass."""
    import tvm

    from xframe.backends.tvm import aligned
    from xframe.lowering import ir
    from xframe.lowering.target import Cpu

    cpu = Cpu.host(threads)
    width = VECTORS * cpu.lanes
    steps = size // (4 * threads * width)
    repeats = max(1, LEAST // size)

    def body(x, y):
        with ir.units(threads) as (t,), ir.T.serial(0, repeats) as again:

            def ahead(k):
                return [x[t, k + AHEAD, v * cpu.lanes] for v in range(VECTORS)]

            ir.tile_product(
                1,
                width,
                cpu.lanes,
                steps,
                lambda _, k: ir.T.float32(1),
                lambda k, j: x[t, k, j],
                lambda _, j: ir.T.Select(again > 0, y[t, j], ir.zero()),
                lambda _, j, total: ir.T.buffer_store(y, total, [t, j]),
                ahead if size > threads * cpu.cache(2) else None,  # prefetches bring it no nearer than there
            )

    total = tvm.compile(ir.kernel({"x": (threads, steps, width), "y": (threads, width)}, body), target=cpu.tvm)["main"]
    block, result = (
        aligned(np.ones((threads, steps, width), np.float32)),
        aligned(np.zeros((threads, width), np.float32)),
    )
    args = [tvm.runtime.from_dlpack(a) for a in (block, result)]
    seconds = []
    for _ in range(PASSES):
        start = time.perf_counter()
        total(*args)
        seconds.append(time.perf_counter() - start)
    if (result != repeats * steps).any():
        raise XframeError(f"the sums are {np.unique(result)[:3]}, and should be {repeats * steps}")
    return repeats * block.nbytes / min(seconds)


def main() -> int:
    if sys.argv[1:2] == ["--alone"]:
        threads, size = map(int, sys.argv[2:])
        pin(threads)
        print(json.dumps(measured(threads, size)))
        return 0
    given = options(__doc__.splitlines()[0], rounds=1).parse_args()
    for threads in given.threads:
        rate = read_bandwidth(threads)
        print(
            json.dumps({"threads": threads, "bytes_per_s": rate}) if given.json else f"{threads}: {rate / 1e9:.1f} GB/s"
        )
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
