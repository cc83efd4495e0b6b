"""Where the time of a row goes: its wall time as a sum of signed terms, none of them clipped.

All quantities are those of a typical pass (``xframe.analysis.passes``); T_F(x) is what row F spends on x there, each
instant shared evenly among the kernels that run in it. With W the mean over rounds of the timed samples, s the
convolution sites, k the other kinds of kernels that compute something, and best(x) the least T(x) of any row of the
same group (model, device, batch, threads)::

    floor      = sum over s and k of floor(x)                     roofline of the layers, ``xframe.analysis.floors``
    headroom   = sum over s and k of best(x) - floor(x)
    algorithm  = sum over s of T(l_F, s) - min over l of T(l, s)  l: lowerings, T(l, s) of the executor's forced plans
    quality    = sum over s of T_F(s) - best(s) - algorithm(s)
    convolutions = sum over s of T_F(s) - best(s)                 where l_F or T(l_F, s) is not known; and kernels of
                                                                  convolutions of no known site
    operators  = sum over k of T_F(k) - best(k)
    layout     = T_F(layout) + T_F(copy)
    overhead   = wall - busy - cost                               of the profiled pass, ``xframe.analysis.shares``
    residual   = W - all of the above

Kernels and overhead of a pass sum to its wall time less the profiler's cost, so the residual is, exactly::

    drift        = W - P         P: that of the unprofiled steps beside the passes
    unattributed = T_F(kernels of no known kind)
    rest         = P - (wall - cost): what profiling changed beyond its calibrated cost

T_F(s) and T(l, s) are of all kernels that are tied to s, padding and changes of layout included. A site is in algorithm
and quality, or in convolutions, where the two can't be told apart: a runner does not say what it used, or no forced
plan used the same. The floor is 0 where the machine was not calibrated. The notes say why.

**Who may be best.** Rows most of whose kernels are attributed (:data:`COMPLETE`), that were profiled in several rounds,
if any was, and that may be held against the first of the run (``xframe.analysis.comparable.apart_from_first``): their
products have as many bits, say. At a site, those that were seen there in every pass. Of a kind with a floor, those that
spend time on it: elsewhere it is fused into something. Where no such row tells, others do, those that may not be held
against the first last of all. Rows with a forced plan that run the same code at x, whatever framework exported the
network, count as one, with the median of theirs: the least of many equal ones would be a matter of luck.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from xframe.analysis.bootstrap import interval
from xframe.analysis.comparable import apart_from_first
from xframe.analysis.counterfactuals import Costs
from xframe.analysis.floors import floors
from xframe.analysis.labels import site_names
from xframe.analysis.passes import CONV, Row
from xframe.analysis.shares import OVERHEAD
from xframe.analysis.terms import APART, TERMS, TOGETHER, Decomposition, Term
from xframe.results import FOREIGN, LayerWork, Machine, Measurement, Run
from xframe.types import KINDS, ConvSite, Outcome

__all__ = ["TERMS", "Decomposition", "Group", "Term", "explained", "groups"]

#: The device whose roofs a run has.
CPU = "cpu"
#: Kinds that only move or rearrange.
LAYOUT = ("layout", "copy")
#: Kinds that compute something, convolutions apart.
OTHERS = tuple(k for k in KINDS if k not in (CONV, *LAYOUT))
#: Share of a floor by which the best must be below it for the roofs to be doubted.
BEATEN = 0.02
#: Share of its wall time that a row's kernels of no known kind or site may take, for it to be held up to others.
COMPLETE = 0.02

_NOT_APART = "algorithm and quality are not told apart"

#: A site, or a kind other than convolutions.
Part = ConvSite | str
Parts = list[tuple[str, np.ndarray]]


def explained(run: Run) -> list[Decomposition]:
    """A decomposition of each OK row that has profiles, in the order of the run.

    That order matters to which rows are held against each other, as the first with a time decides, and to nothing else.
    """
    made = {id(row.measurement): group.decomposed(row) for group in groups(run) for row in group.rows}
    return [made[id(m)] for m in run.measurements if id(m) in made]


def groups(run: Run) -> list[Group]:
    """The OK rows that have profiles, those together that compute the same on the same."""
    found: dict[tuple, list[Measurement]] = {}
    for m in run.measurements:
        case = m.case
        key = (case.model, case.device, case.cache, case.direction, case.batch, case.threads)
        found.setdefault(key, []).append(m)
    out = []
    for (_, device, *_, batch, threads), alike in found.items():
        rows = [Row(m) for m in alike if m.outcome == Outcome.OK and m.profiles]
        machine = run.machines.get(threads) if device == CPU else None
        if rows:
            out.append(Group(rows, run.layers.get(batch, ()), machine, apart_from_first(alike)))
    return out


class Group:
    """Rows that compute the same on the same, and what they say of each other.

    Parameters
    ----------
    layers
        The work of the network's layers; empty if nobody knows.
    machine
        What the machine reaches; None if it was not calibrated with so many threads, or computes on another device.
    apart
        Why rows are not held against the others, by the ``id`` of their measurements.
    """

    def __init__(
        self, rows: Sequence[Row], layers: Sequence[LayerWork], machine: Machine | None, apart: Mapping[int, str]
    ):
        self.rows = sorted(rows, key=lambda r: r.title)
        self._layers, self._machine = layers, machine
        known = dict.fromkeys(w.site for w in layers if w.site is not None)
        seen = sorted({s for r in rows for s in r.sites}, key=lambda s: s.key)
        self.sites: tuple[ConvSite, ...] = tuple(known or dict.fromkeys(seen))
        self.names = site_names(self.sites, layers)
        self._zero = np.zeros_like(rows[0].wall)
        self._several = any(r.turns > 1 for r in rows)
        self._apart = apart
        self._complete = [r for r in self.rows if not self._why(r)]
        self._exact = [r for r in self.rows if id(r.measurement) not in apart]
        self._best: dict[Part, np.ndarray] = {}
        self.costs = Costs(self._exact)

    def decomposed(self, row: Row) -> Decomposition:
        """The decomposition of one of the rows."""
        algorithm = {s: values for s in self.sites if (values := self.algorithm(row, s)) is not None}
        above = {s: row.spent(CONV, s) - self.best(s) for s in self.sites}
        parts: dict[str, Parts] = {
            "floor": [(self._name(x), self._floor(x)) for x in self._parts],
            "headroom": [(self._name(x), self.best(x) - self._floor(x)) for x in self._parts],
            "algorithm": [(self.names[s], values) for s, values in algorithm.items()],
            "quality": [(self.names[s], above[s] - values) for s, values in algorithm.items()],
            TOGETHER: [
                *((self.names[s], above[s]) for s in self.sites if s not in algorithm),
                *_seen([("elsewhere", self._elsewhere(row))]),
            ],
            "operators": _seen([(k, row.spent(k) - self.best(k)) for k in OTHERS]),
            "layout": _seen([(k, row.spent(k)) for k in LAYOUT]),
            "overhead": _seen([(part, row.idle(part)) for part in OVERHEAD]),
        }
        there = [n for n in TERMS if n in parts and (parts[n] or n not in (*APART, TOGETHER))]
        terms = [Term.total(name, parts[name], self._zero) for name in there]
        plain = row.wall if row.plain is None else row.plain
        unattributed = row.spent("")
        rest = plain - row.typical_wall
        residual = [("drift", row.wall - plain), ("unattributed", unattributed), ("rest", rest)]
        return Decomposition(
            row.title,
            Term.of("wall", row.wall),
            (*terms, Term.total("residual", residual, self._zero)),
            float(unattributed[0]),
            row.perturbation,
            tuple(self._notes(row)),
            row.cost,
            row.case,
        )

    def best(self, part: Part) -> np.ndarray:
        """The least time that any row spends on it; the floor where no row can tell."""
        if part not in self._best:
            several = [r for r in self._exact if r.turns > 1]
            pools = (self._pools(part, rows).values() for rows in (self._complete, several, self._exact, self.rows))
            found = [np.median(pool, axis=0) for pool in next(filter(None, pools), ())]
            self._best[part] = np.min(found, axis=0) if found else self._floor(part)
        return self._best[part]

    def lowerings(self, site: ConvSite) -> dict[str, np.ndarray]:
        """T(lowering, site) of every lowering that a forced plan of the executor used there."""
        return self.costs.at(site)

    def algorithm(self, row: Row, site: ConvSite) -> np.ndarray | None:
        """What the row's choice of an algorithm costs at a site; None where that can't be told."""
        known, used = self.lowerings(site), row.lowerings.get(site)
        return known[used] - np.min(list(known.values()), axis=0) if used in known else None

    def unknown(self, row: Row) -> float:
        """Seconds of a row in kernels of no known kind, and of convolutions that are not at a site of the network."""
        return float((row.spent("") + self._elsewhere(row))[0])

    def _elsewhere(self, row: Row) -> np.ndarray:
        """What convolutions take that are at no known site, or at one that the network has not."""
        return sum((row.spent(CONV, s) for s in row.places if s not in self.names), self._zero)

    def _pools(self, part: Part, rows: Iterable[Row]) -> dict[tuple, list[np.ndarray]]:
        """The times of rows that may be best at it, those together that run the same code."""
        out: dict[tuple, list[np.ndarray]] = {}
        for row in rows:
            case = row.case
            if isinstance(part, ConvSite):
                taken, lowering = row.spent(CONV, part), case.plan[part]
                counts = part in row.sites
            else:
                taken, lowering = row.spent(part), "" if case.plan.lowerings else None
                counts = bool(taken[0] > 0) or not self._must_be_done(part)
            if counts:
                code = (case.runner, lowering, case.options, bool(case.plan.tuned))
                own = (row.title,) if lowering is None else code
                out.setdefault(own, []).append(taken)
        return out

    def _must_be_done(self, kind: str) -> bool:
        """Whether a row without kernels of the kind has it in others: there is such work, or nobody knows."""
        return not self._layers or any(
            w.flop or w.image_bytes or w.weight_bytes for w in self._layers if w.kind == kind
        )

    @cached_property
    def _floors(self) -> dict[Part, float]:
        out: dict[Part, float] = {}
        if self._machine is not None:
            for work, (seconds, _) in zip(self._layers, floors(self._layers, self._machine), strict=True):
                part = work.kind if work.site is None else work.site
                out[part] = out.get(part, 0.0) + seconds
        return out

    def _floor(self, part: Part) -> np.ndarray:
        return self._zero + self._floors.get(part, 0.0)

    @cached_property
    def _parts(self) -> list[Part]:
        """The sites, and the kinds that anybody has."""
        there = {w.kind for w in self._layers} | {k for k in OTHERS if any(r.spent(k).any() for r in self.rows)}
        return [*self.sites, *(k for k in OTHERS if k in there)]

    def _name(self, part: Part) -> str:
        return self.names[part] if isinstance(part, ConvSite) else part

    def _notes(self, row: Row) -> Iterator[str]:
        if not self._layers:
            yield "floor is 0, as the work of the layers is not known: headroom is the best kernels as a whole"
        elif row.case.device != CPU:
            yield (
                f"floor is 0, as the roofs of {row.case.device} are not measured with a run: headroom is the best"
                " kernels as a whole"
            )
        elif self._machine is None:
            yield (
                f"floor is 0, as this machine was not calibrated with {row.case.threads} threads: headroom is the best"
                " kernels as a whole"
            )
        elif self._machine.load > FOREIGN:
            yield (
                f"floor may be too high, as other processes used {self._machine.load:.1f} CPUs while the roofs of this"
                " machine were measured"
            )
        for kind in (k for k in OTHERS if self._floors.get(k)):
            below = self._floors[kind] - interval(self.best(kind))[1]
            if below > BEATEN * self._floors[kind]:
                yield (
                    f"{kind}: the best is {below * 1e3:.2f} ms or more below its floor, as some of it is fused into"
                    " other kernels, or this machine was slower when its roofs were measured"
                )
        if len(self.rows) == 1:
            yield "no other row was profiled: its own kernels are the best ones, and what it takes above them is 0"
        yield from self._notes_on_algorithms(row)
        for other in self.rows:
            if other not in self._complete:
                yield f"{other.title}: {self._why(other)}, so that none of it is among the best"
        unseen = [s for s in self.sites if not any(s in r.sites for r in self.rows)]
        if unseen:
            yield f"no row tells what it spends at {self._listed(unseen)}: headroom is 0 there"
        if row.plain is None:
            yield "no unprofiled steps were timed beside the passes: all that they differ by is in the rest"
        if row.turns < 2:
            text = "it was profiled in one round, which does not tell how rounds differ: its terms have no interval"
            yield text if row.case.device == CPU else f"{text}; on a GPU, --fresh profiles it in each"

    def _why(self, row: Row) -> str:
        """Why a row can't be among the best; empty if it can."""
        if not row.kernels:
            return "no kernels were seen"
        if (share := self.unknown(row) / row.wall[0]) > COMPLETE:
            return f"{share:.1%} of its time is in kernels of no known kind or site"
        if why := self._apart.get(id(row.measurement)):
            return f"it is not held against the others, {why}"
        return "it was profiled in one round alone" if self._several and row.turns < 2 else ""

    def _notes_on_algorithms(self, row: Row) -> Iterator[str]:
        if not any(self.lowerings(s) for s in self.sites):
            if self.sites:
                yield f"{_NOT_APART}, as no row with a forced lowering was profiled"
            return
        unknown = [s for s in self.sites if row.lowerings.get(s) is None]
        if unknown:
            yield f"{_NOT_APART} where the algorithm is unknown: {self._listed(unknown)}"
        missing: dict[str, list[ConvSite]] = {}
        for site in self.sites:
            used = row.lowerings.get(site)
            if used is not None and used not in self.lowerings(site):
                missing.setdefault(used, []).append(site)
        for used, sites in missing.items():
            yield f"{_NOT_APART} where no forced {used} was profiled: {self._listed(sites)}"
        alone = [s for s in self.sites if len(self.lowerings(s)) == 1]
        if alone:
            yield f"algorithm is 0 where one lowering alone was profiled: {self._listed(alone)}"

    def _listed(self, sites: Sequence[ConvSite]) -> str:
        return "all convolutions" if len(sites) == len(self.sites) else ", ".join(self.names[s] for s in sites)


def _seen(parts: Parts) -> Parts:
    """Without those that are 0 throughout."""
    return [(name, values) for name, values in parts if values.any()]
