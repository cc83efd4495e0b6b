"""The profiled passes of one row as quantities: what a typical pass spends on each site, each kind and each overhead.

A kernel that is tied to a convolution is of it, whatever it does there: so the time at a site is that of all that its
lowering needs, padding, a change of layout and transforms included. A framework's reorders have no site: they come of
the layouts that it chose, and are layout.

A typical pass is the mean over rounds of the interquartile mean of a round's passes, ranked by their wall time less the
profiler's cost; rounds count as in :mod:`xframe.analysis.bootstrap`. Medians of many kernels would not sum to the
median of their sums; this mean is linear: it is the same weighted sum for a kernel, a gap and the whole, so that what
sums in every pass sums in the typical one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain, pairwise
from statistics import median

import numpy as np

from xframe.analysis import algorithms, bootstrap
from xframe.analysis.labels import PLANNED, title
from xframe.analysis.shares import overhead, shares
from xframe.results import Measurement
from xframe.types import ConvSite, Kernel, Profile

CONV = "conv"
#: Changes from a round's samples to its passes that differ by so small a share of the time are alike.
SAME = 0.01


def place(kernel: Kernel) -> tuple[str, ConvSite | None]:
    """What a kernel's time counts as: that of a convolution, with its site where it is tied to one, or its kind."""
    return (kernel.kind, None) if kernel.site is None else (CONV, kernel.site)


@dataclass(frozen=True)
class Turn:
    """What was taken of a row in one or more rounds, the last of which ended with profiled passes."""

    samples: tuple[float, ...]
    plain: tuple[float, ...]
    passes: tuple[Profile, ...]


