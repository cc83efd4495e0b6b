"""One kernel on its way through a tuning session: by hand, searched, its best confirmed, decided.

What to measure next is asked of it, and what came out is told to it; it measures nothing itself. All that it knows
follows from the trials it was told, so that one read from a journal goes on where it was.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Protocol

from xframe.lowering.tasks import Task
from xframe.tuning.points import OK, Point, Trial
from xframe.worker.timing import median_error, quartiles

#: Points proposed at a time: what was learned counts from the next ones on.
BATCH = 8
#: Trials of the hand-written schedule before a kernel is given up.
ATTEMPTS = 2
#: How many of the best are measured again; how often each, and at most where noise leaves it open what they gain.
FINALISTS, REPEATS, MOST_REPEATS = 3, 2, 4
#: What a schedule must gain to be kept: as much, as processes differ by less; and so many standard errors above 1.
LEAST_GAIN, SURE = 1.02, 3.0
#: Times that a search is asked again when it only has points that were measured before.
PATIENCE = 3


class Proposer(Protocol):
    """Who searches: :class:`xframe.tuning.search.Search`, or that of MetaSchedule's own space."""

    def propose(self, n: int) -> list[Point]:
        """``n`` points at most, none twice, the hand-written one first; none when there are no more."""

    def learn(self, trials: Sequence[Trial]) -> None:
        """Take in what became of points."""


@dataclass(frozen=True)
class Decision:
    """``best``: the confirmed trial of the schedule to keep, the samples of its repeats joined; None: the template
    stays, and ``reason`` says why."""

    best: Trial | None
    reason: str = ""


def gain(trial: Trial) -> float:
    """Times as fast as the hand-written schedule: the median over pairs of samples taken in turn.

    Load that comes and goes hits both of a pair: on a busy machine this held where a ratio of medians was off tenfold.
    """
    return _gains(trial)[1]


def beyond_noise(trial: Trial) -> bool:
    """Whether the gain is worth a record and surely one, given the interquartile range of the pairs."""
    q1, middle, q3 = _gains(trial)
    error = median_error(q1, q3, len(trial.seconds))
    return middle >= LEAST_GAIN and middle - SURE * error > 1 and median(trial.seconds) < median(trial.baseline)


def _gains(trial: Trial) -> tuple[float, float, float]:
    return quartiles([b / s for s, b in zip(trial.seconds, trial.baseline, strict=False)])


