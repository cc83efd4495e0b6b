"""What a check found, for whoever looks: its summary, and all of it as one file, for a door that lets few through.

Both are written anew as each step ends, so that a killed run has them, too.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

from xframe import files
from xframe.errors import XframeError
from xframe.gpucheck import words
from xframe.gpucheck.journal import Found, Journal

#: What is made anew there rather than brought back.
LEFT_OUT = (".onnx", ".so", ".npz", ".part")
SUMMARY = "summary.txt"
#: Of a check's folder, where things are cached if the user's cache folder can't be written.
CACHE = "cache"


class Archived(Journal):
    """The folder of a check with its summary, and an archive with all of it but :data:`LEFT_OUT` and :data:`CACHE`.

    ``archive``: None: ``<folder>.tar.gz``. ``trouble``: why the archive could not be written, if it was so the last
    time: what was found is in the folder nevertheless.
    """

    def __init__(self, folder: Path, archive: Path | None = None):
        super().__init__(folder)
        whole = folder.resolve()
        self.path = archive or whole.with_name(f"{whole.name}.tar.gz")
        self.trouble = ""

    def write(self, found: Found) -> None:
        super().write(found)
        with files.atomic(self.folder / SUMMARY) as part:
            part.write_text("".join(f"{line}\n" for line in words.lines(list(self))), encoding="utf-8")
        try:
            self._pack()
            self.trouble = ""
        except XframeError as e:
            self.trouble = str(e)

    def _pack(self) -> None:
        with files.atomic(self.path) as part, tarfile.open(part, "w:gz", compresslevel=6) as tar:
            for path in sorted(p for p in self.folder.rglob("*") if p.is_file() and p.suffix not in LEFT_OUT):
                place = path.relative_to(self.folder)
                if place.parts[0] != CACHE:
                    tar.add(path, f"{self.folder.resolve().name}/{place.as_posix()}")
