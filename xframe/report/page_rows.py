"""The rows of a run as its page, its Markdown and its trace name, group and count them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import PurePath

from xframe.analysis.comparable import apart_from_first
from xframe.analysis.labels import planned
from xframe.results import Measurement, Run
from xframe.types import Case, Outcome
from xframe.worker.timing import quartiles


@dataclass(frozen=True)
class Entry:
    """A row of a run; ``number`` is its place there, from 1."""

    number: int
    measurement: Measurement

    @property
    def case(self) -> Case:
        return self.measurement.case

    @property
    def ok(self) -> bool:
        return self.measurement.outcome == Outcome.OK

    @property
    def tried(self) -> bool:
        """Whether it is of an ablation."""
        return "ablation" in self.measurement.environment

    @property
    def name(self) -> str:
        return name(self.case)

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """First quartile, median and third quartile in seconds; of an OK row only."""
        return quartiles(self.measurement.samples)

    @property
    def median(self) -> float:
        return self.quartiles[1]


@dataclass(frozen=True)
class Group:
    """Rows that compute the same: times are compared within a group only."""

    title: str
    entries: tuple[Entry, ...]

    @property
    def case(self) -> Case:
        return self.entries[0].case

    @property
    def timed(self) -> list[Entry]:
        """The OK rows, the fastest first; without those of an ablation, which are held against each other alone."""
        return sorted((e for e in self.entries if e.ok and not e.tried), key=lambda e: e.median)

    @property
    def ranked(self) -> list[Entry]:
        """Those of :attr:`timed` that may be held against the first of the run, the fastest first."""
        return [e for e in self.timed if e.number not in self.apart]

    @cached_property
    def apart(self) -> dict[int, str]:
        """Why others may not, in words, by their numbers."""
        reasons = apart_from_first(e.measurement for e in self.entries)
        return {e.number: reasons[id(e.measurement)] for e in self.entries if id(e.measurement) in reasons}


def groups(run: Run) -> list[Group]:
    """The rows by what they compute, in the order of the run."""
    entries = [Entry(i, m) for i, m in enumerate(run.measurements, 1)]
    found: dict[str, list[Entry]] = {}
    for title, some in groupby(entries, key=lambda e: heading(e.case)):
        found.setdefault(title, []).extend(some)
    return [Group(title, tuple(some)) for title, some in found.items()]


def heading(case: Case) -> str:
    """``alexnet, batch 1, 2 threads``: what a group has in common."""
    parts = [PurePath(case.model).name, f"batch {case.batch}", f"{case.threads} thread{'s' * (case.threads != 1)}"]
    parts += [] if case.device == "cpu" else [case.device]
    parts += [] if case.direction == "forward" else [case.direction]
    return ", ".join(parts)


def name(case: Case) -> str:
    """``pytorch``, ``jax ort``, ``tvm winograd (pytorch's export)``, ``pytorch, threads 1``: a row within its group."""
    if case.runner == "native" or not case.framework:
        return column(case)
    text = f"{_runner(case)} ({case.framework}'s export)" if planned(case) else f"{case.framework} {case.runner}"
    return text + _switched(case)


def column(case: Case) -> str:
    """``pytorch``, ``ort``, ``tvm winograd``, ``cudnn fft, fallback gemm``: where the rows of all frameworks' exports
    under one backend are one."""
    return _runner(case) + _switched(case)


def _switched(case: Case) -> str:
    return "".join(f", {name} {value}" for name, value in case.options)


def _runner(case: Case) -> str:
    if case.runner == "native":
        return case.framework or PurePath(case.model).name
    return f"{case.runner} {PurePath(case.plan.label).name}" if planned(case) else case.runner


def options_words(case: Case) -> str:
    """``layout=channels_last, threads=1``; empty where all switches are at their default."""
    return ", ".join(f"{k}={v}" for k, v in case.options)


def ms(seconds: float | None) -> str:
    """Milliseconds with a sign where negative; a dash where there is no such number."""
    if seconds is None:
        return "-"
    value = seconds * 1e3
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def listed(words: Iterable[str]) -> str:
    """``a, b and c``, each once."""
    found = list(dict.fromkeys(words))
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} and {found[-1]}" if found else ""


def counted(number: int, one: str, many: str = "") -> str:
    """``1 row``, ``2 rows``."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def thinned(values: Sequence[float], most: int) -> list[float]:
    """At most ``most`` of the values, evenly spread over their order."""
    step = max(1, -(-len(values) // most)) if most > 0 else len(values) + 1
    return list(values[::step]) if most > 0 else []
