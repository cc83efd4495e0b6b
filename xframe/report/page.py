"""A run as one page of HTML that needs no other file: what is fastest, where the time goes, and every raw sample.

The charts are drawn by plotly, which the page carries packed. Without scripts, all numbers are there in tables. What
the browser may run is said by the hashes of the two scripts, so that nothing else runs, whatever a model is called.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from xframe.analysis.ablations import ablations
from xframe.analysis.decomposition import Decomposition
from xframe.errors import Unavailable
from xframe.report import page_words as words
from xframe.report.charts import Chart
from xframe.report.charts_options import options
from xframe.report.charts_roofline import roofline
from xframe.report.charts_sites import speedup_map, time_map
from xframe.report.charts_terms import HEAD as TERMS_HEAD
from xframe.report.charts_terms import MEANINGS, terms
from xframe.report.charts_terms import rows as rows_of_terms
from xframe.report.charts_times import times
from xframe.report.explain_words import TERM
from xframe.report.page_html import document, esc, items, style, table, tag
from xframe.report.page_rows import Group, groups
from xframe.report.page_sites import SiteTimes
from xframe.report.page_tables import environment, notes, origin, raw, rows
from xframe.results import Run
from xframe.store import finite
from xframe.worker.wire import plain

TERMS_CAPTION = (
    "Each bar is the mean over rounds of a row's samples, to which its parts sum, those below zero to the left; other"
    " times on this page are medians. Thin lines are 95 % intervals, each at the end of its part; the triangle below is"
    " the whole."
)
#: Rows of a chart's table that are worth their paper.
PRINTED = 60


@dataclass(frozen=True)
class Source:
    """The file that a report is of: its name, as given, and the SHA-256 of what is in it."""

    name: str
    sha256: str


@dataclass(frozen=True)
class _Section:
    name: str
    title: str
    body: str


def page(run: Run, decompositions: Sequence[Decomposition], source: Source) -> str:
    """The whole page.

    Parameters
    ----------
    decompositions
        Of the rows of ``run`` (``xframe.analysis.decomposition.explained``).

    Raises
    ------
    Unavailable
        plotly is not installed.
    """
    library, script = plotly(), Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
    charts: list[Chart] = []
    sections = [s for s in _sections(run, decompositions, charts) if s.body]
    links = items(f'<a href="#{s.name}">{esc(s.title)}</a>' for s in sections)
    figures = {c.name: {"data": c.data, "layout": c.layout} for c in charts}
    body = [
        '<a class="skip" href="#main">to the results</a>',
        tag("header", tag("h1", esc(words.title(run))) + origin(run, source.name, source.sha256)),
        tag("nav", links, aria_label="contents"),
        '<noscript><style>.plot { display: none }</style><p class="failed">Without scripts there are no charts; all'
        " numbers are in the tables, those of a chart below its title.</p></noscript>",
        tag(
            "main", "\n".join(tag("section", tag("h2", esc(s.title)) + s.body, id=s.name) for s in sections), id="main"
        ),
        tag("script", _json(figures), type="application/json", id="figures"),
        tag("script", _packed(library), type="application/octet-stream", id="library"),
        tag("script", script),
    ]
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src " + " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in (script, library)
    )
    return document(words.title(run), style("page_base.css", "page.css"), "\n".join(body), policy)


def plotly() -> str:
    """The source of plotly.js. Raises Unavailable."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as e:
        raise Unavailable(
            "a report in HTML needs the Python module plotly, which is not here: pip install 'xframe-eval[report]', or"
            " ask for --format markdown"
        ) from e
    return get_plotlyjs()


def _sections(run: Run, decompositions: Sequence[Decomposition], charts: list[Chart]) -> Iterator[_Section]:
    """All of them; one without a body has nothing to show. ``charts``: those that were shown."""

    def drawn(found: Iterable[Chart | None]) -> str:
        some = [chart for chart in found if chart is not None]
        charts.extend(some)
        return "".join(map(_figure, some))

    every = groups(run)
    yield _Section("summary", "In short", _summary(run, every, decompositions))
    yield _Section("times", "Times", drawn(times(g, f"times-{i}") for i, g in enumerate(every)))
    yield _Section("terms", "Where the time goes", _terms(every, decompositions, drawn))
    yield _Section("sites", "Convolutions by layer and lowering", _sites(run, every, drawn))
    yield _Section("roofline", "Roofline", _roofline(run, every, drawn))
    found = ablations(run.measurements)
    yield _Section("options", "What options do", drawn(options(a, f"options-{i}") for i, a in enumerate(found)))
    yield _Section("rows", "All rows", "".join(rows(g) for g in every))
    yield _Section("notes", "Reasons and notes", notes(every))
    yield _Section("raw", "Raw samples", raw(every))
    yield _Section("environment", "Environment", environment(run))


def _summary(run: Run, every: Sequence[Group], decompositions: Sequence[Decomposition]) -> str:
    parts = [
        tag("h3", esc(group.title)) + items(map(_led, sentences))
        for group in every
        if (sentences := words.summary(run, group, decompositions))
    ]
    switches = words.of_options(run)
    parts += [tag("h3", "Options") + items(map(_led, switches))] if switches else []
    return tag("div", "".join(parts) or tag("p", "This run has no rows."), cls="summary")


