"""What some environments need besides pip. Each step is given the environment's folder and how to run commands."""

import ctypes.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from xframe.environments.running import Commands
from xframe.errors import Unavailable

_STUB = Path(__file__).parent / "mpi_stub.c"
#: What CNTK 2.7 loads of Open MPI 1.10, and what it is called today.
_MPI = {"libmpi.so.12": "mpi", "libmpi_cxx.so.1": "mpi_cxx"}
#: It also loads this, which a statically linked Python lacks, and has all the same.
_PYTHON = "libpython3.6m.so.1.0"
_SYSTEM = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib")


def mpi_stub(root: Path, run: Commands) -> None:
    """CNTK does not load without MPI, which it uses between machines only: a stand-in for one process, or Debian's.

    Raises
    ------
    Unavailable
        There is neither a C compiler nor Open MPI 4 (libopenmpi3) here.
    """
    (folder,) = (root / "venv").glob("lib/python3*/site-packages/cntk/libs")
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler:
        first, *others = [*_MPI, _PYTHON]
        options = ["-shared", "-fPIC", "-w", f"-Wl,-soname,{first}"]
        run("making a stand-in for MPI", [compiler, *options, _STUB, "-o", folder / first])
        for library in others:
            (folder / library).symlink_to(first)
        return
    for library, name in _MPI.items():
        found = _path(name)
        if found is None:
            raise Unavailable(
                "can't build the environment cntk: CNTK needs MPI libraries, and there is neither a C compiler to make"
                " stand-ins (apt install gcc) nor Open MPI (apt install libopenmpi3)"
            )
        (folder / library).symlink_to(found)


def _path(name: str) -> Path | None:
    """The path of a library that the system's loader finds."""
    library = ctypes.util.find_library(name)
    folders = [Path(f) for f in (*os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep), *_SYSTEM) if f]
    return next((f / library for f in folders if (f / library).exists()), None) if library else None


def theano_settings(root: Path, run: Commands) -> None:
    """Settings of Theano: the OpenBLAS of SciPy's wheel, and a folder of its own for what it compiles.

    Raises
    ------
    Unavailable
        There is no C++ compiler, which Theano compiles its kernels with, or SciPy came without OpenBLAS.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        raise Unavailable("can't build the environment theano: it compiles its kernels with g++: apt install g++")
    found = sorted((root / "venv").glob("lib/python3*/site-packages/scipy.libs/libopenblas*.so"))
    if not found:
        raise Unavailable(f"can't build the environment theano: no OpenBLAS in SciPy's wheel below {root / 'venv'}")
    folder, library = found[0].parent, found[0].name
    if len(str(folder).split()) != 1:
        raise Unavailable(f"can't build the environment theano at {folder}, as it has a space in it: set XFRAME_HOME")
    (root / "theanorc").write_text(
        "[global]\n"
        "device = cpu\n"
        "floatX = float32\n"
        f"base_compiledir = {root / 'compiled'}\n"
        f"cxx = {compiler}\n"
        "[gcc]\n"
        "cxxflags = -O3 -march=native\n"
        "[blas]\n"
        f"ldflags = -L{folder} -l:{library} -Wl,-rpath,{folder}\n"
    )


STEPS: dict[str, Callable[[Path, Commands], None]] = {"mpi_stub": mpi_stub, "theano_settings": theano_settings}
