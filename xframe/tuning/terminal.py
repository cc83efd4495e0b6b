"""A tuning session in the terminal: its progress on stderr, and the table of what became of each kernel."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from xframe.analysis.labels import words as site_words
from xframe.lowering.tasks import Task
from xframe.report.terminal import WIDTH
from xframe.tuning.result import Report, Row, State


def words(task: Task) -> str:
    """``16 x 64x27x27 -> 192, 5x5 winograd F(4,5)``."""
    site, detail = task.variant.site, task.variant.detail
    return f"{site.batch} x {site_words(site)} {task.lowering} {detail}".rstrip()


class Bar:
    """A progress bar in a terminal; elsewhere a line whenever a kernel is taken up or does better.

    A context manager.
    """

    def __init__(self, out: TextIO | None = None):
        self._out = sys.stderr if out is None else out
        columns = (
            BarColumn(20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.description}", markup=False),
        )
        self._bars = Bars(*columns, console=Console(file=self._out), transient=True) if self._out.isatty() else None
        self._shown: tuple[object, ...] = ()

    def __call__(self, state: State) -> None:
        text = _doing(state)
        if self._bars is not None:
            if not self._bars.tasks:
                self._bars.add_task("", total=state.total, left="")
                self._bars.start()
            left = "" if state.left_s is None else f"{_duration(state.left_s)} left"
            self._bars.update(self._bars.task_ids[0], completed=state.done, description=text, left=left)
        elif (key := (state.task, state.doing, state.gain)) != self._shown:
            self._shown = key
            print(f"{state.done} of {state.total} trials: {text}", file=self._out, flush=True)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bars is not None:
            self._bars.stop()


def _doing(state: State) -> str:
    if state.task is None:
        return "begins"
    text = f"{words(state.task)}: {state.doing}".rstrip(": ")
    if state.gain is None or state.flop_per_s is None or state.by_hand_flop_per_s is None:
        return text
    rates = f"{state.flop_per_s / 1e9:.1f} GFLOP/s over {state.by_hand_flop_per_s / 1e9:.1f} by hand"
    return f"{text}, best {state.gain:.2f}x, {rates}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def render(report: Report, out: TextIO) -> None:
    """Write the table of a session, then why templates stay, the notes and what was written."""
    console = Console(file=out, highlight=False, soft_wrap=True, width=None if out.isatty() else WIDTH)
    console.print(_table(report), soft_wrap=False)
    for number, row in enumerate(report.rows, 1):
        if row.reason:
            console.print(Text(f"[{number}] {row.reason}"))
    if report.gain is not None:
        tuned = sum(r.entry is not None for r in report.rows)
        mean = f"geometric mean of the gain {report.gain:.3f}x"
        console.print(Text(f"\n{tuned} of {len(report.rows)} kernels tuned; {mean} (1 where the template stays)"))
    spent = f"{report.trials} trials in {_duration(report.seconds)}"
    if report.trials:
        spent += f", {report.cpu_s / report.trials:.2f} CPU seconds each"
    console.print(Text(spent))
    for text in (*report.notes, *(f"wrote {folder}" for folder in report.logs)):
        console.print(Text(text))


def _table(report: Report) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("kernel", overflow="fold")
    table.add_column("tile and knobs", overflow="fold")
    for name in ("by hand us", "tuned us", "gain", "GFLOP/s", "trials", "failed"):
        table.add_column(name, justify="right", no_wrap=name != "failed")
    for number, row in enumerate(report.rows, 1):
        baseline, seconds, gain = row.baseline, row.seconds, row.gain
        table.add_row(
            words(row.task),
            _schedule(row, number),
            "-" if baseline is None else f"{baseline * 1e6:.1f}",
            f"{seconds * 1e6:.1f}" if row.entry and seconds else "-",
            Text("-" if gain is None else f"{gain:.2f}x", style="green" if row.entry else ""),
            f"{row.flop / seconds / 1e9:.1f}" if seconds else "-",
            str(row.trials),
            failures(row.failures),
        )
    return table


def _schedule(row: Row, number: int) -> str:
    if row.entry is None:
        return f"the template stays [{number}]"
    tile = "x".join(map(str, row.entry.tile))
    knobs = "MetaSchedule's" if row.entry.knobs is None else " ".join(f"{k} {v}" for k, v in row.entry.knobs.items())
    return f"{tile}: {knobs}"


def failures(counts: Mapping[str, int]) -> str:
    """``CRASHED 2, TIMEOUT 1``; ``-`` for none."""
    return ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items())) or "-"
