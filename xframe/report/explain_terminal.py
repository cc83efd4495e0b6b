"""An explanation in the terminal: sentences, then terms and convolutions of each batch and number of threads."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from xframe.analysis.decomposition import Group, groups
from xframe.analysis.explanation import Explanation
from xframe.analysis.labels import words as site_words
from xframe.analysis.passes import CONV, Row, place
from xframe.analysis.terms import TERMS, Decomposition, Term
from xframe.report.explain_words import HOST, KIND, TERM, Scale, bounds, row, sentences, where
from xframe.results import Machine, Run
from xframe.types import Case, ConvSite, Outcome

#: Columns to fill where there is no terminal that tells its own width.
WIDTH = 100
#: Rows of an explanation that stand side by side.
ABREAST = 3
_EXECUTOR = "common executor"
#: What no interval of a difference holds.
ONE_PROCESS = (
    "Each row is of one process. What processes of the same code differ by is not in these intervals; with --fresh each"
    " round has a process of its own."
)


def render(explanation: Explanation, out: TextIO, details: bool = False) -> None:
    """Write the whole of it. ``details``: the parts of every term too."""
    console = _console(out)
    for text in sentences(explanation):
        console.print(Text(f"{textwrap.fill(text, console.width, break_long_words=False)}\n"))
    render_tables(explanation, out, details)


def render_tables(explanation: Explanation, out: TextIO, details: bool = False) -> None:
    """The numbers behind the sentences."""
    console = _console(out)
    console.print(Text(_head(explanation.run)))
    measured = {_key(g.rows[0].case): g for g in groups(explanation.run)}
    for found in explanation.groups():
        assert found[0].case is not None
        console.print(Text(f"\n{where(found[0].case)}: ms, with 95 % intervals", style="bold"))
        for some in _abreast(found):
            console.print(_terms(some, len(found) == 2, details), soft_wrap=False)
        for line in (*_notes(found), *_told(explanation, found)):
            console.print(Text(line))
        group = measured[_key(found[0].case)]
        for some in _abreast([r for d in found for r in group.rows if r.case is d.case]):
            console.print(Text("\nconvolutions, forward: ms of a profiled pass, lowering, what the runner calls it"))
            console.print(_sites(group, some, found[0]), soft_wrap=False)
    for line in (*_executor(explanation.run), *_machines(explanation.run), *explanation.notes):
        console.print(Text(line))
    alone = [m for m in explanation.rows if m.environment.get("processes", 1) < 2]
    if alone and any(len(found) > 1 for found in explanation.groups()):
        console.print(Text(ONE_PROCESS), soft_wrap=False)


def _console(out: TextIO) -> Console:
    return Console(file=out, highlight=False, soft_wrap=True, width=None if out.isatty() else WIDTH)


def _head(run: Run) -> str:
    facts, case = run.environment, run.measurements[0].case
    return f"xframe {facts['versions']['xframe']}: {case.model} on {case.device} ({facts['cpu']})"


def _key(case: Case) -> tuple[int, int]:
    return case.batch, case.threads


def _abreast(some: Sequence) -> Iterator[Sequence]:
    return (some[i : i + ABREAST] for i in range(0, len(some), ABREAST))


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(names[0], overflow="fold")
    for name in names[1:]:
        table.add_column(name, justify="right", overflow="fold", vertical="top")
    return table


def _terms(some: Sequence[Decomposition], compared: bool, details: bool) -> Table:
    """A row a term, signed; of two decompositions also the slower less the faster."""
    columns = list(some)
    heads = [row(d.case) if d.case else d.title for d in some]
    if compared and len(some) == 2:
        fast, slow = sorted(some, key=lambda d: d.wall.seconds)
        columns.append(slow.difference(fast))
        heads.append(f"{heads[some.index(slow)]} - {heads[some.index(fast)]}")
    table = _table("", *heads)
    scale = Scale(max(d.wall.seconds for d in some))
    scale.places += max(d.wall.seconds for d in some) < 0.1  # one more than in a sentence, where there is room
    table.add_row("wall", *(_interval(d.wall, scale) for d in columns), style="bold")
    for number, name in enumerate(n for n in TERMS if any(d.term(n) for d in columns)):
        table.add_row(f"{'+' if number else '='} {TERM[name]}", *(_interval(d.term(name), scale) for d in columns))
        names = dict.fromkeys(p.name for d in columns for p in getattr(d.term(name), "parts", ())) if details else {}
        words = HOST if name == "overhead" else KIND
        for part in names:
            cells = [_interval(t.part(part) if (t := d.term(name)) else None, scale) for d in columns]
            table.add_row(f"    {words.get(part, part)}", *cells, style="dim")
    table.add_row("unattributed", *(_share(d.unattributed, d, scale) for d in some))
    table.add_row("profiled step slower", *(_share(d.perturbation, d, scale) for d in some))
    table.add_row("profiler's own cost", *(_share(d.cost, d, scale) for d in some))
    return table


def _interval(term: Term | None, scale: Scale) -> str:
    return "-" if term is None else f"{scale(term.seconds)} ({bounds(term, scale)})"


def _share(seconds: float, d: Decomposition, scale: Scale) -> str:
    return f"{scale(seconds)} ({seconds / d.wall.seconds:.1%} of wall)"


def _notes(found: Sequence[Decomposition]) -> Iterator[str]:
    """What the terms leave out; what holds for all rows once."""
    common = [n for n in found[0].notes if all(n in d.notes for d in found)]
    yield from common
    for d in found:
        name = row(d.case) if d.case else d.title
        yield from (f"{name}: {n}" for n in d.notes if n not in common)


def _told(explanation: Explanation, found: Sequence[Decomposition]) -> Iterator[str]:
    """What was noted while the rows were measured: load from others, say."""
    for d in found:
        for m in explanation.rows:
            if m.case is d.case:
                yield from (f"{row(m.case)}: {note}" for note in m.notes)


def _sites(group: Group, rows: Sequence[Row], any_of_them: Decomposition) -> Table:
    """A row a convolution: each runner's time and algorithm, the lowering that is fastest, the floor."""
    table = _table("convolution", *(row(r.case) for r in rows), "best lowering", "floor")
    floors = {p.name: p.seconds for p in any_of_them["floor"].parts}
    for site in group.sites:
        name = group.names[site]
        text = name if name == site_words(site) else f"{name}\n{site_words(site)}"
        known = {low: float(values[0]) for low, values in group.lowerings(site).items()}
        best = min(known, key=known.__getitem__, default=None)
        cells = [_cell(r, site) for r in rows]
        table.add_row(text, *cells, "-" if best is None else f"{known[best] * 1e3:.3f}\n{best}", _ms(floors.get(name)))
    return table


