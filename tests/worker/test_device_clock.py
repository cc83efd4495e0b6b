"""Steps on a GPU that a fake driver plays, in time that only the fake moves on."""

import pytest

from tests.worker.gpu import Driver
from xframe.errors import Unavailable, XframeError
from xframe.worker.device_clock import GATED, UNGATED, DeviceClock

KERNELS = (3e-4, 5e-5, 1e-4)


class Framework:
    """Launches kernels as far apart as its own work on the host takes; ``waits`` for each where it should not, and
    ``later`` are launched by another thread, as soon as so many seconds have passed since the step returned."""

    def __init__(self, driver, kernels=KERNELS, host=2e-4, waits=False, later=(), after=0.0):
        self.driver, self.kernels, self.host, self.waits = driver, kernels, host, waits
        self.later, self.after, self.due = later, after, None
        self.steps = 0
        driver.sleep = self.sleep

    def sleep(self, seconds):
        self.driver.now += seconds
        self._catch_up()

    def _catch_up(self):
        if self.due is not None and self.driver.now >= self.due:
            self.due = None
            for seconds in self.later:
                self.driver.launch(seconds)

    def ask(self):
        self.steps += 1
        for seconds in self.kernels:
            self.driver.now += self.host
            self.driver.launch(seconds)
            if self.waits:
                self.driver.wait()
        if self.later:
            self.due = self.driver.now + self.after

    def sync(self):
        if self.due is not None:
            self.driver.now = max(self.driver.now, self.due)
            self._catch_up()
        self.driver.wait()
        self.driver.now += 1e-5


def clock(driver, index=0):
    return DeviceClock(index, driver, driver.clock, lambda seconds: driver.sleep(seconds))


def read(driver, framework, count=10, expected=1e-3, longest=1.0):
    return clock(driver).read(framework.ask, framework.sync, expected, count, longest)


def test_no_time_of_the_host_is_in_a_reading():
    driver = Driver()
    readings = read(driver, Framework(driver, host=5e-4))
    assert readings.how == GATED
    assert readings.seconds == [pytest.approx(sum(KERNELS), abs=1e-5)] * 10


def test_a_gate_is_held_for_longer_where_it_was_open_too_early():
    driver = Driver()
    framework = Framework(driver, host=4e-3)
    readings = read(driver, framework, expected=1e-4)
    assert readings.how == GATED
    assert readings.seconds == [pytest.approx(sum(KERNELS), abs=1e-5)] * 10
    assert framework.steps > 10, "the first ones, whose gates had opened, do not count"


def test_kernels_of_several_streams_count_as_long_as_any_runs():
    driver = Driver()
    framework = Framework(driver)
    timed = clock(driver)
    driver.streams["another"] = 0.0

    def ask():
        framework.ask()
        driver.launch(9e-4, "another")

    readings = timed.read(ask, framework.sync, 1e-3, 3, 1.0)
    assert readings.seconds == [pytest.approx(9e-4, abs=1e-5)] * 3


def test_a_step_that_waits_for_the_device_itself_is_timed_with_its_gaps_and_says_so():
    driver = Driver()
    readings = read(driver, Framework(driver, host=2e-4, waits=True))
    assert readings.how == UNGATED
    assert readings.seconds == [pytest.approx(sum(KERNELS) + 3 * 2e-4, abs=2e-5)] * 10


def test_of_a_step_that_begins_to_wait_no_reading_of_before_is_kept():
    driver = Driver()
    framework = Framework(driver, waits=False)
    timed = clock(driver)

    def ask():
        framework.waits = framework.steps >= 4
        framework.ask()

    readings = timed.read(ask, framework.sync, 1e-3, 10, 1.0)
    assert readings.how == UNGATED
    assert min(readings.seconds) > sum(KERNELS) + 2 * 2e-4
    assert timed.read(framework.ask, framework.sync, 1e-3, 1, 1.0).how == UNGATED


def test_what_another_thread_launches_soon_after_the_step_is_in_it():
    driver = Driver()
    readings = read(driver, Framework(driver, later=(2e-4,), after=1e-4))
    assert readings.seconds == [pytest.approx(sum(KERNELS) + 2e-4, abs=1e-5)] * 10


