"""Trials on this machine: one process compiles, another one measures, and a candidate harms nothing but itself."""

import contextlib
import fcntl
import functools
import os
import platform
import queue
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from xframe import environment, registry
from xframe.errors import Mismatch, Unavailable, UsageError, WorkerDied, WorkerTimeout, XframeError
from xframe.lowering.target import Gpu, Target
from xframe.lowering.tasks import Task
from xframe.tuning import build
from xframe.tuning.bench import Bench, Measured
from xframe.tuning.build import Built
from xframe.tuning.child import Child
from xframe.tuning.points import CRASHED, FAILED, TIMEOUT, WRONG, Point, Trial
from xframe.worker.__main__ import one_line
from xframe.worker.host import plugin_row

#: Processes that compile while a GPU measures, at most.
BUILDERS = 8
#: Seconds that a candidate may take to compile, and to be measured.
LIMIT = 60.0
#: Seconds for what all candidates of a task share: its hand-written kernels, its exact outputs.
PREPARING = 600.0


class LocalRunner:
    """Measures on this machine, one candidate at a time, whoever else of this user measures here.

    The measuring process is pinned like a worker of a comparison. Nothing is compiled meanwhile, unless there are CPUs
    beside those and more than one worker: then candidates are compiled ahead on the others. Where a GPU measures,
    candidates are compiled ahead whatever CPUs there are, by processes that see no GPU.

    Parameters
    ----------
    cpu
        What to compile for; it must be able to run here.
    workers
        Processes that compile; None: one for a CPU, and for a GPU as many as there are CPUs, at most
        :data:`BUILDERS`.
    timeout
        Seconds that a candidate may take to compile, and to be measured.
    device
        What measures: ``cpu``, ``cuda`` or ``cuda:<number>``.

    Raises
    ------
    Unavailable
        There is no C++ compiler, or none of code for GPUs.
    UsageError
        Numbers that make no sense.
    """

    def __init__(self, cpu: Target, workers: int | None = None, timeout: float = LIMIT, device: str = "cpu"):
        on_gpu, here = isinstance(cpu, Gpu), environment.allowed_cpus()
        workers = workers if workers is not None else min(len(here), BUILDERS) if on_gpu else 1
        if workers < 1 or timeout <= 0:
            raise UsageError(f"{workers} workers and a limit of {timeout:g} s make no sense: both must be above 0")
        build.check_compiler(cpu)
        self.width = workers
        self._cpu, self._device = replace(cpu), device  # without what it has cached, which does not travel
        self._timeout = timeout
        self._folder = _folder()
        threads, pinned = (len(here), None) if on_gpu else (cpu.threads, environment.pinned_cpus(cpu.threads))
        others = sorted(set(here) - set(pinned or ()))
        self._apart = on_gpu or bool(pinned and others and workers > 1)
        self._measurer = Child(threads, pinned, device)
        each = others if self._apart and not on_gpu else None
        self._builders = [Child(1 if on_gpu else threads, each) for _ in range(workers)]
        self._free: queue.SimpleQueue[Child] = queue.SimpleQueue()
        for builder in self._builders:
            self._free.put(builder)
        self._threads = ThreadPoolExecutor(workers, "trial")
        self._where, self._unable = platform.node(), ""

    def submit(self, task: Task, point: Point) -> Future[Trial]:
        """See ``points.Runner``."""
        if self._unable:
            raise XframeError(self._unable)
        return self._threads.submit(self._trial, task, point)

    def close(self) -> None:
        """See ``points.Runner``. Trials under way end as failed."""
        self._unable = "nothing is measured any more: the runner was closed"
        for child in (*self._builders, self._measurer):
            child.close()
        self._threads.shutdown()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _trial(self, task: Task, point: Point) -> Trial:
        builder, library = self._free.get(), None
        cpu: list[float] = []
        try:
            with contextlib.nullcontext() if self._apart else alone(), _accounted(builder, cpu):
                built = self._build(builder, task, point)
                library = Path(built.path)
            with alone(), _accounted(self._measurer, cpu):
                measured = self._measure(built)
        except Exception as e:
            if isinstance(e, Unavailable):
                self._unable = self._unable or str(e)
            outcome, reason = (FAILED, self._unable) if self._unable else (outcome_of(e), _words(e))
            return Trial(point, outcome, reason, cpu_s=sum(cpu), where=self._where)
        finally:
            self._free.put(builder)
            if library is not None:
                library.unlink(missing_ok=True)
        return measured.trial(point, built, sum(cpu), self._where)

    def _build(self, builder: Child, task: Task, point: Point) -> Built:
        what = self._cpu, self._folder
        self._prepare(builder, task, "compiling the hand-written kernel", build.prepare, *what)
        return builder.ask("compiling the candidate", self._timeout, build.build, task, point, *what)

    def _measure(self, built: Built) -> Measured:
        """In a fresh process if it ends badly in one where others ran before: it may be what those left behind."""
        while True:
            fresh = self._measurer.fresh
            try:
                where = self._cpu, self._device
                self._prepare(self._measurer, built.task, "making its exact outputs", _prepare_to_measure, *where)
                return self._measurer.ask("running the candidate", self._timeout, _measure, built, *where)
            except (Mismatch, WorkerDied):
                self._measurer.kill()  # what it wrote may have hit what others need
                if fresh:
                    raise

    def _prepare(self, child: Child, task: Task, doing: str, function: Callable, *arguments) -> None:
        """What is not the candidate's fault is no outcome of its own."""
        fresh = child.fresh
        try:
            child.ask(doing, PREPARING, _with_plugin, _row(task), function, task, *arguments)
        except WorkerDied as e:
            if fresh:
                raise XframeError(str(e)) from e
            self._prepare(child, task, doing, function, *arguments)
        except WorkerTimeout as e:
            raise XframeError(str(e)) from e


