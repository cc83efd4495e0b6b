"""What is there to check with: the GPU, its driver, the libraries, compilers and packages."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
from typing import Any

from xframe import available, environment, nvidia, nvml
from xframe.errors import Unavailable
from xframe.registry import BACKENDS, FRAMEWORKS

#: Compilers and tools that some part needs.
PROGRAMS = ("nvcc", "g++", "nvidia-smi")


def facts(probe: bool = True) -> dict[str, Any]:
    """All of it. ``gpus``: None without a driver, which ``why`` tells. ``probe``: import each framework and backend."""
    found: dict[str, Any] = {**environment.capture(), "why": ""}
    try:
        nvml.gpus()
    except Unavailable as e:
        found["why"] = str(e)
    found["libraries"] = {name: library(name) for name in nvidia.FILES}
    found["programs"] = {name: shutil.which(name) for name in PROGRAMS}
    found["variables"] = {k: v for k, v in os.environ.items() if k.startswith(("CUDA_", "NVIDIA_", "LD_LIBRARY"))}
    tables = {"framework": FRAMEWORKS, "backend": BACKENDS} if probe else {}
    for kind, table in tables.items():
        rows = {name: row for name, row in table.items() if not row.environment}
        found[kind] = {a.name: a.version or f"missing: {a.reason}" for a in available.probe(rows)}
    return found


def library(name: str) -> str:
    """Where one of NVIDIA's libraries was loaded from, or why it was not."""
    try:
        return str(nvidia.load(name)._name)
    except Unavailable as e:
        loader = re.search(r"\((.*?)\): pip", str(e))
        return f"missing: {loader[1] if loader else e}"


def devices() -> int:
    """GPUs that the driver shows to this process, asked without any runtime."""
    with contextlib.suppress(OSError):
        driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0)
        if not driver.cuInit(0) and not driver.cuDeviceGetCount(ctypes.byref(count)):
            return count.value
    return 0
