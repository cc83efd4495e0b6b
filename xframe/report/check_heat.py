"""The heat map of a check's page: a plain HTML table whose cells are coloured by the logarithm of error over bound."""

from __future__ import annotations

import math

from xframe.equivalence.result import LayerRow
from xframe.report import check_words as words
from xframe.report.check_grid import Column, Grid
from xframe.report.page_html import esc, tag

#: Class of a cell -> what it means; the steps are decades of error over bound. b: below the bound, a: above it.
STEPS = {
    "b4": "below 0.001", "b3": "0.001 to 0.01", "b2": "0.01 to 0.1", "b1": "0.1 to 1",
    "a1": "1 to 10", "a2": "10 to 100", "a3": "100 to 1000", "a4": "above 1000",
}  # fmt: skip


def step(ratio: float) -> str:
    """The class of a cell."""
    if not math.isfinite(ratio):
        return "a4"
    decade = -4 if ratio <= 1e-4 else math.log10(ratio)
    if ratio <= 1:
        return f"b{min(4, 1 + math.floor(-decade))}"
    return f"a{min(4, 1 + math.floor(decade))}"


def heat_map(grid: Grid) -> str:
    """The map with its legend. Nothing depends on colour alone: each cell has its number, one beyond a cross."""
    head = "".join(
        tag(
            "th",
            f"{esc(c.subject)}<br><small>{esc(c.runner or 'float64')}, against {esc(c.against)}</small>",
            scope="col",
        )
        for c in grid.columns
    )
    body = []
    for number, key in enumerate(grid.keys):
        row = grid.row(key)
        name = f"{number + 1}. {'output ' if key[0] else ''}{key[1]}"
        cells = "".join(_cell(c, c.cells.get(key), f"c{number}-{i}") for i, c in enumerate(grid.columns))
        body.append(tag("tr", tag("th", f"{esc(name)} <small>{esc(row.op)}</small>", scope="row") + cells))
    table = tag("table", tag("thead", tag("tr", '<th scope="col">layer</th>' + head)) + tag("tbody", "".join(body)))
    return _legend() + tag("div", table, cls="scroll", tabindex="0", role="region", aria_label="error by layer")


def _cell(column: Column, row: LayerRow | None, name: str) -> str:
    if row is None:
        return '<td class="h absent" title="no such layer here">·</td>'
    where = f"{words.layer(row, column.subject)} {'x'.join(map(str, row.shape))}"
    who = f"{column.subject} {column.runner or 'float64'} against {column.against}"
    state = words.row_state(row)
    details = [f"{where}, {who}: {state}", *words.deviation(row, column.against, column.subject)]
    text, kind = "?", "unknown"
    if row.statistics is not None and state != "UNCHECKED":
        text, kind = words.share(row.statistics.ratio), step(row.statistics.ratio)
    beyond = state == "DIFFERENT"
    shown = esc(f"× {text}" if beyond else text)
    shown += tag("span", esc(". ".join(details)), cls="tip", role="tooltip", id=name)
    return tag("td", shown, cls=f"h {kind}{' beyond' if beyond else ''}", tabindex="0", aria_describedby=name)


def _legend() -> str:
    swatches = [tag("span", text, cls=f"h {name}{' beyond' if name[0] == 'a' else ''}") for name, text in STEPS.items()]
    swatches += [tag("span", "? not compared", cls="h unknown"), tag("span", "· no such layer", cls="h absent")]
    return tag("p", f"error as a multiple of its bound; × beyond it: {' '.join(swatches)}", cls="legend")
