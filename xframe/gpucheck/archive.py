"""What a check found as one file, for a door that lets few through: written anew as each step ends."""

from __future__ import annotations

import tarfile
from pathlib import Path

from xframe import files
from xframe.gpucheck.journal import Found, Journal

#: What is made anew there rather than brought back.
LEFT_OUT = (".onnx", ".so", ".npz", ".part")


class Archived(Journal):
    """The folder of a check, and an archive with all of it but :data:`LEFT_OUT`; None: ``<folder>.tar.gz``."""

    def __init__(self, folder: Path, archive: Path | None = None):
        super().__init__(folder)
        whole = folder.resolve()
        self.path = archive or whole.with_name(f"{whole.name}.tar.gz")

    def write(self, found: Found) -> None:
        super().write(found)
        self.pack()

    def pack(self) -> None:
        """Write the archive. Raises XframeError where its folder can't be written."""
        with files.atomic(self.path) as part, tarfile.open(part, "w:gz", compresslevel=6) as tar:
            for path in sorted(p for p in self.folder.rglob("*") if p.is_file() and p.suffix not in LEFT_OUT):
                tar.add(path, f"{self.folder.resolve().name}/{path.relative_to(self.folder).as_posix()}")
