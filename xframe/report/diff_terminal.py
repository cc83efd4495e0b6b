"""Two results against each other in the terminal: a table of rows for each batch and thread count."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from xframe.analysis.changes import BROKEN, Change, Changes
from xframe.analysis.ratios import Ratio, Verdict
from xframe.report.terminal import WIDTH
from xframe.results import Measurement
from xframe.types import Outcome

_STYLES = {Verdict.SLOWER.value: "bold red", BROKEN: "bold red", Verdict.FASTER.value: "green",
           Verdict.AMBIGUOUS.value: "yellow"}  # fmt: skip


def render(changes: Changes, out: TextIO) -> None:
    """Write the tables, what has to be known to read them, and a last line with the sum."""
    console = Console(file=out, highlight=False, soft_wrap=True, width=None if out.isatty() else WIDTH)
    console.print(
        Text("change: of the visits' medians, their geometric mean, from old to new, with its 95 % interval;")
    )
    console.print(Text(f"others: how rows measured in turn with it moved. Up to {changes.threshold:.1%} is none."))
    for difference in changes.differences:
        console.print(Text(f"differs: {difference}"))
    for (batch, threads), group in groupby(changes.rows, key=lambda c: (c.identity.batch, c.identity.threads)):
        rows = list(group)
        console.print(Text(f"\nbatch {batch}, threads {threads}", style="bold"))
        console.print(_table(rows), soft_wrap=False)
        for line in _lines(rows):
            console.print(Text(line))
    console.print(Text(f"\n{summary(changes)}"))


def summary(changes: Changes) -> str:
    """``1 slower, 3 same``: how often each verdict is there, regressions first; what to do of ambiguous ones."""
    counts = Counter(c.verdict for c in changes.rows)
    first = sorted(counts, key=lambda v: v not in (BROKEN, Verdict.SLOWER.value))
    text = ", ".join(f"{counts[v]} {v}" for v in first)
    hint = ": more --rounds, or a quieter machine, decide more" if Verdict.AMBIGUOUS.value in counts else ""
    return text + hint


def _table(rows: list[Change]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("framework", "runner", "lowering", "verdict"):
        table.add_column(name, overflow="fold")
    for name in ("old ms", "new ms", "change", "95 %", "others"):
        table.add_column(name, justify="right", no_wrap=True)
    for c in rows:
        one = c.identity
        options = " ".join(f"{name}={value}" for name, value in one.options)
        table.add_row(
            one.framework or "-",
            " ".join(filter(None, (one.backend, options))),
            one.lowering,
            Text(c.verdict, style=_STYLES.get(c.verdict, "")),
            _time(c.old),
            _time(c.new),
            _change(c.times),
            f"{_part(c.times.low)} to {_part(c.times.high)}" if c.times else "-",
            _change(c.drift),
        )
    return table


def _time(m: Measurement | None) -> str:
    return f"{statistics.median(m.samples) * 1e3:.2f}" if m and m.outcome == Outcome.OK else "-"


def _change(times: Ratio | None) -> str:
    return "-" if times is None else _part(times.value)


def _part(times: float) -> str:
    """A ratio of times as the change: ``+1.2 %``."""
    return f"{(times - 1) * 100:+.1f} %"


def _lines(rows: list[Change]) -> Iterator[str]:
    """Reasons, differences and what disturbed a row, below its table; equal ones of several rows once."""
    told: dict[str, list[str]] = {}
    for c in rows:
        texts = [c.reason] if c.reason else []
        texts += [f"differs: {d}" for d in c.differences if not d.refused]
        if c.verdict not in (Verdict.SAME.value, ""):
            texts += [f"{side}: {n}" for side, m in (("old", c.old), ("new", c.new)) if m for n in m.notes]
        for text in texts:
            told.setdefault(text, []).append(_name(c))
    return (f"{'; '.join(names)}: {text}" for text, names in told.items())


def _name(change: Change) -> str:
    return str(change.identity).split(", batch ")[0]