def _led(sentence: str) -> str:
    """A sentence whose first clause can be seen at a glance."""
    start = min(i if (i := sentence.find(sign)) >= 0 else len(sentence) for sign in (": ", "; "))
    return tag("b", esc(sentence[:start])) + esc(sentence[start:])


def _terms(every: Sequence[Group], decompositions: Sequence[Decomposition], drawn) -> str:
    body = ""
    for i, group in enumerate(every):
        own = words.own(group, decompositions)
        if not own:
            continue
        free = words.peers(own)
        forced = [d for d in own if d not in free]
        body += drawn([
            terms(_named(free), f"terms-{i}", group.title, TERMS_CAPTION),
            terms(_named(forced), f"forced-{i}", f"Forced lowerings: {group.title}", TERMS_CAPTION) if forced else None,
        ])  # fmt: skip
        pairs = [(p.name, p.difference) for p in words.pairs(own)]
        if pairs:
            body += drawn([terms(
                pairs, f"differences-{i}", f"Differences: {group.title}",
                "What the first row takes longer than the second, term by term; to the left, where it takes less.",
            )])  # fmt: skip
        body += items(map(_led, words.further(group, decompositions)))
        body += tag("h3", f"How sure this is: {esc(group.title)}") + _told(_named(own))
        parts = [[esc(c) for c in cells] for called, d in _named(own) for cells in rows_of_terms(called, d)]
        whole = table(TERMS_HEAD, parts, (3, 4, 5), f"all parts of all terms: {group.title}")
        body += tag("details", tag("summary", "all parts of all terms") + whole, cls="long")
    if not body:
        return tag("p", "No row of this run has a profile that could be explained: xframe explain makes one that has.")
    meanings = "".join(tag("dt", esc(TERM[name])) + tag("dd", esc(text)) for name, text in MEANINGS.items())
    return tag("details", tag("summary", "what the terms are") + tag("dl", meanings), cls="numbers") + body


def _named(decompositions: Sequence[Decomposition]) -> list[tuple[str, Decomposition]]:
    return [(words.called(d), d) for d in decompositions]


def _told(named: Sequence[tuple[str, Decomposition]]) -> str:
    """How far each decomposition can be trusted: what nobody claims, what profiling changed, and its notes."""
    head = ("row", "residual of the whole", "kernels of no known kind", "profiled steps slower by", "notes")
    cells = [
        [esc(called), f"{d.residual_share:.1%}", f"{d.unattributed_share:.1%}",
         f"{d.perturbation / d.wall.seconds:+.1%}", items(map(esc, d.notes))]
        for called, d in named
    ]  # fmt: skip
    return table(head, cells, (1, 2, 3), "how far the decompositions can be trusted")


def _sites(run: Run, every: Sequence[Group], drawn) -> str:
    body = ""
    for i, group in enumerate(every):
        found = SiteTimes.of(group, run.layers.get(group.case.batch, ()))
        if found is not None:
            faster = speedup_map(found, f"speedup-{i}", f"Speed-up over direct: {group.title}")
            body += drawn([time_map(found, f"sites-{i}", f"Time: {group.title}"), faster])
            if faster is None:
                body += tag("p", "No speed-up over direct: tvm's direct lowering was not profiled here.")
    return body or tag("p", "No kernel of this run is tied to a convolution: its rows have no profile.")


def _roofline(run: Run, every: Sequence[Group], drawn) -> str:
    body = ""
    for i, group in enumerate(every):
        machine, layers = run.machines.get(group.case.threads), run.layers.get(group.case.batch)
        if machine is not None and layers:
            body += drawn([roofline(group, layers, machine, f"roofline-{i}")])
    return body or tag(
        "p", "No roofline: this run has no calibration of the machine, or no profile that is tied to layers."
    )


def _figure(chart: Chart) -> str:
    """The caption first: it says how to read what follows, and stands where the chart is not drawn."""
    numbers = table(chart.head, [[esc(c) for c in row] for row in chart.rows], chart.numbers, f"numbers: {chart.title}")
    more = {"style": f"min-width: {chart.wide}px"} if chart.wide else {}
    told = f"Chart. {chart.title}. {chart.caption}"
    plot = tag("div", "", cls="plot", data_figure=chart.name, role="img", aria_label=told, **more)
    if chart.wide:
        plot = tag("div", plot, cls="wide", tabindex="0", role="region", aria_label=chart.title)
    kind = "numbers" if len(chart.rows) <= PRINTED else "long"
    details = tag("details", tag("summary", "the numbers of this chart") + numbers, cls=kind)
    return tag("h3", esc(chart.title)) + tag("figure", tag("figcaption", esc(chart.caption)) + plot + details)


def _json(value: object) -> str:
    """JSON that can't end its script element, nor begin a comment in it."""
    return json.dumps(finite(plain(value)), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _packed(text: str) -> str:
    """The same text always gives the same page: no time stamp."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
