"""The intervals of a difference hold what processes of the same code differ by."""

import numpy as np
import pytest

from xframe.analysis.terms import Decomposition, Term
from xframe.selftest.spread import against


def row(title, seconds, parts=()):
    """A decomposition of one term within 0.01, with parts that have no interval."""
    made = tuple(Term(name, s, s, s) for name, s in parts)
    term = Term("quality", seconds, seconds - 0.01, seconds + 0.01, made)
    return Decomposition(title, term, (term,))


def test_one_honest_row_is_a_plain_difference():
    mine, other = row("lying", 3.0, [("conv1", 3.0)]), row("honest", 1.0, [("conv1", 1.0)])
    assert against(mine, [other])["quality"] == mine.difference(other)["quality"]


def test_the_estimate_is_against_their_mean_and_the_interval_wider_by_their_spread():
    found = against(row("lying", 3.0), [row("a", 1.0), row("b", 1.5), row("c", 1.1)])["quality"]
    assert found.seconds == pytest.approx(3.0 - 1.2)
    assert (found.low, found.high) == (pytest.approx(1.8 - 0.02 - 0.5), pytest.approx(1.8 + 0.02 + 0.5))


def test_parts_have_a_spread_of_their_own_and_are_0_where_they_are_not():
    honest = [row("a", 1.0, [("conv1", 1.0)]), row("b", 1.0, [("conv1", 0.8), ("conv2", 0.2)])]
    found = against(row("lying", 1.0, [("conv1", 1.0)]), honest)["quality"]
    assert [p.name for p in found.parts] == ["conv1", "conv2"]
    assert (found["conv1"].low, found["conv1"].high) == (pytest.approx(0.1 - 0.2), pytest.approx(0.1 + 0.2))
    assert (found["conv2"].low, found["conv2"].high) == (pytest.approx(-0.1 - 0.2), pytest.approx(-0.1 + 0.2))


def test_processes_that_differ_are_seldom_outside():
    """Of one more process of the same code, where processes differ by far more than steps: 93 % by simulation."""
    rng, inside = np.random.default_rng(0), 0
    for _ in range(400):
        mine, *others = rng.normal(1.0, 0.1, 5)
        found = against(row("twin", mine), [row("honest", o) for o in others])["quality"]
        inside += found.low <= 0 <= found.high
    assert 350 < inside < 400
