"""Profiles of TVM on a GPU that a fake driver plays, in time that only the fake moves on."""

from types import SimpleNamespace

import pytest

from tests.worker import gpu
from xframe.backends import tvm_events, tvm_profile
from xframe.backends.nodes import Nodes
from xframe.backends.tvm_events import UNGATED, WatchedOnGpu
from xframe.backends.tvm_profile import Owner
from xframe.errors import XframeError
from xframe.worker.cuda_driver import Driver

CALLS = (
    ("vm.builtin.check", 0.0),
    ("vm.builtin.alloc_tensor", 0.0),
    ("conv1", 3e-4),
    ("vm.builtin.f", 0.0),
    ("fc1", 1e-4),
)
HOST = 5e-4  # seconds that each call takes the host


class Machine:
    """TVM's virtual machine, as far as it calls back; ``waits`` for each kernel, where it should not; ``more``: from
    this step on it launches another kernel at the end."""

    def __init__(self, library, waits=False, more=None):
        self.library, self.waits, self.callback = library, waits, None
        self.steps, self.more = 0, more

    def __getitem__(self, name):
        assert name == "set_instrument"
        return lambda callback: setattr(self, "callback", callback)

    def step(self):
        self.steps += 1
        later = [("softmax", 2e-4)] if self.more and self.steps >= self.more else []
        for name, seconds in (*CALLS, *later):
            for begins in (True, False):
                if self.callback:
                    self.callback(None, name, begins, None)
                if begins:
                    self.library.now += HOST
                    if seconds:
                        self.library.launch(seconds)
                    if self.waits:
                        self.library.wait()


@pytest.fixture
def profiled(monkeypatch):
    def of(**options):
        library = gpu.Driver()
        machine = Machine(library, **options)
        for module in (tvm_events, tvm_profile):
            monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=library.clock))
        monkeypatch.setattr(tvm_events, "Driver", lambda index: Driver(index, library))
        watched = WatchedOnGpu(machine, machine.step, library.wait, None, 1)
        (profile,) = watched.profiles(1, lambda names: [Owner()] * len(names), Nodes([]))
        assert (library.retained, library.pushed, library.events) == (0, 0, {})
        return profile

    return of


def test_kernels_last_as_long_as_the_device_says_and_begin_as_in_a_pass_that_is_left_alone(profiled):
    profile = profiled()
    assert [k.name for k in profile.kernels] == ["conv1", "fc1"]
    assert [k.end - k.start for k in profile.kernels] == pytest.approx([3e-4, 1e-4], abs=3e-6)
    first, second = (k.start for k in profile.kernels)
    assert first == pytest.approx(2.5 * HOST, abs=HOST / 2 + 1e-5), "between when it was asked for and when it began"
    assert second - first == pytest.approx(2 * HOST, abs=1e-5)
    assert profile.wall == pytest.approx(5 * HOST + 1e-4, abs=2e-5)
    assert profile.note == ""


def test_what_the_host_does_is_that_of_a_pass_that_is_left_alone(profiled):
    spans = profiled().host
    assert [s.kind for s in spans] == ["dispatch", "allocation", "dispatch", "dispatch", "dispatch"]
    assert [s.end - s.start for s in spans] == pytest.approx([HOST] * 5, abs=1e-5)


def test_callbacks_cost_no_more_than_the_time_in_which_the_device_rested(profiled, monkeypatch):
    monkeypatch.setattr(WatchedOnGpu, "_cost", 1.0)
    profile = profiled()
    assert profile.cost == pytest.approx(profile.wall - 4e-4, abs=1e-5)


def test_a_pass_that_waits_for_the_device_itself_is_taken_and_says_so(profiled):
    profile = profiled(waits=True)
    assert profile.note == UNGATED
    assert all(k.start < k.end <= profile.wall for k in profile.kernels)


def test_a_pass_may_launch_more_than_the_one_that_was_looked_at_but_not_more_than_the_next(profiled):
    profile = profiled(more=2)
    assert [k.name for k in profile.kernels] == ["conv1", "fc1", "softmax"]
    assert [k.end - k.start for k in profile.kernels] == pytest.approx([3e-4, 1e-4, 2e-4], abs=3e-6)
    with pytest.raises(XframeError, match="a pass launched 2 kernels and the next one 3"):
        profiled(more=4)
