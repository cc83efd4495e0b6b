"""A check in the terminal: the verdict first, then why, in words; numbers only where it parts."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from xframe.equivalence.result import Check, Comparison, LayerRow, RunRow, State, Statistics, judged
from xframe.report import check_words as words
from xframe.report.terminal import WIDTH

_STYLES = {State.EQUIVALENT: "green", State.DIFFERENT: "bold red", State.UNCHECKED: "bold yellow"}


def render(check: Check, out: TextIO) -> None:
    """Write the report of a check, in :data:`WIDTH` columns where there is no terminal that tells its own."""
    console = Console(file=out, highlight=False, soft_wrap=True, width=None if out.isatty() else WIDTH)
    report = _Report(console)
    report.say(words.headline(check), style=_STYLES[check.state])
    report.subjects(check)
    first = check.subjects[0].name if check.subjects else ""
    for comparison in check.comparisons:
        report.comparison(comparison, first)
    if check.runs:
        report.runs(check.runs, first)
    facts = ", ".join(f"{name} {value}" for name, value in words.environment(check))
    if facts:
        console.print()
        report.say(f"environment: {facts}")


class _Report:
    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str, start: str = "", style: str = "") -> None:
        """A sentence after ``start``, its further lines under its first word; no word is broken, nothing is cut off."""
        lines = textwrap.wrap(
            words.clean(text), self._console.width, initial_indent=start, subsequent_indent=" " * len(start),
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        for line in lines:
            self._console.print(Text(line, style=style))

    def head(self, text: str, start: str = "", style: str = "bold") -> None:
        self._console.print()
        self.say(text, start, style)

    def subjects(self, check: Check) -> None:
        self._console.print()
        for subject in check.subjects:
            digest = f", sha256 {subject.sha256[:12]}" if subject.sha256 else ""
            self.say(f"{subject.name}: {subject.kind}{digest}")
            for note in subject.notes:
                self.say(note, start="  - ")
        if check.inputs:
            self.say(f"inputs: {check.inputs}")
        for note in check.notes:
            self.say(note, start="note: ")

    def comparison(self, comparison: Comparison, first: str) -> None:
        state = judged(comparison)
        self.head(f"{comparison.name} against {first}: {words.STATES[state]}", style=_STYLES[state])
        for verdict in comparison.levels:
            start = f"  {verdict.level.value:<13}{words.STATES[verdict.state]:<12}"
            self.say(words.why(verdict, comparison), start=start)
        differences = words.sentences(comparison)
        if differences:
            self.head("differences", "  ", "")
        for difference in differences:
            self.say(difference.text, start="  - harmless: " if difference.harmless else "  - ")
        if comparison.absorbed:
            self.head("taken for mere writing", "  ", "")
        for note in comparison.absorbed:
            self.say(note, start="  - ")
        self.layers(comparison, first)

    def layers(self, comparison: Comparison, first: str) -> None:
        rows = (*comparison.layers, *comparison.outputs)
        row = comparison.first_divergence
        if row is None:
            if rows:
                self.head(_agreement(rows, comparison.name), "  ", "")
            return
        at = rows.index(row) + 1
        shape = "x".join(map(str, row.shape)) or "scalar"
        self.head(f"first that differs: {words.layer(row, comparison.name)}, {shape}, {at} of {len(rows)}", "  ", "")
        for line in words.deviation(row, first, comparison.name):
            self.say(line, start="    ")
        start, shown = words.around(rows)
        self._console.print()
        self._console.print(_layer_table(shown, start), soft_wrap=False)

    def runs(self, runs: Sequence[RunRow], first: str) -> None:
        self.head("runs: own, against the float64 result of the same graph; first, against that of " + first)
        self._console.print(_run_table(runs), soft_wrap=False)
        for run in runs:
            if run.state is not State.EQUIVALENT or run.reason:
                self.say(words.conclusion(run, first), start="  - ")


def _agreement(rows: Sequence[LayerRow], name: str) -> str:
    """How near layers of which none differs came to it."""
    compared = [row for row in rows if words.row_state(row) == "same"]
    told = f"{len(compared)} of {len(rows)} layers and outputs compared, none differs"
    nearest = words.closest(compared)
    if nearest is None or nearest.statistics is None:
        return told
    if not nearest.statistics.ratio:
        return f"{told}: they are exactly the same"
    return f"{told}; nearest to its bound: {words.layer(nearest, name)}, {words.number(nearest.statistics.ratio)} of it"


def _layer_table(rows: Sequence[LayerRow], start: int) -> Table:
    table = _table(["layer", "operator", "shape"], ["max abs", "RMS", "of bound"], ["verdict"])
    for number, row in enumerate(rows, start + 1):
        s = row.statistics
        values = ("-", "-", "-") if s is None else (*map(words.number, (s.max_abs, s.rms)), words.share(s.ratio))
        table.add_row(
            Text(f"  {number} {words.clean(row.a or row.b)}"),
            Text(words.clean(row.op)),
            "x".join(map(str, row.shape)),
            *values,
            Text(words.row_state(row), style="" if words.row_state(row) == "same" else "bold red"),
        )
    return table


def _run_table(runs: Sequence[RunRow]) -> Table:
    table = _table(
        ["subject", "runner", "verdict"], ["own error", "of bound", "first error", "of bound"], ["leaves at"]
    )
    for run in runs:
        verdict = Text(words.STATES[run.state], style=_STYLES[run.state])
        cells = [*_pair(run.own), *_pair(run.first), words.clean(run.blamed) or "-"]
        table.add_row(Text(f"  {words.clean(run.subject)}"), Text(words.clean(run.runner)), verdict, *map(Text, cells))
    return table


def _pair(statistics: Statistics | None) -> tuple[str, str]:
    return ("-", "-") if statistics is None else (words.number(statistics.max_abs), words.share(statistics.ratio))


def _table(left: Sequence[str], right: Sequence[str], last: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for i, name in enumerate(left):
        table.add_column(f"  {name}" if i == 0 else name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    for name in last:
        table.add_column(name, overflow="fold")
    return table
