"""The roofline of the machine, with every layer of every profiled row under it; what computes nothing in its table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from xframe.analysis.decomposition import CPU
from xframe.analysis.floors import floors
from xframe.analysis.shares import shares
from xframe.report.charts import PALETTE, SYMBOLS, Chart, axis, label, layout
from xframe.report.page_rows import Entry, Group, counted, ms
from xframe.results import LayerWork, Machine
from xframe.types import ConvSite

HEAD = ("row", "layer", "kernels", "ms", "GFLOP/s", "FLOP/byte", "floor / time")
#: A layer, or all convolutions of one shape: kernels are tied to a convolution by that alone.
_Key = ConvSite | str


@dataclass(frozen=True)
class Point:
    """What the kernels of a layer reach. ``seconds``: the median over passes; ``names``: of its kernels; ``floor``: the
    least seconds that the machine leaves it (``xframe.analysis.floors``)."""

    entry: Entry
    layer: str
    names: tuple[str, ...]
    seconds: float
    flop: float
    size: int
    floor: float

    @property
    def rate(self) -> float:
        """FLOP/s, of the direct algorithm's FLOP: one with fewer of them may be above the roof."""
        return self.flop / self.seconds

    @property
    def intensity(self) -> float:
        """FLOP for each byte that it can't do without."""
        return self.flop / self.size

    @property
    def share(self) -> str:
        """Of its time, the floor: above 100 % with a fast algorithm, or a machine that was calibrated when slower."""
        return f"{self.floor / self.seconds:.0%}"


def roofline(group: Group, layers: Sequence[LayerWork], machine: Machine, name: str) -> Chart | None:
    """None where no kernel can be tied to a layer whose work is known, and on a GPU: the roofs are those of the CPU."""
    if group.case.device != CPU:
        return None
    every = [p for entry in group.timed if not entry.case.options for p in _points(entry, layers, machine)]
    points = [p for p in every if p.flop]
    if not points:
        return None
    xs = [p.intensity for p in points]
    left, right = 10 ** math.floor(math.log10(min(xs)) - 0.1), 10 ** math.ceil(math.log10(max(xs)) + 0.1)
    entries = list({p.entry.number: p.entry for p in points}.values())
    data = [_roof(machine, i, left, right) for i in range(len(machine.levels))]
    data += [_marks(e, i, [p for p in points if p.entry is e]) for i, e in enumerate(entries)]
    return Chart(
        name,
        group.title,
        "Each mark is a layer of a row: how many FLOP of the direct algorithm its kernels do in a second, over the FLOP"
        " for each byte of its images and weights. Lines are what this machine reaches, as calibrated. Winograd and FFT"
        " do with fewer FLOP than are counted, and may be above. Layers without FLOP are in the table alone. A"
        " floor is the least time, with images and weights from the nearest memory that holds them."
        f" {_joined(group, layers, machine)}".rstrip(),
        data,
        layout(
            460 + 11 * len(entries),
            xaxis=axis("FLOP/byte", type="log", dtick=1, range=[math.log10(left), math.log10(right)]),
            yaxis=axis("GFLOP/s", type="log", dtick="D2"),
        ),
        HEAD,
        [
            (p.entry.name, p.layer, ", ".join(p.names), ms(p.seconds), f"{p.rate / 1e9:.1f}" if p.flop else "-",
             f"{p.intensity:.2f}", p.share)
            for p in every
        ],
        (3, 4, 5, 6),
    )  # fmt: skip


def _points(entry: Entry, layers: Sequence[LayerWork], machine: Machine) -> list[Point]:
    work, names = _work(layers)
    least: Counter[_Key] = Counter()
    for layer, (seconds, _) in zip(layers, floors(layers, machine), strict=True):
        least[layer.site or layer.name] += seconds  # type: ignore[assignment]
    known = _layers(entry, layers)
    passes: list[Counter[_Key]] = []
    kernels: dict[_Key, dict[str, None]] = {}
    for profile in entry.measurement.profiles:
        one: Counter[_Key] = Counter()
        for kernel, seconds in zip(profile.kernels, shares(profile.kernels), strict=True):
            key = kernel.site or known.get(kernel.layer, kernel.layer)
            one[key] += float(seconds)  # type: ignore[assignment]
            kernels.setdefault(key, {})[kernel.name] = None
        passes.append(one)
    found = []
    for key, (flop, size) in work.items():
        seconds = median(p[key] for p in passes) if passes else 0.0
        if seconds and size:
            found.append(Point(entry, names[key], tuple(kernels[key]), seconds, flop, size, least[key]))
    return found


