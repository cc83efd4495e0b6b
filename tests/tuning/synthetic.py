"""A space whose times are a formula, so that searches can be judged without a clock."""

import itertools
import math
from types import SimpleNamespace

from xframe.tuning.points import OK, Point, Trial
from xframe.tuning.search import Space

TASK = SimpleNamespace(name="n1c64h56w56o64k3x3s1x1p1.1.1.1d1x1g1float32 winograd F(4,3) NHWC bias t2")
TILES = ((8, 2), (6, 4), (14, 2), (9, 3), (12, 2), (4, 4), (5, 5), (3, 7))
KNOBS = {"rows": (1, 2, 3, 4, 6, 8, 12, 24), "steps": (4, 8, 16, 32, 64), "fetch": (0, 1), "unroll": (1, 2, 4)}
#: The fastest point.
OPTIMUM = Point((9, 3), (("fetch", 1), ("rows", 6), ("steps", 16), ("unroll", 2)))


class Spaces:
    """All tiles with all knobs; by hand is the first tile with the largest parts."""

    def __init__(self, tiles=TILES, knobs=KNOBS):
        self.tiles, self._knobs = tiles, knobs
        self._made = {tile: self._space(tile) for tile in tiles}

    def __getitem__(self, tile):
        return self._made[tile]

    def _space(self, tile):
        names = sorted(self._knobs)
        points = [
            Point(tile, tuple(zip(names, values, strict=True)))
            for values in itertools.product(*(self._knobs[n] for n in names))
        ]
        hand = Point(tile, tuple((n, 1 if n == "unroll" else max(self._knobs[n])) for n in names))
        return Space(tile, self._knobs, (hand, *(p for p in points if p != hand)), work=tile[0] * tile[1] * 1000.0)


def seconds(point):
    """One at :data:`OPTIMUM`: a bowl around it, whose parts depend on each other."""
    (rows, vectors), knobs = point.tile, {n: math.log2(1 + v) for n, v in point.knobs}
    best = {n: math.log2(1 + v) for n, v in OPTIMUM.knobs}
    off = 0.4 * abs(math.log2(rows * vectors / 27)) + 0.2 * abs(math.log2(vectors / 3))
    part = knobs["rows"] - best["rows"] + 0.5 * math.log2(rows / 9)
    lines = knobs["steps"] - best["steps"] + 0.5 * math.log2(vectors / 3)
    waits = 0.15 * abs(lines) if knobs["fetch"] else 0.25
    return math.exp(off + 0.15 * abs(part) + waits + 0.1 * abs(knobs["unroll"] - best["unroll"]))


def measured(point, spread=0.0):
    """A trial of ``point`` by :func:`seconds`, its samples ``spread`` around it, over a baseline of one second."""
    time = seconds(point)
    return Trial(point, OK, seconds=(time * (1 - spread), time, time * (1 + spread)), baseline=(1.0, 1.0, 1.0))
