"""What a check found so far, on disk: each step in a file of its own, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from xframe import files

#: A step that came to its end; one that did, and whose rows may be more the next time; one that was cut off, with what
#: it had; one that failed; one that was not begun.
DONE, INCOMPLETE, CUT, FAILED, SKIPPED = "done", "incomplete", "cut off", "failed", "skipped"
#: The reason where someone wanted it to end.
INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Found:
    """What became of a step. ``rows``: those of ``xframe.store.row``; ``facts``: anything else that it found out."""

    step: str
    state: str
    reason: str = ""
    seconds: float = 0.0
    rows: tuple[dict[str, Any], ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


class Journal:
    """The folder of a check, and the names of its ``steps`` in their order. What is done there is not done again."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.steps: Sequence[str] = ()

    def place(self, step: str) -> Path:
        """Where a step may put files."""
        return self.folder / step.replace(" ", "-")

    def known(self, step: str) -> Found | None:
        """What an earlier run found in a step; None if there is nothing that can be read."""
        try:
            data = json.loads((self.place(step) / "step.json").read_text(encoding="utf-8"))
            return Found(**{**data, "rows": tuple(data["rows"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write(self, found: Found) -> None:
        """Keep what a step found."""
        with files.atomic(self.place(found.step) / "step.json") as part:
            part.write_text(json.dumps(asdict(found), indent=1, default=str), encoding="utf-8")

    def __iter__(self) -> Iterator[Found]:
        """What is known of the steps, by this run or an earlier one."""
        for step in self.steps:
            if (found := self.known(step)) is not None:
                yield found
