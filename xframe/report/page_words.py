"""What a run shows, in a few sentences: the head of its page and of its Markdown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from xframe.analysis.ablations import ablations
from xframe.analysis.comparable import in_turn
from xframe.analysis.decomposition import Decomposition
from xframe.analysis.explanation import ALL_PAIRS
from xframe.analysis.ratios import Ratio, ratio
from xframe.report import explain_words
from xframe.report.ablation_terminal import headlines
from xframe.report.page_html import clean
from xframe.report.page_rows import Group, counted, heading, listed, ms, name
from xframe.report.page_sites import SiteTimes
from xframe.results import Run


@dataclass(frozen=True)
class Pair:
    """Two rows of a group."""

    slow: Decomposition
    fast: Decomposition

    @property
    def name(self) -> str:
        return f"{called(self.slow)} - {called(self.fast)}"

    @property
    def difference(self) -> Decomposition:
        """What the slower one takes longer."""
        return self.slow.difference(self.fast)


def title(run: Run) -> str:
    """``alexnet on AMD EPYC 9B45: what is fastest, and where the time goes``."""
    models = listed(heading(m.case).partition(",")[0] for m in run.measurements) or "nothing"
    where = run.environment.get("cpu") or run.environment.get("device")
    return clean(f"{models}{f' on {where}' if where else ''}: what is fastest, and where the time goes")


def summary(run: Run, group: Group, decompositions: Sequence[Decomposition]) -> list[str]:
    """Sentences on a group of rows, the most telling first; of more than two peers only how they differ from the
    fastest."""
    return [clean(s) for s in _sentences(run, group, own(group, decompositions))]


def further(group: Group, decompositions: Sequence[Decomposition]) -> list[str]:
    """What the summary leaves out of where the time of the peers goes, and how they differ."""
    return [clean(s) for s in _explained(own(group, decompositions))[1]]


def of_options(run: Run) -> list[str]:
    """What the switches of each runner come to."""
    return [clean(s) for one in ablations(run.measurements) for s in headlines(one)]


def own(group: Group, decompositions: Sequence[Decomposition]) -> list[Decomposition]:
    """Those of the group's rows, the fastest first."""
    cases = {id(e.case) for e in group.entries if not e.tried}
    return sorted((d for d in decompositions if id(d.case) in cases), key=lambda d: d.wall.seconds)


def pairs(decompositions: Sequence[Decomposition]) -> list[Pair]:
    """Every two of the :func:`peers`, given the fastest first; where there are many, each with the fastest alone."""
    free = peers(decompositions)
    few = len(free) <= ALL_PAIRS
    return [Pair(slow, fast) for fast, slow in (combinations(free, 2) if few else ((free[0], d) for d in free[1:]))]


def peers(decompositions: Sequence[Decomposition]) -> list[Decomposition]:
    """Those of rows that pick their convolutions themselves, which a sentence is worth; all where they are not two."""
    free = [d for d in decompositions if d.case is not None and not d.case.plan.lowerings]
    return free if len(free) > 1 else list(decompositions)


def called(decomposition: Decomposition) -> str:
    """Its row's name within the group."""
    return name(decomposition.case) if decomposition.case is not None else decomposition.title


def _sentences(run: Run, group: Group, decompositions: Sequence[Decomposition]) -> Iterator[str]:
    timed = group.timed
    if timed:
        yield _fastest(group)
    yield from _unranked(group)
    yield from _explained(decompositions)[0]
    times = SiteTimes.of(group, run.layers.get(group.case.batch, ()))
    if times is not None and len(times.columns) > 1:
        yield _best(times)
    yield from (
        c["sentence"]
        for c in run.counterfactuals
        if (c["batch"], c["threads"]) == (group.case.batch, group.case.threads)
    )
    yield from (explain_words.prediction(e.measurement) for e in timed if "total_s" in e.measurement.prediction)
    kinds = Counter(e.measurement.outcome.value for e in group.entries if not e.ok)
    if kinds:
        told = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        yield f"{sum(kinds.values())} of {counted(len(group.entries), 'row')} have no time: {told}."


def _explained(decompositions: Sequence[Decomposition]) -> tuple[list[str], list[str]]:
    """The sentences of the summary, and all others."""
    free, found = peers(decompositions), pairs(decompositions)
    near = [p for p in found if p.fast is free[0]]
    goes = [explain_words.goes(d) for d in free]
    short, rest = ([explain_words.difference(p.fast, p.slow) for p in some]
                   for some in (near, [p for p in found if p not in near]))  # fmt: skip
    short += explain_words.doubts((called(d), d) for d in free)
    return (short + goes, rest) if len(free) <= 2 else (short, goes + rest)


def _fastest(group: Group) -> str:
    timed = group.ranked
    first = timed[0]
    q1, median, q3 = first.quartiles
    took = f"{ms(median)} ms (quartiles {ms(q1)} to {ms(q3)}, n {len(first.measurement.samples)})"
    if len(timed) == 1:
        return f"{first.name} takes {took}" + ("." if group.apart else "; no other row has a time.")
    start = f"Fastest is {first.name}, {took}"
    beside = in_turn(first.measurement)
    ratios = [
        (e.name, ratio(e.measurement.rounds, first.measurement.rounds, paired=in_turn(e.measurement) == beside))
        for e in timed[1:]
    ]
    level = [other for other, r in ratios if r.low <= 1]
    if level:
        return f"{start}; {listed(level)} can't be told from it by these samples."
    (second, near), (last, far) = ratios[0], ratios[-1]
    also = f"; the slowest, {last}, {_times(far)}" if len(ratios) > 1 else ""
    return f"{start}; {second} takes {_times(near)} as long{also}."


def _unranked(group: Group) -> Iterator[str]:
    """Rows that the fastest was not held against, and why."""
    reasons: dict[str, list[str]] = {}
    for entry in group.timed:
        if why := group.apart.get(entry.number):
            reasons.setdefault(why, []).append(f"{entry.name} ({ms(entry.median)} ms)")
    for why, names in reasons.items():
        yield f"Not held against the others: {listed(names)}; {why}."


def _times(ratio: Ratio) -> str:
    bounds = f" ({ratio.low:.2f} to {ratio.high:.2f})" if math.isfinite(ratio.high) else ""
    return f"{ratio.value:.2f} times{bounds}"


def _best(times: SiteTimes) -> str:
    """Which column is the fastest at how many convolutions."""
    wins = Counter(best for site in times.sites if (best := times.best(site)))
    told = listed(f"{column} at {count}" for column, count in wins.most_common())
    return f"The fastest kernels at {counted(len(times.sites), 'different convolution')} are those of {told}."
