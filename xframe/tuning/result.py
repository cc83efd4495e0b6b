"""What a tuning session is given, how far it is, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from xframe.errors import XframeError
from xframe.lowering.tasks import Task
from xframe.schedules.log import Entry


@dataclass(frozen=True)
class Work:
    """What can be tuned of ``model`` at ``batch`` where ``lowering`` is forced; their log is one."""

    model: str
    batch: int
    lowering: str
    tasks: tuple[Task, ...]

    @property
    def label(self) -> str:
        return f"{self.model}-b{self.batch}/{self.lowering}"


@dataclass(frozen=True)
class Row:
    """What became of a kernel. ``entry``: what beat the template; None: it stays, and ``reason`` says why.

    ``works``: labels of the works that have it. ``by_hand``: median seconds of the hand-written schedule, None if it
    was not measured. ``flop``: of one call, 0 if it was not measured. ``trials``: all of them; ``failures``: how many
    ended how, but for OK.
    """

    task: Task
    works: tuple[str, ...]
    entry: Entry | None
    reason: str
    by_hand: float | None
    flop: float
    trials: int
    failures: Mapping[str, int]

    @property
    def baseline(self) -> float | None:
        """Median seconds by hand: those that the entry was held against, if there is one."""
        return median(self.entry.baseline) if self.entry else self.by_hand

    @property
    def seconds(self) -> float | None:
        """Median seconds of what is to be used from now on."""
        return median(self.entry.seconds) if self.entry else self.by_hand

    @property
    def gain(self) -> float | None:
        """Times as fast as by hand, 1 where the template stays; None if that was not measured."""
        return self.entry.gain if self.entry else 1.0 if self.by_hand else None

    def to_json(self) -> dict[str, Any]:
        """Seconds, FLOP/s; every key is always there."""
        entry, seconds = self.entry, self.seconds
        return {
            "kind": "kernel",
            "task": self.task.name,
            "site": self.task.variant.site.key,
            "lowering": self.task.lowering,
            "works": list(self.works),
            "verdict": "tuned" if entry else "template",
            "reason": self.reason,
            "tile": list(entry.tile) if entry else None,
            "knobs": dict(entry.knobs) if entry and entry.knobs is not None else None,
            "space": entry.space if entry else None,
            "transferred": entry.transferred if entry else None,
            "by_hand_s": self.baseline,
            "tuned_s": seconds,
            "gain": self.gain,
            "flop_per_s": self.flop / seconds if seconds else None,
            "trials": self.trials,
            "failures": dict(self.failures),
        }


@dataclass(frozen=True)
class Report:
    """``logs``: folders that were written. ``trials``, ``seconds`` and ``cpu_s``: of this run alone, confirmations and
    this process included."""

    rows: tuple[Row, ...]
    logs: tuple[Path, ...]
    notes: tuple[str, ...]
    trials: int
    seconds: float
    cpu_s: float

    @property
    def gain(self) -> float | None:
        """Geometric mean over the kernels that were measured."""
        return geometric_mean(r.gain for r in self.rows if r.gain)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "session",
            "gain": self.gain,
            "kernels": len(self.rows),
            "tuned": sum(r.entry is not None for r in self.rows),
            "trials": self.trials,
            "seconds": self.seconds,
            "cpu_s": self.cpu_s,
            "logs": [str(p) for p in self.logs],
            "notes": list(self.notes),
        }


def geometric_mean(values: Iterable[float]) -> float | None:
    """None where there are no values."""
    found = [math.log(v) for v in values]
    return math.exp(sum(found) / len(found)) if found else None


@dataclass(frozen=True)
class State:
    """How far a session is.

    ``task``: the kernel whose trial ended last; ``gain``, ``flop_per_s``, ``by_hand_flop_per_s``: of its best so far.
    ``left_s``: seconds left, as far as can be told.
    """

    done: int
    total: int
    task: Task | None = None
    doing: str = ""
    gain: float | None = None
    flop_per_s: float | None = None
    by_hand_flop_per_s: float | None = None
    left_s: float | None = None


Progress = Callable[[State], None]


class Interrupted(KeyboardInterrupt):
    """Stopped by the user. ``report`` has what is kept."""

    def __init__(self, report: Report):
        super().__init__("interrupted")
        self.report = report


class Stopped(XframeError):
    """Nothing can be measured, or written, any more. ``report`` has what is kept."""

    def __init__(self, why: str, report: Report):
        super().__init__(why)
        self.report = report
