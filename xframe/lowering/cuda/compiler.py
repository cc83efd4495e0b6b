"""How CUDA text is compiled: in float32 as it is written, and with a thread's values in registers.

TVM by itself writes ``__expf`` for ``exp``, and compiles with fast math, which flushes denormal numbers, divides and
takes roots approximately, and computes ``expf``, ``powf`` and ``tanhf`` by short, inexact instructions. Here all of
that is off, so that a kernel rounds as its text says. A product and the sum that it goes into stay one operation, which
rounds once.

TVM also has ptxas trade registers for speed as freely as it can (``--register-usage-level=10``). ptxas knows only how
many threads a block has, hopes for several blocks on a multiprocessor, and for that moves sums to memory while
registers are free. Here the level is ptxas' own, and kernels that keep a tile of sums in registers say that one block
is enough: what their threads hold is moved only where there is no register left.
"""

import contextlib
import importlib
import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from typing import Any

import tvm

from xframe.errors import Unavailable

#: Of ptxas, 0 to 10: its default. What a higher one gains in instructions it pays for in registers.
REGISTER_LEVEL = 5
#: What nvcc is told besides: what TVM tells it, without fast math.
OPTIONS = ("-O3", "--expt-relaxed-constexpr", "--expt-extended-lambda")

#: Functions of which TVM uses the fast, inexact form.
_FAST = re.compile(r"\b__(exp|exp10|log|log2|log10|pow|sin|cos|tan)f\b")
#: Fragments of the shape that only TF32 has, as TIR, which has no such type, declares them.
_TF32 = re.compile(r"(fragment<nvcuda::wmma::matrix_[ab], 16, 16, 8, )half\b")
_BOUND = re.compile(r"__launch_bounds__\((\d+)\) (\w+)\(")
_FAST_MATH = b"--use_fast_math"


@tvm.register_global_func("tvm_callback_cuda_postproc", override=True)
def finished(code: str, target=None) -> str:
    """CUDA text with exact functions in the place of fast ones; those of its kernels that use shared memory ask for one
    block on a multiprocessor. TVM calls this with all that it generates."""
    code = _TF32.sub(r"\1nvcuda::wmma::precision::tf32", _FAST.sub(r"\1f", code))
    tiled = {found[2] for part in code.split('extern "C"') if "__shared__" in part and (found := _BOUND.search(part))}
    return _BOUND.sub(lambda k: f"__launch_bounds__({k[1]}, 1) {k[2]}(" if k[2] in tiled else k[0], code)


@contextlib.contextmanager
def exact() -> Iterator[None]:
    """TVM's CUDA compiler, as above: nvcc where there is one, else NVRTC."""
    mode = "nvcc" if shutil.which("nvcc") else "nvrtc"
    settings = {
        "TVM_CUDA_COMPILE_MODE": mode,
        "TVM_CUDA_NVCC_NO_FAST_MATH": "1",
        "TVM_CUDA_PTXAS_REG_LEVEL": str(REGISTER_LEVEL),
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        with _without_fast_math() if mode == "nvrtc" and _has_nvrtc() else contextlib.nullcontext():
            yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


@contextlib.contextmanager
def _without_fast_math() -> Iterator[None]:
    """NVRTC, which TVM always tells to use fast math, is not told: no later option takes all of that back."""
    nvrtc: Any = importlib.import_module("cuda.bindings.nvrtc")
    told = nvrtc.nvrtcCompileProgram

    def compile_program(program, count, options):
        kept = [option for option in options if option != _FAST_MATH]
        return told(program, len(kept), kept)

    nvrtc.nvrtcCompileProgram = compile_program
    try:
        yield
    finally:
        nvrtc.nvrtcCompileProgram = told


def _has_nvrtc() -> bool:
    try:
        return importlib.util.find_spec("cuda.bindings.nvrtc") is not None
    except ModuleNotFoundError:
        return False


def check() -> None:
    """Raises Unavailable where nothing compiles CUDA text."""
    if not shutil.which("nvcc") and not _has_nvrtc():
        raise Unavailable(
            "kernels for cuda were asked for, and neither nvcc nor NVRTC is here to compile them: install the CUDA"
            " toolkit, or pip install cuda-bindings nvidia-cuda-nvrtc"
        )
