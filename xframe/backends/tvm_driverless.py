"""Machine code for a GPU from a machine without one.

TVM compiles CUDA text when its own CUDA library is loaded, which needs the driver's; without it a compiled network
holds the text alone, and whoever runs it would need a compiler. To compile, none of the driver's functions is called: a
library with its name, in which they all fail, is enough.
"""

import ctypes
import shutil
import subprocess
from pathlib import Path

from xframe import files
from xframe.errors import Unavailable, XframeError
from xframe.lowering import tvm_runtime

DRIVER = "libcuda.so.1"
#: What TVM's CUDA library wants of the driver; and what asks it for devices, of which there are none.
FUNCTIONS = (
    *("cuInit", "cuDeviceGetCount"),
    *("cuDeviceGetName", "cuFuncSetAttribute", "cuGetErrorName", "cuGetErrorString", "cuLaunchKernelEx"),
    *("cuModuleGetFunction", "cuModuleLoadData", "cuModuleUnload", "cuTensorMapEncodeTiled"),
)
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
#: How machine code begins: several of them together, or that of one architecture (ELF for CUDA, old and new).
CODE = (b"\x50\xed\x55\xba", b"\x7fELF\x02\x01\x01\x33", b"\x7fELF\x02\x01\x01\x41")


def ready() -> None:
    """Make this process compile CUDA text to machine code. It must not use a GPU.

    Raises
    ------
    Unavailable
        There is no C++ compiler to make the driver's stand-in with, or no CUDA runtime library.
    """
    try:
        ctypes.CDLL(DRIVER, ctypes.RTLD_GLOBAL)
    except OSError:
        ctypes.CDLL(str(_stand_in()), ctypes.RTLD_GLOBAL)
    tvm_runtime.load(cuda=True)


def _stand_in() -> Path:
    path = files.home() / "driver" / DRIVER
    if not path.exists():
        compiler = next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)
        if compiler is None:
            raise Unavailable("compiling for a GPU that is not here needs a C++ compiler: install g++ or clang")
        text = "".join(f'extern "C" int {name}() {{ return {_NO_DEVICE}; }}\n' for name in FUNCTIONS)
        with files.atomic(path) as part:
            command = [compiler, "-x", "c++", "-", "-shared", "-fPIC", f"-Wl,-soname,{DRIVER}", "-o", str(part)]
            done = subprocess.run(command, input=text, capture_output=True, text=True)
            if done.returncode:
                raise XframeError(f"{compiler} can't make a stand-in for the driver: {done.stderr.strip()[-300:]}")
    return path


def check(library: Path) -> None:
    """Raises XframeError where a compiled network holds CUDA text instead of machine code."""
    data = library.read_bytes()
    if not any(begin in data for begin in CODE):
        raise XframeError(
            f"{library} holds no machine code of a GPU: TVM kept the text of its kernels, to compile it later"
        )