class Kernel:
    """``make`` gives the proposer when it is first needed.

    ``share``: trials that it may take in all; None while that is not known. ``decision``: None until it is done.
    """

    def __init__(self, task: Task, make: Callable[[], Proposer]):
        self.task = task
        self.trials: list[Trial] = []
        self.confirmations: dict[Point, list[Trial]] = {}
        self.share: int | None = None
        self.decision: Decision | None = None
        self._make = make
        self._proposer: Proposer | None = None
        self._pending: deque[Point] = deque()
        self._finals: deque[Point] = deque()
        self._confirming = False
        self._under_way, self._learned = 0, 0
        self._seen: set[Point] = set()
        self._exhausted = False

    @property
    def by_hand(self) -> float | None:
        """Median seconds of the hand-written schedule; None before it was measured."""
        samples = [s for t in self.trials if t.outcome == OK for s in t.baseline]
        return median(samples) if samples else None

    @property
    def best(self) -> Trial | None:
        """The trial with the largest gain so far."""
        return max((t for t in self.trials if t.outcome == OK), key=gain, default=None)

    @property
    def failures(self) -> Counter[str]:
        """How many trials ended how, but for OK."""
        return Counter(t.outcome for t in self.trials if t.outcome != OK)

    def take(self, trial: Trial, confirms: bool) -> None:
        """A trial has ended, or is known from a journal. Several may come before it is asked for the first one."""
        if confirms:
            self.confirmations.setdefault(trial.point, []).append(trial)
        else:
            self.trials.append(trial)
            self._seen.add(trial.point)

    def ended(self, trial: Trial, confirms: bool) -> None:
        """A trial that :meth:`next` gave has ended."""
        self._under_way -= 1
        self.take(trial, confirms)

    def next(self) -> tuple[Point, bool] | None:
        """What to measure now, and whether to confirm it; None: nothing, or nothing before what is under way ends.

        May come to the decision.
        """
        if self.decision is None and self.by_hand is None:
            return self._by_hand()
        if self.decision is not None or self.share is None:
            return None
        if not self._confirming:
            if len(self.trials) + self._under_way < self.share and not self._exhausted:
                point = self._proposed()
                if point is not None:
                    return self._send(point), False
            if self._under_way:
                return None  # it may be among the best
            self._confirming = True
        if not self._finals and not self._under_way:
            self._finals = self._to_confirm()
            if not self._finals:
                self.decision = self._decide()
        return (self._send(self._finals.popleft()), True) if self._finals else None

    def _send(self, point: Point) -> Point:
        self._under_way += 1
        self._seen.add(point)
        return point

    def _by_hand(self) -> tuple[Point, bool] | None:
        if self._under_way:
            return None
        if len(self.trials) >= ATTEMPTS:
            last = self.trials[-1]
            self.decision = Decision(None, f"its hand-written schedule was not measured: {_words(last)}")
            return None
        if self._proposer is None:
            self._proposer = self._make()
            self._hand = self._proposer.propose(1)[0]
        return self._send(self._hand), False

    def _proposed(self) -> Point | None:
        """A point that was not measured yet; None when there are no more.

        What is known is learned in the portions in which it was measured, so that a search goes on as it would have.
        """
        if self._proposer is None:  # after a journal
            self._proposer = self._make()
            self._proposer.propose(1)
        patience = PATIENCE
        while patience:
            while self._pending:
                point = self._pending.popleft()
                if point not in self._seen:
                    return point
            portion = self.trials[self._learned : self._learned + (BATCH if self._learned else 1)]
            if portion:
                self._proposer.learn(portion)
                self._learned += len(portion)
            else:
                patience -= 1
            self._pending.extend(self._proposer.propose(BATCH))
            if not self._pending:
                break
        self._exhausted = True
        return None

    def _to_confirm(self) -> deque[Point]:
        """The finalists, all of them once, then again; then, if none is sure to gain, those that may."""
        others = [t for t in self.trials if t.outcome == OK and t.point != self.trials[0].point]  # the first is by hand
        faster = sorted((t for t in others if gain(t) > 1), key=gain, reverse=True)
        points = [t.point for t in faster[:FINALISTS]]
        again = {p: self.confirmations.get(p, []) for p in points}
        due = deque(p for turn in range(REPEATS) for p in points if len(again[p]) <= turn)
        if due or any(_kept(a) for a in self.confirmations.values()):
            return due
        open_ = [
            p for p, a in again.items() if len(a) < MOST_REPEATS and _joined(a).outcome == OK and _open(_joined(a))
        ]
        fewest = min((len(again[p]) for p in open_), default=0)
        return deque(p for p in open_ if len(again[p]) == fewest)

    def _decide(self) -> Decision:
        found = [_joined(again) for again in self.confirmations.values()]
        kept = [_joined(again) for again in self.confirmations.values() if _kept(again)]
        if kept:
            return Decision(max(kept, key=gain))
        best = max((t for t in found if t.outcome == OK), key=gain, default=None)
        if best is not None:
            return Decision(None, f"measured again, the best has {gain(best):.3f}x, which is not beyond noise")
        if found:
            return Decision(None, f"measured again, the best did not end well: {_words(found[0])}")
        others = [t for t in self.trials if t.outcome != OK]
        if others and len(others) >= len(self.trials) - 1:
            return Decision(None, f"no other schedule ran: {_words(others[0])}")
        return Decision(None, f"none of {len(self.trials)} schedules was faster")


def _kept(again: Sequence[Trial]) -> bool:
    """Whether all repeats were well and faster, and together surely so."""
    return all(t.outcome == OK and gain(t) > 1 for t in again) and beyond_noise(_joined(again))


def _open(trial: Trial) -> bool:
    """Whether it may turn out to gain enough."""
    return gain(trial) >= LEAST_GAIN and not beyond_noise(trial)


def _joined(again: Sequence[Trial]) -> Trial:
    """One trial of the repeats: all samples, the worst share; the first that failed, if one did."""
    failed = next((t for t in again if t.outcome != OK), None)
    if failed is not None:
        return failed
    shares = [t.share for t in again if t.share is not None]
    return replace(
        again[-1],
        seconds=tuple(s for t in again for s in t.seconds),
        baseline=tuple(s for t in again for s in t.baseline),
        share=max(shares, default=None),
        cpu_s=sum(t.cpu_s for t in again),
    )


def _words(trial: Trial) -> str:
    return f"{trial.outcome}, {trial.reason}" if trial.reason else trial.outcome
