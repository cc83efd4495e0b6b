"""Two kernels in turn, and how often: with a clock that they turn themselves. Copies of weights."""

import itertools

import numpy as np
import pytest

from xframe.tuning import timer
from xframe.tuning.timer import Copies, Subject, alternate


class World:
    """A clock in nanoseconds, and what happened."""

    def __init__(self):
        self.now, self.log = 0, []

    def subject(self, name, *seconds, before=0.0):
        """Takes these seconds a call, again and again."""
        lasting = itertools.cycle(seconds)

        def prepare():
            self.log.append(f"before {name}")
            self.now += int(before * 1e9)

        def call():
            self.log.append(name)
            self.now += int(next(lasting) * 1e9)

        return Subject(prepare, call)

    def alternate(self, a, b):
        return alternate(a, b, lambda: self.now)


def test_in_turn_after_what_comes_before_and_the_first_pair_is_not_kept():
    world = World()
    samples = world.alternate(world.subject("a", 9.0, *[0.1] * 99), world.subject("b", 9.0, *[0.2] * 99))
    assert world.log[:4] == ["before a", "a", "before b", "b"]
    assert world.log == world.log[:4] * (len(world.log) // 4)
    assert set(samples.seconds) == {0.1}
    assert set(samples.baseline) == {0.2}
    assert len(samples.seconds) == len(samples.baseline) == len(world.log) // 4 - 1


def test_what_comes_before_is_not_in_the_samples():
    world = World()
    samples = world.alternate(world.subject("a", 0.01, before=0.05), world.subject("b", 0.01, before=0.05))
    assert set(samples.seconds + samples.baseline) == {0.01}


def test_a_watch_times_the_calls_and_the_clock_the_whole():
    world = World()

    def watch(call):
        call()
        return 7_000

    samples = alternate(world.subject("a", 0.3), world.subject("b", 0.3), lambda: world.now, watch)
    assert set(samples.seconds + samples.baseline) == {7_000 * 1e-9}
    assert len(samples.seconds) == timer.LEAST  # the time was over


def test_a_call_that_does_not_count_is_made_again_after_what_comes_before_it():
    world, counts = World(), itertools.cycle([True, False, False])

    def watch(call):
        call()
        return 5_000 if next(counts) else None

    samples = alternate(world.subject("a", 0.3), world.subject("b", 0.3), lambda: world.now, watch)
    assert set(samples.seconds + samples.baseline) == {5_000 * 1e-9}
    assert world.log[4:12] == ["before a", "a", *["before b", "b"] * 3]


def test_quiet_ones_end_soon_and_noisy_ones_when_the_time_is_over():
    quiet, noisy = World(), World()
    few = quiet.alternate(quiet.subject("a", 1e-3), quiet.subject("b", 1e-3))
    many = noisy.alternate(noisy.subject("a", 1e-3, 2e-3, 1.5e-3), noisy.subject("b", 1e-3))
    assert timer.SHORTEST <= quiet.now * 1e-9 < 1.3 * timer.SHORTEST
    assert noisy.now * 1e-9 == pytest.approx(timer.LONGEST, abs=1e-2)
    assert timer.LEAST <= len(few.seconds) < len(many.seconds)


def test_noise_of_the_hand_written_one_counts_too():
    world = World()
    world.alternate(world.subject("a", 1e-3), world.subject("b", 1e-3, 2e-3, 1.5e-3))
    assert world.now * 1e-9 > 0.9 * timer.LONGEST


def test_long_kernels_get_the_least_samples_and_short_ones_the_most():
    world = World()
    assert len(world.alternate(world.subject("a", 2.0), world.subject("b", 2.0)).seconds) == timer.LEAST
    world = World()
    samples = world.alternate(world.subject("a", 1e-6, 2e-6), world.subject("b", 1e-6, 2e-6))
    assert len(samples.seconds) == timer.MOST


def test_a_hopeless_candidate_is_left():
    world = World()
    samples = world.alternate(world.subject("a", 2e-3, 3e-3), world.subject("b", 1e-3, 1.1e-3))
    assert len(samples.seconds) == timer.LEAST
    world = World()
    assert len(world.alternate(world.subject("a", 9.0), world.subject("b", 1.0)).seconds) == 1


def arrays(copy):
    return [np.from_dlpack(t) for t in copy]


def test_copies_pass_in_turn_and_are_twice_the_cache():
    weights, bias = np.arange(1001, dtype=np.float32).reshape(7, 11, 13), np.arange(5, dtype=np.float32)
    copies = Copies([weights, bias], 1 << 14, 1 << 20)
    size = weights.nbytes + bias.nbytes
    assert (len(copies) - 1) * size < 2 << 14 <= len(copies) * size
    assert copies.note == ""
    seen = [arrays(copies.next()) for _ in range(len(copies))]
    starts = {a.ctypes.data for copy in seen for a in copy}
    assert len(starts) == 2 * len(copies)
    assert all(start % 64 == 0 for start in starts)
    for w, b in seen:
        np.testing.assert_array_equal(w, weights)
        np.testing.assert_array_equal(b, bias)
    assert arrays(copies.next())[0].ctypes.data == seen[0][0].ctypes.data


def test_what_is_larger_than_the_cache_is_there_once():
    assert len(Copies([np.zeros(1 << 16, np.float32)], 1 << 10, 1 << 10)) == 1


def test_a_lack_of_memory_is_said():
    copies = Copies([np.zeros(1 << 18, np.float32)], 64 << 20, 8 << 20)
    assert len(copies) == 8
    assert "8 MiB" in copies.note
    assert "64 MiB" in copies.note
