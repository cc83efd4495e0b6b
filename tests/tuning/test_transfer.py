"""Records of other batches, thread counts and machines as starting points."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from xframe import registry
from xframe.lowering.stage import Epilogue
from xframe.lowering.target import Cpu
from xframe.lowering.tasks import Task, trace_of
from xframe.lowering.variants import choose
from xframe.schedules.log import Entry
from xframe.tuning.points import Point
from xframe.tuning.search import REPLAY, Search, Spaces, product
from xframe.tuning.transfer import adapted, sources
from xframe.types import ConvSite

HOST = Cpu.host(2)
SITE = ConvSite(1, 64, (14, 14), 96, (3, 3), pads=(1, 1, 1, 1))


def task(site=SITE, lowering="direct", cpu=HOST, layout="NHWC", relu=math.inf):
    variant = choose(registry.load(registry.LOWERINGS, lowering), site, cpu, 0.002)
    return Task.of(lowering, variant, Epilogue(np.zeros(1), relu), layout, cpu)


def entry(of, knobs=None, tile=None, cpu=HOST, gain=1.2):
    """A record of a task with some knobs turned, the others by hand."""
    tile = tile or Spaces(of, cpu).tiles[0]
    sch, decided = product(of, cpu, tile).templated(knobs)
    record = json.dumps([json.loads(trace_of(sch)), [1.0], {"kind": "llvm"}, []])
    return Entry(
        of.name, tile, "0" * 16, decided.decided, "template", (1.0,), (gain,), 0.1, 1.0, "", record,
        "2026-01-01T00:00:00", 0, 64, "one", None, "0.1.0",
    )  # fmt: skip


def knobs(point):
    return dict(point.knobs)


def test_a_record_of_the_same_task_is_its_own_point():
    own = task()
    spaces = Spaces(own, HOST)
    for point in Search(own, HOST, REPLAY, 0, spaces).propose(5):
        assert adapted(entry(own, knobs(point), point.tile), own, HOST, spaces) == point


def test_values_at_an_end_stay_there_and_others_are_near():
    one, sixteen = task(), task(replace(SITE, batch=16))
    spaces = Spaces(sixteen, HOST)
    first = spaces[spaces.tiles[0]]
    point = adapted(entry(one, {"lines": 14, "unroll": 4}), sixteen, HOST, spaces)
    assert knobs(point)["lines"] == max(first.candidates["lines"]) == 14 * 16  # all lines
    assert knobs(point)["unroll"] == 4
    point = adapted(entry(one, {"lines": 7}), sixteen, HOST, spaces)
    assert knobs(point)["lines"] == 7
    point = adapted(replace(entry(one, {"lines": 7}), knobs={**entry(one).knobs, "lines": 9}), sixteen, HOST, spaces)
    assert knobs(point)["lines"] in (8, 14 * 16)  # its trace is of other knobs: the nearest value, whatever the range


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize("lowering", ["gemm", "direct", "winograd"])
def test_what_is_adapted_schedules(lowering, batch, threads):
    """From one thread on a wide machine to each other."""
    cpu, site = Cpu.host(threads), replace(SITE, in_channels=256, out_channels=256)  # too large for one fused kernel
    source = entry(task(site, lowering, Cpu.host(1)), cpu=Cpu.host(1))
    target = task(replace(site, batch=batch), lowering, cpu, layout="NCHW", relu=None)
    point = adapted(source, target, cpu)
    assert product(target, cpu, point.tile).templated(knobs(point))[1].decided == knobs(point)


def test_a_tile_that_this_machine_lacks_becomes_the_nearest():
    narrow = Cpu("llvm -mcpu=core-avx2", 2)  # half the registers
    own = task(cpu=narrow)
    spaces = Spaces(own, narrow)
    wide = entry(task(), tile=(14, 2))
    point = adapted(wide, own, narrow, spaces)
    assert wide.tile not in spaces.tiles
    assert point.tile in spaces.tiles
    assert point.tile == min(spaces.tiles, key=lambda t: abs(math.log2(t[0] / 14)) + abs(math.log2(t[1] / 2)))


@pytest.mark.parametrize(
    "other",
    [
        task(lowering="winograd"),
        task(replace(SITE, kernel=(5, 5))),
        task(replace(SITE, out_channels=64)),
        task(replace(SITE, in_channels=32)),
        task(replace(SITE, stride=(2, 2))),
    ],
    ids=lambda t: t.name,
)
def test_another_kernel_is_no_starting_point(other):
    found = entry(other)
    assert adapted(found, task(), HOST) is None
    assert sources([SimpleNamespace(entries={other.name: found})], task()) == []


def test_what_has_no_knobs_is_no_starting_point():
    found = entry(task())
    auto = replace(found, space="auto", knobs=None)
    gone = replace(found, task=found.task.replace(" - ", " F(99,9) "))
    for broken in (auto, gone):
        assert adapted(broken, task(), HOST) is None
        assert sources([SimpleNamespace(entries={broken.task: broken})], task()) == []


def test_a_broken_trace_only_loses_the_ranges():
    found = replace(entry(task(), {"unroll": 2}), record=json.dumps([[[], []], [1.0], {}, []]))
    assert knobs(adapted(found, task(), HOST))["unroll"] == 2


def test_sources_are_the_most_alike_first():
    own = task()
    near = entry(task(relu=None), gain=1.1)  # only what follows it differs
    nearer = entry(task(layout="NCHW"), gain=1.3)
    batch2, batch16 = (entry(task(replace(SITE, batch=n))) for n in (2, 16))
    larger = entry(task(replace(SITE, in_hw=(28, 28))), gain=9.0)
    thread = entry(task(cpu=Cpu.host(1)), cpu=Cpu.host(1))
    foreign = entry(task(replace(SITE, kernel=(5, 5))))
    logs = [
        SimpleNamespace(entries={e.task: e for e in part})
        for part in ([larger, batch16, near], [foreign, thread, batch2, nearer])
    ]
    assert sources(logs, own) == [nearer, near, batch2, batch16, thread, larger]


def test_it_comes_right_after_the_hand_written_point():
    own = task()
    spaces = Spaces(own, HOST)
    point = adapted(entry(task(replace(SITE, batch=16)), {"unroll": 4}), own, HOST, spaces)
    searching = Search(own, HOST, REPLAY, 0, spaces)
    searching.start([point])
    assert searching.propose(2) == [spaces[spaces.tiles[0]].points[0], point]
    assert isinstance(point, Point)
