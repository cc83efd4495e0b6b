"""Apache TVM. Compiling needs all of it; what was compiled is cached and runs with its small runtime alone."""

import hashlib
import importlib.metadata
import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi

from xframe import files, registry
from xframe.backends import tvm_events, tvm_memory, tvm_parameters, tvm_profile
from xframe.errors import Unavailable, XframeError
from xframe.lowering.identity import identity
from xframe.protocols import DEFAULTS
from xframe.types import Artifact, Plan, Profile, SiteRecord
from xframe.worker import wire

LIBRARY, META = "lib.so", "meta.json"


Memory = tvm_memory.Host | tvm_memory.Gpu


class Tvm:
    """``auto`` is TVM's own frontend and default schedules; a forced plan goes through ``xframe.lowering``."""

    def __init__(self) -> None:
        self.version = importlib.metadata.version("apache-tvm")

    def compile(
        self, artifact: Artifact, plan: Plan, device: str, threads: int, options: Mapping[str, str] = DEFAULTS
    ) -> "TvmExecutable":
        """Compile, or take from the cache what was compiled of the same artifact, plan, machine and sources.

        Raises
        ------
        Unsupported
            An operator has no rule or a lowering refuses its site.
        Unavailable
            There is no such GPU, or no compiler for it, or no C++ compiler to link with.
        NotHonoured
            The compiled module does not have what was planned.
        """
        memory = tvm_memory.of(device)
        folder = files.home() / "compiled" / self._key(artifact, plan, threads, memory)
        started = time.perf_counter()
        cached = _complete(folder)
        if not cached:
            shutil.rmtree(folder, ignore_errors=True)  # what is left of it
            self._build(artifact, plan, threads, folder, memory)
        compiled = time.perf_counter()
        executable = TvmExecutable(folder, self.version, threads, plan, artifact, memory)
        executable.seconds = {"load": time.perf_counter() - compiled}
        if not cached:
            executable.seconds["compile"] = compiled - started
        return executable

    def _key(self, artifact: Artifact, plan: Plan, threads: int, memory: Memory) -> str:
        """What the compiled code depends on: graph, plan, TVM, our own sources, and this machine's processor or GPU."""
        choices = {k: v for k, v in plan.to_json().items() if k not in ("label", "fallback")}
        parts = [artifact.sha256, json.dumps(choices, sort_keys=True), identity(), str(threads)]
        if isinstance(memory, tvm_memory.Gpu):
            parts += [memory.arch, str(memory.multiprocessors)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]

    def _build(self, artifact: Artifact, plan: Plan, threads: int, folder: Path, memory: Memory) -> None:
        import onnx

        from xframe.lowering import pipeline
        from xframe.lowering.cuda import compiler
        from xframe.lowering.target import Cpu, Gpu, Target

        if not any(shutil.which(c) for c in ("g++", "clang++", "c++")):
            raise Unavailable("TVM links with a C++ compiler, and there is none here: install g++ or clang")
        own: Target
        target: Target
        if isinstance(memory, tvm_memory.Gpu):
            compiler.check()
            own = Gpu(memory.arch, memory.multiprocessors)
            target = own if plan.target is None else Gpu.named(plan.target)
        else:
            own = Cpu.host(threads)
            target = own if plan.target is None else Cpu(plan.target, threads)
        built = pipeline.build(onnx.load(artifact.path), plan, target)
        foreign = [] if target == own else [f"compiled for {target.text!r}, not for this machine's own {own.text!r}"]
        with whole_folder(folder) as part:
            built.executable.export_library(str(part / LIBRARY))
            table = [{"shape": a.shape, "file": _stored(a)} for a in built.parameters]
            notes = [*built.notes, *foreign]
            meta = {"target": target.text, "parameters": table, "sites": wire.plain(built.sites), "notes": notes}
            (part / META).write_text(json.dumps(meta), encoding="utf-8")


