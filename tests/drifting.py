"""Simulated results: a machine that drifts between results and between visits, each visit to a row in a process of its
own, which differ, skewed noise."""

from dataclasses import dataclass

import numpy as np

from xframe.results import Measurement, Run
from xframe.store import SCHEMA
from xframe.types import Case, Outcome, Plan

FACTS = {"versions": {"xframe": "0.1.0"}, "cpu": "Some CPU", "network": "n", "request": {"resolved": {"seed": 0}}}


def measurement(rounds, framework="pytorch", runner="native", outcome=Outcome.OK, **fields):
    """A row of alexnet with these raw seconds."""
    case = {"batch": 1, "threads": 2, "options": (), "direction": "forward", "device": "cpu", "plan": Plan()}
    case |= {name: fields.pop(name) for name in list(fields) if name in case}
    fields["environment"] = {"processes": len(rounds), **fields.get("environment", {})}
    reason = fields.pop("reason", "" if outcome == Outcome.OK else "it broke")
    return Measurement(Case("alexnet", framework, runner, **case), outcome, reason, tuple(map(tuple, rounds)), **fields)


def run(*measurements, **facts):
    return Run(SCHEMA, "2026-01-01T00:00:00+00:00", [], {**FACTS, **facts}, measurements)


@dataclass(frozen=True)
class Noise:
    """Standard deviations, parts of a time: of the machine between results and between visits, of what a visit adds to
    one row, of a process. ``sample``: the mean of the skewed noise; ``outliers``: how many samples take 1.5 times.
    """

    between: float = 0.03
    visits: float = 0.01
    visit: float = 0.01
    process: float = 0.007
    sample: float = 0.03
    outliers: float = 0.02

    def rows(self, rng, times, visits=3, samples=20):
        """Raw seconds of rows that take ``times`` seconds on a quiet machine, measured in turn: rows[i][visit][k]."""
        now = rng.normal(0, self.between) + rng.normal(0, self.visits, visits)
        process = rng.normal(0, self.process, (len(times), visits))
        level = np.log(times)[:, None] + now + process + rng.normal(0, self.visit, (len(times), visits))
        noise = rng.exponential(self.sample, (len(times), visits, samples))
        slow = np.where(rng.random(noise.shape) < self.outliers, 1.5, 1.0)
        return np.exp(level[:, :, None] + noise) * slow

    def result(self, rng, times, **how):
        """A result with one row a time, of different options of one runner."""
        rows = self.rows(rng, times, **how)
        return run(*(measurement(r, options=(("o", str(i)),)) for i, r in enumerate(rows)))
