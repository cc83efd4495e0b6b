"""The self-test in the terminal: a row for each lie, and what was wrong below."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from xframe.selftest.lies import LIES, PART
from xframe.selftest.verdict import TOLERANCE, Finding

#: Columns to fill where there is no terminal that tells its own width.
WIDTH = 120
#: What is called found.
MEANING = (
    f"found: the interval of its term is above 0 and has, widened by {TOLERANCE:.0%} of what was planted, that time; no"
    f" other term, so widened, is without 0. Of an allocation {PART:.0%} must be in its part.",
    f"In an honest row no term may miss 0 by more than {TOLERANCE:.0%} of the smallest lie.",
)


def render(runs: Sequence[Sequence[Finding]], out: TextIO) -> None:
    """Write the findings of all ``runs``: medians over the runs, and how many found the lie in its place."""
    console = Console(file=out, highlight=False, soft_wrap=True, width=None if out.isatty() else WIDTH)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("lie", "what is planted", "must be in"):
        table.add_column(name, overflow="fold")
    for name in ("planted ms", "found ms", "interval", "verdict"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in dict.fromkeys(f.lie for run in runs for f in run):
        table.add_row(*_row(name, [f for run in runs for f in run if f.lie == name]))
    console.print(table, soft_wrap=False)
    for line in summary(runs):
        console.print(Text(line))


def _row(name: str, findings: Sequence[Finding]) -> Iterator[str | Text]:
    first, good = findings[0], sum(f.ok for f in findings)
    yield name
    yield LIES[name].what if name in LIES else "an honest row beside others"
    yield first.lands
    yield _median([f.planted for f in findings])
    timed = any(f.seconds is not None for f in findings)
    yield _median([f.seconds for f in findings]) if timed else ""
    yield f"{_median([f.low for f in findings])} to {_median([f.high for f in findings])}" if timed else ""
    said = "found" if name in LIES else "none found"
    text = said if good == len(findings) else "MISSED"
    yield Text(text if len(findings) == 1 else f"{said} {good}/{len(findings)}", "green" if text == said else "red")


def summary(runs: Sequence[Sequence[Finding]]) -> Iterator[str]:
    """How many lies were found, how many by the intervals alone, and each that was not, with its reason."""
    lies = [f for run in runs for f in run if f.lie in LIES]
    judged = [f for run in runs for f in run if f.within is not None]
    yield f"{sum(f.ok for f in lies)} of {len(lies)} lies found in their place."
    if judged:
        yield from MEANING
        yield f"{sum(bool(f.within) for f in judged)} of {len(judged)} decompositions by their 95 % intervals alone."
    for number, run in enumerate(runs, 1):
        for finding in run:
            if not finding.ok:
                yield f"run {number}, {finding.lie}: {finding.reason}"


def _median(values: Sequence[float | None]) -> str:
    known = [v for v in values if v is not None]
    return f"{statistics.median(known) * 1e3:.3f}" if known else ""
