"""What ran in a step of CNTK: its own profiler writes when each operator began and ended.

The trace counts microseconds from a moment that nobody tells; kernels are placed so that each lies in its step.
Python 3.6, in CNTK's own environment.
"""

import glob
import json
import os
import shutil
import tempfile
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Tuple

import cntk as C
import numpy as np

from xframe.errors import XframeError
from xframe.types import ConvSite, Kernel, Profile

#: Layer operators that CNTK composes of others -> what these compute together.
COMPOSED = {"lrn": "norm", "batchnorm": "norm", "softmax": "softmax"}
#: CNTK's operator -> what it computes.
KINDS = {
    "Convolution": "conv",
    "Times": "fc",
    "Pooling": "pool",
    "BatchNormalization": "norm",
    "ReLU": "activation",
    "Clip": "activation",
    "Plus": "elementwise",
    "ElementTimes": "elementwise",
    "Pad": "copy",
    "Splice": "copy",
    "Dropout": "copy",
    "Reshape": "copy",
}
_SUFFIX = "Forward"
_BYTES = 1 << 22  # of the profiler's buffer, for one session
#: Of the chain that tells what the profiler costs: operators, turns with and without it, calls in a turn.
_CHAIN, _TURNS, _CALLS = 40, 8, 16


class Event(NamedTuple):
    """An operator's run, in seconds of the trace's own."""

    name: str
    start: float
    end: float


class Pass(NamedTuple):
    """A profiled step, in seconds of ``time.perf_counter``, and its events."""

    start: float
    end: float
    events: Tuple[Event, ...]


def profiles(
    step: Callable[[], None],
    passes: int,
    owners: Mapping[str, str],
    kinds: Mapping[str, str],
    sites: Mapping[str, ConvSite],
    composed: Mapping[str, str],
) -> List[Profile]:
    """So many profiled steps, each after one that is not.

    Parameters
    ----------
    owners, kinds
        CNTK's name of an operator -> the spec's layer, and -> what kind of operator it is.
    sites
        Layer -> its convolution.
    composed
        Layer -> what its operators, whatever they are, make up together.

    Raises
    ------
    XframeError
        The profiler left no trace, or one that does not fit the steps.
    """
    seen, cost = record(step, passes), seconds_per_event()
    shift = _shift(seen)
    out = []
    for one in seen:
        kernels = []
        for event in one.events:
            operator, layer = kinds.get(event.name, ""), owners.get(event.name, "")
            times = event.start + shift - one.start, event.end + shift - one.start
            kernels.append(_kernel(operator, layer, sites.get(layer), composed.get(layer, ""), times))
        out.append(Profile(one.end - one.start, tuple(kernels), (), cost * len(kernels)))
    return out


def _kernel(operator: str, layer: str, site: Any, composed: str, times: Tuple[float, float]) -> Kernel:
    conv = operator == "Convolution" and site is not None
    kind = composed or KINDS.get(operator, "")
    return Kernel(
        operator or "?", times[0], times[1], site if conv else None, "", kind, layer, "MKL direct" if conv else ""
    )


def record(step: Callable[[], None], passes: int) -> List[Pass]:
    """Profile every second of ``2 * passes`` steps. Raises XframeError where there is no trace that fits them."""
    folder = tempfile.mkdtemp(prefix="xframe-cntk-")
    try:
        return _record(step, passes, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _record(step: Callable[[], None], passes: int, folder: str) -> List[Pass]:
    C.debugging.set_node_timing(True)
    times = []
    C.debugging.start_profiler(folder, True, _BYTES)
    try:
        for _ in range(passes):
            step()
            C.debugging.enable_profiler()
            start = time.perf_counter()
            step()
            times.append((start, time.perf_counter()))
            C.debugging.disable_profiler()
    finally:
        C.debugging.stop_profiler()
    paths = glob.glob(os.path.join(folder, "*_detail_*.json"))
    if len(paths) != 1:
        raise XframeError("CNTK's profiler left %d traces, not one" % len(paths))
    with open(paths[0]) as f:
        events = _events(json.load(f))
    each, rest = divmod(len(events), passes)
    if not each or rest:
        raise XframeError("CNTK's profiler saw %d operators in %d equal steps" % (len(events), passes))
    return [Pass(a, b, tuple(events[i * each : (i + 1) * each])) for i, (a, b) in enumerate(times)]


def _events(rows: List[Dict[str, Any]]) -> List[Event]:
    """Begins and ends joined, in the order of their begins; forward operators alone."""
    begun: Dict[Tuple[int, str], float] = {}
    out: List[Event] = []
    for row in rows:
        place = row["tid"], row["name"]
        seconds = (row["ts"] - (1 << 64 if row["ts"] >> 63 else 0)) * 1e-6  # written as unsigned, and may be negative
        if row["ph"] == "B":
            begun[place] = seconds
        elif place in begun and row["name"].endswith(_SUFFIX):
            out.append(Event(row["name"][: -len(_SUFFIX)], begun.pop(place), seconds))
    return sorted(out, key=lambda event: event.start)


def _shift(seen: List[Pass]) -> float:
    """What to add to the trace's times: the middle of what leaves all events in their steps."""
    low = max(one.start - one.events[0].start for one in seen)
    high = min(one.end - max(event.end for event in one.events) for one in seen)
    return (low + high) / 2


def seconds_per_event() -> float:
    """What the profiler adds for each operator, from a chain of many small ones, run with it and without in turns.

    The fastest step of each side counts: what else the machine does only ever adds to one.
    """
    source = C.input_variable(16)
    chain = source
    for _ in range(_CHAIN):
        chain = C.relu(chain)
    feeds, outputs = {source: np.zeros((1, 16), np.float32)}, [chain.output]

    def step() -> None:
        chain.forward(feeds, outputs, as_numpy=False)

    def plain() -> float:
        start = time.perf_counter()
        step()
        return time.perf_counter() - start

    on: List[float] = []
    off: List[float] = []
    for _ in range(_TURNS):
        off += [plain() for _ in range(_CALLS)]
        on += [one.end - one.start for one in record(step, _CALLS)]
    return (min(on) - min(off)) / _CHAIN
