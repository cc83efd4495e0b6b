"""An explanation in sentences: where the time of each row goes, why two rows differ, what other lowerings would give.

A number is told as a fact only where its 95 % interval does not hold 0; what is not distinguishable from 0 is told as
that. What is listed of a difference, all else and the residual sum to it, up to the rounding of what is printed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from xframe.analysis.costs import EARLIER
from xframe.analysis.counterfactuals import Counterfactual
from xframe.analysis.explanation import Explanation
from xframe.analysis.shares import CALL, GAPS, OUTSIDE, PROFILER
from xframe.analysis.terms import APART, TOGETHER, Decomposition, Term, joined, total
from xframe.results import Measurement
from xframe.types import KINDS, Case, Outcome

#: The terms in short.
TERM = {
    "floor": "floor", "headroom": "best above floor", "algorithm": "algorithm", "quality": "kernel quality",
    "convolutions": "convolution kernels", "operators": "other kernels", "layout": "layout and copies",
    "overhead": "overhead", "residual": "residual",
}  # fmt: skip
LAYOUT, OVERHEAD = "layout changes and copies", "overhead outside kernels"
#: Parts of the terms in words; a name that is missing stands for itself.
KIND = {
    "conv": "convolution kernels", "fc": "FC kernels", "pool": "pooling kernels", "norm": "normalisation kernels",
    "activation": "activation kernels", "elementwise": "elementwise kernels", "softmax": "softmax kernels",
    "layout": "layout changes", "copy": "copies",
}  # fmt: skip
HOST = {
    "python": "Python", "dispatch": "dispatch", "allocation": "allocation", "copy": "copies by the host",
    "wake-up": "threads waking up",
    CALL: "call and return", GAPS: "gaps between kernels", PROFILER: "less the profiler's own",
    OUTSIDE: "kernels outside the pass",
}  # fmt: skip
#: Said of numbers that do not hold together.
_UNFIT = (
    " Not to be relied on: the profiled passes do not fit the timed ones, as the residual shows. Measure again on a"
    " quiet machine."
)
#: Share of a row's time in its residual above which its terms are not told as facts.
UNFIT = 0.1
#: Shares of a row's time above which a decomposition is doubtful: its residual, and kernels of no known kind.
RESIDUAL, UNATTRIBUTED = 0.03, 0.02

Item = tuple[str, Term]


class Scale:
    """Milliseconds with as many decimals as three digits of ``seconds`` take, one at least, or ``places``."""

    def __init__(self, seconds: float, places: int | None = None):
        self.places = (1 if seconds >= 1e-2 else 2 if seconds >= 1e-3 else 3) if places is None else places

    def __call__(self, seconds: float) -> str:
        text = f"{seconds * 1e3:.{self.places}f}"
        return text.removeprefix("-") if self.is_zero(seconds) else text

    def is_zero(self, seconds: float) -> bool:
        """Whether it is printed as 0."""
        return round(seconds * 1e3, self.places) == 0

    def within(self, term: Term) -> str:
        """``4.6 +- 0.2``, by the farther end of the interval; ``4.6 (4.5 to 5.2)`` where the ends are not alike; the
        number alone where nothing is known of its interval."""
        if not bounded(term):
            return self(term.seconds)
        below, above = term.seconds - term.low, term.high - term.seconds
        if max(below, above) > 2 * max(min(below, above), 0.0) and not self.is_zero(max(below, above)):
            return f"{self(term.seconds)} ({self(term.low)} to {self(term.high)})"
        return f"{self(term.seconds)} +- {self(max(below, above, 0.0))}"


def row(case: Case) -> str:
    """``pytorch``, ``jax ort``, ``tvm winograd (pytorch's export)``: a row among those of its batch."""
    if case.runner == "native":
        text = case.framework or case.model
    elif case.plan.lowerings:
        text = f"{case.runner} {case.plan.label}" + (f" ({case.framework}'s export)" if case.framework else "")
    else:
        text = f"{case.framework} {case.runner}" if case.framework else case.runner
    return text + "".join(f", {name} {value}" for name, value in case.options)


def where(case: Case) -> str:
    """``batch 1, 2 threads``."""
    return f"batch {case.batch}, {case.threads} thread{'s' * (case.threads != 1)}"


def bounded(term: Term) -> bool:
    """Whether there is an interval."""
    return math.isfinite(term.low) and math.isfinite(term.high)


def bounds(term: Term, scale: Callable[[float], str]) -> str:
    """``4.5 to 5.2``, or that there is no such interval."""
    return f"{scale(term.low)} to {scale(term.high)}" if bounded(term) else "unknown"


def known(term: Term) -> bool:
    """Whether it is distinguishable from 0."""
    return term.low > 0 or term.high < 0


def fits(d: Decomposition) -> bool:
    """Whether the profiled passes are of about the time that was timed, so that their terms tell where it goes."""
    return abs(d.residual_share) <= UNFIT


def doubt(d: Decomposition) -> str:
    """What of a decomposition is too large to rely on the rest of it; empty where nothing is."""
    left, unknown = d.residual_share, d.unattributed_share
    found = [f"the residual is {left:.0%}"] if abs(left) > RESIDUAL else []
    found += [f"kernels of no known kind are {unknown:.0%}"] if unknown > UNATTRIBUTED else []
    return f"{' and '.join(found)} of the time of" if found else ""


def doubts(named: Iterable[tuple[str, Decomposition]]) -> list[str]:
    """One sentence on all that is doubtful, given rows with their names; none where nothing is."""
    found = [f"{why} {name}" for name, d in named if (why := doubt(d))]
    return [f"Take with care: {'; '.join(found)}."] if found else []


def sentences(explanation: Explanation) -> list[str]:
    """All there is to say, the differences first."""
    best = (m for m in explanation.run.measurements if m.prediction and m.outcome == Outcome.OK)
    unfit = {id(d.case) for d in explanation.decompositions if not fits(d)}
    return [
        *(difference(fast, slow) for fast, slow in explanation.pairs()),
        *map(goes, explanation.decompositions),
        *doubts((f"{row(d.case)} at {where(d.case)}", d) for d in explanation.decompositions if d.case is not None),
        *map(unexplained, explanation.unexplained()),
        *(counterfactual(c) + (_UNFIT if id(c.case) in unfit else "") for c in explanation.counterfactuals),
        *map(prediction, best),
    ]


def items(d: Decomposition) -> list[Item]:
    """What a difference is made of, residual apart: kernels by kind, layout, overhead; they sum to it."""
    shared = [("floor and best kernels", total("shared", (d["floor"], d["headroom"])))]
    conv = [(KIND["conv"], _convolutions(d))]
    others = [(KIND.get(p.name, p.name), p) for p in d["operators"].parts]
    moved = [(KIND.get(p.name, p.name), p) for p in d["layout"].parts]
    return [*shared, *conv, *others, *moved, *_overhead(d["overhead"])]


def _convolutions(d: Decomposition) -> Term:
    """What they take above the best kernels."""
    return total("conv", (t for t in d.terms if t.name in (*APART, TOGETHER)))


def _overhead(term: Term) -> list[Item]:
    """Its parts where each is what the host did; as a whole where the profiler's own time in them is not small."""
    small = 0.1 * max((abs(p.seconds) for p in term.parts), default=0.0)
    if any(p.name in (PROFILER, OUTSIDE) and abs(p.seconds) > small for p in term.parts):
        return [(OVERHEAD, term)]
    own = [p for p in term.parts if p.name not in (PROFILER, OUTSIDE)]
    rest = [p for p in term.parts if p.name in (PROFILER, OUTSIDE)]
    found = [(HOST.get(p.name, p.name), p) for p in own]
    return found + ([("the profiler's share of the overhead", total("profiler", rest))] if rest else [])


def difference(fast: Decomposition, slow: Decomposition) -> str:
    """``tensorflow is 4.1 ms faster than pytorch at batch 1, 2 threads: FC kernels 4.6, ...``.

    Positive is what the faster one saves.
    """
    d = slow.difference(fast)
    assert fast.case is not None
    assert slow.case is not None
    scale = Scale(slow.wall.seconds)
    one, other, place = row(fast.case), row(slow.case), where(fast.case)
    told = sorted(((n, t) for n, t in items(d) if known(t) and not scale.is_zero(t.seconds)), key=_size)
    open_ = [(n, t) for n, t in items(d) if not known(t) and not (scale.is_zero(t.low) and scale.is_zero(t.high))]
    rest = d.wall.seconds - d["residual"].seconds - sum(t.seconds for _, t in told)
    parts = [f"{name} {scale(t.seconds)}{_of_convolutions(name, d, scale)}" for name, t in told]
    parts += [f"all else {scale(rest)}"] if told or not scale.is_zero(rest) else []
    parts.append(f"residual {scale.within(d['residual'])}")
    if known(d.wall):
        share = f"{d.wall.seconds / slow.wall.seconds:.0%}"
        text = f"{one} is {scale.within(d.wall)} ms ({share}) faster than {other} at {place}: {', '.join(parts)}"
    else:
        apart = f"between {scale(d.wall.low)} and {scale(d.wall.high)}" if bounded(d.wall) else (
            "in one round, which does not tell how rounds differ"
        )  # fmt: skip
        text = (
            f"{one} and {other} are not distinguishable at {place}: {scale(d.wall.seconds)} ms apart, {apart}; what"
            f" {one} saves: {', '.join(parts)}"
        )
    unclear = ", ".join(f"{n} ({scale.within(t)})" for n, t in sorted(open_, key=_size))
    text += f". Not distinguishable from 0: {unclear}." if unclear else "."
    return text + ("" if fits(fast) and fits(slow) else _UNFIT)


def _size(item: Item) -> float:
    return -abs(item[1].seconds)


def _of_convolutions(name: str, d: Decomposition, scale: Scale) -> str:
    """Algorithm and quality beside the convolution kernels, where the choice of an algorithm is part of it; and how
    much of them is in convolutions where nobody can tell."""
    algorithm = d.term("algorithm")
    if name != KIND["conv"] or algorithm is None or not known(algorithm) or scale.is_zero(algorithm.seconds):
        return ""
    both = d.term(TOGETHER)
    text = f"algorithm {scale(algorithm.seconds)}, quality {scale(d['quality'].seconds)}"
    return f" ({text}{f', not told apart {scale(both.seconds)}' if both else ''})"


def spent(d: Decomposition) -> list[Item]:
    """What a row's time is spent on: kernels by kind, layout, overhead; with the residual they sum to it."""
    best = {t.name: t for t in joined(d["floor"].parts, d["headroom"].parts)}
    sites = [t for name, t in best.items() if name not in KINDS]
    conv = [(KIND["conv"], total("conv", (*sites, _convolutions(d))))] if sites else []
    kinds = {t.name: t for t in joined([best[k] for k in best if k in KINDS], d["operators"].parts)}
    found = [*conv, *((KIND[k], t) for k, t in kinds.items())]
    return [*found, (LAYOUT, d["layout"]), (OVERHEAD, d["overhead"])]


def savings(d: Decomposition) -> list[Item]:
    """What a row would save, each change by itself, the largest first; only what is distinguishable from 0."""
    found = [(f"the best {KIND['conv']} measured here", _convolutions(d))]
    found += [(f"the best {KIND.get(p.name, p.name)} measured here", p) for p in d["operators"].parts]
    found += [("no layout changes and copies", d["layout"]), ("no overhead outside kernels", d["overhead"])]
    return sorted(((n, t) for n, t in found if t.low > 0), key=_size)


def goes(d: Decomposition) -> str:
    """Where a row's time goes, what would change most, and how much no row here knows how to save."""
    assert d.case is not None
    scale, wall = Scale(d.wall.seconds), d.wall.seconds
    parts = sorted(((n, t) for n, t in spent(d) if not scale.is_zero(t.seconds)), key=_size)
    told = [f"{n} {scale(t.seconds) if known(t) else scale.within(t)} ({t.seconds / wall:.0%})" for n, t in parts]
    text = f"{row(d.case)} takes {scale.within(d.wall)} ms at {where(d.case)}: {', '.join(told)}"
    text += f"; residual {scale.within(d['residual'])} ({d.residual_share:.1%})."
    gains = [(n, t) for n, t in savings(d) if not scale.is_zero(t.seconds)]
    if not fits(d):
        return text + _UNFIT
    if gains:
        name, term = gains[0]
        less = Term(name, -term.seconds, -term.high, -term.low)
        text += f" What would change most: {name}, {scale.within(less)} ms."
    else:
        text += " Nothing that was measured here would make it distinguishably faster."
    if d["headroom"].low > 0:
        text += (
            f" The best kernels measured here are {scale(d['headroom'].seconds)} ms above the floor of this machine."
        )
    return text


def unexplained(m: Measurement) -> str:
    """Why a row has no decomposition."""
    if m.outcome != Outcome.OK:
        return f"{row(m.case)} at {where(m.case)} is not explained: {m.outcome.value}, {m.reason}"
    why = next((n for n in m.notes if n.startswith("no profile")), "it has no profile")
    return f"{row(m.case)} at {where(m.case)} is not explained: {why}"


def counterfactual(c: Counterfactual) -> str:
    """What the changed lowerings would give the row, and what they gave the executor."""
    text = f"If {row(c.case)} used {c.asked} at {where(c.case)}"
    moves: dict[tuple[str, str], list[str]] = {}
    for site, used, asked in c.changes:
        moves.setdefault((used or "an unknown algorithm", asked), []).append(site)
    if moves:
        told = "; ".join(f"{asked} instead of {used} at {', '.join(sites)}" for (used, asked), sites in moves.items())
        text += f" ({told})"
    terms = [t for t in (c.replaced, c.predicted, c.measured) if t is not None]
    scale = Scale(max((abs(t.seconds) for t in terms), default=0.0), 2)
    own = [f"{_change(c.replaced, scale)} with the executor's kernels there"] if c.replaced is not None else []
    if c.predicted is not None and all(change.used for change in c.changes):
        own.append(f"{_change(c.predicted, scale)} with kernels of its own quality")
    text += f": predicted {', '.join(own)}." if own else "."
    if c.outcome != Outcome.OK:
        text += f" It was not run: {c.outcome.value}, {c.reason}."
    elif not c.changes:
        text += " Nothing changes."
    elif c.measured is None:
        text += f" Nothing is measured: {c.reason or 'the executor has no row of the lowerings that it uses'}."
    else:
        before = f"predicted {_change(c.predicted, scale)}, " if c.predicted is not None else ""
        text += f" The executor, which ran both plans: {before}measured {_change(c.measured, scale)}."
        if c.predicted is not None and not _meet(c.predicted, c.measured):
            text += " The two exclude each other: kernels took other times in other plans than these intervals allow."
    return text + (f" ({'; '.join(c.notes)}.)" if c.notes else "")


def _meet(one: Term, other: Term) -> bool:
    """Whether their intervals do."""
    return one.low <= other.high and other.low <= one.high


def _change(term: Term, scale: Scale) -> str:
    sign = "+" if term.seconds > 0 and not scale.is_zero(term.seconds) else ""
    return f"{sign}{scale.within(term)} ms" + ("" if known(term) else " (not distinguishable from 0)")


def prediction(m: Measurement) -> str:
    """What the oracle's plan was predicted to take, and what it took."""
    name, seconds = row(m.case), float(m.prediction["total_s"])
    took = float(np.median(m.samples))
    scale = Scale(took, 2)
    by_lowering: dict[str, int] = {}
    for _, lowering in m.case.plan.lowerings:
        by_lowering[lowering] = by_lowering.get(lowering, 0) + 1
    plan = ", ".join(f"{count} {lowering}" for lowering, count in by_lowering.items())
    return (
        f"{name}, the cheapest lowering at each different convolution ({plan}), run in the common executor at"
        f" {where(m.case)}: predicted {scale(seconds)} ms, measured {scale(took)} ms ({took / seconds - 1:+.1%})."
        + "".join(f" {note[:1].upper()}{note[1:]}." for note in m.notes if note.startswith(EARLIER))
    )
