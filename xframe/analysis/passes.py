"""The profiled passes of one row as quantities: what a typical pass spends on each site, each kind and each overhead.

A typical pass is the interquartile mean of all passes, ranked by their wall time less the profiler's cost. Medians of
many kernels would not sum to the median of their sums; this mean is as robust, and linear: it is the same weighted sum
for a kernel, a gap and the whole, so that what sums in every pass sums in the typical one.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import cached_property
from statistics import median

import numpy as np

from xframe.analysis import algorithms, bootstrap
from xframe.analysis.labels import title
from xframe.analysis.shares import overhead, shares
from xframe.results import Measurement
from xframe.types import ConvSite, Kernel, Profile

CONV = "conv"


def place(kernel: Kernel) -> tuple[str, ConvSite | None]:
    """Kind and, of a convolution, site of a kernel. One that has a site and no kind is the convolution."""
    kind = kernel.kind or (CONV if kernel.site is not None else "")
    return kind, kernel.site if kind == CONV else None


class Row:
    """An OK measurement with profiles. Quantities are arrays: the estimate, then its bootstrap resamples."""

    def __init__(self, measurement: Measurement):
        self.measurement, self.case = measurement, measurement.case
        self.title = title(self.case)
        self.passes = sorted(map(_ordered, measurement.profiles), key=_rank)
        content = (
            sorted(map(sorted, measurement.rounds)),
            sorted(measurement.plain),
            [(p.wall, p.cost) for p in self.passes],
        )
        rng = bootstrap.generator(self.title, *content)
        self.wall = bootstrap.middles(measurement.rounds, rng)
        self.plain = bootstrap.middles([measurement.plain], rng) if measurement.plain else None
        self._weights = bootstrap.middle_weights(len(self.passes), rng)

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
        return self.typical(self._seen[what]) if what in self._seen else np.zeros_like(self.wall)

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
        """What each site was lowered to; None where nobody can tell."""
        kernels = [k for p in self.passes for k in p.kernels]
        convolutions = [k if place(k)[1] is not None else Kernel(k.name, 0.0, 0.0) for k in kernels]
        seconds = [s for spent in self._shares for s in spent]
        return algorithms.used(convolutions, seconds, self.case.plan)


def _ordered(one: Profile) -> Profile:
    """The kernels by time, so that sums do not depend on the order in which they were reported."""
    return replace(one, kernels=tuple(sorted(one.kernels, key=_time)))


def _time(kernel: Kernel) -> tuple:
    return kernel.start, kernel.end, kernel.name, kernel.kind, kernel.site.key if kernel.site else ""


def _rank(one: Profile) -> tuple:
    """Equal times are told apart by the kernels, so that the order in which passes came does not matter."""
    return one.wall - one.cost, one.wall, tuple(map(_time, one.kernels))
