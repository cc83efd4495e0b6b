"""What a check found, in words: the sentences that the terminal, the page and a failing test share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from xframe.equivalence.result import (
    Check,
    Comparison,
    Difference,
    LayerRow,
    Level,
    LevelVerdict,
    RunRow,
    State,
    Statistics,
    judged,
)
from xframe.report.page_html import clean

#: A verdict as it is shown. Only a pass is in small letters, so that nothing else can be taken for one.
STATES = {State.EQUIVALENT: "equivalent", State.DIFFERENT: "DIFFERENT", State.UNCHECKED: "UNCHECKED"}


def number(value: float | None) -> str:
    """Three digits; a dash where there is no such number."""
    return "-" if value is None else f"{value:.3g}"


def share(ratio: float | None) -> str:
    """A deviation over its bound. An exact zero has almost no bound: how often that fits in, tells nobody anything."""
    return "over 1e+09" if ratio is not None and 1e9 < ratio < math.inf else number(ratio)


def headline(check: Check) -> str:
    """The verdict in one line."""
    first = check.subjects[0].name if check.subjects else "nothing"
    if check.state is State.EQUIVALENT:
        return clean(f"equivalent: {_agreement(check, first)}")
    parted = {c.name for c in check.comparisons if judged(c) is check.state}
    told = [(c.name, _parting(c, first) if check.state is State.DIFFERENT else _doubt(c, first))
            for c in check.comparisons if c.name in parted]  # fmt: skip
    told += [(f"{r.runner} on {r.subject}", conclusion(r, first)) for r in check.runs
             if r.state is check.state and not (r.subject in parted and own_is_fine(r))]  # fmt: skip
    start = "NOT equivalent" if check.state is State.DIFFERENT else "can't tell"
    if not told:
        return f"{start}: nothing was compared"
    also = f" (also: {', '.join(name for name, _ in told[1:])})" if told[1:] else ""
    return clean(f"{start}: {told[0][1].rstrip('.')}{also}")


def _agreement(check: Check, first: str) -> str:
    ratios = [row.statistics.ratio for c in check.comparisons for row in c.outputs if row.statistics is not None]
    runs = [s.ratio for r in check.runs for s in (r.own, r.first) if s is not None]
    if not check.comparisons:
        share = f", at most {number(max(runs))} of the bound" if runs else ""
        return f"{first} gives its float64 result under {_listed([r.runner for r in check.runs])}{share}"
    names = [c.name for c in check.comparisons]
    share = f", within {number(max(ratios))} of the float32 bound" if any(ratios) else ", exactly" if ratios else ""
    return f"{_listed(names)} {'computes' if len(names) == 1 else 'compute'} what {first} computes{share}"


def _parting(comparison: Comparison, first: str) -> str:
    """Where a subject that differs parts from the first one."""
    level = next(v for v in decisive(comparison) if v.state is State.DIFFERENT)
    row = comparison.first_divergence
    if level.level is Level.NUMERICS and row is not None:
        return f"{comparison.name} parts from {first} at {layer(row)}: {short(row)}"
    what = {Level.SIGNATURE: "signatures", Level.GRADIENTS: "gradients"}.get(level.level, "outputs")
    return f"the {what} of {first} and {comparison.name} differ" + (f": {level.reason}" if level.reason else "")


def _doubt(comparison: Comparison, first: str) -> str:
    """Why nothing can be said of a subject."""
    start = f"{comparison.name} against {first}: "
    for verdict in decisive(comparison):
        if verdict.state is State.UNCHECKED:
            return f"{start}{verdict.level.value} unchecked" + (f": {verdict.reason}" if verdict.reason else "")
    if comparison.level(Level.NUMERICS) is None:
        return f"{start}numerics, which decides, was not asked for"
    telling = [d for d in sentences(comparison) if not d.harmless]
    hint = f": {telling[0].text}" if telling else ""
    return f"{start}these inputs give the same outputs, but the graphs are not the same{hint}"


def decisive(comparison: Comparison) -> list[LevelVerdict]:
    """The levels that decide: all but the normal form, which explains."""
    return [v for v in comparison.levels if v.level is not Level.NORMAL_FORM]


def sentences(comparison: Comparison) -> list[Difference]:
    """All differences, each once, the harmless ones last; the order is the levels', and within one as found."""
    found = dict.fromkeys(d for verdict in comparison.levels for d in verdict.differences)
    return sorted(found, key=lambda d: d.harmless)


