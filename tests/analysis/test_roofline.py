"""Roofs, on a made-up machine."""

import math

import pytest

from xframe.analysis.roofline import COMPUTE, Work, attainable
from xframe.results import Level, Machine

#: 100 FLOP/s; a cache of 10 bytes at 50 bytes/s, and memory at 5.
MACHINE = Machine(100.0, (Level("L2", 10, 50.0), Level("memory", math.inf, 5.0)))


@pytest.mark.parametrize(
    ("work", "weights", "expected"),
    [
        (Work(1000, 10), 0, (10.0, COMPUTE)),
        (Work(0, 10), 0, (0.2, "L2")),  # a copy within the cache
        (Work(0, 11), 0, (2.2, "memory")),  # one beyond it
        (Work(100, 4, 5), 5, (1.0, COMPUTE)),
        (Work(10, 4, 5), 5, (9 / 50, "L2")),  # weights that stay near: both streams pass one level
        (Work(10, 4, 5), 11, (1.0, "memory")),  # weights that the rest of the network has driven out
        (Work(10, 10, 0), 1000, (0.2, "L2")),  # whose weights are no one's concern where there are none
    ],
)
def test_the_lowest_roof_counts(work, weights, expected):
    seconds, limit = attainable(work, weights, MACHINE)
    assert (seconds, limit) == (pytest.approx(expected[0]), expected[1])


def test_what_comes_from_far_passes_all_that_is_nearer():
    """A slow cache before a fast memory: the roof is the cache's."""
    odd = Machine(100.0, (Level("L2", 10, 5.0), Level("memory", math.inf, 50.0)))
    assert attainable(Work(0, 100), 0, odd) == (pytest.approx(20.0), "L2")


def test_the_last_level_holds_everything():
    with pytest.raises(ValueError, match="holds everything"):
        Machine(1.0, (Level("L2", 10, 1.0),))
    with pytest.raises(ValueError, match="holds everything"):
        Machine(1.0, ())