def _cell(r: Row, site: ConvSite) -> str:
    """``0.702 direct`` and ``brgconv:avx512_core`` below it."""
    if site not in r.sites:
        return "-"
    words = algorithm(r, site)
    text = f"{_ms(float(r.spent(CONV, site)[0]))}\n{r.lowerings.get(site) or 'unknown'}"
    return text + (f"\n{words}" if words else "")


def algorithm(r: Row, site: ConvSite) -> str:
    """What the runner calls the algorithm that it spends most of its time at a site in."""
    spent: Counter[str] = Counter()
    for one in r.passes:
        for k in one.kernels:
            if place(k) == (CONV, site) and k.algorithm:
                spent[k.algorithm] += k.end - k.start  # type: ignore[assignment]
    return max(spent, key=lambda words: (spent[words], words), default="")


def _ms(seconds: float | None) -> str:
    return f"{seconds * 1e3:.3f}" if seconds else "-"


def _executor(run: Run) -> Iterator[str]:
    """The rows of the forced plans: medians, and what became of the others."""
    for key in dict.fromkeys(_key(m.case) for m in run.measurements):
        rows = [
            m
            for m in run.measurements
            if m.case.runner == "tvm" and m.case.plan.label != "auto" and _key(m.case) == key
        ]
        ok = [m for m in rows if m.outcome == Outcome.OK]
        if rows:
            told = ", ".join(f"{m.case.plan.label} {median(m.samples) * 1e3:.2f}" for m in ok) or "no row is OK"
            yield f"\n{_EXECUTOR}, {where(rows[0].case)}, ms of a whole pass: {told}"
        yield from (f"{m.case.plan.label}: {m.outcome.value}, {m.reason}" for m in rows if m not in ok)


def _machines(run: Run) -> Iterator[str]:
    for threads, machine in run.machines.items():
        yield f"this machine, {threads} thread{'s' * (threads != 1)}: {_reaches(machine)}"


def _reaches(machine: Machine) -> str:
    rates = ", ".join(f"{level.bytes_per_s / 1e9:.0f} GB/s from {level.name}" for level in machine.levels)
    return f"{machine.flop_per_s / 1e9:.0f} GFLOP/s, {rates}"
