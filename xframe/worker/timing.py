"""The one timing loop, for every framework and backend."""

import gc
import math
import time
from typing import Callable, List, NamedTuple, Sequence, Tuple

#: A visit never stores more samples than this, however short a step is.
MAX_SAMPLES = 10000

#: Python 3.6 has no ``perf_counter_ns``.
clock_ns = getattr(time, "perf_counter_ns", None) or (lambda: int(time.perf_counter() * 1e9))


class Visit(NamedTuple):
    """Raw seconds of the timed steps, the number of warm-up steps before them, and whether the noise target was met."""

    seconds: List[float]
    warmups: int
    settled: bool


def quartiles(values: Sequence[float]) -> Tuple[float, float, float]:
    """First quartile, median and third quartile, linearly interpolated. Raises ValueError when empty."""
    if not values:
        raise ValueError("no samples, no quartiles")
    ordered = sorted(values)

    def at(fraction):
        place = fraction * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (place - low) * (ordered[high] - ordered[low])

    return at(0.25), at(0.5), at(0.75)


def median_error(q1: float, q3: float, count: int) -> float:
    """Standard error of the median of ``count`` normally distributed values with these quartiles."""
    return 1.2533 * (q3 - q1) / 1.349 / math.sqrt(count)


def relative_noise(values: Sequence[float]) -> float:
    """Interquartile range over median; 0 when the median is 0 (a clock too coarse to tell)."""
    q1, median, q3 = quartiles(values)
    return (q3 - q1) / median if median else 0.0


def sample(
    step: Callable[[], None],
    sync: Callable[[], None],
    min_samples: int,
    min_seconds: float,
    max_seconds: float,
    noise: float,
    warm_up: bool = True,
    clock: Callable[[], int] = clock_ns,
) -> Visit:
    """Time ``step(); sync()`` until the samples are enough, long enough and quiet enough.

    Parameters
    ----------
    min_samples, min_seconds
        Both must be reached.
    max_seconds
        Hard cap on warm-up and samples together, looked at between steps; one sample is always taken.
    noise
        Target of :func:`relative_noise`.
    warm_up
        False for a step that is known to be so long that what it finds cold does not matter.
    clock
        Nanoseconds, monotonic.

    Notes
    -----
    The warm-up (a quarter of ``min_seconds``, at least one step) goes through the same code as the samples. The noise
    is looked at again only when the samples have grown by a quarter, so that its cost does not grow with their square.
    """

    def timed():
        before = clock()
        step()
        sync()
        return clock() - before

    least, most = min_seconds * 1e9, max_seconds * 1e9
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        spent, warmups = 0, 0
        while warm_up and (not warmups or spent < min(least / 4, most)) and warmups < MAX_SAMPLES:
            spent += timed()
            warmups += 1
        taken = []  # type: List[int]
        measured, look_again, settled = 0, 0, False
        while not taken or (spent + measured < most and len(taken) < MAX_SAMPLES):
            taken.append(timed())
            measured += taken[-1]
            if len(taken) >= max(min_samples, look_again) and measured >= least:
                settled = relative_noise(taken) <= noise
                if settled:
                    break
                look_again = len(taken) + len(taken) // 4 + 1
        return Visit([ns * 1e-9 for ns in taken], warmups, settled)
    finally:
        if collecting:
            gc.enable()
