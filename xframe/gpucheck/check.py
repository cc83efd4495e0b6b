"""A check: its steps one after another, each within its time, and what each found on disk as soon as it is over."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from xframe import comparison, store
from xframe.errors import XframeError
from xframe.gpucheck import machine, steps
from xframe.gpucheck.journal import CUT, DONE, FAILED, INCOMPLETE, INTERRUPTED, SKIPPED, Found, Journal
from xframe.gpucheck.settings import Progress, Settings, Step
from xframe.results import Measurement
from xframe.types import Outcome

#: The step that looks at what is there, and its seconds.
LOOK, LOOKING = "machine", 45.0


def check(settings: Settings, journal: Journal, progress: Progress) -> list[Found]:
    """Carry out what is not done yet; each step is written as soon as it is over.

    Each step has its share of the time that is left, so that what others did not need is shared out. A step that runs
    out of its time, or is interrupted, keeps the rows that it has. Those that an earlier run did not come to have their
    turn before those that it did not finish, and before what needs these. Without a GPU all steps but the first are
    skipped, and say why.

    Raises
    ------
    UsageError
        There is no such model or folder; nothing was looked at.
    """
    deadline = time.monotonic() + 60 * settings.minutes
    made = list(steps.steps(settings, progress))
    journal.steps = [LOOK, *(step.name for step in made)]
    progress("what is there")
    looking = Step(LOOK, 0.0, lambda place, limit: ((), machine.facts()))
    found, stopped = _carried_out(looking, journal.place(LOOK), LOOKING)  # always anew: it may be gone
    why = "" if machine.devices() else "no GPU"
    before = journal.known(LOOK)
    if not (why and before and before.facts.get("gpus")):  # what is kept is of the machine that the rows are of
        journal.write(found)
    todo = [(step, before) for step in made if (before := journal.known(step.name)) is None or before.state != DONE]
    again = {step.name for step, before in todo if before and before.state != SKIPPED}
    todo.sort(key=lambda one: not again.isdisjoint((one[0].name, one[0].after)))
    ahead = sum(step.share for step, _ in todo)
    for step, before in todo:
        left, share = deadline - time.monotonic(), step.share / ahead
        ahead -= step.share
        if why or stopped or left < step.least:
            if before is None or before.state == SKIPPED:
                reason = why or (INTERRUPTED if stopped else f"{left:.0f} s were left")
                journal.write(Found(step.name, SKIPPED, reason))
            continue
        progress(f"{step.name}, {left:.0f} s left")
        found, stopped = _carried_out(step, journal.place(step.name), min(left, max(step.least, left * share)))
        if before is None or found.state == DONE or _timed(found) >= _timed(before):
            journal.write(found)
    return list(journal)


def _timed(found: Found) -> int:
    """Rows that have a time."""
    return sum(row["median_s"] is not None for row in found.rows)


def _state(rows: Sequence[Measurement]) -> tuple[str, str]:
    """Of a step that came to its end: another try may time more where one of its rows broke, or none has a time."""
    broke = Counter(m.outcome for m in rows if m.outcome in (Outcome.FAILED, Outcome.TIMEOUT))
    if broke:
        return INCOMPLETE, ", ".join(f"{n} of {len(rows)} rows {outcome.value}" for outcome, n in broke.items())
    if rows and all(m.outcome != Outcome.OK for m in rows):
        return INCOMPLETE, f"none of {len(rows)} rows has a time"
    return DONE, ""


def _carried_out(step: Step, place: Path, limit: float) -> tuple[Found, bool]:
    """What a step found within ``limit`` seconds, and whether the user stopped it."""
    started = time.monotonic()

    def found(
        state: str, reason: str = "", rows: Sequence[Measurement] = (), more: Mapping[str, Any] | None = None
    ) -> Found:
        flop = {"flop": done} if (done := _flop(rows)) else {}
        facts = {**step.facts, **flop, **(more or {})}
        return Found(step.name, state, reason, round(time.monotonic() - started, 3), tuple(map(_flat, rows)), facts)

    place.mkdir(parents=True, exist_ok=True)
    try:
        with alarm(limit):
            rows, facts = step.run(place, limit)
        return found(*_state(rows), rows, facts), False
    except KeyboardInterrupt as e:
        run = e.run if isinstance(e, comparison.Interrupted) else None
        if run is not None:
            store.write(run, place)
        late = time.monotonic() - started >= limit
        reason = f"after {limit:.0f} s" if late else INTERRUPTED
        return found(CUT, reason, run.measurements if run else ()), not late
    except XframeError as e:
        return found(FAILED, str(e)), False
    except Exception as e:  # one step must not cost the others
        return found(FAILED, f"{type(e).__name__}: {e}"), False


@contextlib.contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Within the block a KeyboardInterrupt comes after so many seconds, and instead of an end by SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    kept = {s: signal.signal(s, stop) for s in (signal.SIGALRM, signal.SIGTERM)}
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in kept.items():
            signal.signal(number, handler)


def _flat(measurement: Measurement) -> dict[str, Any]:
    """The row of a measurement, with what only a check asks for."""
    return {**store.row(measurement), "kernel_s": kernel_seconds(measurement), "detail": detail(measurement)}


def kernel_seconds(measurement: Measurement) -> float | None:
    """Of a pass, in the kernels of its convolutions alone: the fastest profiled one; None where none was profiled."""
    passes = [[k.end - k.start for k in p.kernels if k.kind == "conv"] for p in measurement.profiles]
    return min((sum(seconds) for seconds in passes if seconds), default=None)


def detail(measurement: Measurement) -> str:
    """Of the one convolution of a row: its tile, or the engine that ran; empty for rows of a network."""
    return measurement.sites[0].detail if len(measurement.sites) == 1 else ""


def _flop(rows: Sequence[Measurement]) -> int | None:
    """Of all convolutions of the network that these are rows of."""
    found = next((m.case.artifact for m in rows if m.case.artifact), None)
    return sum(site.flop for _, site in found.conv_sites) if found else None
