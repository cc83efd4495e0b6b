"""What each choice of a lowering costs, read off profiled passes, and the choice at every convolution that costs least.

The cost of a node is that of the kernels of a convolution, the cost of an edge that of the stage which brings the
image that earlier convolutions made into the form that a lowering reads: padded, channels rounded up to whole vectors,
blocks of pixels turned into channels.
All kernels here write plain NHWC images, so a conversion depends on the lowering that reads alone, whatever wrote;
where the network's input is read, there is nobody to share it with, and it counts as the node's. Nothing is made up for
a pair of lowerings that never met: an edge costs what its reader paid in the passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import numpy as np

from xframe.analysis import pbqp
from xframe.results import Measurement
from xframe.types import CONVERSIONS, ConvSite, Outcome

#: How the note begins on costs that were kept from another day.
EARLIER = "best was chosen by costs that were measured on"

Choice = tuple[ConvSite, str]
Samples = tuple[float, ...]


@dataclass(frozen=True)
class Prediction:
    """Seconds of one pass under the plan, by what they are spent on.

    ``beyond_s`` is what a timed pass takes beyond its kernels; negative where profiling slowed them down. ``optimal``:
    proven to cost least.
    """

    sites_s: float
    conversions_s: float
    other_s: float
    beyond_s: float
    optimal: bool

    @property
    def total_s(self) -> float:
        return self.sites_s + self.conversions_s + self.other_s + self.beyond_s

    def to_json(self) -> dict[str, Any]:
        return {"total_s": self.total_s, **asdict(self)}


@dataclass(frozen=True)
class Costs:
    """Raw seconds, one value a profiled pass; equal convolutions of a network are one site, and add up.

    ``kernels`` and ``conversions`` are those of a site under a lowering, ``other`` the kernels of no site. ``beyond``
    has one value a plan: its median timed pass less its median profiled one. ``failed``: outcome and reason of the
    plans that could not be measured, by the lowering that they were for. ``notes``: what disturbed the measuring.
    """

    kernels: Mapping[Choice, Samples]
    conversions: Mapping[Choice, Samples]
    other: Samples
    beyond: Samples
    failed: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(measurements: Iterable[Measurement]) -> Costs:
        """The costs in measurements of forced plans."""
        kernels: dict[Choice, list[float]] = {}
        conversions: dict[Choice, list[float]] = {}
        other: list[float] = []
        beyond: list[float] = []
        failed = {}
        for m in measurements:
            if m.outcome != Outcome.OK or not m.profiles:
                failed[m.case.plan.label] = (m.outcome.value, m.reason or "; ".join(m.notes))
                continue
            passes = []
            for one in (p.kernels for p in m.profiles):
                spent: Counter[tuple[ConvSite | None, bool]] = Counter()
                for k in one:
                    spent[k.site, k.role in CONVERSIONS] += k.end - k.start  # type: ignore[assignment]
                for site, lowering in m.case.plan.lowerings:
                    if (site, False) not in spent:
                        continue
                    kernels.setdefault((site, lowering), []).append(spent[site, False])
                    conversions.setdefault((site, lowering), []).append(spent[site, True])
                other.append(spent[None, False])
                passes.append(sum(spent.values()))
            beyond.append(median(m.plain or m.samples) - median(passes))
        return Costs(_frozen(kernels), _frozen(conversions), tuple(other), tuple(beyond), failed)

    def to_json(self) -> dict[str, Any]:
        """All but the notes: costs with notes are not for keeping."""
        sites = [
            {"site": site.key, "lowering": name, "kernels_s": spent, "conversions_s": self.conversions[site, name]}
            for (site, name), spent in self.kernels.items()
        ]
        return {"sites": sites, "other_s": self.other, "beyond_s": self.beyond, "failed": self.failed}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Costs:
        """The inverse of :meth:`to_json`. Raises KeyError, TypeError or ValueError on anything else."""
        choices = {(ConvSite.parse(r["site"]), r["lowering"]): r for r in data["sites"]}
        return Costs(
            {c: tuple(r["kernels_s"]) for c, r in choices.items()},
            {c: tuple(r["conversions_s"]) for c, r in choices.items()},
            tuple(data["other_s"]),
            tuple(data["beyond_s"]),
            {name: (outcome, reason) for name, (outcome, reason) in data["failed"].items()},
        )

    def lowerings(self, site: ConvSite) -> list[str]:
        """The lowerings whose cost at ``site`` is known."""
        return [name for one, name in self.kernels if one == site]

    def cheapest(
        self, sites: Sequence[ConvSite], edges: Iterable[tuple[int, int]]
    ) -> tuple[dict[ConvSite, str], Prediction]:
        """The lowering for each different site that makes a pass fastest, and what it is then expected to take.

        Parameters
        ----------
        sites
            Every convolution of the network, each with a lowering whose cost is known.
        edges
            (producer, consumer): positions in ``sites``.
        """
        different = list(dict.fromkeys(sites))
        names = [self.lowerings(s) for s in different]
        numbers = [different.index(s) for s in sites]
        solution = pbqp.solve(*self._problem(different, names, [(numbers[a], numbers[b]) for a, b in edges]))
        chosen = {s: options[i] for s, options, i in zip(different, names, solution.choice, strict=True)}
        prediction = Prediction(
            sum(median(self.kernels[c]) for c in chosen.items()),
            sum(median(self.conversions[c]) for c in chosen.items()),
            median(self.other),
            median(self.beyond),
            solution.optimal,
        )
        return chosen, prediction

    def _problem(self, different: list[ConvSite], names: list[list[str]], edges: list[tuple[int, int]]):
        """Node vectors and edge matrices, in seconds. A conversion is split evenly over the edges that it serves."""

        def medians(samples: Mapping[Choice, Samples]) -> list[np.ndarray]:
            return [np.array([median(samples[s, n]) for n in own]) for s, own in zip(different, names, strict=True)]

        nodes, conversions = medians(self.kernels), medians(self.conversions)
        served = Counter(b for _, b in edges)
        matrices: dict[tuple[int, int], np.ndarray] = {}
        for node in set(range(len(different))) - set(served):
            nodes[node] = nodes[node] + conversions[node]
        for a, b in edges:
            share = conversions[b] / served[b]
            if a == b:  # a site that feeds another one like it
                nodes[b] = nodes[b] + share
            else:
                matrices[a, b] = matrices.get((a, b), 0.0) + np.tile(share, (len(names[a]), 1))
        return nodes, matrices


def _frozen(samples: Mapping[Choice, list[float]]) -> dict[Choice, Samples]:
    return {choice: tuple(values) for choice, values in samples.items()}
