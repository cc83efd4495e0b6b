"""Apache TVM. Compiling needs all of it; what was compiled is cached and runs with its small runtime alone."""

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import itertools
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi

from xframe import files
from xframe.backends import tvm_profile
from xframe.errors import Unavailable, Unsupported, XframeError
from xframe.lowering.identity import identity
from xframe.protocols import DEFAULTS
from xframe.types import Artifact, Plan, Profile, SiteRecord
from xframe.worker import wire

CPU, POOLED = 1, 2  # DLPack's device type; the allocator that keeps memory between runs
LIBRARY, META = "lib.so", "meta.json"
ALIGNMENT = 64  # bytes; compiled code loads whole vectors


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
            The device is not a CPU, an operator has no rule or a lowering refuses its site.
        Unavailable
            There is no C++ compiler to link with.
        NotHonoured
            The compiled module does not have what was planned.
        """
        if device != "cpu":
            raise Unsupported(f"the TVM backend has schedules for cpu only, not for {device}")
        folder = files.home() / "compiled" / self._key(artifact, plan, threads)
        started = time.perf_counter()
        cached = _complete(folder)
        if not cached:
            shutil.rmtree(folder, ignore_errors=True)  # what is left of it
            self._build(artifact, plan, threads, folder)
        compiled = time.perf_counter()
        executable = TvmExecutable(folder, self.version, threads, plan, artifact)
        executable.seconds = {"load": time.perf_counter() - compiled}
        if not cached:
            executable.seconds["compile"] = compiled - started
        return executable

    def _key(self, artifact: Artifact, plan: Plan, threads: int) -> str:
        """What the compiled code depends on: graph, plan, TVM, our own sources, and this machine's processor."""
        choices = {k: v for k, v in plan.to_json().items() if k not in ("label", "fallback")}
        parts = [artifact.sha256, json.dumps(choices, sort_keys=True), identity(), str(threads)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]

    def _build(self, artifact: Artifact, plan: Plan, threads: int, folder: Path) -> None:
        import onnx

        from xframe.lowering import pipeline
        from xframe.lowering.target import Cpu

        if not any(shutil.which(c) for c in ("g++", "clang++", "c++")):
            raise Unavailable("TVM links with a C++ compiler, and there is none here: install g++ or clang")
        host = Cpu.host(threads)
        cpu = host if plan.target is None else Cpu(plan.target, threads)
        built = pipeline.build(onnx.load(artifact.path), plan, cpu)
        foreign = [] if cpu == host else [f"compiled for {cpu.text!r}, not for this machine's own {host.text!r}"]
        with whole_folder(folder) as part:
            built.executable.export_library(str(part / LIBRARY))
            table = [{"shape": a.shape, "file": _stored(a)} for a in built.parameters]
            notes = [*built.notes, *foreign]
            meta = {"target": cpu.text, "parameters": table, "sites": wire.plain(built.sites), "notes": notes}
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
    ):
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        self.plan, self._artifact = plan, artifact
        self.sites: tuple[SiteRecord, ...] = wire.sites_of(meta["sites"])
        self.seconds: dict[str, float] = {}
        self.notes = tuple(meta["notes"])
        self.environment = {"apache-tvm": version, "target": meta["target"], "threads": threads}
        _load_runtime()
        self._module = tvm_ffi.load_module(str(folder / LIBRARY))
        self._machine = self._module["vm_load_executable"]()
        self._machine["vm_initialization"](CPU, 0, POOLED)
        self._main = self._machine["main"]
        self._parameters = _read_parameters(meta["parameters"])
        self._args: list[Any] = []
        self._out: Any = None

    def bind(self, feeds: list[np.ndarray]) -> None:
        self._feeds = [aligned(np.asarray(x, dtype=np.float32)) for x in feeds]
        self._args = [tvm_ffi.from_dlpack(x) for x in self._feeds] + self._parameters
        self._out = None

    def step(self) -> None:
        self._out = self._main(*self._args)

    def sync(self) -> None:
        """The virtual machine returns when it is done."""

    def fetch(self) -> list[np.ndarray]:
        outputs = [self._out] if isinstance(self._out, tvm_ffi.Tensor) else list(self._out)
        return [np.from_dlpack(x).copy() for x in outputs]

    def profile(self, passes: int) -> list[Profile]:
        """Passes during which the virtual machine calls back around each kernel: see
        :mod:`xframe.backends.tvm_profile`. Raises NotHonoured when a planned lowering is not what ran."""
        from xframe.backends.nodes import Nodes  # it needs onnx, which running does not

        if not self._args:
            raise XframeError("profile comes after bind")
        watched = tvm_profile.Watched(self._machine, self.step, self._args[0])
        convolutions = self._artifact.conv_sites
        if self.sites:
            same = [site for _, site in convolutions] == [s.site for s in self.sites]
            join = tvm_profile.forced(self.sites, [name for name, _ in convolutions] if same else [])
        else:
            join = tvm_profile.stock(watched.shapes, convolutions)
        return watched.profiles(passes, join, Nodes.read(self._artifact.path))

    def close(self) -> None:
        self._args, self._out, self._parameters = [], None, []


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


