"""What an explanation is: the rows that it is about, and what was found of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from xframe.analysis.counterfactuals import Counterfactual
from xframe.analysis.terms import Decomposition
from xframe.results import Measurement, Run

#: Rows of which all pairs are compared; of more, each with the fastest.
ALL_PAIRS = 4


@dataclass(frozen=True)
class Explanation:
    """Where the time of ``rows`` goes; the other rows of ``run`` are what they were held up to.

    ``decompositions``: of those rows that have one, in their order. ``notes``: what could not be had, in sentences.
    """

    run: Run
    rows: tuple[Measurement, ...]
    decompositions: tuple[Decomposition, ...]
    counterfactuals: tuple[Counterfactual, ...] = ()
    notes: tuple[str, ...] = ()

    def groups(self) -> Iterator[tuple[Decomposition, ...]]:
        """The decompositions of each batch and number of threads."""
        found: dict[tuple[int, int], list[Decomposition]] = {}
        for d in self.decompositions:
            if d.case is not None:
                found.setdefault((d.case.batch, d.case.threads), []).append(d)
        return map(tuple, found.values())

    def pairs(self) -> Iterator[tuple[Decomposition, Decomposition]]:
        """(faster, slower) within each of :meth:`groups`."""
        for group in self.groups():
            ordered = sorted(group, key=lambda d: d.wall.seconds)
            few = len(ordered) <= ALL_PAIRS
            yield from combinations(ordered, 2) if few else ((ordered[0], d) for d in ordered[1:])

    def unexplained(self) -> list[Measurement]:
        """The rows without a decomposition."""
        known = {id(d.case) for d in self.decompositions}
        return [m for m in self.rows if id(m.case) not in known]
