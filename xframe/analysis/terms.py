"""What a wall time is made of: signed terms with intervals, which sum to it, and the difference of two such sums."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from xframe.analysis.bootstrap import interval
from xframe.types import Case

#: The names of the terms of a decomposition, in order.
TERMS = ("floor", "headroom", "algorithm", "quality", "convolutions", "operators", "layout", "overhead", "residual")
#: What a convolution takes above the best kernel is told apart into the first two, and where it can't be, the third.
APART, TOGETHER = ("algorithm", "quality"), "convolutions"


@dataclass(frozen=True)
class Term:
    """Some seconds, signed, with a 95 % interval; ``parts`` sum to them up to the rounding of a float.

    ``replicates``: its value in each bootstrap resample. Resample i of one term and resample i of another are of the
    same resampled data, so that the interval of a sum or a difference is that of the sums or differences. None for a
    term that was read from a file or made by hand. An end of the interval is infinite where nothing is known of it.
    """

    name: str
    seconds: float
    low: float
    high: float
    parts: tuple[Term, ...] = ()
    replicates: np.ndarray | None = field(default=None, repr=False, compare=False)

    @staticmethod
    def of(name: str, values: np.ndarray, parts: Iterable[Term] = ()) -> Term:
        """A term whose ``values`` are the estimate, then the replicates."""
        return Term(name, float(values[0]), *interval(values), tuple(parts), values[1:])

    @staticmethod
    def total(name: str, parts: Iterable[tuple[str, np.ndarray]], like: np.ndarray) -> Term:
        """The sum of its parts, each with its values; without any, zeros of the shape of ``like``."""
        parts = list(parts)
        values = sum((values for _, values in parts), np.zeros_like(like))
        return Term.of(name, values, [Term.of(part, own) for part, own in parts])

    def __getitem__(self, part: str) -> Term:
        """The part of that name. Raises KeyError."""
        return _named(self.parts, part)

    def part(self, name: str) -> Term | None:
        """The part of that name, if there is one."""
        return next((p for p in self.parts if p.name == name), None)

    def difference(self, other: Term) -> Term:
        """This term less ``other``, part by part; a part that one of them lacks is 0 there.

        The interval is that of the differences of the replicates; where one has none, all that their two intervals
        leave open.
        """
        seconds = self.seconds - other.seconds
        parts = _differences(self.parts, other.parts)
        if self.replicates is None or other.replicates is None or len(self.replicates) != len(other.replicates):
            return Term(self.name, seconds, self.low - other.high, self.high - other.low, parts)
        return Term.of(self.name, np.concatenate([[seconds], self.replicates - other.replicates]), parts)

    def to_json(self) -> dict[str, Any]:
        parts = [p.to_json() for p in self.parts]
        low, high = (x if math.isfinite(x) else None for x in (self.low, self.high))
        return {"name": self.name, "seconds": self.seconds, "low": low, "high": high, "parts": parts}


def total(name: str, terms: Iterable[Term], parts: Iterable[Term] = ()) -> Term:
    """Their sum; where one has no resamples, all that the intervals leave open."""
    found = list(terms)
    replicates = [t.replicates for t in found if t.replicates is not None]
    sums = (sum(t.seconds for t in found), sum(t.low for t in found), sum(t.high for t in found))
    if not found or len(replicates) < len(found) or len({len(r) for r in replicates}) > 1:
        return Term(name, *sums, tuple(parts))
    return Term.of(name, np.concatenate([[sums[0]], np.sum(replicates, axis=0)]), parts)


def joined(*lists: Iterable[Term]) -> list[Term]:
    """Terms of the same name added up."""
    found: dict[str, list[Term]] = {}
    for term in (t for one in lists for t in one):
        found.setdefault(term.name, []).append(term)
    return [total(name, terms) for name, terms in found.items()]


@dataclass(frozen=True)
class Decomposition:
    """The wall time of a row, or of the difference of two, as the sum of ``terms``, which are named :data:`TERMS`.

    Those of :data:`APART` and :data:`TOGETHER` are there where they have parts.

    Parameters
    ----------
    title
        The row in words.
    wall
        The mean over rounds of the interquartile mean of a round's timed samples, seconds.
    unattributed
        Seconds of a profiled pass in kernels of no known kind. They are in the residual.
    perturbation
        Seconds by which the median profiled step is slower than the median of those that were not profiled, right
        before and after.
    cost
        Seconds of that which the profiler takes by its calibration; overhead is free of them.
    case
        Of the row; None for a difference.
    notes
        What the terms leave out or take for granted, in sentences.
    """

    title: str
    wall: Term
    terms: tuple[Term, ...]
    unattributed: float = 0.0
    perturbation: float = 0.0
    notes: tuple[str, ...] = ()
    cost: float = 0.0
    case: Case | None = field(default=None, repr=False)

    def __getitem__(self, term: str) -> Term:
        """The term of that name. Raises KeyError."""
        return _named(self.terms, term)

    def term(self, name: str) -> Term | None:
        """The term of that name, if there is one."""
        return next((t for t in self.terms if t.name == name), None)

    @property
    def residual_share(self) -> float:
        """The residual's share of the wall time, signed."""
        return self["residual"].seconds / self.wall.seconds

    @property
    def unattributed_share(self) -> float:
        """Of the wall time, in kernels of no known kind."""
        return self.unattributed / self.wall.seconds

    def difference(self, other: Decomposition) -> Decomposition:
        """This row less ``other``, term by term: positive is what this one takes longer.

        Rounds of the two rows are drawn together: what drifted in both cancels, as does what both share (the best
        kernels, the floor). A convolution is told apart only where it is in both.
        """
        together = {p.name for d in (self, other) for p in getattr(d.term(TOGETHER), "parts", ())}
        mine, theirs = (_together(d.terms, together) for d in (self, other))
        notes = dict.fromkeys(n for n in self.notes if n in other.notes)
        for one in (self, other):
            notes.update(dict.fromkeys(f"{one.title}: {n}" for n in one.notes if n not in notes))
        return Decomposition(
            f"{self.title} - {other.title}",
            self.wall.difference(other.wall),
            tuple(sorted(_differences(mine, theirs), key=_place)),
            self.unattributed - other.unattributed,
            self.perturbation - other.perturbation,
            tuple(notes),
            self.cost - other.cost,
        )

    def to_json(self) -> dict[str, Any]:
        """Seconds throughout."""
        return {
            "title": self.title,
            "wall": self.wall.to_json(),
            "terms": [t.to_json() for t in self.terms],
            "unattributed_s": self.unattributed,
            "perturbation_s": self.perturbation,
            "profiler_s": self.cost,
            "notes": list(self.notes),
        }


