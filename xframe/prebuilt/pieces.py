"""One compressed archive, cut into files that a slow or small door lets through."""

from __future__ import annotations

import contextlib
import io
import lzma
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

NAME = "gpu_check.tar.xz"
#: Of ``xz``, which saves a piece where TVM's compiler travels; higher ones take minutes.
PRESET = 1


@contextlib.contextmanager
def archive(folder: Path, size: int, paths: list[Path]) -> Iterator[tarfile.TarFile]:
    """A tar archive to add files to; its parts in ``folder``, of at most ``size`` bytes, are added to ``paths``.

    Parts that are there are replaced. None stays where the block fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{NAME}.*"):
        old.unlink()
    parts = Parts(folder / NAME, size, paths)
    try:
        with (
            parts,
            lzma.open(cast(IO[bytes], parts), "wb", preset=PRESET) as packed,
            tarfile.open(fileobj=packed, mode="w|", dereference=True) as tar,
        ):
            yield tar
    except BaseException:
        for path in paths:
            path.unlink(missing_ok=True)
        raise


class Parts(io.RawIOBase):
    """A stream that goes on in another file, ``<path>.001``, whenever one has ``size`` bytes."""

    def __init__(self, path: Path, size: int, paths: list[Path]):
        self._path, self._size, self._paths = path, size, paths
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
        self._paths.append(self._path.with_name(f"{self._path.name}.{len(self._paths):03d}"))
        self._file, self._left = open(self._paths[-1], "wb"), self._size  # noqa: SIM115

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        super().close()
