"""What this machine can do at most: its roofs, measured in seconds by a built-in microbenchmark, and kept.

One roof is the peak of multiply-adds in registers; one a level of the memory is the rate at which a block is read that
this level holds: the second- and third-level caches, and memory. Threads pinned as those of a measured row sum the
block, each its own part, in eight vector registers, and ask for what comes next, so that there is nothing else to do
than to read. Rates are those of the fastest of some passes, as in STREAM (McCalpin 1995).

The loops are compiled by TVM, for the vectors of this processor, and run in a process of their own.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata, util
from pathlib import Path
from typing import Any

import numpy as np

from xframe import environment, files, registry
from xframe.errors import Unavailable, XframeError
from xframe.results import FOREIGN, Level, Machine
from xframe.worker.alone import without_frameworks
from xframe.worker.host import worker_environment

#: Reading: passes; vectors summed at a time; the block over the last-level cache, and its least bytes.
PASSES, VECTORS, TIMES_CACHE, LEAST = 15, 8, 4, 1 << 28
#: Steps of :data:`VECTORS` vectors after which what is asked for is read.
AHEAD = 8
#: From one measured part of a cache to the next.
GROWTH = 4
#: Multiply-adds one after another in each sum, and passes over them: short ones find a moment when nothing else runs.
DEPTH, REPEATS = 1 << 17, 150
#: Seconds for which roofs that were kept are taken as they are.
FRESH = 600
#: Seconds after which the measuring process is given up.
LIMIT = 120


def machine(threads: int, on_progress: Callable[[str], None] | None = None) -> Machine:
    """The roofs of this machine with so many threads: kept ones, else measured now, in under 10 s.

    They are kept in ``$XFRAME_HOME/machine``, by processor, CPUs, threads and versions, unless other processes
    disturbed the measuring. A virtual machine is faster at one time than at another: after :data:`FRESH` all are
    measured again, and the fastest of each counts from then on; where that fails, what was kept counts.

    Parameters
    ----------
    on_progress
        Called with a line when something is measured, and when it was disturbed.

    Raises
    ------
    Unavailable
        TVM is not here.
    XframeError
        It does not work.
    """
    progress = on_progress or (lambda line: None)
    facts = _facts(threads)
    path = files.place("machine", facts)
    if (kept := files.kept(path, Machine.from_json)) is not None:
        fresh = time.time() - path.stat().st_mtime < FRESH
        return kept if fresh else _faster(kept, threads, path, facts, progress)
    progress(f"roofs of this machine, threads {threads}")
    found = measured(threads)
    if found.load > FOREIGN:
        progress(f"other processes used {found.load:.1f} CPUs meanwhile: the roofs may be too low, and are not kept")
        return found
    files.keep(path, facts, found.to_json())
    return found


def _faster(kept: Machine, threads: int, path: Path, facts: dict[str, Any], progress: Callable[[str], None]) -> Machine:
    """Of the kept roofs, and those that are measured now, the faster ones: nothing makes a roof too high."""
    try:
        now = measured(threads)
    except XframeError as e:
        progress(f"the roofs of this machine are those that were kept: {e}")
        return kept
    rates = {level.name: level.bytes_per_s for level in now.levels}
    levels = [replace(x, bytes_per_s=max(x.bytes_per_s, rates.get(x.name, 0.0))) for x in kept.levels]
    found = Machine(max(kept.flop_per_s, now.flop_per_s), tuple(levels), kept.load)
    files.keep(path, facts, found.to_json())
    return found


def _facts(threads: int) -> dict[str, Any]:
    """What the roofs depend on, as JSON. Raises Unavailable where TVM is not here."""
    row = registry.BACKENDS["tvm"]
    missing = next((m for m in ("tvm", *row.needs) if util.find_spec(m) is None), None)
    if missing is not None:
        raise Unavailable(
            f"the roofs of this machine are measured by loops that TVM compiles, and the Python module {missing} is not"
            f" here: pip install 'xframe-eval[{row.extra}]'"
        )
    info = environment.cpuinfo()
    return {
        "cpu": environment.cpu_device().name,
        "cpu_family": [info.get(k) for k in ("vendor_id", "cpu family", "model", "stepping")],
        "flags": info.get("flags") or info.get("Features"),
        "caches": {str(level): size for level, size in sorted(environment.cache_bytes().items())},
        "cpus": environment.pinned_cpus(threads),
        "threads": threads,
        "tvm": metadata.version("apache-tvm"),
        "benchmark": files.sha256(Path(__file__))[:12],
    }


def measured(threads: int) -> Machine:
    """The roofs as they are measured now.

    Raises
    ------
    XframeError
        TVM is not here, or does not work.
    """
    return Machine.from_json(_alone("the roofs of this machine", threads))


def read_bandwidth(threads: int, size: int | None = None) -> float:
    """Bytes a second, measured now over a block of ``size`` bytes, by default :func:`block_bytes`.

    Raises
    ------
    XframeError
        TVM is not here, or does not work.
    """
    return float(_alone("the read bandwidth", threads, size or block_bytes()))


def block_bytes() -> int:
    """Several times the last-level cache, as long as that is a quarter of the memory there is."""
    wanted = TIMES_CACHE * max(environment.cache_bytes().values(), default=0)
    return max(LEAST, min(wanted, (environment.available_bytes() or wanted) // 4))


def _alone(what: str, threads: int, *size: int) -> Any:
    """What :func:`main` prints, in a process of its own that is set up like a worker."""
    command = [sys.executable, "-m", "xframe.calibration", str(threads), *map(str, size)]
    try:
        done = subprocess.run(
            command, env=worker_environment(threads), capture_output=True, text=True, timeout=LIMIT
        )  # fmt: skip
    except subprocess.TimeoutExpired as e:
        raise XframeError(f"{what} can't be measured: it took more than {LIMIT} s and was stopped") from e
    if done.returncode:
        raise XframeError(f"{what} can't be measured: {' '.join(done.stderr.split())[-300:]}")
    return json.loads(done.stdout)


def main() -> None:
    """``python -m xframe.calibration THREADS [BYTES]``: the roofs, or the rate at which so many bytes are read, as
    JSON. For the process that is measured in."""
    threads, *size = map(int, sys.argv[1:])
    cpus = environment.pinned_cpus(threads)
    if cpus is not None:
        os.sched_setaffinity(0, cpus)
    with without_frameworks():
        print(json.dumps(read_rate(threads, size[0]) if size else _roofs(threads).to_json()))


def _roofs(threads: int) -> Machine:
    """A cache holds half of its size: the rest is for what is around.

    Of the last one, which a virtual machine shares with others, some parts are measured: the larger, the slower.
    """
    import tvm  # noqa: F401  # here: what importing takes is not load of others

    busy, cpu, start = environment.busy_seconds(), time.process_time(), time.perf_counter()
    caches = environment.cache_bytes()
    size = threads * caches.get(2, 0) // 2
    blocks = [("L2", size)] if size else []
    while size and GROWTH * size <= caches.get(3, 0) // 2:
        size *= GROWTH
        blocks.append((f"L3 ({size >> 20} MiB)", size))
    levels = [Level(name, size, read_rate(threads, size)) for name, size in blocks]
    levels.append(Level("memory", math.inf, read_rate(threads, block_bytes())))
    flop_per_s = peak(threads)
    own, wall, after = time.process_time() - cpu, time.perf_counter() - start, environment.busy_seconds()
    load = 0.0 if busy is None or after is None else max(0.0, after - busy - own) / wall
    return Machine(flop_per_s, tuple(levels), load)


def peak(threads: int) -> float:
    """FLOP/s in this process, of multiply-adds over nearly as many sums as there are registers: the fastest pass."""
    import tvm

    from xframe.lowering import ir
    from xframe.lowering.target import Cpu

    cpu = Cpu.host(threads)
    sums = (threads, cpu.registers - 4, cpu.lanes)

    def body(x, y, start, out):
        with ir.units(threads) as (t,):
            ir.tile_product(
                sums[1],
                cpu.lanes,
                cpu.lanes,
                DEPTH,
                lambda *_: x[t],
                lambda _, j: y[t, j],
                lambda i, j: start[t, i, j],  # zeros, which the compiler can't know: it would keep one sum for all
                lambda i, j, total: ir.T.buffer_store(out, total, [t, i, j]),
            )

    shapes = {"x": (threads,), "y": (threads, cpu.lanes), "start": sums, "out": sums}
    run = tvm.compile(ir.kernel(shapes, body), target=cpu.tvm)["main"]
    values = {"x": 1, "y": 1, "start": 0, "out": 0}
    args = [tvm.runtime.tensor(np.full(shape, values[name], np.float32)) for name, shape in shapes.items()]
    seconds = _fastest(lambda: run(*args), REPEATS)
    if (args[-1].numpy() != DEPTH).any():
        raise XframeError(f"the sums are {np.unique(args[-1].numpy())[:3]}, and should be {DEPTH}")
    return 2 * DEPTH * math.prod(sums) / seconds


def read_rate(threads: int, size: int) -> float:
    """Bytes a second in this process. A block that is small is read several times a pass."""
    import tvm

    from xframe.backends.tvm_memory import one_block
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
    # Filled in place: where no memory was touched before, a virtual machine is given it slowly, a copy's, too.
    block, result = one_block([(threads, steps, width), (threads, width)])
    block.fill(1)
    result.fill(0)
    args = [tvm.runtime.from_dlpack(a) for a in (block, result)]
    seconds = _fastest(lambda: total(*args), PASSES)
    if (result != repeats * steps).any():
        raise XframeError(f"the sums are {np.unique(result)[:3]}, and should be {repeats * steps}")
    return repeats * block.nbytes / seconds


def _fastest(run: Callable[[], object], passes: int) -> float:
    """Seconds of the fastest pass."""
    seconds = []
    for _ in range(passes):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


if __name__ == "__main__":
    main()
