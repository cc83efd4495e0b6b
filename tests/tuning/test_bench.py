"""What a measuring process keeps, and what it says of its surroundings."""

import itertools
from dataclasses import replace

import pytest

from tests.tuning.planted import HOST, SITE, by_hand, task
from xframe.tuning import bench, build, timer
from xframe.tuning.bench import Bench
from xframe.tuning.points import Point


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """Each is compiled once."""
    folder, made = tmp_path_factory.mktemp("built"), {}

    def library(of, point):
        key = of.name, point
        if key not in made:
            made[key] = build.build(of, point, HOST, folder)
        return made[key]

    return library


@pytest.fixture
def built(libraries, monkeypatch):
    monkeypatch.setattr(timer, "LONGEST", 0.05)
    return libraries


def other(of, rank=1):
    tile = build.tiles(of, HOST)[rank]
    return Point((tile.rows, tile.vectors))


def test_weights_stay_while_the_register_tile_does_and_images_move(built):
    of, made = task(), Bench(HOST)
    made.measure(built(of, by_hand(of)))
    first, copies = dict(made._memories), {role: m.copies for role, m in made._memories.items()}
    outputs = [m.outputs[-1] for m in first.values()]
    assert first[build.BY_HAND] is not first[build.CANDIDATE]
    made.measure(built(of, other(of)))
    assert made._memories[build.BY_HAND].copies is copies[build.BY_HAND]
    assert made._memories[build.CANDIDATE].copies is not copies[build.CANDIDATE]
    assert made._memories[build.CANDIDATE].chain.tile == other(of).tile
    assert not {id(m.outputs[-1]) for m in made._memories.values()} & {id(out) for out in outputs}


def test_another_task_has_memory_of_its_own(built):
    of, made = task(), Bench(HOST)
    made.measure(built(of, by_hand(of)))
    before = list(made._memories.values())
    next_one = task(site=replace(SITE, batch=1))
    made.measure(built(next_one, by_hand(next_one)))
    assert not [m for m in made._memories.values() if any(m is b for b in before)]


def test_exact_outputs_are_kept_while_there_is_room(monkeypatch):
    first, second = task(), task("winograd")
    made = Bench(HOST)
    kept = made.prepare(first)
    made.prepare(second)
    assert made.prepare(first) is kept
    monkeypatch.setattr(bench, "KEPT", 0)
    made.prepare(second)
    made.prepare(task("gemm"))
    assert made.prepare(first) is not kept


def test_copies_of_weights_are_for_the_cache_that_there_is(built):
    of, made = task("winograd", relu=6.0), Bench(HOST, cache=1 << 16)
    done = made.measure(built(of, by_hand(of)))
    assert 0 < done.share < 1
    assert len(done.seconds) == len(done.baseline) >= timer.LEAST
    memory = made._memories[build.CANDIDATE]
    size = memory.copies.next()[0].numpy().nbytes
    assert len(memory.copies) == -(-2 * (1 << 16) // size)


def test_the_load_of_others_is_noted(built, monkeypatch):
    of, made = task(), Bench(HOST)
    monkeypatch.setattr(bench.environment, "busy_seconds", itertools.count(0, 100).__next__)
    assert "other processes used" in made.measure(built(of, by_hand(of))).note
    monkeypatch.setattr(bench.environment, "busy_seconds", lambda: 7.0)
    assert made.measure(built(of, by_hand(of))).note == ""
    monkeypatch.setattr(bench.environment, "busy_seconds", lambda: None)
    assert made.measure(built(of, by_hand(of))).note == ""