def why(verdict: LevelVerdict, comparison: Comparison) -> str:
    """The reason of a level's verdict; a dash where it needs none. Differences stand below it, and are counted here."""
    if verdict.level is not Level.NORMAL_FORM or verdict.state is not State.DIFFERENT or not verdict.differences:
        return verdict.reason or "-"
    count, harmless = len(verdict.differences), sum(d.harmless for d in verdict.differences)
    told = f"{count} differences" if count > 1 else "1 difference"
    if harmless:
        told += ", harmless" if harmless == count else f", {harmless} of them harmless"
    return told + (": another way to write the same function" if judged(comparison) is State.EQUIVALENT else "")


def row_state(row: LayerRow) -> str:
    """Of one layer. Without numbers nothing could be told; nor where one that does not differ has a reason."""
    if row.statistics is None or (row.ok and row.reason):
        return "UNCHECKED"
    return "same" if row.ok else "DIFFERENT"


def layer(row: LayerRow, other: str = "") -> str:
    """``conv1 (Conv)``; with its name in the subject ``other`` where that is another one."""
    name = row.a or row.b
    also = f"; {row.b} in {other}" if other and row.b and row.b != name else ""
    return clean(f"{name} ({row.op}{also})")


def short(row: LayerRow) -> str:
    """How far a layer is off, in a few words."""
    if row.statistics is None or not math.isfinite(row.statistics.ratio):
        return row.reason or "not a finite number"
    return f"{share(row.statistics.ratio)} times the bound"


def deviation(row: LayerRow, first: str, second: str) -> Iterator[str]:
    """How far a layer is off: its worst element, then the tensor as a whole."""
    s = row.statistics
    if row.reason or s is None:
        yield clean(row.reason or "not compared")
    else:
        where = f"at {list(s.at)} " if s.at else ""
        bound = f"bound {number(s.bound)}: {share(s.ratio)} times the bound"
        yield clean(f"{where}{s.first:.9g} in {first}, {s.second:.9g} in {second}, {bound}")
    if s is not None:
        yield aggregate(s)


def aggregate(statistics: Statistics) -> str:
    """The tensor as a whole, in one line."""
    s = statistics
    cosine = "-" if s.cosine is None else f"{s.cosine:.9g}"
    return (
        f"max abs {number(s.max_abs)}, max rel {number(s.max_rel)}, RMS {number(s.rms)}, cosine {cosine};"
        f" ULPs {' / '.join(number(u) for u in s.ulps)} (50, 90, 99, 100 %)"
    )


def own_is_fine(run: RunRow) -> bool:
    """Whether the runner gave what the graph that it was given says."""
    return run.own is not None and run.own.ratio <= 1  # False for NaN


def conclusion(run: RunRow, first: str) -> str:
    """Who is to blame for a row: the runner, or the graph that it was given."""
    who, why = f"{run.runner} on {run.subject}", f": {run.reason}" if run.reason else ""
    if run.state is State.EQUIVALENT:
        return clean(f"{who} is within its bound{why}")
    if run.state is State.UNCHECKED:
        return clean(f"{who} was not checked{why}")
    if not own_is_fine(run):
        at = f", first at {run.blamed}" if run.blamed else ""
        return clean(f"{who} leaves the float64 result of its own graph{at}{why}")
    return clean(f"{who}{why}" if why else f"{who} is right for its own graph, which differs from {first}")


def closest(rows: Sequence[LayerRow]) -> LayerRow | None:
    """The layer with the largest share of its bound."""
    known = [r for r in rows if r.statistics is not None and math.isfinite(r.statistics.ratio)]
    return max(known, key=lambda r: r.statistics.ratio if r.statistics else 0.0, default=None)


def around(rows: Sequence[LayerRow], before: int = 2, after: int = 3) -> tuple[int, Sequence[LayerRow]]:
    """The rows about the first one that differs and the index of the first of them; none where no one does."""
    at = next((i for i, row in enumerate(rows) if row_state(row) == "DIFFERENT"), None)
    if at is None:
        return 0, ()
    start = max(at - before, 0)
    return start, rows[start : at + after + 1]


def environment(check: Check) -> Iterator[tuple[str, str]]:
    """What was installed, a name and a version; "missing" where it was not."""
    return ((clean(k), "missing" if v is None else clean(v)) for k, v in check.environment.items())


def _listed(names: Sequence[str]) -> str:
    names = list(dict.fromkeys(names))
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
