"""Builds and loads the stand-ins for NVIDIA's libraries; without a C++ compiler the tests that need them skip."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def built(source, folder, *flags):
    """The library of one of the sources beside this file."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("the stand-ins for NVIDIA's libraries need a C++ compiler: there is neither g++ nor clang++")
    library = folder / f"lib{Path(source).stem}.so"
    command = [
        compiler,
        "-std=c++17",
        "-O1",
        "-Wall",
        "-fPIC",
        "-shared",
        "-Wl,-Bsymbolic",  # its own functions are those that it calls, whatever else has their names in this process
        *flags,
        str(HERE / source),
        "-o",
        str(library),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return library


def loaded(library, **results):
    """It, with the types of what its own functions give."""
    found = ctypes.CDLL(str(library))
    for name, kind in results.items():
        getattr(found, name).restype = kind
    return found
