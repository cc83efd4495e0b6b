"""A run as Markdown: the summary, and the tables of the page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from xframe.analysis.ablations import ablations
from xframe.analysis.decomposition import Decomposition
from xframe.report import page_words
from xframe.report.ablation_terminal import title
from xframe.report.charts import Chart
from xframe.report.charts_options import options
from xframe.report.charts_roofline import roofline
from xframe.report.charts_sites import speedup_map, time_map
from xframe.report.charts_terms import terms
from xframe.report.charts_times import times
from xframe.report.page_html import clean
from xframe.report.page_rows import groups
from xframe.report.page_sites import SiteTimes
from xframe.report.page_tables import flat, texts
from xframe.results import Run

#: What Markdown, or HTML within it, would take for more than text.
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&])")


def markdown(run: Run, decompositions: Sequence[Decomposition], name: str, sha256: str) -> str:
    """The whole report.

    Parameters
    ----------
    name, sha256
        Of the file that ``run`` is from.
    """
    return "\n".join(_lines(run, decompositions, name, sha256)) + "\n"


def text(value: object) -> str:
    """``value`` as it may stand in a line or a cell."""
    return _SPECIAL.sub(r"\\\1", clean(value))


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> Iterator[str]:
    """A table of plain text; ``numbers``: columns that are set to the right."""
    yield f"| {' | '.join(map(text, head))} |"
    yield f"|{'|'.join('---:' if i in numbers else '---' for i in range(len(head)))}|"
    for row in rows:
        yield f"| {' | '.join(text(c) or ' ' for c in row)} |"
    yield ""


def _lines(run: Run, decompositions: Sequence[Decomposition], name: str, sha256: str) -> Iterator[str]:
    yield f"# {text(page_words.title(run))}\n"
    yield f"From {text(name)}, SHA-256 {text(sha256)}, made {text(run.created)}.\n"
    every = groups(run)
    for i, group in enumerate(every):
        yield f"## {text(group.title)}\n"
        yield from (f"- {text(s)}" for s in page_words.summary(run, group, decompositions))
        yield ""
        yield from _chart(times(group, f"times-{i}"), "Times")
        own = page_words.own(group, decompositions)
        if own:
            yield "### Where the time goes\n"
            yield from (f"- {text(s)}" for s in page_words.further(group, decompositions))
            yield ""
            free = page_words.peers(own)
            yield from _terms([(page_words.called(d), d) for d in free])
            yield from _terms([(page_words.called(d), d) for d in own if d not in free])
            yield from _terms([(p.name, p.difference) for p in page_words.pairs(own)])
        layers = run.layers.get(group.case.batch, ())
        found = SiteTimes.of(group, layers)
        if found is not None:
            yield from _chart(time_map(found, f"sites-{i}", ""), "Convolutions, ms")
            yield from _chart(speedup_map(found, f"speedup-{i}", ""), "Convolutions, speed-up over direct")
        machine = run.machines.get(group.case.threads)
        if machine is not None and layers:
            yield from _chart(roofline(group, layers, machine, f"roofline-{i}"), "Roofline")
        told = [(f"{e.number}. {e.name}", one) for e in group.entries for one in texts(e, group)]
        told += [(page_words.called(d), one) for d in own for one in d.notes]
        if told:
            yield "### Reasons and notes\n"
            yield from table(("row", "text"), told)
    tried = ablations(run.measurements)
    if tried:
        yield "## Options\n"
        yield from (f"- {text(s)}" for s in page_words.of_options(run))
        yield ""
        for i, one in enumerate(tried):
            yield from _chart(options(one, f"options-{i}"), title(one.default.case))
    yield "## Environment\n"
    yield from table(("fact", "value"), [f for f in flat(run.environment) if not f[0].startswith("request.")])


def _terms(named: Sequence[tuple[str, Decomposition]]) -> Iterator[str]:
    if named:
        chart = terms(named, "", "", "")
        yield from table(chart.head, chart.rows, chart.numbers)


def _chart(chart: Chart | None, heading: str) -> Iterator[str]:
    """What a chart shows, as its table."""
    if chart is not None:
        yield f"### {text(heading)}\n"
        yield f"{text(chart.caption)}\n"
        yield from table(chart.head, chart.rows, chart.numbers)
