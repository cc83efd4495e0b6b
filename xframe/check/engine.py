"""One runner in a process of its own, which executes one ONNX file after another."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from xframe import artifact, environment, files, planning
from xframe.check import emit
from xframe.equivalence.graph import Graph
from xframe.errors import ModelError, UsageError
from xframe.registry import BACKENDS, LOWERINGS, resolve
from xframe.types import OPTIMIZATIONS, Artifact, ConvSite, Plan, Rounding, TensorInfo
from xframe.worker import wire
from xframe.worker.alone import without_frameworks
from xframe.worker.host import Worker, plugin_row

NATIVE = "native"
#: The backend with graph-optimisation levels, and the one that can be told a lowering.
LEVELLED, PLANNED = "ort", "tvm"
#: The lowering where the one that was asked for refuses.
FALLBACK = "direct"

Feed = Sequence[np.ndarray]


@dataclass(frozen=True)
class Runner:
    """Who executes, and how: a backend under the label of a plan. ``str`` of it is what reports show."""

    backend: str
    label: str = planning.AUTO

    @classmethod
    def parse(cls, name: str) -> Runner:
        """``"ort:basic"`` or ``"ort basic"``, ``"tvm:winograd"``, ``"openvino"``, ``"native"``; ``"ort"`` is all.

        Raises
        ------
        UsageError
            No such backend, or it has no such setting.
        """
        first, _, label = name.replace(" ", ":", 1).partition(":")
        if first == NATIVE and not label:
            return cls(NATIVE)
        backend = resolve(BACKENDS, first, "runner")
        if backend == LEVELLED:
            if label and label not in OPTIMIZATIONS:
                raise UsageError(f"unknown runner {name!r}: {backend} has {', '.join(OPTIMIZATIONS)}")
            return cls(backend, label or OPTIMIZATIONS[-1])
        if label and backend != PLANNED:
            raise UsageError(f"unknown runner {name!r}: {backend} has no settings, leave {':' + label} out")
        if label not in ("", planning.AUTO):
            label = resolve(LOWERINGS, label, "lowering")
        return cls(backend, label or planning.AUTO)

    def __str__(self) -> str:
        return f"{self.backend} {self.label}" if self.backend in (LEVELLED, PLANNED) else self.backend


@dataclass(frozen=True)
class Ran:
    """Outputs of each feed; how the convolutions rounded, where the runner says so; ``dtype``: what the file computes
    in, of the lowest precision."""

    outputs: list[list[np.ndarray]]
    roundings: Mapping[ConvSite, Rounding] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    dtype: str = "float32"


class Engine:
    """A context manager. Its process is started when there is something to run, and again after a crash.

    Parameters
    ----------
    threads
        None: as many as this process may use CPUs.
    open_limit, run_limit
        Seconds for compiling a file, and for running one feed.
    """

    def __init__(
        self, runner: Runner, threads: int | None = None, open_limit: float = 900.0, run_limit: float = 120.0
    ) -> None:
        self.runner = runner
        self._threads = threads or len(environment.allowed_cpus())
        self._limits = open_limit, run_limit
        self._worker: Worker | None = None
        self._stack = ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="xframe-check-")))

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._worker is not None:
            self._worker.close()
        self._stack.close()

    def run(self, path: Path, graph: Graph, feeds: Sequence[Feed]) -> Ran:
        """Execute a file. ``graph`` is what it holds, with the sizes that the feeds have.

        A file of another precision than float32, or of free sizes, goes as it is to the backend that takes it, and as a
        float32 file of fixed sizes to the others, which a note says.

        Raises
        ------
        XframeError
            Whatever kept it from running, as the class of its outcome.
        """
        try:
            found, dtype = _loaded(path), "float32"
        except ModelError:
            if self.runner.backend != LEVELLED:
                ran = self.run_graph(graph, feeds)
                return replace(ran, notes=("run as a float32 file of fixed sizes", *ran.notes))
            found, dtype = described(path, feeds[0])
        return replace(self._execute(found, feeds), dtype=dtype)

    def run_graph(self, graph: Graph, feeds: Sequence[Feed]) -> Ran:
        """Execute a graph by way of a file. Raises what :meth:`run` does."""
        path = self._folder / "model.onnx"
        emit.save(graph, path)
        return self._execute(_as_declared(artifact.load(path)), feeds)

    def _execute(self, found: Artifact, feeds: Sequence[Feed]) -> Ran:
        plan, notes = self._plan(found)
        if self._worker is None or self._worker.dead:
            if self._worker is not None:
                self._worker.close()
            self._worker = Worker(self._threads, "cpu", environment.pinned_cpus(self._threads))
        opening: dict[str, Any] = {"device": "cpu", "batch": 1, "threads": self._threads, "runner": "backend"}
        row = plugin_row(BACKENDS, self.runner.backend)
        reply = self._worker.call("open", self._limits[0], plugin=row, artifact=found, plan=plan, **opening)
        roundings = {s.site: s.rounding for s in wire.sites_of(reply["sites"]) if s.rounding}
        return Ran([self._worker.run(feed, self._limits[1])[0] for feed in feeds], roundings, notes)

    def _plan(self, found: Artifact) -> tuple[Plan, tuple[str, ...]]:
        """What the backend is told, and what to say about it."""
        if self.runner.backend != PLANNED or self.runner.label == planning.AUTO:
            return Plan(self.runner.label), ()
        sites = [site for _, site in found.conv_sites]
        with without_frameworks():
            plan = planning.plan(self.runner.label, sites, environment.cpu_device(), FALLBACK)
        others = sum(plan[site] != self.runner.label for site in sites)
        return plan, (f"{FALLBACK} at {others} of {len(sites)} convolutions",) if others else ()


class Engines:
    """One engine a runner, kept from one model to the next. A context manager; for one check at a time.

    Parameters
    ----------
    limits
        ``threads``, ``open_limit`` and ``run_limit`` of each :class:`Engine`.
    """

    def __init__(self, **limits: Any) -> None:
        self._limits, self._engines = limits, dict[Runner, Engine]()

    def of(self, runner: Runner) -> Engine:
        """The engine of this runner, made when it is asked for the first time."""
        if runner not in self._engines:
            self._engines[runner] = Engine(runner, **self._limits)
        return self._engines[runner]

    def __enter__(self) -> Engines:
        return self

    def __exit__(self, *exc: object) -> None:
        while self._engines:
            self._engines.popitem()[1].__exit__(*exc)


def _loaded(path: Path) -> Artifact:
    """A checked file. Several runners execute the same one; it is checked once. Raises ModelError."""
    stat = path.stat() if path.exists() else None
    return _checked(path, stat and (stat.st_size, stat.st_mtime_ns))


@functools.lru_cache(maxsize=16)
def _checked(path: Path, state: tuple[int, int] | None) -> Artifact:
    return _as_declared(artifact.load(path))


def _as_declared(found: Artifact) -> Artifact:
    """Inputs and outputs in the layouts of the file: nothing is converted on the way."""
    return replace(
        found,
        inputs=tuple(replace(i, layout="") for i in found.inputs),
        outputs=tuple(replace(o, layout="") for o in found.outputs),
    )


def described(path: Path, feed: Feed) -> tuple[Artifact, str]:
    """A file that is not float32 throughout, or of free sizes, for a backend that takes it; and what it computes in.

    Raises
    ------
    ModelError
        It can't be read.
    """
    path = Path(path)
    try:
        proto = onnx.load(str(path), load_external_data=False)
        inferred = onnx.shape_inference.infer_shapes(proto)
    except Exception as e:  # protobuf, onnx and the system have a class each
        raise ModelError(f"{path} can't be read: {e}") from e
    values = [*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output]
    kinds = {v.type.tensor_type.elem_type for v in values}
    lowest = next((k for k in (onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT16) if k in kinds), 1)
    inputs = artifact.graph_inputs(proto)
    if len(inputs) != len(feed):
        raise ModelError(f"{path} has {len(inputs)} inputs, {len(feed)} were given")
    found = Artifact(
        path=str(path),
        sha256=files.sha256(path),
        model=path.stem,
        framework=None,
        framework_version=None,
        opset=artifact.opset(proto),
        inputs=tuple(TensorInfo(v.name, x.shape, _dtype(v)) for v, x in zip(inputs, feed, strict=True)),
        outputs=tuple(TensorInfo(v.name, (), _dtype(v)) for v in proto.graph.output),
        conv_sites=(),
    )
    return found, _name(lowest)


def _dtype(value: onnx.ValueInfoProto) -> str:
    return _name(value.type.tensor_type.elem_type or onnx.TensorProto.FLOAT)


def _name(kind: int) -> str:
    return str(onnx.helper.tensor_dtype_to_np_dtype(kind).name)
