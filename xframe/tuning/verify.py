"""Whether a schedule log still holds: its kernels measured again in fresh processes, each in turn with the template.

Absolute times drift with the machine, so what is compared is the share that a kernel takes of the hand-written one's
time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from xframe.errors import UsageError, XframeError
from xframe.lowering.target import Cpu, Target, named
from xframe.lowering.tasks import Task
from xframe.schedules import device, find
from xframe.schedules.log import Entry, read
from xframe.tuning.points import OK, Point, Runner, Trial

#: How far a kernel's share of the hand-written one's time may be from the recorded share, as a part of that.
TOLERANCE = 0.05
#: Outcomes besides those of a trial: the record is of no kernel of this version; the kernel gains less, or more, than
#: it did.
REFUSED, SLOWER, FASTER = "REFUSED", "SLOWER", "FASTER"

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Verified:
    """A record held against what its kernel takes now.

    ``recorded_s``, ``now_s``: median seconds of the kernel, in the log and now; ``baseline_s``: of the hand-written one
    now. ``ratio``: now / baseline, over the same of the log: above 1 the kernel gains less than it did. ``outcome``: OK
    within :data:`TOLERANCE`; :data:`SLOWER` or :data:`FASTER`; :data:`REFUSED`; or that of the trial that failed. All
    but OK have a ``reason``; it may also say what disturbed the measuring. What was not measured is None.
    """

    task: str
    recorded_s: float
    now_s: float | None
    baseline_s: float | None
    ratio: float | None
    outcome: str
    reason: str


def verify(
    folder: Path,
    rounds: int = 3,
    on_progress: Progress | None = None,
    start: Callable[[Target], Runner] | None = None,
) -> list[Verified]:
    """Measure each record of the log in ``folder`` again: once a round, each round in fresh processes.

    Parameters
    ----------
    on_progress
        Called with a line on what happens now.
    start
        Makes the runner that measures; None: one process at a time here, on the GPU of the log if it is of one.

    Raises
    ------
    UsageError
        ``rounds`` makes no sense.
    XframeError
        The log can't be read, or it is another machine's or another version's.
    """
    if rounds < 1:
        raise UsageError(f"--rounds {rounds} makes no sense: it must be at least 1")
    log = read(folder)
    here, stale = device.here(), find.stale(log)
    place = next((name for name, one in here.items() if one.differs(log.device) is None), None)
    if place is None or stale:
        how = here["cpu"].differs(log.device) if log.device.kind == "cpu" else log.device.words
        why = stale if place is not None else f"it was tuned on another kind of device ({how}): verify it there"
        raise XframeError(f"the schedule log {folder} can't be verified here: {why}")
    tasks = {name: task for name in log.entries if (task := _task(name)) is not None}
    trials: dict[str, list[Trial]] = {name: [] for name in tasks}
    for turn in range(1, rounds + 1):
        going = {name: task for name, task in tasks.items() if all(t.outcome == OK for t in trials[name])}
        with contextlib.ExitStack() as closing:
            runners: dict[int, Runner] = {}
            for number, (name, task) in enumerate(going.items(), 1):
                if on_progress is not None:
                    on_progress(f"round {turn} of {rounds}, kernel {number} of {len(going)}: {name}")
                if task.threads not in runners:
                    target = Cpu.host(task.threads) if place == "cpu" else named(log.target, task.threads)
                    runners[task.threads] = start(target) if start else _local(target, place)
                    closing.callback(runners[task.threads].close)
                point = Point(log.entries[name].tile, trace=log.entries[name].trace)
                trials[name].append(runners[task.threads].submit(task, point).result())
    return [_verified(entry, trials.get(name)) for name, entry in log.entries.items()]


def _task(name: str) -> Task | None:
    with contextlib.suppress(ValueError):
        return Task.named(name)
    return None


def _local(target: Target, place: str) -> Runner:
    from xframe.tuning.runner import LocalRunner

    return LocalRunner(target, 1, device=place)


def _verified(entry: Entry, trials: list[Trial] | None) -> Verified:
    """``trials``: those of the record, one a round; None where it is of no task."""
    if trials is None:
        return _refused(entry, "no lowering of this version has this kernel")
    last = trials[-1]
    if last.outcome != OK:
        return Verified(entry.task, median(entry.seconds), None, None, None, last.outcome, last.reason)
    if last.workload != entry.workload:
        return _refused(entry, f"it is of another definition of this kernel ({entry.workload}, not {last.workload})")
    share = median(median(t.seconds) / median(t.baseline) for t in trials)
    ratio = share * entry.gain
    outcome = OK if abs(ratio - 1) <= TOLERANCE else SLOWER if ratio > 1 else FASTER
    words = f"it gained {entry.gain:.3f}x over the hand-written schedule, and gains {1 / share:.3f}x now"
    now, baseline = median(median(t.seconds) for t in trials), median(median(t.baseline) for t in trials)
    told = [] if outcome == OK else [words]
    told += dict.fromkeys(t.note for t in trials if t.note)
    return Verified(entry.task, median(entry.seconds), now, baseline, ratio, outcome, "; ".join(told))


def _refused(entry: Entry, why: str) -> Verified:
    return Verified(entry.task, median(entry.seconds), None, None, None, REFUSED, why)
