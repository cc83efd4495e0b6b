"""The timing loop under a fake clock."""

import gc

import pytest

from xframe.worker.timing import MAX_SAMPLES, quartiles, relative_noise, sample


class Clock:
    """A clock that only steps move on; ``durations`` are in seconds, the last one repeats."""

    def __init__(self, *durations):
        self.now, self.durations, self.steps, self.synced = 0, list(durations), 0, 0

    def __call__(self):
        return self.now

    def step(self):
        self.steps += 1
        self.now += round(self.durations[min(self.steps, len(self.durations)) - 1] * 1e9)

    def sync(self):
        self.synced += 1

    def sample(self, min_samples=5, min_seconds=0.1, max_seconds=1.0, noise=0.03, warm_up=True):
        return sample(self.step, self.sync, min_samples, min_seconds, max_seconds, noise, warm_up, clock=self)


def test_reaches_both_minimum_count_and_minimum_time():
    short, long = Clock(0.001).sample(), Clock(0.1).sample()
    assert len(short.seconds) == 100
    assert sum(short.seconds) == pytest.approx(0.1)
    assert len(long.seconds) == 5
    assert short.settled
    assert long.settled


def test_every_step_is_waited_for_and_the_warm_up_takes_the_same_path():
    clock = Clock(0.01)
    visit = clock.sample(min_seconds=0.2)
    assert visit.warmups == 5
    assert clock.steps == clock.synced == visit.warmups + len(visit.seconds)


def test_warm_up_steps_are_not_samples():
    visit = Clock(0.5, 0.01).sample()
    assert visit.warmups == 1
    assert max(visit.seconds) == pytest.approx(0.01)


def test_the_cap_holds_and_leaves_one_sample():
    visit = Clock(1.5).sample()
    assert visit.seconds == [pytest.approx(1.5)]
    assert visit.warmups == 1
    assert not visit.settled


def test_a_step_known_to_be_long_is_not_warmed_up():
    clock = Clock(1.5)
    visit = clock.sample(warm_up=False)
    assert visit.seconds == [pytest.approx(1.5)]
    assert visit.warmups == 0
    assert clock.steps == clock.synced == 1


def test_noise_keeps_it_sampling_until_the_cap():
    quiet, loud = Clock(0.010).sample(), Clock(*[0.005, 0.015, 0.010] * 400).sample()
    assert sum(loud.seconds) == pytest.approx(1.0, abs=0.05)
    assert not loud.settled
    assert len(loud.seconds) > 5 * len(quiet.seconds)


def test_noise_that_dies_down_ends_it_early():
    visit = Clock(*[0.005, 0.015] * 10, 0.01).sample(max_seconds=10)
    assert visit.settled
    assert sum(visit.seconds) < 5


def test_a_step_that_takes_no_time_ends_too():
    assert len(Clock(1e-9).sample(min_seconds=1e-6, max_seconds=100).seconds) == 1000
    assert len(Clock(1e-9).sample(min_seconds=0.001, max_seconds=100).seconds) == MAX_SAMPLES
    stuck = Clock(0).sample()
    assert len(stuck.seconds) == stuck.warmups == MAX_SAMPLES


def test_no_garbage_collection_within_and_as_before_after():
    seen = []
    sample(lambda: seen.append(gc.isenabled()), lambda: None, 1, 0.0, 0.0, 1.0)
    assert seen
    assert not any(seen)
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        sample(lambda: 1 / 0, lambda: None, 1, 0.0, 0.0, 1.0)
    assert gc.isenabled()


def test_quartiles_interpolate():
    assert quartiles([4, 1, 3, 2]) == (1.75, 2.5, 3.25)
    assert quartiles([7]) == (7, 7, 7)
    assert relative_noise([1, 1, 1]) == 0
    assert relative_noise([0, 0]) == 0
    with pytest.raises(ValueError, match="no samples"):
        quartiles([])
