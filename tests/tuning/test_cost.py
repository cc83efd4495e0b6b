"""The cost model: it ranks what it has not seen, says nothing from too little, and tells how to get XGBoost."""

import json
import random
import sys

import numpy as np
import pytest

from tests.tuning.synthetic import OPTIMUM, TILES, Spaces, measured, seconds
from xframe.errors import Unavailable
from xframe.tuning.cost import FEWEST, Cost, features, ratio
from xframe.tuning.points import CRASHED, Point, Trial

SPACES = Spaces()


@pytest.fixture(scope="module")
def points():
    """All points of the synthetic space, shuffled."""
    found = [p for tile in TILES for p in SPACES[tile].points]
    random.Random(0).shuffle(found)
    return found


def learnt(trials, **how):
    cost = Cost(lambda tile: SPACES[tile].work, **how)
    cost.learn(trials)
    return cost


def ranks(values):
    return np.argsort(np.argsort(values))


def test_it_ranks_points_that_it_has_not_seen(points):
    cost = learnt([measured(p, spread=0.02) for p in points[:64]])
    predicted = cost.predict(points[64:])
    truth = [seconds(p) for p in points[64:]]
    assert np.corrcoef(ranks(predicted), ranks(truth))[0, 1] > 0.75
    # The best fifth by prediction is really faster than the median point.
    promising = np.argsort(predicted)[: len(predicted) // 5]
    assert np.mean(np.array(truth)[promising] < np.median(truth)) > 0.9


def test_it_predicts_log_seconds_over_the_baseline(points):
    trials = [measured(p) for p in points[:200]]
    errors = learnt(trials).predict(points[:200]) - np.log([ratio(t) for t in trials])
    assert np.abs(errors).mean() < 0.1


def test_more_trials_make_it_better(points):
    truth = np.log([seconds(p) for p in points[300:]])

    def error(n):
        return np.abs(learnt([measured(p) for p in points[:n]]).predict(points[300:]) - truth).mean()

    assert error(256) < error(16)


def test_too_few_trials_say_nothing(points):
    cost = learnt([measured(p) for p in points[: FEWEST - 1]])
    assert cost.predict(points) is None
    cost.learn([measured(points[0])])  # the same point again is not another one
    assert cost.predict(points) is None
    cost.learn([measured(points[FEWEST])])
    assert len(cost.predict(points)) == len(points)


def test_failed_trials_count_as_slow(points):
    failing = [p for p in points if p.tile == (3, 7)]
    fine = [measured(p) for p in points if p.tile != (3, 7)][:64]
    predicted = learnt([*fine, *(Trial(p, CRASHED, "it crashed") for p in failing[:32])]).predict(failing[32:])
    assert predicted.min() > np.log(max(ratio(t) for t in fine))


def test_failed_trials_alone_say_nothing(points):
    assert learnt([Trial(p, CRASHED, "it crashed") for p in points[:32]]).predict(points) is None


def test_the_same_trials_make_the_same_model(points):
    trials = [measured(p) for p in points[:32]]
    one, other = (learnt(trials, seed=3).predict(points) for _ in range(2))
    assert (one == other).all()


def test_it_learns_the_decisions_of_traces():
    """One tile size matters; compute locations are -1 where they are inlined; designs are told apart."""

    def trace(kinds, sizes, place):
        instructions = [[kind, [], [], []] for kind in kinds] + [["EnterPostproc", [], [], []]]
        post = [["Parallel", [], [], []]] * sizes[1]  # differs by decisions, and is no other design
        return Point((8, 2), trace=json.dumps([instructions + post, [[0, sizes], [1, place]]]))

    tiled, other = (
        ["SamplePerfectTile", "SampleComputeLocation"],
        ["SamplePerfectTile", "SampleComputeLocation", "Fuse"],
    )
    sizes = [[32 // n, n] for n in (1, 2, 4, 8, 16, 32)]
    found = [(trace(k, s, p), s[1], k) for k in (tiled, other) for s in sizes for p in (-2, -1, 0, 1, 2)]
    random.Random(0).shuffle(found)
    trials = [Trial(p, "OK", seconds=(n * (2.0 if k == other else 1.0),), baseline=(1.0,)) for p, n, k in found]
    predicted = learnt(trials[:32]).predict([p for p, _, _ in found[32:]])
    assert np.corrcoef(predicted, [np.log(ratio(t)) for t in trials[32:]])[0, 1] > 0.9


def test_a_knob_that_a_tile_does_not_have_is_missing(points):
    bare = [Point(p.tile, tuple((n, v) for n, v in p.knobs if n not in ("fetch", "steps"))) for p in points]
    both = [*points[:32], *bare[:32]]
    cost = Cost()
    cost.learn([Trial(p, "OK", seconds=(2.0 - (p in points),), baseline=(1.0,)) for p in both])
    assert cost.predict([points[50]])[0] < cost.predict([bare[50]])[0]


def test_features_are_powers_of_two():
    found = features(OPTIMUM, work=1024.0)
    assert found["accumulators"] == pytest.approx(np.log2(27))
    assert found["loads a step"] == 12
    assert found["work"] == 10
    assert found["knob steps"] == pytest.approx(np.log2(17))
    assert found["rows of a part"] == pytest.approx(np.log2(54))
    assert found["lines a fetch"] == pytest.approx(np.log2(1 + 16 * 27))
    idle = Point(OPTIMUM.tile, tuple((n, 0 if n == "fetch" else v) for n, v in OPTIMUM.knobs))
    assert features(idle, 1024.0)["lines a fetch"] == 0


def test_without_xgboost_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(Unavailable, match=r"pip install 'xframe-eval\[tune\]'"):
        Cost()