def test_what_another_thread_launches_as_late_as_a_whole_step_lasts_is_in_it():
    driver = Driver()
    framework = Framework(driver, host=1e-5, later=(2e-4,), after=9e-4)
    assert read(driver, framework).seconds == [pytest.approx(sum(KERNELS) + 2e-4, abs=1e-5)] * 10


def test_a_thread_that_wakes_up_late_at_times_refuses_nothing():
    driver = Driver()
    framework = Framework(driver)
    usual = framework.sync

    def sync():
        usual()
        driver.now += 4e-4 * (framework.steps % 3 == 0)

    framework.sync = sync
    assert read(driver, framework).seconds == [pytest.approx(sum(KERNELS), abs=1e-5)] * 10


def test_a_step_of_which_nothing_is_between_the_events_is_refused():
    driver = Driver()
    with pytest.raises(XframeError, match=r"by the device's events, no more than nothing does .* not between them"):
        read(driver, Framework(driver, kernels=()))


def test_a_step_of_more_kernels_than_the_device_queues_is_timed_with_its_gaps_and_says_so():
    driver = Driver(queue=64)
    framework = Framework(driver, kernels=(1e-5,) * 200, host=2e-5)
    readings = read(driver, framework, expected=4e-3)
    assert readings.how == UNGATED
    assert "asks for more than it queues" in readings.how
    assert readings.seconds == [pytest.approx(200 * 2e-5, rel=0.1)] * 10


@pytest.mark.parametrize("waits", [False, True])
def test_a_step_that_takes_longer_than_there_is_time_is_made_a_few_times_and_no_gate_is_held_for_long(waits):
    driver = Driver()
    framework = Framework(driver, kernels=(10.0,), waits=waits)
    timed = clock(driver)
    began = driver.now
    readings = timed.read(framework.ask, framework.sync, 10.0, 100, 0.15)
    assert readings.seconds == [pytest.approx(10.0, abs=1e-3)]
    assert framework.steps == 1 + waits
    assert driver.now - began < framework.steps * 12


def test_a_step_that_goes_on_launching_when_its_end_was_recorded_is_refused():
    driver = Driver()
    with pytest.raises(XframeError, match="launched when it had returned"):
        read(driver, Framework(driver, later=(4e-4,), after=5e-3))


def test_at_least_one_reading_and_none_beyond_the_time():
    driver = Driver()
    framework = Framework(driver)
    assert len(read(driver, framework, count=5, longest=0.0).seconds) == 1
    assert 1 < len(read(driver, framework, count=10**6, longest=0.05).seconds) < 100


def test_first_calls_of_a_driver_that_take_long_are_no_reason_to_refuse():
    driver = Driver(slow=8e-3)
    framework = Framework(driver)
    assert read(driver, framework).seconds == [pytest.approx(sum(KERNELS), abs=1e-5)] * 10


def test_what_the_clock_itself_takes_is_known():
    assert 0 < clock(Driver()).empty_s < 1e-5


@pytest.mark.parametrize(
    ("driver", "error", "match"),
    [
        (Driver(version=12040), Unavailable, r"CUDA 12\.5 or later, and that for CUDA 12\.4"),
        (Driver(waits=False), XframeError, "do not wait for an event of their context"),
        (Driver(joins=False), XframeError, "an event of this GPU's context does not wait for its streams"),
        (Driver(sleeps=False), XframeError, "no gate of this GPU stayed closed"),
    ],
)
def test_a_driver_that_can_not_do_it_says_why_and_nothing_is_left(driver, error, match):
    with pytest.raises(error, match=match):
        clock(driver)
    assert (driver.retained, driver.pushed, driver.events, list(driver.streams)) == (0, 0, {}, [None])


def test_a_function_that_is_missing_is_named(monkeypatch):
    monkeypatch.delattr(Driver, "cuCtxRecordEvent")
    with pytest.raises(Unavailable, match="a driver that has cuCtxRecordEvent: update it"):
        clock(Driver())


def test_a_gpu_that_is_not_there_is_told_in_the_drivers_words():
    with pytest.raises(XframeError, match=r"cuDeviceGet failed: CUDA_ERROR_INVALID_DEVICE \(101\)"):
        clock(Driver(), 7)


def test_closing_gives_everything_back_once():
    driver = Driver()
    timed = clock(driver, 1)
    timed.close()
    timed.close()
    assert (driver.retained, driver.pushed, driver.events, list(driver.streams)) == (0, 0, {}, [None])
