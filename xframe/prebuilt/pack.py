"""What must travel to a machine that nothing can be installed on, in pieces that a slow or small door lets through."""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import importlib.util
import io
import re
import sys
import tarfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import BinaryIO, cast

import xframe
from xframe import files
from xframe.errors import Unavailable

#: Bytes of a piece.
PIECE = 60 << 20
#: What xframe needs, with what that needs in turn; and TVM, alone and without its compiler, which is 250 MB.
NEEDED, RUNTIME = ("numpy", "onnx", "typer", "rich"), ("apache-tvm", "apache-tvm-ffi")
RUNTIME_LIBRARY = "libcudart.so.13"
LEFT_OUT = ("libtvm_compiler", ".a", ".lib", ".hpp", ".h", ".cc", ".cu", ".pyc", ".pyi")
UNPACK = """#!/bin/sh
# Puts the pieces beside this file together, and runs the check with what is in them.
set -e
cd "$(dirname "$0")"
cat gpu_check.tar.gz.* | tar -xzf -
export PYTHONPATH="$PWD/packed" LD_LIBRARY_PATH="$PWD/packed/lib:$LD_LIBRARY_PATH"
exec {python} packed/scripts/gpu_check.py --prebuilt packed/built "$@"
"""


def pack(built: Path, output: Path, piece: int = PIECE) -> list[Path]:
    """Write ``gpu_check.tar.gz.000``, ... of at most ``piece`` bytes each, and ``gpu_check.sh``: unpacks and runs.

    They hold xframe, the Python packages that running needs, TVM's runtime, CUDA's, and what is in ``built``; the
    machine needs Python of the same version. Existing pieces are replaced.

    Raises
    ------
    Unavailable
        TVM is not installed here.
    """
    if importlib.util.find_spec("tvm") is None:
        raise Unavailable(
            "packing takes TVM's runtime along, and it is not installed here: pip install 'xframe-eval[tvm]'"
        )
    output.mkdir(parents=True, exist_ok=True)
    for old in output.glob("gpu_check.tar.gz.*"):
        old.unlink()
    pieces = _Pieces(output, piece)
    with (
        gzip.open(cast(BinaryIO, pieces), "wb", compresslevel=1) as packed,
        tarfile.open(fileobj=packed, mode="w|", dereference=True) as tar,
    ):
        for source, name in contents(built):
            tar.add(source, arcname=f"packed/{name}", recursive=False)
    pieces.close()
    script = output / "gpu_check.sh"
    with files.atomic(script) as part:
        part.write_text(UNPACK.format(python=f"python{sys.version_info.major}.{sys.version_info.minor}"))
    script.chmod(0o755)
    return [*pieces.paths, script]


def contents(built: Path) -> Iterator[tuple[Path, str]]:
    """(file, its place) of everything that travels."""
    root = Path(xframe.__file__).resolve().parents[1]
    for folder in ("xframe", "models", "scripts"):
        for path in _files(root / folder):
            yield path, path.relative_to(root).as_posix()
    for name in (*_closure(NEEDED), *RUNTIME):
        yield from _distribution(name)
    if (runtime := cuda_runtime()) is not None:
        yield runtime, f"lib/{RUNTIME_LIBRARY}"
    for path in _files(built):
        yield path, f"built/{path.relative_to(built).as_posix()}"


def cuda_runtime() -> Path | None:
    """The CUDA runtime that TVM's needs, which a machine with a driver alone lacks; None where it is not here."""
    try:
        ctypes.CDLL(RUNTIME_LIBRARY)
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    return next(
        (Path(line.split()[-1]) for line in lines if Path(line.split()[-1]).name.startswith("libcudart.so")), None
    )


def _files(folder: Path) -> Iterator[Path]:
    return (p for p in sorted(folder.rglob("*")) if p.is_file() and "__pycache__" not in p.parts)


def _closure(names: Sequence[str]) -> list[str]:
    """These distributions and all that they require; one that is not installed here is not required here."""
    found = list(names)
    for name in found:
        with contextlib.suppress(metadata.PackageNotFoundError):
            plain = (r for r in metadata.requires(name) or () if "extra ==" not in r)
            found += [n for n in (re.split(r"[^\w.-]", r, maxsplit=1)[0] for r in plain) if n not in found]
    return list(dict.fromkeys(found))


def _distribution(name: str) -> Iterator[tuple[Path, str]]:
    try:
        listed: Sequence[metadata.PackagePath] = metadata.files(name) or ()
    except metadata.PackageNotFoundError:
        return
    for file in listed:
        path = Path(str(file.locate()))
        wanted = not any(part in file.name if part.startswith("lib") else file.name.endswith(part) for part in LEFT_OUT)
        if wanted and ".." not in file.parts and "tests" not in file.parts and path.is_file():
            yield path, file.as_posix()


class _Pieces(io.RawIOBase):
    """A stream that goes on in another file whenever one is full."""

    def __init__(self, folder: Path, size: int):
        self._folder, self._size = folder, size
        self.paths: list[Path] = []
        self._file: io.BufferedWriter | None = None
        self._left = 0

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view):
            if not self._left:
                self._next()
            assert self._file is not None
            part = view[done : done + self._left]
            self._file.write(part)
            done, self._left = done + len(part), self._left - len(part)
        return len(view)

    def _next(self) -> None:
        if self._file is not None:
            self._file.close()
        self.paths.append(self._folder / f"gpu_check.tar.gz.{len(self.paths):03d}")
        self._file, self._left = open(self.paths[-1], "wb"), self._size  # noqa: SIM115

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        super().close()
