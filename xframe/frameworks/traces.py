"""The trace of a step, from a profiler that writes XPlanes (TensorFlow's and JAX's are one code): events of threads.

A step runs in a marked interval of the trace itself, so that its wall time and all its events are of one clock.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from time import perf_counter
from types import MappingProxyType
from typing import Any, NamedTuple

from xframe.errors import XframeError
from xframe.types import Span

#: Name of the event that encloses a profiled step.
MARK = "xframe.step"
#: Seconds of steps before the marked one, as warm as timed steps are, which run for longer without a break; and how
#: many at most, as each leaves its events.
WARM, STEPS = 0.04, 5
#: Calls of the calibration in a turn with the profiler on, and as many in one with it off.
CALLS = 16
#: Times that they take turns.
ROUNDS = 12


class Event(NamedTuple):
    """Something with a name that took from ``start`` to ``end``, in seconds, on one thread; on a GPU's stream instead,
    if it is of a ``device``."""

    name: str
    start: float
    end: float
    thread: str
    stats: Mapping[str, Any] = MappingProxyType({})
    device: bool = False


#: Runs a function with the profiler on; its events.
Recorder = Callable[[Callable[[], None]], list[Event]]


def marked(
    run: Callable[[], None], record: Recorder, mark: Callable[[str], AbstractContextManager[Any]]
) -> list[Event]:
    """The events of a recording in which ``run`` was run at least twice, the last time inside the mark.

    Those before have the profiler set up what it keeps for each thread, and caches and threads awake: to start a
    profiler takes as long as a few steps.
    """

    def all_of_them() -> None:
        until, steps = perf_counter() + WARM, 0
        while not steps or (perf_counter() < until and steps < STEPS):
            run()
            steps += 1
        with mark(MARK):
            run()

    return record(all_of_them)


def step(events: Iterable[Event]) -> tuple[float, str, list[Event]]:
    """Seconds and thread of the marked step, and the events that began in it, in order, from its start on.

    Raises
    ------
    XframeError
        There is no mark: the profiler dropped it, as it does when its buffers are full.
    """
    events = list(events)
    mark = next((e for e in events if e.name == MARK), None)
    if mark is None:
        raise XframeError(f"the profiler's trace has {len(events)} events and not that of the step")
    inside = [e for e in events if e is not mark and mark.start <= e.start <= mark.end]
    moved = [e._replace(start=e.start - mark.start, end=e.end - mark.start) for e in inside]
    return mark.end - mark.start, mark.thread, sorted(moved, key=lambda e: (e.start, -e.end))


def seconds_per_event(run: Callable[[], None], record: Recorder) -> float:
    """What the profiler adds for each event, from work of many small ones.

    Turns with the profiler on and off alternate, and the fastest call of each side counts: what else the machine does
    only ever adds to a call, and is no cost of the profiler.
    """

    def fastest() -> float:
        taken = []
        for _ in range(CALLS):
            start = perf_counter()
            run()
            taken.append(perf_counter() - start)
        return min(taken)

    fastest()
    on, off, events = [], [], 0
    for _ in range(ROUNDS):
        off.append(fastest())
        events += len(record(lambda: on.append(fastest())))
    return (min(on) - min(off)) * CALLS * ROUNDS / events if events else 0.0


def spans(events: Sequence[Event], wall: float, thread: str, waiting: Sequence[str] = ()) -> list[Span]:
    """What the host did, from the events that are not kernels.

    Python has what is before the first and after the last of all events of its ``thread``, and a ``tf.function``'s own
    event. Work handed to a pool of threads is on its way until one takes it up. Events whose names begin with one of
    ``waiting`` tell nothing.
    """
    own = [e for e in events if e.thread == thread]
    handed = {e.stats.get("_p"): e for e in events if e.name == "ThreadpoolListener::Record"}
    found = []
    for event in events:
        if event.name == "ThreadpoolListener::StartRegion" and event.stats.get("_c") in handed:
            found.append(Span("thread wake-up", handed[event.stats["_c"]].start, event.start, "wake-up"))
        elif event.end > event.start and not event.name.startswith(tuple(waiting)):
            kind = "python" if "tf_function_call" in event.stats else _kind(event.name)
            found.append(Span(event.name, event.start, event.end, kind))
    if own:
        first, last = min(e.start for e in own), max(e.end for e in own)
        found += [Span("call", 0.0, first, "python"), Span("return", min(last, wall), wall, "python")]
    return found


def _kind(name: str) -> str:
    lower = name.lower()
    if "alloc" in lower:
        return "allocation"
    return "copy" if any(word in lower for word in ("memcpy", "copyto", "transfer")) else "dispatch"
