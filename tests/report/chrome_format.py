"""What a trace file must be, by the Chrome trace event format (its "object form"), so that every viewer opens it.

From "Trace Event Format", the document of catapult's trace viewer, which Perfetto's importer follows: phases, fields
that each must have, and complete events of one thread that nest.
"""

from collections import defaultdict
from math import isfinite

#: Metadata events -> the one argument that each takes, and its type.
METADATA = {
    "process_name": ("name", str),
    "process_labels": ("labels", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}
#: Fields of every event, and more of those of each phase.
COMMON = {"name": str, "ph": str, "pid": int, "tid": int, "args": dict}
MORE = {"X": {"cat": str, "ts": (int, float), "dur": (int, float)}, "M": {}}
TOP = {"traceEvents": list, "displayTimeUnit": str, "otherData": dict}
#: A viewer's clock ticks in nanoseconds: ends that are as near are equal.
TICK = 1e-3


def problems(content):
    """What is wrong with a trace, in words; empty where nothing is."""
    found = [f"{name} is {type(content.get(name)).__name__}" for name, kind in TOP.items()
             if not isinstance(content.get(name), kind)]  # fmt: skip
    found += [f"an unknown field {name}" for name in content.keys() - TOP]
    if content.get("displayTimeUnit") not in ("ms", "ns"):
        found.append("displayTimeUnit is neither ms nor ns")
    events = content.get("traceEvents", [])
    for number, event in enumerate(events):
        found += [f"event {number}: {what}" for what in _of_event(event)]
    return found or [*_tracks(events), *_nesting(events)]


def _of_event(event):
    phase = event.get("ph")
    if phase not in MORE:
        return [f"phase {phase!r}"]
    fields = {**COMMON, **MORE[phase]}
    found = [f"{name} is {event.get(name)!r}" for name, kind in fields.items()
             if not isinstance(event.get(name), kind) or isinstance(event[name], bool)]  # fmt: skip
    found += [f"an unknown field {name}" for name in event.keys() - fields]
    if found:
        return found
    if phase == "X":
        found += [f"{name} is {event[name]}" for name in ("ts", "dur") if not isfinite(event[name])]
        found += ["it ends before it begins"] if event["dur"] < 0 else []
    elif event["name"] not in METADATA:
        found.append(f"unknown metadata {event['name']}")
    else:
        name, kind = METADATA[event["name"]]
        if set(event["args"]) != {name} or not isinstance(event["args"][name], kind):
            found.append(f"{event['name']} with {event['args']}")
    return found


def _tracks(events):
    """Each process and thread is named once, before any viewer has to show it by a number."""
    named = defaultdict(int)
    for e in events:
        if e["ph"] == "M":
            named[e["name"], e["pid"], e["tid"] if e["name"].startswith("thread") else None] += 1
    found = [f"{what} of {pid}/{tid} is given {n} times" for (what, pid, tid), n in named.items() if n > 1]
    for pid, tid in sorted({(e["pid"], e["tid"]) for e in events if e["ph"] == "X"}):
        found += [f"process {pid} has no name"] if ("process_name", pid, None) not in named else []
        found += [f"thread {pid}/{tid} has no name"] if ("thread_name", pid, tid) not in named else []
    return found


def _nesting(events):
    """Complete events of a thread are a stack of calls: each ends no later than the one that it is in."""
    threads = defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            threads[e["pid"], e["tid"]].append((e["ts"], -e["dur"], e["name"]))
    for thread, some in threads.items():
        open_ = []
        for start, minus, name in sorted(some):
            while open_ and open_[-1] <= start + TICK:
                open_.pop()
            if open_ and start - minus > open_[-1] + TICK:
                yield f"{name} at {start} of thread {thread} crosses the end of what it is in"
            open_.append(start - minus)
