"""Proposals: by hand first, each once, the same by seed, better by what was learnt; and what a template offers."""

import itertools
import math
import sys

import numpy as np
import pytest

from tests.tuning.synthetic import OPTIMUM, TASK, Spaces, measured, seconds
from xframe import registry
from xframe.errors import Unavailable, UsageError
from xframe.lowering.stage import Epilogue
from xframe.lowering.target import Cpu
from xframe.lowering.tasks import Task
from xframe.lowering.variants import choose
from xframe.tuning.points import FAILED, OK, Point, Trial
from xframe.tuning.search import EVOLUTIONARY, REPLAY, STRATEGIES, Search, Space, product
from xframe.tuning.search import Spaces as RealSpaces
from xframe.types import ConvSite

HOST = Cpu.host(2)
BY_HAND = Spaces()[(8, 2)].points[0]
SMALL = Spaces(tiles=((8, 2), (6, 4)), knobs={"rows": (1, 2, 3), "unroll": (1, 2), "steps": (4,), "fetch": (1,)})


def search(strategy=EVOLUTIONARY, seed=0, spaces=None):
    return Search(TASK, HOST, strategy, seed, spaces or Spaces())


def run(searching, trials, together=4):
    """Propose, measure and learn so many points; they in their order."""
    tried = []
    while len(tried) < trials:
        points = searching.propose(min(together, trials - len(tried)))
        if not points:
            break
        searching.learn([measured(p) for p in points])
        tried += points
    return tried


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_hand_written_point_is_first_and_none_comes_twice(strategy):
    tried = run(search(strategy), 80)
    assert tried[0] == BY_HAND
    assert len(set(tried)) == 80


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_seed_makes_a_search(strategy):
    one, same, other = (run(search(strategy, seed), 40) for seed in (1, 1, 2))
    assert one == same
    assert one != other


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_exhausted_space_gives_fewer(strategy):
    searching = search(strategy, spaces=SMALL)
    assert searching.size == 12
    assert len(run(searching, 10)) == 10
    assert len(searching.propose(5)) == 2
    assert searching.propose(5) == []


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_resumed_search_goes_on_as_it_would_have(strategy):
    whole = run(search(strategy), 48)
    resumed = search(strategy)
    resumed.resume([measured(p) for p in whole[:24]])
    assert run(resumed, 24) == whole[24:]
    assert resumed.best == min(map(measured, whole), key=lambda t: t.seconds[1])


def test_what_is_under_way_is_not_proposed_again():
    searching = search()
    assert len({p for _ in range(40) for p in searching.propose(1)}) == 40


def test_failed_points_are_not_proposed_again_and_are_no_parents():
    searching = search(spaces=SMALL)
    first = searching.propose(8)
    searching.learn([Trial(p, FAILED, "it does not compile") for p in first])
    assert searching.best is None
    assert len({*first, *searching.propose(8)}) == 12


def test_learning_finds_the_optimum_in_fewer_trials_than_chance():
    """Of 1920 points; each search may try 256 of them."""

    def needed(strategy, seed):
        searching, tried = search(strategy, seed), []
        while len(tried) < 256 and OPTIMUM not in tried:
            tried += run(searching, 4)
        return len(tried)

    learnt, chance = ([needed(s, seed) for seed in range(5)] for s in (EVOLUTIONARY, REPLAY))
    assert 2 * sum(learnt) < sum(chance)
    assert sorted(learnt)[2] < 128


def test_learning_beats_chance_after_few_trials():
    def best(strategy, seed):
        searching = search(strategy, seed)
        run(searching, 48)
        return math.log(seconds(searching.best.point))

    learnt, chance = ([best(s, seed) for seed in range(8)] for s in (EVOLUTIONARY, REPLAY))
    assert np.mean(learnt) < 0.7 * np.mean(chance)


def test_best_is_over_its_own_baseline():
    searching = search()
    slow = Trial(OPTIMUM, OK, seconds=(1.0, 1.0, 9.0), baseline=(1.1,))
    fast = Trial(BY_HAND, OK, seconds=(2.0,), baseline=(4.0,))
    searching.learn([slow, fast])
    assert searching.best is fast


