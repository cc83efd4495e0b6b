"""What g++ makes of the shim and of kernels, kept in a cache folder by what it is made from."""

import fcntl
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.cuda_on_cpu.errors import Refused
from tests.cuda_on_cpu.translation import translated
from xframe import files
from xframe.errors import Unavailable

NATIVE = Path(__file__).parent / "native"
DEVICE = NATIVE / "device"
#: The library by which TVM's runtime knows each half of CUDA, and the files that play it.
_LIBRARIES = {
    "libcudart.so.13": (
        *("report.cpp", "memory.cpp", "trace.cpp", "races.cpp", "block.cpp", "hooks.cpp"),
        *("streams.cpp", "runtime.cpp"),
    ),
    "libcuda.so.1": ("driver.cpp",),
}
#: TVM's runtime asks for this version of each of the runtime's symbols; the rest is what the other library uses.
_VERSIONS = """libcudart.so.13 { global: cuda*; };
CUDA_ON_CPU { global: shim_*; __tsan_*; __ubsan_*; extern "C++" { shim::*; }; local: *; };
"""
_SHIM = ("-std=c++17", "-O2", "-g1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")
#: Each access calls a hook, and each misaligned pointer and index beyond an array. Values are summed as they are
#: written, with no multiply-add. What is left uninitialised is -1.7e38, as far as the compiler can.
_KERNEL = (
    *("-std=c++17", "-O1", "-g1", "-w", "-fPIC", "-mf16c", "-ffp-contract=off"),
    *("-fsanitize=thread", "-fsanitize=alignment,bounds", "-fno-sanitize-recover=all"),
    "-ftrivial-auto-var-init=pattern",
)
#: All that the text of a kernel may include.
_HEADER = "shim_all.h"


def unavailable() -> str | None:
    """Why the shim can't be used here, or None."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"the shim runs on Linux on x86-64, this is {sys.platform} on {platform.machine()}"
    try:
        version = _compiler()
    except Unavailable as e:
        return str(e)
    if int(version.split(".")[0]) < 12:
        return f"the shim needs g++ 12 or newer, here is {version}"
    return None


@functools.cache
def _compiler() -> str:
    if not shutil.which("g++"):
        raise Unavailable("the shim needs g++, which is not on the PATH: install it")
    return subprocess.run(["g++", "-dumpfullversion"], capture_output=True, text=True, check=True).stdout.strip()


def cache() -> Path:
    """``$CUDA_ON_CPU_CACHE``, else a folder of xframe's own cache."""
    return Path(os.environ.get("CUDA_ON_CPU_CACHE") or files.home() / "cuda_on_cpu")


def libraries() -> list[Path]:
    """The libraries that play CUDA, in the order in which they are loaded; built where they are not there yet.

    Raises
    ------
    Unavailable
        They can't be built here.
    """
    if reason := unavailable():
        raise Unavailable(reason)
    sources = {p.name: p.read_bytes() for p in sorted(NATIVE.rglob("*")) if p.is_file()}
    folder = _once(f"shim-{_digest(_VERSIONS, _SHIM, _LIBRARIES, sources)}", _build)
    return [folder / name for name in _LIBRARIES]


def _once(name: str, make: Callable[[Path, Path], None]) -> Path:
    """A folder of the cache, made by ``make(folder, scratch folder)`` where it is not there yet; who comes meanwhile
    waits for it."""
    folder = cache() / name
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{folder}.lock", "w") as lock, tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                made = Path(scratch) / "made"
                made.mkdir()
                make(made, Path(scratch))
                made.rename(folder)
    return folder


def _build(made: Path, scratch: Path) -> None:
    (scratch / "versions").write_text(_VERSIONS)
    for name, sources in _LIBRARIES.items():
        script = [f"-Wl,--version-script={scratch / 'versions'}"] if "rt" in name else []
        linked = [str(p) for p in made.iterdir()]
        inputs = [str(NATIVE / s) for s in sources]
        _gxx([*_SHIM, f"-Wl,-soname,{name}", *script, *inputs, *linked, "-ldl", "-o", str(made / name)])


def kernels(text: str) -> Path:
    """The shared object of the kernels of a CUDA text.

    Raises
    ------
    Refused
        The text has something that the shim, or g++, does not know.
    """
    code = translated(text)
    headers = {p.name: p.read_bytes() for p in sorted(DEVICE.iterdir())}
    path = cache() / "kernels" / f"{_digest(code, _KERNEL, headers)}.so"
    if not path.exists():
        with files.atomic(path.with_suffix(".cpp")) as part:
            part.write_text(code)
        # The headers take longer than most kernels: g++ reads them once, and then what it has made of them.
        ready = _once(f"headers-{_digest(_KERNEL, headers)}", _read)
        # Linked apart, as the sanitizers' own libraries must stay out.
        with files.atomic(path) as part, tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            made = f"{scratch}/kernels.o"
            search = [f"-I{ready}", f"-I{DEVICE}", "-include", _HEADER]
            _gxx([*_KERNEL, *search, "-c", str(path.with_suffix(".cpp")), "-o", made])
            _gxx(["-shared", made, "-o", str(part)])
    return path


def _read(made: Path, scratch: Path) -> None:
    _gxx([*_KERNEL, "-x", "c++-header", str(DEVICE / _HEADER), "-o", str(made / f"{_HEADER}.gch")])


def _gxx(arguments: list[str]) -> None:
    done = subprocess.run(["g++", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise Refused(f"g++ does not take it:\n{done.stderr[:4000]}")


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr((_compiler(), parts)).encode()).hexdigest()[:20]


def line_at(library: str, offset: str) -> str:
    """The line of the text at a place of a kernel's shared object, as ``line 57: ...``; empty where it is not known."""
    found = subprocess.run(["addr2line", "-i", "-e", library, offset], capture_output=True, text=True)
    for place in found.stdout.splitlines():  # of functions of a header, where they were called
        path, _, number = place.partition(" (")[0].rpartition(":")
        if number.isdigit() and Path(path).is_file() and Path(path).suffix == ".cpp":
            line = Path(path).read_text().splitlines()[int(number) - 1].strip()
            return f"line {number}: {line if len(line) <= 160 else line[:157] + '...'}"
    return ""
