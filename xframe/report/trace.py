"""The profiled passes of a run in Chrome's trace event format, which Perfetto and chrome://tracing open.

Each row is a process with four kinds of tracks: ``framework`` (the step), ``host`` (what the host did), ``operator``
(layers) and ``kernel``; of the last three as many as overlap. The passes of a row follow one another.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from xframe.report.page_html import clean
from xframe.report.page_rows import Entry, Group, groups
from xframe.results import Run
from xframe.store import finite
from xframe.types import Kernel, Profile

#: Kinds of tracks, from the top; each has this many numbers for tracks of its own.
TRACKS, LANES = ("framework", "host", "operator", "kernel"), 1000
#: Microseconds between two passes.
GAP = 100.0


class _Event(NamedTuple):
    """Seconds from the start of its pass."""

    name: str
    start: float
    end: float
    args: dict[str, Any]


def trace(run: Run) -> str:
    """JSON in the object form. A run without profiles gives a trace without events."""
    every = [(g, e) for g in groups(run) for e in g.entries if e.measurement.profiles]
    events = [event for group, entry in every for event in _row(group, entry)]
    content = {"traceEvents": finite(events), "displayTimeUnit": "ms", "otherData": {"created": clean(run.created)}}
    return json.dumps(content, allow_nan=False, separators=(",", ":")) + "\n"


def _row(group: Group, entry: Entry) -> Iterator[dict[str, Any]]:
    """The passes of a row, and the names and order of its tracks."""
    number = entry.number
    named = f"{number}. {entry.name}, {group.title}"
    yield _meta("process_name", number, 0, name=clean(named))
    yield _meta("process_sort_index", number, 0, sort_index=number)
    used: dict[int, str] = {}
    at = 0.0
    for i, profile in enumerate(entry.measurement.profiles, 1):
        for track, events in zip(TRACKS, _tracks(entry, profile, i), strict=True):
            for lane, event in _lanes(events):
                tid = TRACKS.index(track) * LANES + lane
                used[tid] = track if lane == 0 else f"{track} {lane + 1}"
                yield {
                    "name": clean(event.name), "cat": track, "ph": "X", "pid": number, "tid": tid,
                    "ts": at + event.start * 1e6, "dur": (event.end - event.start) * 1e6,
                    "args": {"pass": i, **event.args},
                }  # fmt: skip
        at += profile.wall * 1e6 + GAP
    for tid, name in sorted(used.items()):
        yield _meta("thread_name", number, tid, name=name)
        yield _meta("thread_sort_index", number, tid, sort_index=tid)


def _tracks(entry: Entry, profile: Profile, number: int) -> tuple[Iterable[_Event], ...]:
    """The events of one pass, by kind of track."""
    step = _Event(f"{entry.name}, pass {number}", 0.0, profile.wall, {"profiler_s": profile.cost})
    host = [_Event(s.name, s.start, s.end, {"kind": s.kind}) for s in profile.host]
    kernels = [_Event(k.name, k.start, k.end, _args(k)) for k in profile.kernels]
    return [step], host, _operators(profile.kernels), kernels


def _operators(kernels: Sequence[Kernel]) -> Iterator[_Event]:
    """From the first to the last of the kernels of a layer that run one after another."""
    placed = sorted((k for k in kernels if _operator(k)), key=lambda k: k.start)
    for name, some in groupby(placed, key=_operator):
        own = list(some)
        yield _Event(name, own[0].start, max(k.end for k in own), {"kernels": len(own)})


def _operator(kernel: Kernel) -> str:
    return kernel.layer or (kernel.site.key if kernel.site else "")


def _args(kernel: Kernel) -> dict[str, Any]:
    given = {
        "kind": kernel.kind, "layer": kernel.layer, "site": kernel.site.key if kernel.site else "", "role": kernel.role,
        "algorithm": kernel.algorithm,
    }  # fmt: skip
    return {k: clean(v) for k, v in given.items() if v}


def _lanes(events: Iterable[_Event]) -> Iterator[tuple[int, _Event]]:
    """Each event with its track: one may hold events within each other, never two that cross."""
    lanes: list[list[float]] = []  # the ends of the events that are open on each
    for event in sorted(events, key=lambda e: (e.start, -e.end)):
        for ends in lanes:
            while ends and ends[-1] <= event.start:
                ends.pop()
        lane = next((i for i, ends in enumerate(lanes) if not ends or event.end <= ends[-1]), len(lanes))
        if lane == len(lanes):
            lanes.append([])
        lanes[lane].append(event.end)
        yield lane, event


def _meta(kind: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": args}