def test_given_points_come_right_after_the_hand_written_one():
    searching = search()
    searching.start([OPTIMUM, BY_HAND])
    first, second, third = searching.propose(3)
    assert (first, second) == (BY_HAND, OPTIMUM)
    assert third not in (BY_HAND, OPTIMUM)


def test_an_unknown_strategy_is_refused():
    with pytest.raises(UsageError, match="no search strategy 'annealing': there are evolutionary and replay"):
        search("annealing")


def test_only_what_learns_needs_xgboost(monkeypatch):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    assert search(REPLAY).propose(2)
    with pytest.raises(Unavailable, match="--strategy replay"):
        search(EVOLUTIONARY)


def test_the_nearest_point():
    space = Spaces()[(9, 3)]
    assert space.nearest({"rows": 5, "steps": 17, "fetch": 1, "unroll": 2, "other": 3}) == OPTIMUM
    assert space.nearest({}) == space.points[0]
    few = Space((9, 3), space.candidates, (space.points[0], OPTIMUM))
    assert few.nearest({"rows": 5, "steps": 8, "fetch": 1, "unroll": 4}) == OPTIMUM  # the values alone are no point


def task(lowering, site, **epilogue):
    variant = choose(registry.load(registry.LOWERINGS, lowering), site, HOST, 0.002)
    return Task.of(lowering, variant, Epilogue(np.zeros(1), **epilogue), "NHWC", HOST)


def test_a_space_is_what_the_template_takes():
    """A reduction over 18: two unrolled steps are no choice where a request for weights comes after each step."""
    stage = product(task("gemm", ConvSite(1, 18, (8, 8), 48, (1, 1))), HOST)
    space = Space.of(stage, (stage.tiles[0].rows, stage.tiles[0].vectors))
    taken = set()
    for values in itertools.product(*space.candidates.values()):
        chosen = dict(zip(space.candidates, values, strict=True))
        try:
            stage.templated(chosen)
        except UsageError:
            continue
        taken.add(Point(space.tile, tuple(sorted(chosen.items()))))
    assert set(space.points) == taken
    assert len(taken) < math.prod(map(len, space.candidates.values()))
    assert dict(space.points[0].knobs) == stage.templated()[1].decided


@pytest.mark.parametrize("lowering", ["gemm", "direct", "winograd", "fft"])
def test_proposals_of_a_task_schedule(lowering):
    found = task(lowering, ConvSite(1, 64, (14, 14), 96, (3, 3), pads=(1, 1, 1, 1)), relu=math.inf)
    spaces = RealSpaces(found, HOST)
    searching = Search(found, HOST, REPLAY, 0, spaces)
    points = searching.propose(6)
    by_hand = product(found, HOST)
    assert points[0] == Point(
        (by_hand.tiles[0].rows, by_hand.tiles[0].vectors), tuple(sorted(by_hand.templated()[1].decided.items()))
    )
    assert len({p.tile for p in points}) > 1
    for point in points:
        stage = product(found, HOST, point.tile)
        assert stage.templated(dict(point.knobs))[1].decided == dict(point.knobs)
    assert searching.size == sum(len(spaces[tile].points) for tile in spaces.tiles)


def test_work_counts_what_a_tile_wastes():
    spaces = RealSpaces(task("direct", ConvSite(1, 32, (7, 7), 48, (3, 3), pads=(1, 1, 1, 1))), HOST)
    useful = 7 * 7 * 32 * 48 * 9
    for rows, vectors in spaces.tiles:
        padded = 7 * -(-7 // rows) * rows * 32 * 9 * -(-48 // (vectors * HOST.lanes)) * vectors * HOST.lanes
        assert spaces[rows, vectors].work == padded >= useful


def test_straight_line_code_has_nothing_to_tune():
    depthwise = ConvSite(1, 32, (8, 8), 32, (3, 3), pads=(1, 1, 1, 1), groups=32)
    with pytest.raises(UsageError, match="nothing to tune"):
        RealSpaces(task("direct", depthwise), HOST)
