"""One candidate, compiled: its product, the hand-written one that it is timed against, and the stages around both.

All candidates of a task share the hand-written product, and those of one register tile the stages around it: they are
compiled once, to object files, and linked into each library. Kernels of a GPU are in no object file: there each of the
shared parts is a library of its own.
"""

import contextlib
import functools
import itertools
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tvm
from tvm import s_tir, tirx
from tvm.s_tir import meta_schedule as ms

from xframe.errors import Unavailable, UsageError, XframeError
from xframe.lowering import prefetch, tvm_runtime
from xframe.lowering.cuda import compiler, threads
from xframe.lowering.stage import ALTERNATIVES, Stage, Tile, replayed
from xframe.lowering.target import Gpu, Target
from xframe.lowering.tasks import Task, trace_of, workload_of
from xframe.tuning.points import Point

#: Names of the two products in a library.
CANDIDATE, BY_HAND = "candidate", "by_hand"
#: The loader takes two libraries of one name for the same.
_numbers = itertools.count()


@dataclass(frozen=True)
class Step:
    """One stage in a library: ``function(*arguments, output)``, float32 tensors of shapes ``inputs`` and ``output``.

    The arguments are the output of the step before (or the image), the stage's constants, and the residual image where
    it is the last step of a task that has one. What is fed is reshaped to ``inputs``: nothing moves.
    """

    function: str
    inputs: tuple[tuple[int, ...], ...]
    output: tuple[int, ...]


@dataclass(frozen=True)
class Chain:
    """The whole site with one register tile (rows, vectors); ``steps[product]`` is the kernel that is tuned."""

    tile: tuple[int, int]
    steps: tuple[Step, ...]
    product: int


@dataclass(frozen=True)
class Built:
    """A candidate's shared library at ``path``, and what is called in it.

    ``shared``: libraries of what it shares with others, where that is not in it.
    ``workload``: the structural hash of the product's function (``lowering.tasks.workload_of``); ``workload_line`` and
    ``record``: JSON as MetaSchedule's database keeps it, the record without seconds (see :func:`recorded`).
    """

    task: Task
    point: Point
    path: str
    candidate: Chain
    by_hand: Chain
    workload: str
    workload_line: str
    record: str
    shared: tuple[str, ...] = ()


class Library:
    """The functions of a candidate, by name, loaded."""

    def __init__(self, built: Built):
        self._modules = [tvm.runtime.load_module(path) for path in (built.path, *built.shared)]

    def __getitem__(self, name: str) -> Callable:
        return next(m for m in self._modules if m.implements_function(name))[name]


def check_compiler(target: Target | None = None) -> None:
    """Raise Unavailable where there is no C++ compiler, which TVM links with, or none for the target's code."""
    if isinstance(target, Gpu):
        compiler.check()
    if not any(shutil.which(c) for c in ("g++", "clang++", "c++")):
        raise Unavailable("tuning links its candidates with a C++ compiler, and there is none: install g++ or clang")


def prepare(task: Task, cpu: Target, folder: Path) -> None:
    """Compile what all candidates of ``task`` share, once a process. Raises as :func:`build` does."""
    _by_hand(task, cpu, folder)


def build(task: Task, point: Point, cpu: Target, folder: Path) -> Built:
    """Compile ``point`` into a library of its own in ``folder``, which exists.

    Raises
    ------
    UsageError
        The task has no template, or not this register tile or knob.
    XframeError
        The schedule does not apply.
    Exception
        What TVM raises where code does not compile. The compiler may also abort.
    """
    tile = Tile(*point.tile, cpu.lanes)
    if tile not in tiles(task, cpu):
        raise UsageError(f"{task.name} has no register tile {tile.rows}x{tile.vectors}")
    stages = _stages(task, cpu, tile)
    product = stages[_product(stages)]
    sch = scheduled(product, point)
    kernel = _compiled({CANDIDATE: prefetch.inserted(sch.mod["main"])}, cpu)
    apart = isinstance(cpu, Gpu)
    around = [_around(task, cpu, t, folder) for t in dict.fromkeys((tile, tiles(task, cpu)[0]))]
    path = folder / f"{CANDIDATE}-{os.getpid()}-{next(_numbers)}.so"
    shared = [o for o in (_by_hand(task, cpu, folder), *around) if o]
    kernel.export_library(str(path), addons=[] if apart else shared)

    workload, record = lines(product, sch, cpu)
    return Built(
        task,
        point,
        str(path),
        _chain(task, cpu, tile, CANDIDATE),
        _chain(task, cpu, tiles(task, cpu)[0], BY_HAND),
        workload_of(product.func),
        workload,
        record,
        tuple(shared) if apart else (),
    )


def lines(product: Stage, sch: s_tir.Schedule, target: Target) -> tuple[str, str]:
    """A kernel and a schedule of it as lines of MetaSchedule's tables, JSON, the record without its workload's number
    and without seconds."""
    module = tvm.IRModule({"main": product.func.without_attr("global_symbol")})
    workload = ms.database.Workload(module)
    info = ms.arg_info.ArgInfo.from_prim_func(module["main"])
    # A record's ``as_json`` knows no map of a layout, that of a trace does: so the trace is written by itself.
    nothing = s_tir.Schedule(product.func).trace
    _, *rest = ms.database.TuningRecord(nothing, workload, None, target.tvm, info).as_json()
    return json.dumps(workload.as_json()), json.dumps([json.loads(trace_of(sch)), *rest])