class TvmExecutable:
    """A compiled folder, loaded: the library, its parameters in one block of aligned memory, a virtual machine."""

    def __init__(
        self,
        folder: Path,
        version: str,
        threads: int,
        plan: Plan,
        artifact: Artifact,
        memory: Memory,
    ):
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        self.plan, self._artifact, self._memory = plan, artifact, memory
        self.sites: tuple[SiteRecord, ...] = wire.sites_of(meta["sites"])
        self.seconds: dict[str, float] = {}
        self.notes = tuple(meta["notes"])
        self.environment = {"apache-tvm": version, "target": meta["target"], "threads": threads}
        if isinstance(memory, tvm_memory.Gpu):
            rows = (registry.LOWERINGS.get(s.selected or "") for s in self.sites)
            self.environment["tf32"] = any(row is not None and row.products == "tf32" for row in rows)
        self._module = tvm_ffi.load_module(str(folder / LIBRARY))
        self._machine = self._module["vm_load_executable"]()
        memory.start(self._machine)
        self._main = self._machine["main"]
        self._parameters = memory.put_all(_read_parameters(meta["parameters"]))
        self._profiler: tuple[tvm_profile.Watched, tvm_profile.Join, Any] | None = None
        self._args: list[Any] = []
        self._out: Any = None

    def bind(self, feeds: list[np.ndarray]) -> None:
        self._args = [self._memory.put(np.asarray(x, dtype=np.float32)) for x in feeds] + self._parameters
        self._out = None

    def step(self) -> None:
        self._out = self._main(*self._args)

    def sync(self) -> None:
        self._memory.sync()

    def fetch(self) -> list[np.ndarray]:
        outputs = [self._out] if isinstance(self._out, tvm_ffi.Tensor) else list(self._out)
        return [self._memory.get(x) for x in outputs]

    def profile(self, passes: int) -> list[Profile]:
        """Passes during which the virtual machine calls back around each kernel: see
        :mod:`xframe.backends.tvm_profile`. Raises NotHonoured when a planned lowering is not what ran.
        """
        if not self._args:
            raise XframeError("profile comes after bind")
        self._profiler = self._profiler or self._watched_by_site()
        watched, join, nodes = self._profiler
        return watched.profiles(passes, join, nodes)

    def _watched_by_site(self) -> tuple[tvm_profile.Watched, tvm_profile.Join, Any]:
        """What every turn of profiles needs: it looks at a pass, calibrates itself, and reads the model."""
        from xframe.backends.nodes import Nodes  # it needs onnx, which running does not

        watched = self._watched()
        convolutions = self._artifact.conv_sites
        if self.sites:
            same = [site for _, site in convolutions] == [s.site for s in self.sites]
            join = tvm_profile.forced(self.sites, [name for name, _ in convolutions] if same else [])
        else:
            join = tvm_profile.stock(watched.shapes, convolutions)
        return watched, join, Nodes.read(self._artifact.path)

    def _watched(self) -> tvm_profile.Watched:
        given = self._machine, self.step, self.sync, self._args[0]
        if isinstance(self._memory, tvm_memory.Gpu):
            return tvm_events.WatchedOnGpu(*given, self._memory.index)
        return tvm_profile.Watched(*given)

    def close(self) -> None:
        self._args, self._out, self._parameters, self._profiler = [], None, [], None


class whole_folder:
    """A temporary folder that becomes ``folder`` when the block ends well, and vanishes when it does not."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __enter__(self) -> Path:
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self.part = Path(tempfile.mkdtemp(prefix=".part-", dir=self.folder.parent))
        except OSError as e:
            raise XframeError(f"can't write to the cache {self.folder.parent}: {e.strerror}; set XFRAME_HOME") from e
        return self.part

    def __exit__(self, kind, error, trace) -> None:
        try:
            if kind is None and not self.folder.exists():
                os.replace(self.part, self.folder)
        finally:
            shutil.rmtree(self.part, ignore_errors=True)
        if isinstance(error, OSError):
            raise XframeError(f"can't write to the cache {self.folder.parent}: {error.strerror or error}") from error


def _stored(array: np.ndarray) -> str:
    """Name of the file in :func:`_weights` with this content: equal parameters of all plans share one.

    Only convolutions differ between the plans of a network, and most of its weights are elsewhere.
    """
    name = tvm_parameters.name(array)
    if not (_weights() / name).exists():
        with files.atomic(_weights() / name) as part:
            part.write_bytes(tvm_parameters.content(array))
    return name


def _weights() -> Path:
    return files.home() / tvm_parameters.FOLDER


def _complete(folder: Path) -> bool:
    """Whether all of a compiled folder is there: someone may have made room."""
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
    except OSError:
        return False
    return all((_weights() / row["file"]).exists() for row in meta["parameters"])


def _read_parameters(table: list[dict]) -> list[np.ndarray]:
    """The parameters, in one block of memory. Read, not mapped: large pages make streaming weights faster.

    Raises XframeError when a file is not as long as its parameter.
    """
    arrays = tvm_memory.one_block([row["shape"] for row in table])
    for row, array in zip(table, arrays, strict=True):
        path = _weights() / row["file"]
        with open(path, "rb") as f:
            if f.readinto(array.reshape(-1).data) != array.nbytes or f.read(1):
                raise XframeError(f"{path} is damaged: it should hold {array.nbytes} bytes; delete it and run again")
    return arrays
