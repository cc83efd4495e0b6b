"""What became of each row from one result to the next: same, faster, slower, or ambiguous.

Times are compared by their raw samples (see :mod:`xframe.analysis.ratios`). A machine also drifts between two results,
which no sample of one of them shows. Rows that were measured in turn with each other drifted together, so where a row
has enough such neighbours in both results, it is judged beside what became of them. A row that then changed, but did
not by itself, is ambiguous, and so is one that changed as all of them did: it may be the machine, or what they share.
What other processes of the machine can explain is ambiguous as well (:func:`slowed`) where they used more than
``FOREIGN`` CPUs, less of which is on any machine; and so is a change of less than :data:`PROCESSES` where a row is of
one process in either result.

How often it is wrong was counted over simulated pairs of results, 8 rows of 3 visits on a machine that drifts by 3 %
between results and 1 % between visits, each visit to a row, in a process of its own, off by 1.2 %, skewed noise of 3 %
with outliers (``tests/analysis/test_changes.py``). Of 4,000 rows of unchanged code 2 came out slower or faster. A
slowdown by 10 % was found 95 times in 100, one by 5 % 28 times, one by 20 % always. Without neighbours, such drift
can't be told from a change: 24 % of unchanged rows came out slower or faster; 0.3 % if only the visits drift.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, NamedTuple

from xframe.analysis import comparable
from xframe.analysis.comparable import Difference
from xframe.analysis.ratios import THRESHOLD, Ratio, Verdict, checked, ratio
from xframe.errors import UsageError
from xframe.results import FOREIGN, INTERRUPTED, Measurement, Run
from xframe.types import Outcome
from xframe.worker.timing import quartiles

#: Verdicts where there are no two times. BROKEN: it was OK; FIXED: it is OK now; FAILING: neither.
BROKEN, FIXED, FAILING, MISSING, NEW, REFUSED = "broken", "fixed", "failing", "missing", "new", "not comparable"
#: What two processes of the same code may differ by, a part of the time: what memory each was handed out stays so.
#: TensorFlow's AlexNet at batch 1 was seen to, by 13 %, each of three visits to either process within 2 %.
PROCESSES = 0.15
#: Neighbours that it takes to tell the machine's drift from a change.
NEIGHBOURS = 3


class Identity(NamedTuple):
    """What makes two rows of two results the same one. ``nth``: of equal ones in one result, from 0."""

    model: str
    framework: str | None
    backend: str
    lowering: str
    device: str
    batch: int
    threads: int
    direction: str
    options: tuple[tuple[str, str], ...]
    nth: int

    @property
    def group(self) -> tuple[Any, ...]:
        """Rows of one group were measured in turn, unless memory did not allow it, or they are of an ablation."""
        return (self.model, self.device, self.batch, self.threads, self.direction)

    @property
    def runner(self) -> tuple[Any, ...]:
        """What is measured, wherever, and of however much."""
        return (self.framework, self.backend, self.lowering, self.options, self.nth)

    def __str__(self) -> str:
        names = [self.framework or self.model, self.backend, self.lowering if self.lowering != "auto" else ""]
        names += [f"{name}={value}" for name, value in self.options]
        return f"{' '.join(n for n in names if n)}, batch {self.batch}, threads {self.threads}"


@dataclass(frozen=True)
class Change:
    """One row. ``times``: the new over the old; ``drift``: that of its neighbours, where there are enough."""

    identity: Identity
    verdict: str
    old: Measurement | None = None
    new: Measurement | None = None
    times: Ratio | None = None
    drift: Ratio | None = None
    reason: str = ""
    differences: tuple[Difference, ...] = ()

    @property
    def group(self) -> tuple[Any, ...]:
        """Rows of one group were measured in turn in both results."""
        return (self.identity.group, *(comparable.in_turn(m) for m in (self.old, self.new) if m is not None))

    @property
    def regressed(self) -> bool:
        return self.verdict in (Verdict.SLOWER.value, BROKEN)

    def to_json(self) -> dict[str, Any]:
        """A flat row; seconds; ratios are of the new time over the old one."""
        named = {**self.identity._asdict(), "options": dict(self.identity.options)}
        times: dict[str, Any] = {}
        for side, m in (("old", self.old), ("new", self.new)):
            times[f"{side}_outcome"] = m.outcome.value if m else None
            times[f"{side}_median_s"] = quartiles(m.samples)[1] if m and m.outcome == Outcome.OK else None
        for name, r in (("ratio", self.times), ("drift", self.drift)):
            times |= {name: r and r.value, f"{name}_low": r and r.low, f"{name}_high": r and r.high}
        told = {"reason": self.reason, "differences": [d.to_json() for d in self.differences]}
        return {**named, "verdict": self.verdict, **times, **told}


@dataclass(frozen=True)
class Changes:
    """All rows, in the order of the new result, then what is missing; and what differs between the results.

    ``gone_allowed``: rows that were OK may be missing.
    """

    rows: tuple[Change, ...]
    differences: tuple[Difference, ...]
    threshold: float
    gone_allowed: bool = False

    @property
    def regressions(self) -> tuple[Change, ...]:
        return tuple(c for c in self.rows if c.regressed)

    @property
    def gone(self) -> tuple[Change, ...]:
        """Rows that were OK, and are not in the new result."""
        return tuple(c for c in self.rows if c.verdict == MISSING and c.old and c.old.outcome == Outcome.OK)

    @property
    def exit_code(self) -> int:
        """1: something regressed; 2: nothing did, but rows could not be compared, or are gone; else 0."""
        if self.regressions:
            return 1
        unjudged = any(c.verdict == REFUSED for c in self.rows) or (self.gone and not self.gone_allowed)
        return 2 if unjudged else 0

    def to_json(self) -> dict[str, Any]:
        """The sum, without the rows."""
        return {
            "exit_code": self.exit_code,
            "regressions": len(self.regressions),
            "verdicts": Counter(c.verdict for c in self.rows),
            "threshold": self.threshold,
            "differences": [d.to_json() for d in self.differences],
        }


def changes(
    old: Run, new: Run, threshold: float = THRESHOLD, allowed: Collection[str] = (), steady: bool = False
) -> Changes:
    """Hold two results against each other.

    Parameters
    ----------
    threshold
        Effects up to it count as none: a part of the old time.
    allowed
        Names of facts (``xframe.analysis.comparable``) that may differ though times then say little; and
        :data:`MISSING` where rows that were OK may be gone.
    steady
        The machine does not drift: what all rows have in common is a change too.

    Raises
    ------
    UsageError
        They can't be compared, have no row in common, or the threshold makes no sense.
    """
    checked(threshold)
    differences = comparable.of_runs(old, new, allowed)
    if refused := [d for d in differences if d.refused]:
        names = ",".join(d.name for d in refused)
        raise UsageError(
            f"these results can't be compared: {'; '.join(map(str, refused))}. Measure both alike, or allow it by name:"
            f" --allow {names}"
        )
    before, after = dict(_identified(old.measurements)), dict(_identified(new.measurements))
    if not before.keys() & after.keys():
        before = _elsewhere(before, after)
    if not before.keys() & after.keys():
        raise UsageError("these results have no row in common: nothing can be compared")
    rows = [_change(i, before.get(i), m, allowed) for i, m in after.items()]
    rows += [Change(i, MISSING, m, reason="it is not in the new result") for i, m in before.items() if i not in after]
    timed = [c for c in rows if c.times is not None]
    judged = tuple(_judged(c, timed, threshold, steady) for c in rows)
    return Changes(judged, differences, threshold, MISSING in allowed)


def slowed(load: float) -> float:
    """How many times as long a step can take beside other processes that used ``load`` CPUs, at most.

    A step waits for its slowest thread. Its median is longer only if half of the steps are; those take f, and the
    others 1, so that they have f / (1 + f) of the time. All of the load may have been in that time, and on the one CPU
    that the slowest thread needs, which then had 1 - load (1 + f) / f of it left, and that is 1 / f. So f is
    (1 + load) / (1 - load). Others that use memory or caches instead, from another CPU, leave at least half of those,
    and slow it by less. A whole CPU's load, and more, may take all of one CPU, and stop the step.
    """
    return (1 + load) / (1 - load) if load < 1 else math.inf


def _elsewhere(
    before: Mapping[Identity, Measurement], after: Mapping[Identity, Measurement]
) -> dict[Identity, Measurement]:
    """The old rows by what the new rows of the same runners are called, be they of another batch, device or number of
    threads: whether that may be compared is for the facts to say. Rows of which there are several keep their names."""
    sides = [Counter(i.runner for i in side) for side in (before, after)]
    names = {i.runner: i for i in after if all(count[i.runner] == 1 for count in sides)}
    return {names.get(i.runner, i): m for i, m in before.items()}


def _identified(measurements: Iterable[Measurement]) -> Iterator[tuple[Identity, Measurement]]:
    """The rows by what they are; one whose turn never came is none."""
    seen: Counter[Identity] = Counter()
    for m in measurements:
        if m.reason == INTERRUPTED:
            continue
        case = m.case
        label = case.plan.label
        names = (case.model, case.framework, case.runner, label, case.device, case.batch, case.threads, case.direction)
        one = Identity(*names, tuple(sorted(case.options)), 0)
        yield one._replace(nth=seen[one]), m
        seen[one] += 1


def _change(identity: Identity, old: Measurement | None, new: Measurement, allowed: Collection[str]) -> Change:
    """The row without the verdict on its times."""
    if old is None:
        return Change(identity, NEW, None, new, reason=new.reason or "it is not in the old result")
    was, now = old.outcome == Outcome.OK, new.outcome == Outcome.OK
    differences = comparable.of_rows(old, new, allowed)
    if not now:
        reason = f"{new.outcome.value}: {new.reason}"
        return Change(identity, BROKEN if was else FAILING, old, new, reason=reason, differences=differences)
    if not was:
        reason = f"it was {old.outcome.value}: {old.reason}"
        return Change(identity, FIXED, old, new, reason=reason, differences=differences)
    if refused := [d for d in differences if d.refused]:
        return Change(identity, REFUSED, old, new, reason="; ".join(map(str, refused)), differences=differences)
    return Change(identity, "", old, new, ratio(new.rounds, old.rounds), differences=differences)


def _judged(change: Change, timed: Sequence[Change], threshold: float, steady: bool) -> Change:
    """The row with the verdict on its times, if it has some."""
    times, old, new = change.times, change.old, change.new
    if times is None or old is None or new is None:
        return change

    processes = min(m.environment.get("processes", 1) for m in (old, new))

    def said(verdict: Verdict, reason: str = "", drift: Ratio | None = None) -> Change:
        if verdict in (Verdict.SLOWER, Verdict.FASTER):
            # Others only ever slow a row down: those beside the slower of the two may have made it so.
            side, which = (new, "new") if verdict is Verdict.SLOWER else (old, "old")
            most, whys = _excused(processes, side, which)
            judged = times if drift is None else times.over(drift)
            if judged.verdict(max(threshold, most - 1)) is not verdict:
                reason = f"{verdict.value}, but not by {', and by '.join(whys)}"
                verdict = Verdict.AMBIGUOUS
        return replace(change, verdict=verdict.value, reason=reason, drift=drift)

    alone = times.verdict(threshold)
    if min(len(old.rounds), len(new.rounds)) < 2:
        return said(alone, "one visit tells nothing of drift: measure with --rounds 3")
    drift = None if steady else _drift(c for c in timed if c is not change and c.group == change.group)
    if drift is None:
        return said(alone)
    beside, most = times.over(drift).verdict(threshold), 1 + threshold
    moved = {Verdict.SLOWER: times.value > most, Verdict.FASTER: times.value < 1 / most}
    if moved.get(beside, alone not in moved):
        return said(beside, drift=drift)
    others = f"the rows measured in turn with it became {percent(drift)} in the middle"
    return said(Verdict.AMBIGUOUS, f"{beside.value} beside the others, {alone.value} by itself: {others}", drift)


def _excused(processes: int, slower: Measurement, which: str) -> tuple[float, list[str]]:
    """How many times as long a row may take for no reason of its own, and the reasons in words."""
    most, whys = 1.0, []
    if processes < 2:
        most *= 1 + PROCESSES
        whys.append(f"the {PROCESSES:.0%} that two processes of the same code may differ by: measure both with --fresh")
    load = max(slower.environment.get("foreign_load", ()), default=0.0)
    if load > FOREIGN:
        most *= slowed(load)
        bound = f"up to {slowed(load):.1f} times as long" if load < 1 else "any time"
        busy = f"which used up to {load:.1f} CPUs while the {which} one was timed"
        whys.append(f"what other processes can explain, {busy}: {bound}")
    return most, whys


def _drift(others: Iterable[Change]) -> Ratio | None:
    """How the others moved: their median, and its error by how they scatter. None where they are too few."""
    logs = sorted(math.log(c.times.value) for c in others if c.times is not None)
    if len(logs) < NEIGHBOURS:
        return None
    middle = median(logs)
    scatter = 1.4826 * median(abs(x - middle) for x in logs)
    error = 1.96 * 1.2533 * scatter / math.sqrt(len(logs))
    return Ratio(math.exp(middle), math.exp(middle - error), math.exp(middle + error))


def percent(times: Ratio) -> str:
    """``1.2 % slower``; ``no slower`` below 0.05 %."""
    change = (times.value - 1) * 100
    return f"{abs(change):.1f} % {'slower' if change > 0 else 'faster'}" if abs(change) >= 0.05 else "no slower"
