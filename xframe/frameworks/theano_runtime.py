"""What Theano runs on here: its BLAS, its threads, and what they say of themselves."""

import ctypes
import os
from typing import Any, Dict, List, Optional, Tuple

import theano

from xframe.errors import Unavailable

#: What Theano's convolutions do on a CPU (``CorrMM``): patches into columns, then a matrix product.
ALGORITHM = "im2col+gemm"


def prepare(threads: int) -> Tuple[Dict[str, Any], List[str]]:
    """Set the threads of BLAS for this process, and look at what they are then.

    BLAS alone has threads. That is Theano's own default: with OpenMP besides, pooling and elementwise nodes wait for
    the threads of BLAS to leave a core, which spin for 20 ms after each product.

    Returns
    -------
    environment, notes
        ``environment["threads"]`` is what BLAS says, not what was asked for.

    Raises
    ------
    Unavailable
        Theano has no BLAS or no C++ compiler.
    """
    config = theano.config
    if not config.blas.ldflags or not config.cxx:
        missing = "BLAS (blas.ldflags)" if config.cxx else "C++ compiler (cxx)"
        settings = os.environ.get("THEANORC", "there is no THEANORC")
        raise Unavailable(f"theano has no {missing} in its settings ({settings}): run xframe env create theano")
    config.openmp = False
    blas = _library(_blas_file(config.blas.ldflags))
    _call(blas, "openblas_set_num_threads", threads)
    told = _call(blas, "openblas_get_num_threads") or threads
    name = _call(blas, "openblas_get_config", result=ctypes.c_char_p)
    words = " ".join(name.decode().split()[:2]) if name else "BLAS"
    environment = {
        "theano": theano.__version__,
        "threads": told,
        "convolution": f"im2col + GEMM, {words}",
        "blas": name.decode() if name else config.blas.ldflags,
        "openmp": bool(config.openmp),
        "allow_gc": bool(config.allow_gc),
        "cxxflags": config.gcc.cxxflags,
    }
    return environment, [f"the threads of {words} can't change to {threads}: it has {told}"] if told != threads else []


def _blas_file(flags: str) -> str:
    """The file of the library that linker flags name, such as ``-L/folder -l:libopenblas.so``."""
    words = flags.split()
    folders = [word[2:] for word in words if word.startswith("-L")]
    names = [word[2:] for word in words if word.startswith("-l")]
    files = [name[1:] if name.startswith(":") else f"lib{name}.so" for name in names]
    found = [os.path.join(folder, name) for name in files for folder in folders]
    return next((path for path in found if os.path.exists(path)), files[0] if files else "")


def _library(path: str) -> Optional[ctypes.CDLL]:
    """A library, the same copy of it that the compiled modules of Theano are linked to; None where it is not."""
    try:
        return ctypes.CDLL(path) if path else None
    except OSError:
        return None


def _call(library: Optional[ctypes.CDLL], name: str, *numbers: int, result: Any = ctypes.c_int) -> Any:
    """What a function of a library returns; None where there is no such function: another BLAS than OpenBLAS."""
    function = getattr(library, name, None)
    if function is None:
        return None
    function.restype = result
    return function(*numbers)
