"""What a record depends on besides the device: the version of TVM, and the pass list that kernels go through.

Told without importing TVM, so that a log can be read where it is not needed, or not installed. What code for a GPU
depends on besides, the driver and the compiler, is told and not compared: they change often, and a record says only in
which order a kernel goes about its work.
"""

import ast
import contextlib
import functools
import hashlib
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import xframe
from xframe import nvml
from xframe.errors import Unavailable


@functools.cache
def tvm_version() -> str | None:
    """The version of TVM that is installed; None where there is none."""
    try:
        return metadata.version("apache-tvm")
    except metadata.PackageNotFoundError:
        return None


@functools.cache
def passes() -> str:
    """A short hash of the passes and their arguments, as they stand in ``xframe.lowering.pipeline``."""
    return _hash((Path(xframe.__file__).parent / "lowering" / "pipeline.py").read_text(encoding="utf-8"))


def _hash(source: str) -> str:
    """That of the list of passes in a source text; spelling and comments do not count."""
    (function,) = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef) and n.name == "passes")
    calls = (n for n in ast.walk(function) if isinstance(n, ast.Call))
    (listed,) = (c.args[0] for c in calls if ast.unparse(c.func).endswith("Sequential"))
    assert isinstance(listed, ast.List)
    return hashlib.sha256("\n".join(map(ast.unparse, listed.elts)).encode()).hexdigest()[:12]


def cuda() -> dict[str, str]:
    """``driver`` and ``compiler`` of code for GPUs: ``580.12``, ``nvcc 13.0.88``; what can't be told is left out."""
    found = {}
    with contextlib.suppress(Unavailable), nvml.Nvml() as library:
        found["driver"] = library.driver() or ""
    found["compiler"] = _nvcc() or _nvrtc()
    return {name: value for name, value in found.items() if value}


def _nvcc() -> str:
    if not shutil.which("nvcc"):
        return ""
    said = subprocess.run(["nvcc", "--version"], capture_output=True, text=True).stdout
    version = re.search(r"\bV([\d.]+)", said)
    return f"nvcc {version[1]}" if version else "nvcc"


def _nvrtc() -> str:
    for name in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return f"NVRTC {metadata.version(name)}"
    return ""