def _together(terms: Sequence[Term], names: Collection[str]) -> tuple[Term, ...]:
    """With the parts of these names no longer told apart."""
    found = {t.name: t for t in terms}
    moved = [p for name in APART if name in found for p in found[name].parts if p.name in names]
    if not moved:
        return tuple(terms)
    for name in (name for name in APART if name in found):
        kept = [p for p in found.pop(name).parts if p.name not in names]
        if kept:
            found[name] = total(name, kept, kept)
    before = found[TOGETHER].parts if TOGETHER in found else ()
    parts = joined(before, moved)
    found[TOGETHER] = total(TOGETHER, parts, parts)
    return tuple(found.values())


def _place(term: Term) -> int:
    return TERMS.index(term.name) if term.name in TERMS else len(TERMS)


def _named(terms: Sequence[Term], name: str) -> Term:
    for term in terms:
        if term.name == name:
            return term
    raise KeyError(name)


def _differences(mine: Sequence[Term], theirs: Sequence[Term]) -> tuple[Term, ...]:
    """Term by term, in the order of ``mine``, then what only the other has."""
    own, other = ({t.name: t for t in terms} for terms in (mine, theirs))
    return tuple(_or_zero(own, n, other).difference(_or_zero(other, n, own)) for n in {**own, **other})


def _or_zero(terms: dict[str, Term], name: str, like: dict[str, Term]) -> Term:
    if name in terms:
        return terms[name]
    replicates = like[name].replicates
    return Term(name, 0.0, 0.0, 0.0, (), None if replicates is None else np.zeros_like(replicates))
