"""Puts the pieces beside this file together, once, and runs the check with what is in them.

It is alone on the machine where that is done: it needs nothing but Python itself. Packages that the machine has stay as
they are; of those that were packed it gets what it lacks.
"""

import hashlib
import importlib.util
import io
import json
import lzma
import os
import shutil
import sys
import tarfile
from importlib import metadata
from pathlib import Path
from typing import Any

#: What :mod:`xframe.prebuilt.pack` says of the pieces; what was unpacked, and the file in it that says of which.
ABOUT, PACKED, COMPLETE = "gpu_check.json", "packed", "complete"
PACKAGES, BUILT, LIBRARIES = "packages", "built", "lib"


class Refused(Exception):
    """Why the check can't be run, in a sentence."""


class Joined(io.RawIOBase):
    """Files, read as one."""

    def __init__(self, paths: list[Path]):
        self._paths = list(paths)
        self._file: io.RawIOBase | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            if self._file is None:
                if not self._paths:
                    return 0
                self._file = open(self._paths.pop(0), "rb", buffering=0)  # noqa: SIM115
            if count := self._file.readinto(buffer):
                return count
            self._file.close()
            self._file = None


def unpacked(here: Path, about: dict[str, Any]) -> Path:
    """The folder with what the pieces hold: unpacked now, unless it is there. Raises Refused where one is missing."""
    folder, identity = here / PACKED, json.dumps(about, sort_keys=True)
    complete = folder / COMPLETE
    if complete.is_file() and complete.read_text(encoding="utf-8") == identity:
        return folder
    for name, digest in about["pieces"].items():
        path = here / name
        if not path.is_file():
            raise Refused(f"{name}, one of {len(about['pieces'])} pieces, is not in {here}: bring it there")
        with open(path, "rb") as f:
            if hashlib.file_digest(f, "sha256").hexdigest() != digest:
                raise Refused(f"{path} is not what was packed: bring it again")
    print(f"gpu_check: unpacks {len(about['pieces'])} pieces into {folder}", file=sys.stderr)
    part = folder.with_name(f"{PACKED}.part")
    try:
        for old in (part, folder):
            shutil.rmtree(old, ignore_errors=True)
        whole = io.BufferedReader(Joined([here / name for name in about["pieces"]]), 1 << 20)
        with lzma.open(whole) as data, tarfile.open(fileobj=data, mode="r|") as tar:
            tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
            tar.extractall(part)
        (part / COMPLETE).write_text(identity, encoding="utf-8")
        part.rename(folder)
    except OSError as e:
        raise Refused(f"can't unpack into {here} ({e.strerror or e}): bring the pieces to a folder with space") from e
    return folder


def lacking(packages: Path, ours: list[str]) -> list[Path]:
    """Of the packed packages those that this Python has not; and ``ours``, whose version matters."""
    found = []
    for folder in sorted(packages.glob("*")):
        names = [p.name for p in folder.iterdir() if not p.name.endswith((".dist-info", ".libs", ".data"))]
        modules = [name.partition(".")[0] for name in names]
        if folder.name in ours or not (_installed(folder.name) or all(map(_importable, modules))):
            found.append(folder)
    return found


def _installed(name: str) -> bool:
    try:
        return bool(metadata.distribution(name))
    except metadata.PackageNotFoundError:
        return False


def _importable(module: str) -> bool:
    """Under another distribution's name; a folder that several share says nothing."""
    found = importlib.util.find_spec(module)
    return found is not None and found.origin is not None


def environment(packed: Path, ours: list[str]) -> dict[str, str]:
    """Of a process that finds what was packed where this machine has nothing of its own."""
    given = dict(os.environ)
    paths = [packed, *lacking(packed / PACKAGES, ours)]
    given["PYTHONPATH"] = os.pathsep.join([*map(str, paths), *filter(None, [given.get("PYTHONPATH")])])
    given["PYTHONSAFEPATH"] = "1"  # not the xframe of a checkout in which the user happens to be
    given["XFRAME_LIBRARIES"] = str(packed / LIBRARIES)  # where xframe.nvidia looks last
    return given


def main() -> int:
    here = Path(__file__).resolve().parent
    try:
        about = json.loads((here / ABOUT).read_text(encoding="utf-8"))
        for name in about["without"]:
            if not _installed(name):
                raise Refused(f"these pieces were packed without {name}, which {sys.executable} has not: pack it, too")
        packed = unpacked(here, about)
        given = ["--prebuilt", str(packed / BUILT)] if (packed / BUILT).is_dir() else []
        command = [sys.executable, "-m", "xframe.cli", "gpu-check", *given, *sys.argv[1:]]
        sys.stdout.flush()
        os.execve(sys.executable, command, environment(packed, about["ours"]))
    except (Refused, lzma.LZMAError, tarfile.TarError) as e:
        print(f"gpu_check: {e}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
