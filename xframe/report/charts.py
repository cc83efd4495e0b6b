"""A chart: a plotly figure as plain dicts, with the table of its numbers and a sentence on how to read it.

Figures have no colours of text and lines but ``@text``, ``@soft``, ``@line`` and ``@page``: the page puts in those of
the reader's colour scheme. Data colours are those of Okabe and Ito (2008), which the colour-blind can tell apart.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xframe.report.page_html import clean

ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE = (
    "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, YELLOW)
#: Of a pattern over a colour.
SHADE = "rgba(0,0,0,0.35)"
#: Told apart without colour; more than colours, so that no pair comes twice soon.
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "triangle-down", "star")

#: Pixels of a bar with the line of text above it, and of what a chart has besides bars.
BAR, FRAME = 58, 96


@dataclass(frozen=True)
class Chart:
    """``name``: of its element; ``caption``: what is seen, for who reads and who can't see; ``head``, ``rows`` and
    ``numbers`` (columns set to the right): its numbers as text. ``wide``: pixels that it can't do with less of."""

    name: str
    title: str
    caption: str
    data: Sequence[dict[str, Any]]
    layout: dict[str, Any]
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[int] = ()
    wide: int = 0


def label(text: object, width: int = 0) -> str:
    """``text`` as plotly may be given it, which takes tags and entities for such; broken into lines at ``width``."""
    lines = textwrap.wrap(clean(text), width, break_long_words=False) if width else [clean(text)]
    return "<br>".join(html.escape(line, quote=False) for line in lines)


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis that finds room for its own labels."""
    return {"title": {"text": title}, "automargin": True, "gridcolor": "@line", "zerolinecolor": "@soft", **more}


def layout(height: int, **more: Any) -> dict[str, Any]:
    """What all charts have in common. ``height`` in pixels."""
    legend = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom", "traceorder": "normal"}
    return {
        "height": height,
        "margin": {"l": 8, "r": 16, "t": 8, "b": 8},
        "legend": legend,
        "hovermode": "closest",
        "hoverlabel": {"align": "left"},
        **more,
    }


def headings(texts: Sequence[str]) -> list[dict[str, Any]]:
    """A line of text above each bar, from its left end: a label beside it would leave no room for it on a phone."""
    place = {"xref": "paper", "x": 0, "xanchor": "left", "yref": "y", "yanchor": "bottom", "yshift": 18}
    return [
        {
            **place,
            "y": i,
            "text": text,
            "showarrow": False,
            "align": "left",
            "font": {"color": "@text"},
            "bgcolor": "@page",
            "borderpad": 1,
        }
        for i, text in enumerate(texts)
    ]


def rows_axis(count: int) -> dict[str, Any]:
    """The vertical axis of ``count`` bars with :func:`headings`, the first on top."""
    return {
        "range": [count - 0.6, -0.75],
        "showticklabels": False,
        "showgrid": False,
        "zeroline": False,
        "fixedrange": True,
    }
