"""The times of all rows: raw samples, medians and quartiles."""

from __future__ import annotations

from collections.abc import Sequence

from xframe.report.charts import BAR, FRAME, ORANGE, SKY, Chart, axis, headings, label, layout, rows_axis
from xframe.report.page_rows import Entry, Group, ms, thinned

#: Samples drawn at most in one chart: a browser draws no more at once. Tables and medians are of all samples.
DRAWN = 1500
#: A ratio of times above which the axis is logarithmic.
FAR = 12.0
HEAD = ("#", "row", "median ms", "quartiles ms", "n", "x fastest")


def times(group: Group, name: str) -> Chart | None:
    """One strip a row, the fastest on top; None where no row is OK."""
    entries = group.timed
    if not entries:
        return None
    fastest = {e.number: None if e.number in group.apart else group.ranked[0].median for e in entries}
    each = max(DRAWN // len(entries), 20)
    shown = [_dots(entry, i, each, entry.median == fastest[entry.number]) for i, entry in enumerate(entries)]
    medians = {
        "type": "scatter",
        "mode": "markers",
        "name": "median",
        "x": [e.median * 1e3 for e in entries],
        "y": list(range(len(entries))),
        "marker": {"symbol": "line-ns", "size": 22, "line": {"width": 3, "color": "@text"}, "color": "@text"},
        "hoverinfo": "text",
        "hovertext": [_hover(e) for e in entries],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [(e.quartiles[2] - e.median) * 1e3 for e in entries],
            "arrayminus": [(e.median - e.quartiles[0]) * 1e3 for e in entries],
            "color": "@text",
            "thickness": 2,
            "width": 5,
        },
    }
    texts = [f"{label(e.name)}  <b>{ms(e.median)} ms</b>" + _times(e.median, fastest[e.number]) for e in entries]
    far = entries[-1].median > FAR * entries[0].median
    x = axis("ms, each dot a timed pass" + (" (logarithmic)" if far else ""), type="log" if far else "linear")
    x |= {} if far else {"rangemode": "tozero"}
    left_out = sum(len(e.measurement.samples) for e in entries) - sum(len(s["x"]) for s in shown)
    caption = (
        "Each dot is a timed pass, rounds from top to bottom of a strip; the bar is the median, its whiskers quartiles."
    )
    caption += f" {left_out} of the dots are not drawn; all samples count." if left_out else ""
    return Chart(
        name,
        group.title,
        caption,
        [*shown, medians],
        layout(
            FRAME + BAR * len(entries),
            xaxis=x,
            yaxis=rows_axis(len(entries)),
            annotations=headings(texts),
            showlegend=False,
        ),
        HEAD,
        [row(e, fastest[e.number]) for e in entries],
        (0, 2, 3, 4, 5),
    )


def row(entry: Entry, fastest: float | None) -> Sequence[str]:
    """The cells of :data:`HEAD`; ``fastest``: None where the row is not ranked."""
    q1, median, q3 = entry.quartiles
    return (str(entry.number), entry.name, ms(median), f"{ms(q1)} to {ms(q3)}", str(len(entry.measurement.samples)),
            f"{median / fastest:.2f}" if fastest else "-")  # fmt: skip


def _times(median: float, fastest: float | None) -> str:
    if fastest is None:
        return "  not ranked"
    return f"  {median / fastest:.2f} x fastest" if median > fastest else "  fastest"


def _hover(entry: Entry) -> str:
    q1, median, q3 = entry.quartiles
    count = len(entry.measurement.samples)
    return f"{label(entry.name)}<br>median {ms(median)} ms<br>quartiles {ms(q1)} to {ms(q3)} ms<br>n {count}"


def _dots(entry: Entry, place: int, most: int, fastest: bool) -> dict:
    """The samples of a row: a line of dots for each round."""
    rounds = entry.measurement.rounds
    x: list[float] = []
    y: list[float] = []
    texts: list[str] = []
    for i, samples in enumerate(rounds):
        kept = thinned(samples, max(most // len(rounds), 1))
        x += [s * 1e3 for s in kept]
        y += [place + 0.22 * ((i + 0.5) / len(rounds) - 0.5) * 2] * len(kept)
        texts += [f"{label(entry.name)}<br>round {i + 1}: {ms(s)} ms" for s in kept]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": x,
        "y": y,
        "hoverinfo": "text",
        "hovertext": texts,
        "marker": {"size": 5, "opacity": 0.6, "color": ORANGE if fastest else SKY},
    }
