"""What the switches of a runner do: the speed-up of each setting over the defaults measured in turn with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

from xframe.analysis.ablations import ALONE, Ablation, Setting
from xframe.analysis.ratios import Ratio, Verdict
from xframe.report.ablation_terminal import title
from xframe.report.charts import (
    BAR,
    BLUE,
    FRAME,
    GREEN,
    SHADE,
    SKY,
    VERMILION,
    Chart,
    axis,
    headings,
    label,
    layout,
    rows_axis,
)
from xframe.report.page_rows import ms

HEAD = ("setting", "step", "verdict", "median ms", "defaults ms", "times as fast", "95 % interval")
#: Colour and pattern of each verdict, which are not told apart by colour alone.
_LOOKS = {
    Verdict.FASTER: (GREEN, ""),
    Verdict.SLOWER: (VERMILION, "/"),
    Verdict.SAME: (BLUE, "x"),
    Verdict.AMBIGUOUS: (SKY, "."),
}


def options(one: Ablation, name: str) -> Chart | None:
    """A bar for each setting that has a time, from 1; None where none has."""
    shown = [(s, s.speedup) for s in one.settings if s.speedup is not None]
    if not shown:
        return None
    data = [_bars([(i, s, r) for i, (s, r) in enumerate(shown) if s.verdict == v], v) for v in _LOOKS]
    texts = [f"{label(s)}{_step(s)}  <b>{r.value:.2f}x</b>  {_ms(s)} ms" for s, r in shown]
    defaults = _median(one.default.samples)
    return Chart(
        name,
        title(one.default.case),
        f"Times as fast as the defaults ({defaults} ms), which were measured in turn with each setting; whiskers are"
        f" 95 % intervals. A difference up to {one.threshold:.1%} is none.",
        [bars for bars in data if bars["y"]],
        layout(
            FRAME + BAR * len(shown),
            xaxis=axis("times as fast as the defaults"),
            yaxis=rows_axis(len(shown)),
            barmode="overlay",
            annotations=headings(texts),
            shapes=[{"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1, "line": {"color": "@soft"}}],
        ),
        HEAD,
        [_cells(s) for s in one.settings],
        (3, 4, 5, 6),
    )


def _step(setting: Setting) -> str:
    """What tells a setting from the same one at another step."""
    return "" if setting.step == ALONE else f" ({label(setting.step)})"


def _bars(bars: Sequence[tuple[int, Setting, Ratio]], verdict: Verdict) -> dict[str, Any]:
    """The settings of one verdict, each with its place."""
    colour, pattern = _LOOKS[verdict]
    finite = [math.isfinite(r.high) for _, _, r in bars]
    return {
        "type": "bar",
        "orientation": "h",
        "name": verdict.value,
        "base": 1.0,
        "width": 0.4,
        "x": [r.value - 1 for _, _, r in bars],
        "y": [i for i, _, _ in bars],
        "marker": {
            "color": colour,
            "pattern": {"shape": pattern, "size": 6, "solidity": 0.2, "fillmode": "overlay", "fgcolor": SHADE},
            "line": {"color": "@page", "width": 1},
        },
        "hoverinfo": "text",
        "hovertext": [
            f"<b>{label(s)}</b>: {label(_verdict(s))}<br>{r.value:.3f} times as fast ({r.low:.3f} to {r.high:.3f})"
            for _, s, r in bars
        ],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [r.high - r.value if known else 0.0 for (_, _, r), known in zip(bars, finite, strict=True)],
            "arrayminus": [r.value - r.low if known else 0.0 for (_, _, r), known in zip(bars, finite, strict=True)],
            "color": "@text",
            "thickness": 1.5,
        },
    }


def _median(samples: Sequence[float]) -> str:
    return ms(median(samples) if samples else None)


def _ms(setting: Setting) -> str:
    return _median(setting.measurement.samples) if setting.ok else "-"


def _verdict(setting: Setting) -> str:
    verdict = setting.verdict
    return setting.measurement.outcome.value if verdict is None else verdict.value


def _cells(setting: Setting) -> Sequence[str]:
    speedup = setting.speedup
    start = (str(setting), setting.step, _verdict(setting), _ms(setting), _median(setting.default.samples))
    if speedup is None:
        return (*start, "-", "-")
    return (*start, f"{speedup.value:.2f}", f"{speedup.low:.2f} to {speedup.high:.2f}")
