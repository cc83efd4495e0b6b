"""A check as one page of HTML: no script, nothing loaded from elsewhere, a heat map of the error per layer."""

from __future__ import annotations

from collections.abc import Iterator

from xframe.equivalence.result import Check, Comparison, RunRow, State, Statistics, judged
from xframe.report import check_words as words
from xframe.report.check_grid import Grid, without_layers
from xframe.report.check_heat import heat_map
from xframe.report.page_html import document, esc, items, style, table, tag

#: Even if a name got through unescaped, the browser would run and load nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_MARKS = {State.EQUIVALENT: "=", State.DIFFERENT: "≠", State.UNCHECKED: "?"}


def page(check: Check) -> str:
    """The whole page. It needs no other file, prints, and says by words and marks what it says by colour."""
    headline = words.headline(check)
    body = tag("h1", f"{_MARKS[check.state]} {esc(headline)}", cls=check.state.value) + "\n".join(_sections(check))
    return document(headline, style("page_base.css", "check_page.css"), body, _POLICY)


def _sections(check: Check) -> Iterator[str]:
    first = check.subjects[0].name if check.subjects else ""
    yield _subjects(check)
    for comparison in check.comparisons:
        yield _comparison(comparison, first)
    grid = Grid.of(check)
    if grid.keys:
        yield tag("h2", "Error by layer")
        yield '<a class="skip" href="#all">past the map</a>'
        yield heat_map(grid)
    if check.runs:
        yield _runs(check, first)
    if grid.keys:
        yield tag("h2", "All layers", id="all")
        yield _layers(grid)
    yield tag("h2", "Environment")
    yield items(f"{esc(name)} {esc(value)}" for name, value in words.environment(check)) or tag("p", "not recorded")


def _subjects(check: Check) -> str:
    rows = [
        [tag("b", esc(s.name)), esc(s.kind), esc(s.path), esc(s.sha256[:12]), items(map(esc, s.notes), "soft")]
        for s in check.subjects
    ]
    told = ([f"inputs: {check.inputs}"] if check.inputs else []) + list(check.notes)
    return table(["model", "kind", "graph", "sha256", "notes"], rows) + items(map(esc, told))


def _comparison(comparison: Comparison, first: str) -> str:
    state = judged(comparison)
    parts = [tag("h2", f"{esc(comparison.name)} against {esc(first)}: {_state(state)}")]
    levels = [[esc(v.level.value), _state(v.state), esc(words.why(v, comparison))] for v in comparison.levels]
    parts.append(table(["level", "verdict", "why"], levels))
    parts.append(items(
        (tag("small", "harmless: ") if d.harmless else "") + esc(d.text) for d in words.sentences(comparison)
    ))  # fmt: skip
    if comparison.absorbed:
        parts.append(tag("p", "taken for mere writing:") + items(map(esc, comparison.absorbed)))
    row = comparison.first_divergence
    if row is not None:
        told = [f"first that differs: {words.layer(row, comparison.name)}"]
        told += words.deviation(row, first, comparison.name)
        parts.append(tag("p", "<br>".join(map(esc, told))))
    return "".join(parts)


def _runs(check: Check, first: str) -> str:
    def cells(run: RunRow) -> list[str]:
        return [esc(run.subject), esc(run.runner), _state(run.state), *_pair(run.own), *_pair(run.first),
                esc(words.conclusion(run, first))]  # fmt: skip

    head = ["model", "runner", "verdict", "own error", "of bound", "first error", "of bound", "in words"]
    told = f"own: against the float64 result of the same graph; first: against that of {first}."
    unseen = without_layers(check.runs)
    told += f" Only the outputs of {len(unseen)} of {len(check.runs)} runs are known." if unseen else ""
    return tag("h2", "Runs") + tag("p", esc(told)) + table(head, map(cells, check.runs), range(3, 7))


def _layers(grid: Grid) -> str:
    head = ["#", "layer", "there", "operator", "shape", "of", "verdict", "of bound", "max abs", "max rel", "RMS",
            "cosine", "ULPs 50 %", "90 %", "99 %", "max", "reason"]  # fmt: skip
    rows = []
    for number, key in enumerate(grid.keys, 1):
        for column in grid.columns:
            row = column.cells.get(key)
            if row is None:
                continue
            s, of = row.statistics, f"{column.subject} {column.runner}".rstrip()
            values = [None] * 9 if s is None else [s.ratio, s.max_abs, s.max_rel, s.rms, s.cosine, *s.ulps]
            start = [str(number), key[1], row.b, row.op, "x".join(map(str, row.shape)), of, words.row_state(row)]
            rows.append([*map(esc, start), *map(words.number, values), esc(row.reason)])
    return table(head, rows, (0, *range(7, 16)))


def _state(state: State) -> str:
    return tag("span", f"{_MARKS[state]} {words.STATES[state]}", cls="state")


def _pair(statistics: Statistics | None) -> tuple[str, str]:
    return ("-", "-") if statistics is None else (words.number(statistics.max_abs), words.share(statistics.ratio))
