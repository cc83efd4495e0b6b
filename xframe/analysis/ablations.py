"""What the switches of a runner change: read off the rows of an ablation, each beside the defaults of its set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from xframe.analysis.ratios import THRESHOLD, Ratio, Verdict, ratio
from xframe.results import Measurement
from xframe.types import Outcome

#: What a row is in its set: the default; one switch turned; a try at two or more; what helped, together, measured
#: again; the slowest single one, measured again. It is in the row's environment, as ``ablation``: {set, step, changed,
#: threshold}, the last the difference that counts as none, a part of the time.
DEFAULT, ALONE, TRIED, TOGETHER, WORST = "default", "alone", "tried", "together", "worst"
#: Not of the registry: threads, and another way to run the framework (torch.compile).
THREADS, FRAMEWORK = "threads", "framework"

Changed = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Setting:
    """Some switches turned. ``default``: the row of the defaults that was measured in turn with it."""

    step: str
    changed: Changed
    measurement: Measurement
    default: Measurement

    @property
    def ok(self) -> bool:
        return self.measurement.outcome == self.default.outcome == Outcome.OK

    @cached_property
    def speedup(self) -> Ratio | None:
        """The default's time over its own: above 1 it helps. None where one of the two has no time."""
        return ratio(self.default.rounds, self.measurement.rounds, paired=True) if self.ok else None

    @property
    def threshold(self) -> float:
        """What it was asked to differ by: a part of the time."""
        found: float = about(self.measurement).get("threshold", THRESHOLD)
        return found

    @property
    def verdict(self) -> Verdict | None:
        """Whether it is faster or slower than the default; None where it has no time."""
        return None if self.speedup is None else self.speedup.inverse.verdict(self.threshold)

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.changed)

    def to_json(self) -> dict[str, Any]:
        """What a row of its measurement does not say."""
        speedup, verdict = self.speedup, self.verdict
        return {
            "step": self.step,
            "changed": dict(self.changed),
            "set": self.measurement.environment["ablation"]["set"],
            "speedup": speedup and speedup.value,
            "speedup_low": speedup and speedup.low,
            "speedup_high": speedup and speedup.high,
            "verdict": verdict and verdict.value,
            "threshold": self.threshold,
        }


@dataclass(frozen=True)
class Ablation:
    """All settings of one runner at one batch. ``default`` is its first row with the defaults."""

    default: Measurement
    settings: tuple[Setting, ...]

    def of(self, step: str) -> tuple[Setting, ...]:
        return tuple(s for s in self.settings if s.step == step)

    @property
    def threshold(self) -> float:
        """What settings were asked to differ by: a part of the time."""
        return Setting(DEFAULT, (), self.default, self.default).threshold

    @property
    def together(self) -> Setting | None:
        """All that helped, measured again; None where nothing did, it fails, or the run was cut short before."""
        return next((s for s in self.of(TOGETHER) if s.ok), None)

    @property
    def worst(self) -> Setting | None:
        """The slowest single setting with as many threads, measured again where something helped; None: none is slow"""
        return next((s for s in self.of(WORST) if s.ok), None) or slowest(self.of(ALONE))

    @property
    def best(self) -> Setting | None:
        """What helped together, if it still did when it was measured again; None: the defaults."""
        again = self.together
        return again if again is not None and again.verdict == Verdict.FASTER else None

    @property
    def worst_to_best(self) -> Ratio | None:
        """Time of the worst setting over that of the best; None where there is no worse one than the default."""
        if self.worst is None:
            return None
        best = self.best
        return against(self.worst, best) if best else self.worst.speedup and self.worst.speedup.inverse


def ablations(measurements: Iterable[Measurement]) -> list[Ablation]:
    """The ablations in the rows of a result; rows that belong to none are passed over."""
    mine = [m for m in measurements if "ablation" in m.environment]
    defaults = {about(m)["set"]: m for m in mine if about(m)["step"] == DEFAULT}
    settings: dict[tuple[Any, ...], list[Setting]] = {}
    for m in mine:
        if (default := defaults.get(about(m)["set"])) is not None:  # there is none where the run was interrupted before
            found = settings.setdefault((default.case.framework, default.case.runner, default.case.batch), [])
            if m is not default:
                found.append(Setting(about(m)["step"], tuple(about(m)["changed"].items()), m, default))
    first = {(m.case.framework, m.case.runner, m.case.batch): m for m in reversed(defaults.values())}
    return [Ablation(first[key], tuple(found)) for key, found in settings.items()]


def rows(measurements: Iterable[Measurement]) -> Iterator[tuple[Measurement, dict[str, Any]]]:
    """Each row of each ablation, with what :meth:`Setting.to_json` tells of it."""
    for one in ablations(measurements):
        for s in (Setting(DEFAULT, (), one.default, one.default), *one.settings):
            yield s.measurement, s.to_json()


def about(m: Measurement) -> Mapping[str, Any]:
    """``set``, ``step``, ``changed`` and ``threshold`` of a row of an ablation; files of before lack the last."""
    found: Mapping[str, Any] = m.environment["ablation"]
    return found


def against(one: Setting, other: Setting) -> Ratio | None:
    """The time of ``one`` over that of ``other``; beside the defaults of each where they are of different sets."""
    if one.speedup is None or other.speedup is None:
        return None
    if one.default is other.default:
        return ratio(one.measurement.rounds, other.measurement.rounds, paired=True)
    return one.speedup.inverse.over(other.speedup.inverse)


def helped(settings: Iterable[Setting]) -> list[Setting]:
    """The best value of each switch that is faster than the default, the largest gain first."""
    best: dict[str, tuple[float, Setting]] = {}
    for s in settings:
        speedup, name = s.speedup, next(iter(dict(s.changed)), "")
        if speedup is not None and s.verdict == Verdict.FASTER:
            best[name] = max(best.get(name, (0.0, s)), (speedup.value, s), key=lambda x: x[0])
    return [s for _, s in sorted(best.values(), key=lambda x: -x[0])]


def slowest(settings: Iterable[Setting]) -> Setting | None:
    """The slowest one that is slower than the default with as many threads."""
    slow = [
        (s.speedup.value, s)
        for s in settings
        if s.speedup is not None and s.verdict == Verdict.SLOWER and THREADS not in dict(s.changed)
    ]
    return min(slow, key=lambda x: x[0])[1] if slow else None
