"""How long points will take, learnt from those that were measured: boosted trees over what a point is made of."""

from __future__ import annotations

import itertools
import json
import math
import statistics
import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from xframe.errors import Unavailable
from xframe.tuning.points import OK, Point, Trial

#: Measured points below which nothing is predicted.
FEWEST = 8
#: A point that failed counts as so much slower than the slowest that was measured.
FAILURE = 2.0
#: Trees: few and shallow, as there are tens of points to learn from, not thousands.
TREES = 60
SETTINGS = {"objective": "reg:squarederror", "max_depth": 4, "eta": 0.15, "min_child_weight": 1, "nthread": 1}


def ratio(trial: Trial) -> float:
    """Median seconds of a measured trial over those of the hand-written point beside it: below 1 is faster."""
    return statistics.median(trial.seconds) / statistics.median(trial.baseline)


def features(point: Point, work: float) -> dict[str, float]:
    """What may make ``point`` fast or slow, by name, sizes as powers of two.

    ``work``: multiply-adds of its product, with those that only fill its last tiles. Derived ones are proportional to
    what their names say; the constants that are missing are the same for all points of a task. A trace is made of its
    decisions.
    """
    if point.trace is not None:
        return _decisions(point.trace)
    (rows, vectors), knobs = point.tile, dict(point.knobs)
    found = {
        "rows": math.log2(rows),
        "vectors": math.log2(vectors),
        "accumulators": math.log2(rows * vectors),
        "loads a step": float(rows + vectors),
        "loads a multiply-add": (rows + vectors) / (rows * vectors),
        "work": math.log2(work),
        **{f"knob {name}": math.log2(1 + value) for name, value in knobs.items()},
    }
    if "row_threads" in knobs:  # of a GPU, whose tile is that of a block
        across = knobs.get("column_threads", vectors / 4)
        found["threads"] = math.log2(knobs["row_threads"] * across * knobs.get("lines", 1))
        found["rows of a thread"] = math.log2(rows / knobs["row_threads"])
        found["chunk"] = math.log2(1 + knobs.get("depth", 0) * (rows + vectors))
    if "rows" in knobs:
        found["rows of a part"] = math.log2(knobs["rows"] * rows)
    if "steps" in knobs:
        found["lines a fetch"] = math.log2(1 + knobs.get("fetch", 1) * knobs["steps"] * rows * vectors)
    return found


def _decisions(trace: str) -> dict[str, float]:
    """The numbers that a trace, JSON, decides, by the design that they belong to: its instructions before the post-
    processing, which follows from them."""
    instructions, decisions = json.loads(trace)
    kinds = itertools.takewhile(lambda kind: kind != "EnterPostproc", (inst[0] for inst in instructions))
    design = f"design {zlib.crc32(' '.join(kinds).encode()):08x}"
    found = {design: 1.0}
    for at, decided in decisions:
        for i, value in enumerate(decided if isinstance(decided, list) else [decided]):
            found[f"{design} {at}.{i}"] = math.log2(3 + value)  # a place to compute at is a loop, or -1, or -2
    return found


class Cost:
    """A regression of log(seconds / baseline) of the points of one task, on one thread.

    ``work(tile)``: see :func:`features`; None where tiles waste nothing.

    Raises
    ------
    Unavailable
        XGBoost is not installed.
    """

    def __init__(self, work: Callable[[tuple[int, int]], float] | None = None, seed: int = 0):
        try:
            import xgboost
        except ImportError as e:
            raise Unavailable(
                f"the cost model of evolutionary search needs the Python module xgboost, which does not import here"
                f" ({e}): pip install 'xframe-eval[tune]', or search with --strategy replay, which learns nothing"
            ) from e
        self._xgboost, self._work, self._seed = xgboost, work or (lambda tile: 1.0), seed
        self._measured: dict[Point, float | None] = {}
        self._names: list[str] = []
        self._model = None

    def learn(self, trials: Sequence[Trial]) -> None:
        """Take in more trials. Failed ones count as slow."""
        for trial in trials:
            self._measured[trial.point] = math.log(ratio(trial)) if trial.outcome == OK else None
        self._model = None

    @property
    def ready(self) -> bool:
        """Whether enough was measured to predict from."""
        return sum(value is not None for value in self._measured.values()) >= FEWEST

    def predict(self, points: Sequence[Point]) -> np.ndarray | None:
        """Predicted log(seconds / baseline) of each point; None while fewer than :data:`FEWEST` were measured."""
        if not self.ready:
            return None
        model = self._fitted()
        return model.predict(self._matrix([self._features(p) for p in points])).astype(float)

    def _fitted(self):
        if self._model is None:
            slow = max(v for v in self._measured.values() if v is not None) + math.log(FAILURE)
            rows = [self._features(p) for p in self._measured]
            self._names = sorted(set().union(*rows))
            labels = [slow if v is None else v for v in self._measured.values()]
            self._model = self._xgboost.train(
                {**SETTINGS, "seed": self._seed}, self._matrix(rows, labels), num_boost_round=TREES
            )
        return self._model

    def _features(self, point: Point) -> dict[str, float]:
        return features(point, self._work(point.tile))

    def _matrix(self, rows: Sequence[Mapping[str, float]], labels: Sequence[float] | None = None):
        """A feature that a point does not have is missing, which the trees know how to treat."""
        values = np.array([[row.get(name, math.nan) for name in self._names] for row in rows], dtype=float)
        return self._xgboost.DMatrix(values, label=labels, nthread=1)