def turns(measurement: Measurement) -> list[Turn]:
    """What was taken together, in the order of the rounds; rounds after the last passes are of the last turn.

    Where a result does not say how many passes were taken after which round, they count as spread evenly.
    """
    rounds, passes, plain = measurement.rounds, measurement.profiles, measurement.plain
    told = [tuple(t) for t in measurement.environment.get("profiled", ())]
    if [sum(t[1] for t in told), sum(t[2] for t in told)] != [len(passes), len(plain)]:
        count = min(len(rounds), len(passes)) or 1
        sizes = [len(x) for x in (rounds, passes, plain)]
        r, p, s = ([n * (i + 1) // count - n * i // count for i in range(count)] for n in sizes)
        told = list(zip(accumulate(r), p, s, strict=True))
    ends = [min(t[0], len(rounds)) for t in told[:-1]] + [len(rounds)]
    slices = zip(_parts(ends), *(_parts(list(accumulate(t[i] for t in told))) for i in (1, 2)), strict=True)
    found = [Turn(tuple(x for r in rounds[a] for x in r), plain[c], passes[b]) for a, b, c in slices]
    return [t for t in found if t.samples and t.passes]


def _parts(ends: Sequence[int]) -> list[slice]:
    return [slice(*x) for x in pairwise((0, *ends))]


class Row:
    """An OK measurement with profiles. Quantities are arrays: the estimate, then its bootstrap resamples.

    ``turns``: how many rounds, or groups of rounds, with passes there are; with one, resamples are not numbers.
    """

    def __init__(self, measurement: Measurement):
        self.measurement, self.case = measurement, measurement.case
        self.title = title(self.case)
        taken = turns(measurement)
        self.turns = len(taken)
        ranked = [sorted(map(_ordered, t.passes), key=_rank) for t in taken]
        self.passes = list(chain.from_iterable(ranked))
        times = bootstrap.middles([t.samples for t in taken])
        walls = bootstrap.middles([[p.wall - p.cost for p in of_turn] for of_turn in ranked])
        weights = bootstrap.of_rounds(walls - times, SAME * float(np.median(times)) if taken else 1.0)
        within = [w for of_turn in ranked for w in bootstrap.middle(len(of_turn))]
        self._weights = np.repeat(weights, [*map(len, ranked)], axis=1) * np.array(within)
        beside = [t.plain or measurement.plain for t in taken]
        self.plain = weights @ bootstrap.middles(beside) if beside and measurement.plain else None
        self.wall = weights @ times
        if self.turns < 2:  # rounds without passes between them still tell how the wall time varies
            alone = bootstrap.middles([r for r in measurement.rounds if r])
            self.wall = bootstrap.of_rounds(np.zeros_like(alone)) @ alone

    @property
    def forced(self) -> bool:
        """Whether it is of the common executor, told what to lower its convolutions to."""
        return self.case.runner == PLANNED and bool(self.case.plan.lowerings)

    @cached_property
    def _shares(self) -> list[list[float]]:
        return [shares(p.kernels).tolist() for p in self.passes]

    @cached_property
    def _seen(self) -> dict[Hashable, np.ndarray]:
        """What -> its seconds in each pass: kernels by :func:`place`, parts of the overhead by name."""
        found: dict[Hashable, np.ndarray] = {}

        def add(what: Hashable, number: int, seconds: float) -> None:
            found.setdefault(what, np.zeros(len(self.passes)))[number] += seconds

        for number, (one, spent) in enumerate(zip(self.passes, self._shares, strict=True)):
            for kernel, seconds in zip(one.kernels, spent, strict=True):
                add(place(kernel), number, seconds)
            for part, seconds in overhead(one).items():
                add(part, number, seconds)
        return found

    def typical(self, values: np.ndarray) -> np.ndarray:
        """The quantity that is ``values`` in each pass."""
        return self._weights @ values

    def spent(self, kind: str, site: ConvSite | None = None) -> np.ndarray:
        """Seconds in kernels of that kind, at that site."""
        return self._quantity((kind, site))

    def idle(self, part: str) -> np.ndarray:
        """Seconds of a part of the overhead (``shares.OVERHEAD``)."""
        return self._quantity(part)

    def _quantity(self, what: Hashable) -> np.ndarray:
        return self.typical(self._seen[what]) if what in self._seen and self._seen[what].any() else self._zero

    @cached_property
    def _zero(self) -> np.ndarray:
        """Nothing, in every resample, also where nobody knows what resamples are like."""
        return np.zeros_like(self.wall)

    @cached_property
    def places(self) -> tuple[ConvSite | None, ...]:
        """Where convolutions were seen; None: at no known site."""
        return tuple(w[1] for w in self._seen if isinstance(w, tuple) and w[0] == CONV)

    @cached_property
    def sites(self) -> frozenset[ConvSite]:
        """The sites at which convolutions were seen in every pass."""
        return frozenset(s for s in self.places if s is not None and self._seen[CONV, s].all())

    @property
    def kernels(self) -> int:
        """How many were seen in all passes."""
        return sum(len(p.kernels) for p in self.passes)

    @cached_property
    def typical_wall(self) -> np.ndarray:
        """Wall time less the profiler's cost: what all shares and the overhead sum to."""
        return self.typical(np.array([p.wall - p.cost for p in self.passes]))

    @property
    def cost(self) -> float:
        """Seconds that the profiler took."""
        return float(self.typical(np.array([p.cost for p in self.passes]))[0])

    @property
    def perturbation(self) -> float:
        """The median profiled step less the median one that was not."""
        m = self.measurement
        return median(p.wall for p in self.passes) - median(m.plain or m.samples)

    @cached_property
    def lowerings(self) -> dict[ConvSite, str | None]:
        """What each site was lowered to; None where nobody can tell.

        Another backend's plan has its own names for algorithms: there the words of the kernels tell.
        """
        kernels = [k for p in self.passes for k in p.kernels]
        seconds = [s for spent in self._shares for s in spent]
        return algorithms.used(kernels, seconds, self.case.plan if self.forced else None)


def _ordered(one: Profile) -> Profile:
    """The kernels by time, so that sums do not depend on the order in which they were reported."""
    return replace(one, kernels=tuple(sorted(one.kernels, key=_time)))


def _time(kernel: Kernel) -> tuple:
    return kernel.start, kernel.end, kernel.name, kernel.kind, kernel.site.key if kernel.site else ""


def _rank(one: Profile) -> tuple:
    """Equal times are told apart by the kernels, so that the order in which passes of a turn came does not matter."""
    return one.wall - one.cost, one.wall, tuple(map(_time, one.kernels))