def _layers(entry: Entry, layers: Sequence[LayerWork]) -> dict[str, str]:
    """The network's layers by the names that a backend has for them: of one kind in their order, if as many."""
    names = {layer.name for layer in layers}
    found: dict[str, str] = {}
    for kind in {layer.kind for layer in layers if layer.site is None}:
        theirs = list(dict.fromkeys(
            k.layer for k in sorted(entry.measurement.kernels, key=lambda k: k.start) if k.kind == kind and k.layer
        ))  # fmt: skip
        ours = [layer.name for layer in layers if layer.kind == kind]
        if len(theirs) == len(ours) and not names & set(theirs):
            found.update(zip(theirs, ours, strict=True))
    return found


def _work(layers: Sequence[LayerWork]) -> tuple[dict[_Key, tuple[float, int]], dict[_Key, str]]:
    """FLOP and bytes, and a name; layers of one shape add up."""
    work: dict[_Key, tuple[float, int]] = {}
    names: dict[_Key, list[str]] = {}
    for layer in layers:
        key = layer.site or layer.name
        flop, size = work.get(key, (0.0, 0))
        work[key] = flop + layer.flop, size + layer.image_bytes + layer.weight_bytes
        names.setdefault(key, []).append(layer.name)
    return work, {key: " + ".join(n) for key, n in names.items()}


def _joined(group: Group, layers: Sequence[LayerWork], machine: Machine) -> str:
    """Which rows lack layers that have FLOP: those of a backend have the names of its export."""
    wanted = sum(1 for flop, size in _work(layers)[0].values() if flop and size)
    lacking = [
        f"{e.name} {counted(wanted - found, 'layer')}"
        for e in group.timed
        if not e.case.options
        and e.measurement.profiles
        and (found := sum(bool(p.flop) for p in _points(e, layers, machine))) < wanted
    ]
    return f"Not tied to a layer, and not shown: {'; '.join(lacking)}." if lacking else ""


def _roof(machine: Machine, number: int, left: float, right: float) -> dict[str, Any]:
    level = machine.levels[number]
    ridge = min(max(machine.flop_per_s / level.bytes_per_s, left), right)
    x = list(dict.fromkeys((left, ridge, right)))
    y = [min(machine.flop_per_s, v * level.bytes_per_s) / 1e9 for v in x]
    dash = ("solid", "dash", "dot", "dashdot")[(len(machine.levels) - 1 - number) % 4]
    text = f"{label(level.name)}: {level.bytes_per_s / 1e9:.0f} GB/s, peak {machine.flop_per_s / 1e9:.0f} GFLOP/s"
    return {
        "type": "scatter", "mode": "lines", "name": label(level.name), "x": x, "y": y,
        "line": {"color": "@text", "width": 1.5, "dash": dash}, "hoverinfo": "text", "hovertext": [text] * len(x),
    }  # fmt: skip


def _marks(entry: Entry, number: int, points: Sequence[Point]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label(entry.name),
        "x": [p.intensity for p in points],
        "y": [p.rate / 1e9 for p in points],
        "marker": {
            "color": PALETTE[number % len(PALETTE)],
            "symbol": SYMBOLS[number % len(SYMBOLS)],
            "size": 10,
            "line": {"width": 1, "color": "@page"},
        },
        "hoverinfo": "text",
        "hovertext": [
            f"<b>{label(p.layer)}</b>, {label(entry.name)}<br>{ms(p.seconds)} ms, {p.rate / 1e9:.1f} GFLOP/s,"
            f" its floor is {p.share} of that<br>{label(', '.join(p.names), 60)}"
            for p in points
        ],
    }