def _folder() -> Path:
    """A new folder for libraries. Those of processes that were killed are removed."""
    for path in Path(tempfile.gettempdir()).glob("xframe-tuning-*-*"):
        owner = path.name.split("-")[2]
        if owner.isdigit() and not _exists(int(owner)):
            shutil.rmtree(path, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"xframe-tuning-{os.getpid()}-"))


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """The right to keep this machine busy: one process of this user has it at a time, and one thread in it."""
    with open(Path(tempfile.gettempdir()) / f"xframe-measuring-{os.getuid()}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _accounted(child: Child, cpu: list[float]) -> Iterator[None]:
    """Adds the CPU seconds that ``child`` takes within the block to the list."""
    before = child.cpu_s
    try:
        yield
    finally:
        cpu.append(child.cpu_s - before)


def outcome_of(error: Exception) -> str:
    """What a trial that ended with ``error`` is."""
    found = {WorkerTimeout: TIMEOUT, WorkerDied: CRASHED, Mismatch: WRONG}
    return next((outcome for kind, outcome in found.items() if isinstance(error, kind)), FAILED)


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, XframeError) else one_line(error)


def _row(task: Task) -> list:
    return plugin_row(registry.LOWERINGS, task.lowering)


# In the children


def _with_plugin(row: list, function: Callable, *arguments) -> None:
    """Call the function once the plugin of a registry row is known: it may be registered in the parent alone."""
    name, received = registry.received(row)
    registry.LOWERINGS[name] = received
    function(*arguments)


@functools.lru_cache
def _bench(cpu: Target, device: str) -> Bench:
    return Bench(cpu, device=device)


def _prepare_to_measure(task: Task, cpu: Target, device: str) -> None:
    _bench(cpu, device).prepare(task)


def _measure(built: Built, cpu: Target, device: str) -> Measured:
    """Ends the process where a candidate has left a GPU of no more use to it: the next one is not to pay for that."""
    bench = _bench(cpu, device)
    try:
        return bench.measure(built)
    except Mismatch:
        raise
    except Exception as e:
        if not bench.usable():
            print(one_line(e), file=sys.stderr, flush=True)
            os._exit(1)
        raise
