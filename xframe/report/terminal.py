"""The report in the terminal: a table of rows, and one of convolution sites, for each batch and thread count."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from xframe.analysis import shares
from xframe.analysis.algorithms import unlabelled
from xframe.analysis.comparable import apart_from_first
from xframe.analysis.labels import words
from xframe.report import native_terminal
from xframe.report.algorithm_words import by_site
from xframe.results import Measurement, Run
from xframe.store import row
from xframe.types import ConvSite, Outcome

#: Columns to fill where there is no terminal that tells its own width.
WIDTH = 100
#: How the schedule of a tuned kernel begins (``SiteRecord.schedule``); its log follows.
TUNED = "tuned, "
_UNTUNED = {"template": "template (scheduled by hand)", "fixed": "fixed (no template)"}
_STYLES = {Outcome.OK: "green", Outcome.UNSUPPORTED: "yellow", Outcome.UNAVAILABLE: "yellow"}


def render(run: Run, out: TextIO) -> None:
    """Write the report of a run. Only OK rows show a time; reasons and notes are below each table, in full."""
    console = Console(file=out, highlight=False, soft_wrap=True, width=None if out.isatty() else WIDTH)
    for line in _head(run):
        console.print(Text(line))
    for (batch, threads), group in groupby(run.measurements, key=lambda m: (m.case.batch, m.case.threads)):
        rows = list(group)
        console.print(Text(f"\nbatch {batch}, threads {threads}", style="bold"))
        notes = _Notes()
        console.print(_table(rows, notes), soft_wrap=False)
        for line in notes.lines():
            console.print(Text(line))
        sites = _site_table(rows)
        if sites is not None:
            console.print(Text("\nconvolutions, ms (from the profiled pass, which is not the timed one)"))
            console.print(sites, soft_wrap=False)
            console.print(Text("* best of the site; ( ) the lowering refuses this site, and its fallback ran"))
        natives = native_terminal.profiled(rows)
        if natives:
            console.print(Text("\nnative, ms (from the profiled pass)"))
            console.print(native_terminal.table(natives), soft_wrap=False)
            for line in native_terminal.used(natives):
                console.print(Text(line))


class _Notes:
    """Footnotes: equal texts share a number."""

    def __init__(self) -> None:
        self._texts: dict[str, int] = {}

    def mark(self, texts: Sequence[str]) -> str:
        """The numbers of ``texts``."""
        return ",".join(map(str, sorted({self._texts.setdefault(t, len(self._texts) + 1) for t in texts})))

    def lines(self) -> Iterator[str]:
        return (f"[{number}] {text}" for text, number in self._texts.items())


def _head(run: Run) -> Iterator[str]:
    facts = run.environment
    first = run.measurements[0].case
    yield f"xframe {facts['versions']['xframe']}: {first.model} on {first.device} ({facts['cpu']})"
    request = facts.get("request", {})
    if request.get("lowerings") is None and any(m.case.plan.label != "auto" for m in run.measurements):
        resolved = request.get("resolved", {})
        yield (
            "All lowerings, as none was named; where one refuses a convolution,"
            f" {resolved.get('fallback')} runs (noted)."
        )
    yield "median, IQR, n: of the raw samples of a whole forward pass. x best: 1.00 is the fastest row."
    yield "error: largest deviation from the float64 reference. of bound: its share of what float32 may err."


def _table(rows: Sequence[Measurement], notes: _Notes) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("framework", "runner", "lowering", "verdict"):
        table.add_column(name, overflow="fold")
    by_device = any(m.device_samples for m in rows)
    numbers = ("median ms", "IQR", "n", "x best", *(("device ms",) if by_device else ()), "error", "of bound", "notes")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    unranked = apart_from_first(rows)
    ranked = [m for m in rows if m.outcome == Outcome.OK and id(m) not in unranked]
    best = min((statistics.median(m.samples) for m in ranked), default=0.0)
    for m in rows:
        flat = row(m)
        texts = [f"{m.outcome.value}: {m.reason}"] if m.reason else []
        texts += [f"with {name} {value}" for name, value in m.case.options]
        texts += [_fallback(m)] if m.case.plan.fallback else []
        texts += [text] if (text := _schedules(m)) else []
        texts += [f"convolutions: {by}"] if m.case.runner != "native" and (by := by_site(m)) else []
        texts += [f"device ms: {how}"] if (how := flat["device_clock"]) else []
        texts += [f"not ranked with the others: {unranked[id(m)]}"] if id(m) in unranked else []
        cells = [
            flat["framework"] or "-",
            flat["backend"],
            flat["lowering"],
            Text(m.outcome.value, style=_STYLES.get(m.outcome, "bold red")),
        ]
        if m.outcome == Outcome.OK:
            median = statistics.median(m.samples)
            cells += [f"{median * 1e3:.2f}", f"{flat['iqr_s'] * 1e3:.2f}", str(flat["samples"])]
            times = Text(f"{median / best:.2f}", style="bold" if median == best else "")
            cells += ["-" if id(m) in unranked else times]
        else:
            cells += ["-"] * 4
        if by_device:
            cells += ["-" if flat["device_median_s"] is None else f"{flat['device_median_s'] * 1e3:.3f}"]
        cells += [
            "-" if m.error is None else f"{m.error:.1e}",
            "-" if m.error_ratio is None else f"{m.error_ratio:.2g}",
        ]
        table.add_row(*cells, notes.mark([*texts, *m.notes]))
    return table


def _fallback(m: Measurement) -> str:
    """The sites that did not run as asked; one reason is told once."""
    plan = m.case.plan
    by_reason: dict[str, list[str]] = {}
    for site, why in plan.fallback:
        by_reason.setdefault(why, []).append(words(site))
    parts = "; ".join(f"{', '.join(sites)}: {why}" for why, sites in by_reason.items())
    return f"{len(plan.fallback)} of {len(plan.lowerings)} different convolutions fell back: {parts}"


def _schedules(m: Measurement) -> str:
    """Which kernels are tuned, from which logs, and what the others' schedules are from; empty if nobody says."""
    found: dict[str, list[ConvSite]] = {}
    for record in m.sites:
        if record.schedule:
            found.setdefault(record.schedule, []).append(record.site)
    total = sum(map(len, found.values()))
    tuned = {text.removeprefix(TUNED): len(sites) for text, sites in found.items() if text.startswith(TUNED)}
    others = {_UNTUNED.get(text, text): sites for text, sites in found.items() if not text.startswith(TUNED)}
    if not tuned and len(others) == 1:
        return f"{next(iter(others))}: all {total} kernels"
    logs = " and ".join(f"{log} ({count})" if len(tuned) > 1 else log for log, count in tuned.items())
    parts = [f"tuned: {sum(tuned.values())} of {total} kernels, from {logs}"] if tuned else []
    return "; ".join([*parts, *(f"{text}: {_several(sites)}" for text, sites in others.items())])


