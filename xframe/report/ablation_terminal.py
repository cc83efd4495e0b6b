"""An ablation in the terminal: a table of settings for each runner and batch, and what they come to in words."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from xframe.analysis.ablations import ALONE, DEFAULT, TOGETHER, TRIED, WORST, Ablation, ablations, helped
from xframe.analysis.ratios import THRESHOLD, Ratio, Verdict
from xframe.report.algorithm_words import by_site
from xframe.report.terminal import WIDTH
from xframe.results import FOREIGN, Measurement, Run
from xframe.types import Case, Outcome

_STYLES = {Verdict.FASTER: "green", Verdict.SLOWER: "red", Verdict.SAME: "", Verdict.AMBIGUOUS: "yellow"}
#: Of rows that are not one switch alone, measured once.
_STEPS = {ALONE: "", TRIED: "tried", TOGETHER: "again", WORST: "again"}


def render(run: Run, out: TextIO) -> None:
    """Write the tables of an ablation, each with its headline."""
    console = Console(file=out, highlight=False, soft_wrap=True, width=None if out.isatty() else WIDTH)
    facts = run.environment
    model = f"{run.measurements[0].case.model} on " if run.measurements else ""
    console.print(Text(f"xframe {facts['versions']['xframe']}: {model}{facts['cpu']}"))
    found = ablations(run.measurements)
    console.print(Text("speed-up: the default's time over the setting's, visits in turn, with its 95 % interval;"
                       f" a difference below {found[0].threshold if found else THRESHOLD:.1%} is none."))  # fmt: skip
    for one in found:
        console.print(Text(f"\n{title(one.default.case)}", style="bold"))
        console.print(_table(one), soft_wrap=False)
        for line in (*_reasons(one), *headlines(one)):
            console.print(Text(line))


def title(case: Case) -> str:
    """``pytorch native, batch 1, threads 2``; a backend's has the framework of the export."""
    if case.runner == "native":
        name = f"{case.framework} native"
    else:
        name = f"{case.runner}, export of {case.framework}" if case.framework else case.runner
    return f"{name}, batch {case.batch}, threads {case.threads}"


def headlines(one: Ablation) -> Iterator[str]:
    """What the switches come to, a sentence a line."""
    case, together, worst, gains = one.default.case, one.together, one.worst, helped(one.of(ALONE))
    name = case.framework if case.runner == "native" else case.runner
    at = f"at batch {case.batch}"
    if one.default.outcome != Outcome.OK:
        yield f"{name}: its defaults are {one.default.outcome.value}, so that nothing can be held against them"
        return
    if together is not None and together.speedup is not None and together.verdict != Verdict.FASTER:
        yield f"{together} seemed to help {name} {at}, and measured again gave {times(together.speedup)}: unsure"
    elif together is not None and together.speedup is not None:
        yield f"options alone give {name} {times(together.speedup)} {at}: {together}"
    elif gains:
        failed = "".join(f": together they are {s.measurement.outcome.value}" for s in one.of(TOGETHER)[:1])
        each = ", ".join(f"{s} {times(s.speedup)}" for s in gains if s.speedup is not None)
        yield f"single options seemed to help {name} {at}, and were not measured again{failed}: {each}"
    else:
        yield f"no option alone makes {name} faster than its defaults {at}"
    if worst is not None and (span := one.worst_to_best) is not None:
        unsure = gains and together is None  # then the defaults are not known to be the best
        best = "the defaults" if unsure else f"the best ({one.best or 'the defaults'})"
        yield f"from the worst single setting ({worst}) to {best}: {times(span)}"
    told = [s for s in (together, worst) if s is not None]
    load = [x for m in (one.default, *(s.measurement for s in told)) for x in m.environment.get("foreign_load", ())]
    if max(load, default=0.0) > FOREIGN:
        yield f"beware: other processes used up to {max(load):.1f} CPUs meanwhile; a quiet machine may say otherwise"


def times(ratio: Ratio) -> str:
    """``1.90x (1.85 to 1.95)``."""
    return f"{ratio.value:.2f}x ({ratio.low:.2f} to {ratio.high:.2f})"


def _table(one: Ablation) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("option", no_wrap=True)
    for name in ("value", "verdict"):
        table.add_column(name, overflow="fold")
    for name in ("median ms", "n", "speed-up", "95 %"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_row(DEFAULT, "", _outcome(one.default), *_time(one.default), "1.00", "", "")
    for s in one.settings:
        names, values = zip(*s.changed, strict=True)
        cells = ["\n".join(names), "\n".join(values)]
        verdict, speedup = s.verdict, s.speedup
        if verdict is None or speedup is None:
            table.add_row(*cells, _outcome(s.measurement), *_time(s.measurement), "-", "-", _STEPS[s.step])
            continue
        told = [f"{speedup.value:.2f}", f"{speedup.low:.2f} to {speedup.high:.2f}"]
        table.add_row(*cells, Text(verdict.value, style=_STYLES[verdict]), *_time(s.measurement), *told, _STEPS[s.step])
    return table


def _outcome(m: Measurement) -> Text:
    return Text(m.outcome.value, style="" if m.outcome == Outcome.OK else "bold red")


def _time(m: Measurement) -> tuple[str, str]:
    if m.outcome != Outcome.OK:
        return "-", "-"
    return f"{statistics.median(m.samples) * 1e3:.2f}", str(len(m.samples))


def _reasons(one: Ablation) -> Iterator[str]:
    """Why a setting has no time, and what its row says that the default's does not; equal texts once."""
    told: dict[str, list[str]] = {}
    rows: Sequence[tuple[str, Measurement, Sequence[str]]] = [(DEFAULT, one.default, ())]
    rows = [*rows, *((str(s), s.measurement, _notes(s.default)) for s in one.settings)]
    for name, m, known in rows:
        for text in ([f"{m.outcome.value}: {m.reason}"] if m.reason else []) + [x for x in _notes(m) if x not in known]:
            names = told.setdefault(text, [])
            if name not in names:
                names.append(name)
    return (f"{'; '.join(names)}: {text}" for text, names in told.items())


def _notes(m: Measurement) -> Sequence[str]:
    return (*m.notes, *([f"convolutions: {by}"] if (by := by_site(m)) else []))
