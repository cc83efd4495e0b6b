"""Heat maps of the convolutions: what each takes under each runner and lowering, and how that compares with direct."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from xframe.report.charts import Chart, label, layout
from xframe.report.page_rows import ms
from xframe.report.page_sites import SiteTimes
from xframe.types import ConvSite

#: Blue to orange over white: the halves are told apart by who sees no red or no green.
DIVERGING = [[0.0, "#B35806"], [0.25, "#FDB863"], [0.5, "#F7F7F7"], [0.75, "#92C5DE"], [1.0, "#2166AC"]]
#: Speed-ups at the ends of the colours; the numbers in the cells go on.
END = 8.0
#: Pixels of a cell, of the labels of rows and of those of columns.
WIDTH, HEIGHT, LEFT, TOP = 68, 46, 150, 60


def time_map(times: SiteTimes, name: str, title: str) -> Chart:
    """Milliseconds; colours are of the ratio to the best of the site."""

    def shade(site: ConvSite, seconds: float) -> float:
        best = times.best(site)
        return math.log2(seconds / times.cells[site, best].seconds) if best else 0.0

    caption = (
        "ms of the kernels of each convolution, from the profiled passes. * best of its site, ( ) the lowering refuses"
        " the site and its fallback ran; the darker, the slower beside the best, up to 8 times as slow."
    )
    scale = [[0.0, "#FFFFFF"], [0.15, "#D9EAF4"], [0.4, "#92C5DE"], [0.7, "#2166AC"], [1.0, "#0A2240"]]
    return _map(times, name, title, caption, shade, lambda site, s: ms(s), (0.0, math.log2(END)), scale)


def speedup_map(times: SiteTimes, name: str, title: str) -> Chart | None:
    """Times as fast as the direct lowering; None where that was not measured."""
    known = {site: seconds for site in times.sites if (seconds := times.direct(site))}
    if not known:
        return None

    def shade(site: ConvSite, seconds: float) -> float | None:
        return math.log2(known[site] / seconds) if site in known else None

    def text(site: ConvSite, seconds: float) -> str:
        return f"{known[site] / seconds:.2f}x" if site in known else "-"

    caption = (
        "Times as fast as the direct lowering of tvm at the same convolution: blue above 1, orange below, full colour"
        " at 8 and 1/8. * best of its site, ( ) its fallback ran."
    )
    return _map(times, name, title, caption, shade, text, (-math.log2(END), math.log2(END)), DIVERGING)


def _map(
    times: SiteTimes,
    name: str,
    title: str,
    caption: str,
    shade: Callable[[ConvSite, float], float | None],
    text: Callable[[ConvSite, float], str],
    ends: tuple[float, float],
    scale: list[list[Any]],
) -> Chart:
    shades: list[list[float | None]] = []
    texts: list[list[str]] = []
    hovers: list[list[str]] = []
    for site in times.sites:
        cells = [(column, times.cells.get((site, column))) for column in times.columns]
        best = times.best(site)
        shades.append([None if c is None else shade(site, c.seconds) for _, c in cells])
        texts.append([
            "" if c is None else f"({text(site, c.seconds)})" if c.fell_back
            else text(site, c.seconds) + ("*" if column == best else "") for column, c in cells
        ])  # fmt: skip
        hovers.append([_hover(times, site, column) for column, _ in cells])
    data = {
        "type": "heatmap",
        "x": list(range(len(times.columns))),
        "y": list(range(len(times.sites))),
        "z": shades,
        "text": texts,
        "texttemplate": "%{text}",
        "zmin": ends[0],
        "zmax": ends[1],
        "colorscale": scale,
        "showscale": False,
        "xgap": 2,
        "ygap": 2,
        "hoverinfo": "text",
        "hovertext": hovers,
        "hoverongaps": False,
    }
    plain = {
        "automargin": True,
        "fixedrange": True,
        "showgrid": False,
        "zeroline": False,
        "ticks": "",
        "tickmode": "array",
    }
    columns = [label(c, 10) for c in times.columns]
    sites = [label(times.labels[s], 20) for s in times.sites]
    return Chart(
        name,
        title,
        caption,
        [data],
        layout(
            TOP + HEIGHT * len(times.sites),
            showlegend=False,
            xaxis={**plain, "side": "top", "tickangle": 0, "tickvals": list(range(len(columns))), "ticktext": columns},
            yaxis={**plain, "autorange": "reversed", "tickvals": list(range(len(sites))), "ticktext": sites},
        ),
        ("convolution", *times.columns),
        [
            (times.labels[s], *(t if t else "-" for t in line))
            for s, line in zip(times.sites, _with_lowering(times, texts), strict=True)
        ],
        tuple(range(1, len(times.columns) + 1)),
        wide=LEFT + WIDTH * len(times.columns),
    )


def _with_lowering(times: SiteTimes, texts: list[list[str]]) -> list[list[str]]:
    """The texts of the cells, with the lowering where the column does not name it."""
    out = []
    for site, line in zip(times.sites, texts, strict=True):
        cells = [times.cells.get((site, column)) for column in times.columns]
        out.append([f"{c.ran} {t}" if c and c.ran else t for c, t in zip(cells, line, strict=True)])
    return out


def _hover(times: SiteTimes, site: ConvSite, column: str) -> str:
    cell = times.cells.get((site, column))
    if cell is None:
        return ""
    lines = [
        f"{label(times.labels[site])}",
        f"<b>{label(column)}</b>{f' ({label(cell.ran)})' if cell.ran else ''}: {ms(cell.seconds)} ms",
    ]
    low, high = min(cell.samples), max(cell.samples)
    lines.append(f"{len(cell.samples)} profiled passes: {ms(low)} to {ms(high)} ms")
    direct = times.direct(site)
    lines += [f"{direct / cell.seconds:.2f} times as fast as direct"] if direct else []
    lines += ["its fallback: the lowering refuses the site"] if cell.fell_back else []
    return "<br>".join(lines)
