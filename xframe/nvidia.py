"""NVIDIA's libraries, loaded from where the loader looks, from the packages that NVIDIA makes of them, or the toolkit.

A library that was loaded here is found by its name by all that is loaded after it: so what needs one runs with the
packages alone.
"""

import contextlib
import ctypes
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from xframe.errors import Unavailable

#: Library -> the names of its file, the newest first; the package that brings it.
FILES = {
    "cudart": (("libcudart.so.13", "libcudart.so.12"), "nvidia-cuda-runtime"),
    "cublas": (("libcublas.so.13", "libcublas.so.12"), "nvidia-cublas"),
    "cudnn": (("libcudnn.so.9",), "nvidia-cudnn-cu13"),
    "nvrtc": (("libnvrtc.so.13", "libnvrtc.so.12"), "nvidia-cuda-nvrtc"),
    "cupti": (("libcupti.so.13", "libcupti.so.12"), "nvidia-cuda-cupti"),
}


def load(library: str) -> ctypes.CDLL:
    """One of :data:`FILES`, for all of the process. Raises Unavailable where it does not load."""
    names, package = FILES[library]
    said = ""
    for name in names:
        for place in _places(name):
            try:
                return ctypes.CDLL(place, ctypes.RTLD_GLOBAL)
            except OSError as e:
                said = said or str(e)
    raise Unavailable(
        f"{names[0]} is needed and does not load here ({said}): pip install {package}, on a machine with an NVIDIA"
        " driver"
    )


def path(library: str) -> Path:
    """The file that :func:`load` loads, in full also where the loader found it by its name. Raises Unavailable."""
    loaded = Path(load(library)._name)
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
            mapped = Path(line.split(maxsplit=5)[-1])
            if mapped.is_absolute() and mapped.name.startswith(loaded.name):
                return mapped
    return loaded


def devices() -> int:
    """GPUs that the driver shows to this process, asked without any runtime. Raises Unavailable without a driver."""
    try:
        driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0)
    except OSError as e:
        raise Unavailable(f"device cuda needs an NVIDIA driver, and there is none here ({e})") from e
    failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return 0 if failed else count.value


def _places(name: str) -> Iterator[str]:
    yield name
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec and spec.submodule_search_locations) or ():
        yield from map(str, sorted(Path(folder).glob(f"*/lib/{name}")))
    yield from (f"/usr/local/cuda/{folder}/{name}" for folder in ("lib64", "extras/CUPTI/lib64"))
    if packed := os.environ.get("XFRAME_LIBRARIES"):  # a folder that came along: last, as it replaces nothing
        yield str(Path(packed) / name)
