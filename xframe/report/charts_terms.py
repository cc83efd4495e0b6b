"""Where the time goes: the terms of each row, or of the difference of two, as stacked bars with their intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from xframe.analysis.decomposition import TERMS, Decomposition, Term
from xframe.report.charts import (
    BAR,
    BLUE,
    FRAME,
    GREEN,
    ORANGE,
    PURPLE,
    SHADE,
    SKY,
    VERMILION,
    YELLOW,
    Chart,
    axis,
    headings,
    label,
    layout,
    rows_axis,
)
from xframe.report.explain_words import TERM, bounds
from xframe.report.page_rows import ms

#: Colour and pattern of each term: neighbours differ in both.
LOOKS = {
    "floor": ("#9A9A9A", ""),
    "headroom": (SKY, "/"),
    "algorithm": (ORANGE, ""),
    "quality": (VERMILION, "\\"),
    "convolutions": (VERMILION, "-"),
    "operators": (GREEN, ""),
    "layout": (PURPLE, "x"),
    "overhead": (BLUE, ""),
    "residual": (YELLOW, "."),
}
#: What each term is, for who has not read the documentation.
MEANINGS = {
    "floor": "what this machine, as fast as it was when its roofs were measured, can't do faster: arithmetic at its"
    " peak, or bytes at its bandwidth, layer by layer",
    "headroom": "what the best kernel measured here, of whatever runner, takes above that floor",
    "algorithm": "the convolution algorithm that was used, against the best one, both in the same executor",
    "quality": "what is left of the convolutions: the same algorithm, written faster or slower",
    "convolutions": "algorithm and quality where they can't be told apart, as nobody says which algorithm ran",
    "operators": "all other layers, against the best kernels measured for them",
    "layout": "changes of layout, and copies",
    "overhead": "time in which no kernel runs: calls, dispatch, allocation, threads waking up, gaps",
    "residual": "what the other terms leave of the timed pass: profiled and timed passes are not the same ones",
}
#: Of the table of every part of every term.
HEAD = ("row", "term", "part", "ms", "95 % interval", "share")


def terms(named: Sequence[tuple[str, Decomposition]], name: str, title: str, caption: str) -> Chart:
    """A stacked bar for each decomposition, by the name of its row: terms below zero to the left, none clipped."""
    decompositions = [d for _, d in named]
    there = dict.fromkeys(t.name for d in decompositions for t in d.terms)
    shown = [*(name for name in TERMS if name in there), *(name for name in there if name not in TERMS)]
    data = [_bars(decompositions, term) for term in shown]
    texts = [f"{label(called)}  <b>{ms(d.wall.seconds)} ms</b>" for called, d in named]
    count = len(decompositions)
    return Chart(
        name,
        title,
        caption,
        [*data, *(_whiskers(d, i) for i, d in enumerate(decompositions))],
        layout(
            FRAME + 40 + BAR * count,
            barmode="relative",
            uniformtext={"minsize": 10, "mode": "hide"},
            xaxis=axis("ms"),
            yaxis=rows_axis(count),
            annotations=headings(texts),
        ),
        ("ms", *(called for called, _ in named)),
        [_across("wall", [d.wall for d in decompositions])]
        + [_across(term, [d.term(term) for d in decompositions]) for term in shown],
        tuple(range(1, count + 1)),
    )


def _across(name: str, found: Sequence[Term | None]) -> Sequence[str]:
    """One term of all rows, with its intervals."""
    return (TERM.get(name, name), *("-" if t is None else f"{ms(t.seconds)} ({bounds(t, ms)})" for t in found))


def rows(called: str, decomposition: Decomposition) -> Iterator[Sequence[str]]:
    """The cells of :data:`HEAD`: the whole, each term, and below it its parts."""
    whole = decomposition.wall
    for depth, term, path in _walk(whole, decomposition.terms):
        share = f"{term.seconds / whole.seconds:.1%}" if whole.seconds else "-"
        part = " / ".join(path[1:])
        yield called, TERM.get(path[0], path[0]), part if depth else "", ms(term.seconds), bounds(term, ms), share


def _walk(whole: Term, terms: Sequence[Term]) -> Iterator[tuple[int, Term, tuple[str, ...]]]:
    yield 0, whole, ("wall",)
    stack: list[tuple[int, Term, tuple[str, ...]]] = [(0, t, (t.name,)) for t in reversed(terms)]
    while stack:
        depth, term, path = stack.pop()
        yield depth, term, path
        stack += [(depth + 1, part, (*path, part.name)) for part in reversed(term.parts)]


def _bars(decompositions: Sequence[Decomposition], name: str) -> dict[str, Any]:
    """One term of all rows."""
    found = [(i, t) for i, d in enumerate(decompositions) for t in d.terms if t.name == name]
    colour, pattern = LOOKS.get(name, ("@soft", "+"))
    return {
        "type": "bar",
        "orientation": "h",
        "width": 0.48,
        "name": label(TERM.get(name, name)),
        "x": [t.seconds * 1e3 for _, t in found],
        "y": [i for i, _ in found],
        "text": [label(TERM.get(name, name)) for _ in found],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "hoverinfo": "text",
        "hovertext": [_hover(t) for _, t in found],
        "marker": {
            "color": colour,
            "line": {"color": "@page", "width": 1},
            "pattern": {
                "shape": pattern,
                "size": 6,
                "solidity": 0.2,
                "fillmode": "overlay",
                "fgcolor": SHADE,
            },
        },
    }


def _hover(term: Term) -> str:
    lines = [f"<b>{_called(term)}</b>", _value(term)]
    largest = sorted(term.parts, key=lambda p: -abs(p.seconds))
    lines += [f"  {label(p.name)}: {ms(p.seconds)} ms" for p in largest[:8]]
    lines += [f"  and {len(largest) - 8} more, in the table"] if len(largest) > 8 else []
    return "<br>".join(lines)


def _value(term: Term) -> str:
    return f"{ms(term.seconds)} ms ({bounds(term, ms)})"


def _called(term: Term) -> str:
    return label(TERM.get(term.name, term.name))


def _width(seconds: float) -> float | None:
    """Of a thin line, in ms; None draws none."""
    return max(seconds, 0.0) * 1e3 if math.isfinite(seconds) else None


def _whiskers(decomposition: Decomposition, place: int) -> dict[str, Any]:
    """The interval of each term at its end of the stack, below one another so that all can be seen; and the whole."""
    ends = {True: 0.0, False: 0.0}
    x: list[float] = []
    drawn: list[Term] = []
    for term in decomposition.terms:
        if term.seconds:
            ends[term.seconds > 0] += term.seconds
            x.append(ends[term.seconds > 0] * 1e3)
            drawn.append(term)
    steps = max(len(drawn) - 1, 1)
    return {
        "type": "scatter",
        "mode": "markers",
        "showlegend": False,
        "x": [*x, decomposition.wall.seconds * 1e3],
        "y": [*(place + 0.19 * (2 * i / steps - 1) for i in range(len(drawn))), place + 0.33],
        "marker": {
            "symbol": [*("line-ns" for _ in drawn), "triangle-up"],
            "size": [*(1 for _ in drawn), 10],
            "color": "@text",
            "line": {"color": "@page", "width": 1},
        },
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [_width(t.high - t.seconds) for t in (*drawn, decomposition.wall)],
            "arrayminus": [_width(t.seconds - t.low) for t in (*drawn, decomposition.wall)],
            "color": "@text",
            "thickness": 1.2,
            "width": 2.5,
        },
        "hoverinfo": "text",
        "hovertext": [f"{_called(t)}: {_value(t)}" for t in (*drawn, decomposition.wall)],
    }
