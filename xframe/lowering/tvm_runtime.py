"""TVM's runtime libraries, loaded without its Python package; for GPUs its part that needs CUDA, too.

That part needs CUDA's runtime library by name, and does not look into NVIDIA's packages; where it does not load, TVM's
Python says nothing and knows no GPU. So it is loaded here, before or after TVM is imported.
"""

import contextlib
import ctypes
import importlib.util
import platform
import sys
from pathlib import Path

from xframe import nvidia
from xframe.errors import Unavailable


def load(cuda: bool = False) -> None:
    """Load TVM's runtime, which brings the virtual machine; ``cuda``: and what it needs to use GPUs.

    Raises
    ------
    Unavailable
        There is no TVM here; or, for GPUs, no NVIDIA driver, or none of CUDA's runtime library.
    """
    found = importlib.util.find_spec("tvm")
    if found is None or not found.submodule_search_locations:
        raise Unavailable("the TVM backend needs apache-tvm: pip install 'xframe-eval[tvm]'")
    suffix = {"Darwin": "dylib", "Windows": "dll"}.get(platform.system(), "so")
    folder = Path(found.submodule_search_locations[0]) / "lib"
    if "tvm" not in sys.modules:
        ctypes.CDLL(str(folder / f"libtvm_runtime.{suffix}"), ctypes.RTLD_GLOBAL)
    if cuda:
        with contextlib.suppress(Unavailable):  # TVM's library says what it misses
            nvidia.load("cudart")
        try:
            ctypes.CDLL(str(folder / f"libtvm_runtime_cuda.{suffix}"))
        except OSError as e:
            missing = "libcudart" in str(e)
            remedy = "pip install 'nvidia-cuda-runtime>=13'" if missing else "it needs an NVIDIA GPU and its driver"
            raise Unavailable(
                f"TVM was asked to run on a GPU or to compile for one, and its part for that does not load here ({e}):"
                f" {remedy}"
            ) from e
