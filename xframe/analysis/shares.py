"""What each kernel of a profiled pass has of its time, and what the host did in the rest."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import numpy as np

from xframe.types import HOST, ConvSite, Kernel, Profile, Span

#: Parts of the overhead that no span of the host tells: before the first and after the last kernel, and between them.
CALL, GAPS = "call", "gaps"
#: What the profiler itself took, negative: it is somewhere in the other parts, and nobody knows where.
PROFILER = "profiler"
#: Kernels that ran before the pass began or after it ended, negative: time that was not in the pass.
OUTSIDE = "outside"
#: All parts of the overhead.
OVERHEAD = (*HOST, CALL, GAPS, PROFILER, OUTSIDE)

Place = TypeVar("Place", bound=Hashable)


def shares(kernels: Sequence[Kernel]) -> np.ndarray:
    """Seconds of each kernel, in the order given: each instant is shared evenly among the kernels that run in it.

    They sum to :func:`busy`. A kernel that ends before it starts has none.
    """
    if not kernels:
        return np.zeros(0)
    times, begin, end, running = _swept([(k.start, k.end) for k in kernels])
    each = np.divide(np.diff(times), running, out=np.zeros(running.size), where=running > 0)
    before = np.concatenate([[0.0], np.cumsum(each)])
    return before[end] - before[begin]


def spent(profiles: Sequence[Profile], on: Callable[[Kernel], Place | None]) -> dict[Place, tuple[float, ...]]:
    """Seconds of the kernels of each place that ``on`` gives, if any: one value a pass in which there are some."""
    found: dict[Place, list[float]] = {}
    for one in profiles:
        sums: dict[Place, float] = {}
        for kernel, seconds in zip(one.kernels, shares(one.kernels).tolist(), strict=True):
            if (place := on(kernel)) is not None:
                sums[place] = sums.get(place, 0.0) + seconds
        for place, total in sums.items():
            found.setdefault(place, []).append(total)
    return {place: tuple(values) for place, values in found.items()}


def site(kernel: Kernel) -> ConvSite | None:
    """The convolution that a kernel is tied to."""
    return kernel.site


def busy(kernels: Sequence[Kernel]) -> float:
    """Seconds in which at least one kernel runs."""
    return _union([(k.start, k.end) for k in kernels])


def overhead(profile: Profile) -> dict[str, float]:
    """Seconds of a pass in which no kernel ran, less what the profiler took: wall - busy - cost, by what the host did.

    An instant belongs to the innermost span of the host around it, of which it takes the kind; without one it is
    :data:`CALL` or :data:`GAPS`. The innermost is the one that began last.

    Returns
    -------
    dict
        Every name of :data:`OVERHEAD` -> seconds.
    """
    kernels = [k for k in profile.kernels if k.end > k.start]
    spans = sorted(profile.host, key=lambda s: (s.start, -s.end, HOST.index(s.kind)))  # inner ones later
    known: list[Kernel | Span] = [*kernels, *spans]
    edges = [0.0, profile.wall, *(t for x in known for t in (x.start, x.end))]
    times = np.unique(np.clip(edges, 0.0, profile.wall))

    def during(x: Kernel | Span) -> slice:
        return slice(*np.searchsorted(times, np.clip([x.start, x.end], 0.0, profile.wall)))

    lengths, middles = np.diff(times), (times[1:] + times[:-1]) / 2

    names = [*HOST, CALL, GAPS]
    first, last = (min(k.start for k in kernels), max(k.end for k in kernels)) if kernels else (np.inf, np.inf)
    owner = np.where((middles > first) & (middles < last), names.index(GAPS), names.index(CALL))
    for span in spans:
        owner[during(span)] = HOST.index(span.kind)
    idle = np.ones(lengths.size, bool)
    for kernel in kernels:
        idle[during(kernel)] = False

    out = dict.fromkeys(OVERHEAD, 0.0)
    spent = np.bincount(owner[idle], lengths[idle], len(names))
    out.update(zip(names, spent.tolist(), strict=True))
    out[PROFILER] = -profile.cost
    out[OUTSIDE] = -_union([(k.start, min(k.end, 0.0)) for k in kernels])
    out[OUTSIDE] -= _union([(max(k.start, profile.wall), k.end) for k in kernels])
    return out


def _union(intervals: Sequence[tuple[float, float]]) -> float:
    """How long at least one of them lasts."""
    if not intervals:
        return 0.0
    times, _, _, running = _swept(intervals)
    return float(np.diff(times)[running > 0].sum())


def _swept(intervals: Sequence[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """All times at which an interval begins or ends, ascending; the positions there of each one's begin and end; and
    how many last from each time to the next. One that ends before it starts lasts no time."""
    starts, ends = np.array(intervals, dtype=np.float64).T
    times, where = np.unique(np.concatenate([starts, np.maximum(starts, ends)]), return_inverse=True)
    begin, end = where.reshape(2, -1)
    change = np.bincount(begin, minlength=times.size) - np.bincount(end, minlength=times.size)
    return times, begin, end, np.cumsum(change)[:-1]