def recorded(built: Built, seconds: tuple[float, ...]) -> str:
    """The record of ``built``, as JSON, with the seconds that it took."""
    trace, _, target, arguments = json.loads(built.record)
    return json.dumps([trace, list(seconds), target, arguments])


def scheduled(product: Stage, point: Point) -> s_tir.Schedule:
    """The product under the schedule of ``point``: its template with the knobs, or its trace replayed.

    Raises XframeError where the schedule does not apply.
    """
    try:
        if point.trace is None:
            return product.templated(dict(point.knobs))[0]
        return replayed(product.func, point.trace)
    except (s_tir.ScheduleError, ValueError) as e:  # it prints the whole function before it says why
        why = str(e).rpartition("Error message: ")[2].splitlines()[0]
        raise XframeError(f"the schedule does not apply: {why}") from e


@functools.lru_cache
def tiles(task: Task, cpu: Target) -> tuple[Tile, ...]:
    """The register tiles of ``task``, the hand-written one first. Raises UsageError where it has no template."""
    stages = task.stages(*_no_weights(task), cpu)
    return stages[_product(stages)].tiles


@functools.lru_cache(maxsize=ALTERNATIVES)  # each holds its weights
def _stages(task: Task, cpu: Target, tile: Tile) -> list[Stage]:
    """The stages of ``task`` with this register tile, for weights of zero: only their code matters here."""
    return task.stages(*_no_weights(task), cpu, tile)


def _no_weights(task: Task) -> tuple[np.ndarray, np.ndarray]:
    site = task.variant.site
    weight = np.zeros((site.out_channels, site.in_channels // site.groups, *site.kernel), np.float32)
    return weight, np.zeros(site.out_channels, np.float32)


def _product(stages: list[Stage]) -> int:
    found = [i for i, s in enumerate(stages) if s.schedule]
    if len(found) != 1:
        raise UsageError("what has no template, or is in one kernel with its transforms, can't be tuned")
    return found[0]


def _chain(task: Task, cpu: Target, tile: Tile, product: str) -> Chain:
    stages = _stages(task, cpu, tile)
    names = _names(stages, tile) | {_product(stages): product}
    steps = [Step(names[i], _shapes(s.func)[:-1], tuple(s.shape)) for i, s in enumerate(stages)]
    return Chain((tile.rows, tile.vectors), tuple(steps), _product(stages))


def _shapes(func: tirx.PrimFunc) -> tuple[tuple[int, ...], ...]:
    """Of the buffers that ``func`` takes, the output last."""
    return tuple(tuple(int(d) for d in p.shape) for p in func.params)


def _names(stages: list[Stage], tile: Tile) -> dict[int, str]:
    """The functions of the stages around the product."""
    return {i: f"{s.role}_{tile.rows}x{tile.vectors}" for i, s in enumerate(stages) if not s.schedule}


@functools.cache
def _by_hand(task: Task, cpu: Target, folder: Path) -> str:
    """Object file, or library, of the hand-written product."""
    stages = _stages(task, cpu, tiles(task, cpu)[0])
    return _object({BY_HAND: stages[_product(stages)].scheduled()}, cpu, folder)


@functools.cache
def _around(task: Task, cpu: Target, tile: Tile, folder: Path) -> str | None:
    """The same of the stages around a product with this register tile; None where there are none."""
    stages = _stages(task, cpu, tile)
    functions = {name: stages[i].scheduled() for i, name in _names(stages, tile).items()}
    return _object(functions, cpu, folder) if functions else None


def _object(functions: Mapping[str, tirx.PrimFunc], cpu: Target, folder: Path) -> str:
    stem, made = str(folder / f"shared-{os.getpid()}-{next(_numbers)}"), _compiled(functions, cpu)
    if isinstance(cpu, Gpu):
        made.export_library(f"{stem}.so")
        return f"{stem}.so"
    made.mod.write_to_file(f"{stem}.o")
    return f"{stem}.o"


def _compiled(functions: Mapping[str, tirx.PrimFunc], cpu: Target) -> tvm.runtime.Executable:
    named = {name: func.with_attr("global_symbol", name) for name, func in functions.items()}
    if not isinstance(cpu, Gpu):
        return tvm.compile(tvm.IRModule(named), target=cpu.tvm)
    module = tvm.IRModule({name: threads.bound(func) for name, func in named.items()})
    with contextlib.suppress(Unavailable):  # without it TVM keeps text, to be compiled when the candidate is loaded
        tvm_runtime.load(cuda=True)
    with cpu.tvm, compiler.exact(), tvm.transform.PassContext(instruments=[_Legal(cpu)]):
        return tvm.compile(module, target=cpu.tvm)


@tvm.instrument.pass_instrument
class _Legal:
    """Ends the compiling of what has no place on a GPU, before its text goes through the compiler.

    Looked at where TVM has laid out the memory of a block. Registers are not known then: what takes too many of them
    does not start.
    """

    def __init__(self, gpu: Gpu):
        self._limits = {
            **{"max_threads_per_block": gpu.most_threads, "max_thread_x": 1024, "max_thread_y": 1024},
            **{"max_thread_z": 64, "max_shared_memory_per_block": gpu.shared, "max_vector_bytes": 16},
        }

    def run_after_pass(self, module: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
        if not str(info.name).endswith("StorageRewrite"):
            return
        for name, func in module.functions.items():
            if isinstance(func, tirx.PrimFunc) and not s_tir.analysis.verify_gpu_code(func, self._limits):
                raise XframeError(
                    f"{name.name_hint} is not legal on this GPU: its blocks have more threads, shared memory"
                    f" ({self._limits['max_shared_memory_per_block']} bytes at most) or wider vectors than there are"
                )
