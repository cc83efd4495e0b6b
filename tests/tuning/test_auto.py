"""MetaSchedule's own space: the same function, scheduled by its rules; no intrinsics imported, no layout changed."""

import json
import math
import random
import sys

import numpy as np
import pytest
import tvm
from tvm import s_tir

from tests.lowering.test_knobs import product as stage_of
from tests.lowering.test_knobs import run
from xframe import registry
from xframe.lowering import prefetch
from xframe.lowering.stage import Epilogue
from xframe.lowering.target import Cpu
from xframe.lowering.tasks import Task, trace_of
from xframe.lowering.variants import choose
from xframe.schedules.record import ANNOTATIONS, INSTRUCTIONS
from xframe.tuning import auto
from xframe.tuning.points import OK, Trial
from xframe.tuning.search import EVOLUTIONARY, REPLAY, STRATEGIES
from xframe.types import ConvSite

HOST = Cpu.host(2)
SITE = ConvSite(1, 32, (14, 14), 48, (3, 3), pads=(1, 1, 1, 1))


def task(lowering="winograd", site=SITE):
    variant = choose(registry.load(registry.LOWERINGS, lowering), site, HOST, 0.002)
    return Task.of(lowering, variant, Epilogue(np.zeros(1), math.inf), "NHWC", HOST)


def function(lowering, trace=None):
    """The product of the task, by a trace or as it is defined."""
    stage = stage_of(lowering, SITE)
    if trace is None:
        return stage.func
    sch = s_tir.Schedule(stage.func)
    s_tir.schedule.Trace.apply_json_to_schedule(json.loads(trace), sch)
    return prefetch.inserted(sch.mod["main"])


@pytest.fixture(scope="module")
def points():
    return auto.points(task(), HOST, 6, seed=1)


def test_points_are_traces_of_the_hand_written_tile(points):
    assert len(set(points)) == 6
    assert {p.tile for p in points} == {auto.AutoSearch(task(), HOST, REPLAY).spaces.tiles[0]}
    assert all(p.trace and not p.knobs for p in points)


def test_a_seed_makes_the_points(points):
    assert auto.points(task(), HOST, 6, seed=1) == points
    assert auto.points(task(), HOST, 6, seed=2) != points


def test_no_intrinsic_is_parsed(monkeypatch):
    """Nor does what stands in its place stay."""
    monkeypatch.delitem(sys.modules, "tvm.s_tir.tensor_intrin", raising=False)  # another test may have
    assert auto.points(task(), HOST, 1)
    assert "tvm.s_tir.tensor_intrin" not in sys.modules


@pytest.mark.parametrize("lowering", ["gemm", "direct", "winograd", "fft"])
def test_the_function_stays_what_it_is(lowering):
    """The same parameters, the same results, the parts of the algorithm; only instructions that logs may have."""
    plain, by_hand = function(lowering), stage_of(lowering, SITE)
    wanted = run(by_hand, by_hand.scheduled())
    for point in auto.points(task(lowering), HOST, 2, seed=3):
        instructions, _ = json.loads(point.trace)
        assert {inst[0] for inst in instructions} <= INSTRUCTIONS
        assert {inst[2][0] for inst in instructions if inst[0] == "Annotate"} <= ANNOTATIONS
        func = function(lowering, point.trace)
        shapes = [[tuple(p.shape) for p in f.params] for f in (plain, func)]
        assert shapes[0] == shapes[1]
        got = run(by_hand, func)
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
        assert ("column" in str(func)) == (lowering == "gemm")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_hand_written_point_is_first_and_none_comes_twice(strategy):
    searching = auto.AutoSearch(task(), HOST, strategy, seed=1)
    first, *rest = searching.propose(4)
    assert first.knobs
    assert not first.trace
    searching.resume([Trial(p, OK, seconds=(1.0,), baseline=(1.0,)) for p in rest])
    again = searching.propose(4)
    assert all(p.trace for p in again)
    assert len({*rest, *again}) == 7
    assert searching.size == math.inf


def decisions(trace):
    """The decisions of a trace that are sampled, in order."""
    return [decision for _, decision in json.loads(trace)[1]]


def test_children_keep_most_decisions_of_their_parent(points):
    designs = auto.Designs(tvm.IRModule({"main": function("winograd")}), HOST)
    rng = random.Random(0)
    children = [c for c in (designs.mutated(points[0].trace, rng) for _ in range(12)) if c]
    assert children
    parent = decisions(points[0].trace)
    changes = [sum(a != b for a, b in zip(parent, decisions(trace_of(c)), strict=True)) for c in children]
    assert max(changes) <= auto.MUTATED
    assert max(changes) > 0


def test_evolution_is_from_the_best(monkeypatch):
    """Once there are enough trials, most of what is proposed descends from the fastest."""
    searching = auto.AutoSearch(task(), HOST, EVOLUTIONARY, seed=1)
    points = searching.propose(13)
    searching.learn([Trial(p, OK, seconds=(1.0 + i,), baseline=(1.0,)) for i, p in enumerate(points)])
    asked = []
    mutated = searching._designs.mutated
    monkeypatch.setattr(searching._designs, "mutated", lambda trace, rng: asked.append(trace) or mutated(trace, rng))
    assert len(searching.propose(8)) == 8
    assert len(asked) >= auto.CHILDREN
    assert set(asked) <= {p.trace for p in points[1:9]}  # the first is the template by hand


def test_what_fails_is_skipped(monkeypatch):
    searching = auto.AutoSearch(task(), HOST, REPLAY, seed=1)
    monkeypatch.setattr(searching._designs, "drawn", lambda rng: None)
    assert len(searching.propose(3)) == 1  # by hand
