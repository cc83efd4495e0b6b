"""The BLAS that Caffe's products run on: OpenBLAS, linked into Caffe's own library."""

import ctypes
from typing import Any, Optional

from caffe import _caffe

_library = ctypes.CDLL(_caffe.__file__)


def set_threads(count: int) -> Optional[int]:
    """Have products run on so many threads; on how many they do. None where the BLAS has no such function."""
    change, ask = _function("openblas_set_num_threads"), _function("openblas_get_num_threads")
    if change is None or ask is None:
        return None
    change(count)
    return int(ask())


def name() -> str:
    """Which BLAS it is, in words; a version where it tells one."""
    config = _function("openblas_get_config")
    if config is not None:
        config.restype = ctypes.c_char_p
        return " ".join(config().decode().split()[:2])
    if _function("openblas_get_num_threads") is not None:
        return "OpenBLAS (inside Caffe's library, which tells no version)"
    return "a BLAS that does not tell its name"


def _function(symbol: str) -> Any:
    return getattr(_library, symbol, None)
