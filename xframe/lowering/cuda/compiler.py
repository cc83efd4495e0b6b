"""How CUDA text is compiled: in float32 as it is written.

TVM by itself writes ``__expf`` for ``exp``, and compiles with fast math, which flushes denormal numbers and divides and
takes roots approximately. Here both are off, so that a kernel rounds as its text says.
"""

import contextlib
import importlib.util
import os
import re
import shutil
from collections.abc import Iterator

import tvm

from xframe.errors import Unavailable

#: Functions of which TVM uses the fast, inexact form.
_FAST = re.compile(r"\b__(exp|exp10|log|log2|log10|pow|sin|cos|tan)f\b")


@tvm.register_global_func("tvm_callback_cuda_postproc", override=True)
def exact_functions(code: str, target=None) -> str:
    """CUDA text with exact functions in the place of fast ones; TVM calls this with all that it generates."""
    return _FAST.sub(r"\1f", code)


@contextlib.contextmanager
def exact() -> Iterator[None]:
    """TVM's CUDA compiler without fast math: nvcc where there is one, else NVRTC."""
    mode = "nvcc" if shutil.which("nvcc") else "nvrtc"
    settings = {
        "TVM_CUDA_COMPILE_MODE": mode,
        "TVM_CUDA_NVCC_NO_FAST_MATH": "1",
        "TVM_CUDA_NVRTC_EXTRA_OPTS": "--ftz=false --prec-div=true --prec-sqrt=true",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def check() -> None:
    """Raises Unavailable where nothing compiles CUDA text."""
    if shutil.which("nvcc"):
        return
    try:
        found = importlib.util.find_spec("cuda.bindings.nvrtc")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise Unavailable(
            "kernels for cuda were asked for, and neither nvcc nor NVRTC is here to compile them: install the CUDA"
            " toolkit, or pip install cuda-bindings nvidia-cuda-nvrtc"
        )
