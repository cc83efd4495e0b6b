"""Was a planted lie found, and found where it was planted? Pure functions of what was planted and what was seen."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from xframe.analysis.terms import Decomposition, Term
from xframe.results import Measurement
from xframe.selftest.lies import PART, Lie
from xframe.types import Outcome

#: Share of the planted time that a term may be off beyond its interval. A lie disturbs what runs after it: caches are
#: cold, threads fell asleep.
TOLERANCE = 0.1
#: In the note of a row that was timed beside other processes (``xframe.measured``).
LOAD = "other processes used"


@dataclass(frozen=True)
class Finding:
    """What became of one lie.

    Parameters
    ----------
    lie
        Its name; ``none`` for the row that does not lie.
    lands
        Where it must be found.
    found
        What was found there, in words.
    ok, reason
        The verdict, and what is wrong, in words.
    planted
        Seconds that it took in a step, by its own clock; None for a lie that is not about time.
    seconds, low, high
        By how much the term differs from that of the honest row, and the interval.
    within
        Whether the intervals alone, without :data:`TOLERANCE`, hold what they must: the planted time and not 0 in this
        term; 0 in every other.
    """

    lie: str
    lands: str
    found: str
    ok: bool
    reason: str = ""
    planted: float | None = None
    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    within: bool | None = None

    def to_json(self) -> dict[str, Any]:
        """Every key is always there; seconds end in ``_s``."""
        return {
            "lie": self.lie,
            "lands": self.lands,
            "found": self.found,
            "ok": self.ok,
            "reason": self.reason,
            "planted_s": self.planted,
            "found_s": self.seconds,
            "low_s": self.low,
            "high_s": self.high,
            "within_intervals": self.within,
        }


def timed(name: str, lie: Lie, planted: Sequence[float], difference: Decomposition, at: str = "") -> Finding:
    """The verdict on a lie that takes time.

    Parameters
    ----------
    planted
        Seconds that it took in each step, at least one.
    difference
        The row that lies less the honest ones.
    at
        The part of the term that has the layer that it was planted in.
    """
    amount, term = statistics.median(planted), difference[lie.lands]
    slack, others = TOLERANCE * amount, [t for t in difference.terms if t.name != lie.lands]
    wrong = []
    if term.low <= 0 or missed(term, amount) > slack:
        wrong.append(f"{ms(amount)} were planted and {words(term)} are in {term.name}")
    wrong += [f"{words(t)} are in {t.name}" for t in others if missed(t, 0.0) > slack]
    if lie.part:
        part = term.part(lie.part)
        if part is None or part.high < PART * amount:
            wrong.append(f"{words(part) if part else 'nothing'} of {term.name} is in {lie.part}")
    elif lie.at_layer:
        wrong += _misplaced(term, at, slack)
    return Finding(
        name,
        _place(lie, at),
        words(term),
        not wrong,
        "; ".join(wrong),
        amount,
        term.seconds,
        term.low,
        term.high,
        term.low > 0 and not missed(term, amount) and not any(missed(t, 0.0) for t in others),
    )


def honest(difference: Decomposition, smallest: float) -> Finding:
    """The verdict on rows that do not lie: no term may differ by what makes a lie of ``smallest`` seconds."""
    wrong = [f"{words(t)} are in {t.name}" for t in difference.terms if missed(t, 0.0) > TOLERANCE * smallest]
    within = not any(missed(t, 0.0) for t in difference.terms)
    most = max(difference.terms, key=lambda t: abs(t.seconds))
    return Finding("none", "nowhere", f"at most {words(most)}", not wrong, "; ".join(wrong), 0.0, within=within)


def refused(name: str, lie: Lie, row: Measurement) -> Finding:
    """The verdict on a lie that must cost its row the outcome."""
    ok = row.outcome.value == lie.lands
    why = row.reason or "nothing was noticed"
    return Finding(name, lie.lands, row.outcome.value, ok, "" if ok else f"the row is {row.outcome.value}: {why}")


def noted(name: str, lie: Lie, row: Measurement) -> Finding:
    """The verdict on a load that the row's notes must tell of."""
    if row.outcome is not Outcome.OK:
        return missing(name, lie, f"the row is {row.outcome.value}: {row.reason}")
    note = loaded(row)
    return Finding(name, lie.lands, note or "nothing", bool(note), "" if note else "no note tells of the load")


def loaded(row: Measurement) -> str:
    """The note of a row that other processes disturbed; empty where they did not."""
    return next((note for note in row.notes if LOAD in note), "")


def excused(finding: Finding, rows: Iterable[Measurement]) -> Finding:
    """The finding, a miss with what else was going on while the ``rows`` behind it were timed."""
    notes = dict.fromkeys(filter(None, map(loaded, rows)))
    return finding if finding.ok or not notes else replace(finding, reason="; ".join((finding.reason, *notes)))


def missing(name: str, lie: Lie, why: str) -> Finding:
    """The verdict on a lie of which nothing can be said."""
    return Finding(name, lie.lands, "nothing", False, why)


def missed(term: Term, value: float) -> float:
    """Seconds by which the interval of a term misses a value; 0 where it holds it."""
    return max(term.low - value, value - term.high, 0.0)


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"


def words(term: Term) -> str:
    """``1.021 ms (0.998 to 1.043)``."""
    return f"{ms(term.seconds)} ({term.low * 1e3:.3f} to {term.high * 1e3:.3f})"


def _place(lie: Lie, at: str) -> str:
    """Where it must land, in words."""
    inside = lie.part or (at if lie.at_layer else "")
    return f"{lie.lands}, {inside}" if inside else lie.lands


def _misplaced(term: Term, name: str, slack: float) -> list[str]:
    """What is wrong with the parts of a term: ``name`` must have the most, the others at most ``slack`` seconds."""
    ordered = sorted(term.parts, key=lambda t: t.seconds, reverse=True)
    if not ordered or ordered[0].name != name:
        most = f", but at {ordered[0].name}" if ordered else ""
        return [f"most of {term.name} is not at {name}{most}"]
    return [f"{words(t)} of {term.name} are at {t.name}" for t in ordered[1:] if missed(t, 0.0) > slack]
