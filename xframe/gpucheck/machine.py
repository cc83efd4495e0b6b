"""What is there to check with: the GPU, its driver, the libraries, compilers and packages."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from xframe import available, environment, nvidia, nvml
from xframe.errors import Unavailable
from xframe.registry import BACKENDS, FRAMEWORKS, Row

#: Compilers and tools that some part needs.
PROGRAMS = ("nvcc", "g++", "nvidia-smi")
#: Seconds for the import of a framework or a backend.
LIMIT = 30.0


def facts() -> dict[str, Any]:
    """All of it. ``gpus``: None without a driver, which ``why`` tells."""
    found: dict[str, Any] = {**environment.capture(), "why": ""}
    try:
        nvml.gpus()
    except Unavailable as e:
        found["why"] = str(e)
    found["libraries"] = {name: library(name) for name in nvidia.FILES}
    found["programs"] = {name: shutil.which(name) for name in PROGRAMS}
    found["variables"] = {k: v for k, v in os.environ.items() if k.startswith(("CUDA_", "NVIDIA_", "LD_LIBRARY"))}
    return {**found, "framework": working(FRAMEWORKS), "backend": working(BACKENDS)}


def working(table: dict[str, Row]) -> dict[str, str]:
    """The version of each framework or backend that a check runs, or why it does not import: all tried at once."""
    rows = {name: {name: row} for name, row in table.items() if not row.opt_in or row.devices == ("cuda",)}
    with ThreadPoolExecutor(len(rows)) as pool:
        tried = pool.map(lambda row: next(available.probe(row, LIMIT)), rows.values())
        return {a.name: a.version or f"missing: {a.reason}" for a in tried}


def library(name: str) -> str:
    """Where one of NVIDIA's libraries was loaded from, or why it was not."""
    try:
        return str(nvidia.path(name))
    except Unavailable as e:
        loader = re.search(r"\((.*?)\): pip", str(e))
        return f"missing: {loader[1] if loader else e}"


def devices() -> int:
    """GPUs that the driver shows to this process, none without a driver."""
    with contextlib.suppress(Unavailable):
        return nvidia.devices()
    return 0