def _several(sites: Iterable[ConvSite]) -> str:
    """Sites in words, each once, with how often it is there."""
    counts = Counter(map(words, sites))
    return ", ".join(f"{words} (x{count})" if count > 1 else words for words, count in counts.items())


def _site_table(rows: Sequence[Measurement]) -> Table | None:
    """Site by runner and lowering; None when no kernel could be joined to a site."""
    times: dict[ConvSite, dict[str, list[float]]] = {}
    refused: set[tuple[ConvSite, str]] = set()
    took: dict[tuple[ConvSite, str], dict[str, None]] = {}  # where the column does not name it
    counts: Counter[ConvSite] = Counter()
    columns: dict[str, None] = {}
    unranked = apart_from_first(rows)
    others = {f"{m.case.runner} {m.case.plan.label}" for m in rows if id(m) in unranked}
    for m in rows:
        if m.case.artifact is None:
            continue
        for site, count in Counter(s for _, s in m.case.artifact.conv_sites).items():
            counts[site] = max(counts[site], count)
            times.setdefault(site, {})
        if m.outcome != Outcome.OK:
            continue
        column = f"{m.case.runner} {m.case.plan.label}"
        refused.update((site, column) for site, _ in m.case.plan.fallback)
        for site, name in unlabelled(m).items():
            if (site, column) not in refused:
                took.setdefault((site, column), {})[name] = None
        for site, seconds in shares.spent(m.profiles, shares.site).items():
            if site in times:
                columns[column] = None
                times[site].setdefault(column, []).append(statistics.median(seconds))
    if not columns:
        return None
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("convolution", overflow="fold")
    for column in columns:
        table.add_column(column.replace(" ", "\n"), justify="right", no_wrap=True, vertical="bottom")
    for site, found in times.items():
        medians = {c: statistics.median(v) for c, v in found.items()}
        own = {c: value for c, value in medians.items() if (site, c) not in refused}
        ranked = [c for c in own if c not in others]  # a fallback's time is no merit of the column it stands in
        best = min(ranked, key=own.__getitem__, default=None)
        cells: list[str | Text] = [words(site) + (f" (x{counts[site]})" if counts[site] > 1 else "")]
        for column in columns:
            text = f"{medians[column] * 1e3:.3f}" if column in medians else "-"
            text = f"({text})" if column in medians and column not in own else text
            text = " ".join(["/".join(took.get((site, column), ())), text]).lstrip()
            cells.append(Text(f"{text}*" if column == best else f"{text} ", style="bold" if column == best else ""))
        table.add_row(*cells)
    return table