def aligned(x: np.ndarray) -> np.ndarray:
    """A copy of ``x`` that starts at a multiple of :data:`ALIGNMENT`."""
    block = _aligned_bytes(x.nbytes)
    out = block[: x.nbytes].view(x.dtype).reshape(x.shape)
    out[...] = x
    return out


def _aligned_bytes(size: int) -> np.ndarray:
    block = np.empty(size + ALIGNMENT, dtype=np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    return block[start : start + size]


def _stored(array: np.ndarray) -> str:
    """Name of the file in :func:`_weights` with this content: equal parameters of all plans share one.

    Only convolutions differ between the plans of a network, and most of its weights are elsewhere.
    """
    data = np.ascontiguousarray(array, dtype=np.float32).reshape(-1).data
    name = hashlib.sha256(data).hexdigest()
    if not (_weights() / name).exists():
        with files.atomic(_weights() / name) as part:
            part.write_bytes(data)
    return name


def _weights() -> Path:
    return files.home() / "parameters"


def _complete(folder: Path) -> bool:
    """Whether all of a compiled folder is there: someone may have made room."""
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
    except OSError:
        return False
    return all((_weights() / row["file"]).exists() for row in meta["parameters"])


def _read_parameters(table: list[dict]) -> list:
    """The parameters as tensors over one block of memory. Read, not mapped: large pages make streaming weights faster.

    Raises XframeError when a file is not as long as its parameter.
    """
    sizes = [4 * int(np.prod(row["shape"])) for row in table]
    starts = [0, *itertools.accumulate(n + -n % ALIGNMENT for n in sizes)]
    block, tensors = _aligned_bytes(starts[-1]), []
    for row, start, size in zip(table, starts, sizes, strict=False):
        part, path = block[start : start + size], _weights() / row["file"]
        with open(path, "rb") as f:
            if f.readinto(part.data) != size or f.read(1):
                raise XframeError(f"{path} is damaged: it should hold {size} bytes; delete it and run again")
        tensors.append(tvm_ffi.from_dlpack(part.view(np.float32).reshape(row["shape"])))
    return tensors


def _load_runtime() -> None:
    """Load TVM's runtime library, which brings the virtual machine, without importing TVM's Python package."""
    if "tvm" in sys.modules:
        return
    found = importlib.util.find_spec("tvm")
    if found is None or not found.submodule_search_locations:
        raise Unavailable("the TVM backend needs apache-tvm: pip install 'xframe-eval[tvm]'")
    suffix = {"Darwin": "dylib", "Windows": "dll"}.get(platform.system(), "so")
    ctypes.CDLL(str(Path(found.submodule_search_locations[0]) / "lib" / f"libtvm_runtime.{suffix}"), ctypes.RTLD_GLOBAL)
