"""A log measured again: held against what it says, with a runner whose times are given."""

from concurrent.futures import Future
from dataclasses import replace

import pytest

from tests.schedule_logs import entry, put, real
from xframe import nvml
from xframe.errors import UsageError, XframeError
from xframe.lowering.target import Cpu, Gpu
from xframe.lowering.tasks import Task
from xframe.schedules.device import identity
from xframe.tuning.points import OK, TIMEOUT, Point, Trial
from xframe.tuning.verify import FASTER, REFUSED, SLOWER, verify
from xframe.types import ConvSite

SITE = ConvSite(1, 16, (9, 9), 24, (3, 3))
#: It gained 1.25 times.
WORKLOAD, TRACE = entry().workload, entry().trace
TASK = f"{SITE.key} direct - NHWC bias+relu t2"
OTHER = f"{SITE.key} direct - NCHW bias t1"


class Runner:
    """Gives trials of (seconds of the kernel, seconds of the hand-written one), in turn."""

    width = 1

    def __init__(self, *times, **fields):
        self.times, self.fields, self.asked, self.cpus, self.closed = list(times), fields, [], [], 0

    def __call__(self, cpu):
        self.cpus.append(cpu)
        return self

    def submit(self, task, point):
        assert len(self.asked) < len(self.times)
        now, baseline = self.times[len(self.asked)]
        self.asked.append((task.name, point))
        trial = Trial(point, OK, seconds=(now,) * 3, baseline=(baseline,) * 3, share=0.1, workload=WORKLOAD)
        future = Future()
        future.set_result(replace(trial, **self.fields))
        return future

    def close(self):
        self.closed += 1


@pytest.mark.parametrize(
    ("times", "outcome", "ratio"),
    [
        ([(8.0, 10.0)], OK, 1.0),
        ([(8.3, 10.0)], OK, 8.3 / 8.0),
        ([(7.7, 10.0)], OK, 7.7 / 8.0),
        ([(8.5, 10.0)], SLOWER, 8.5 / 8.0),
        ([(7.5, 10.0)], FASTER, 7.5 / 8.0),
        ([(12.0, 10.0)], SLOWER, 12.0 / 8.0),
        ([(8.0, 10.0), (16.0, 20.0), (80.0, 50.0)], OK, 1.0),  # the machine was slow once, and disturbed once
    ],
)
def test_the_share_of_the_hand_written_time_is_what_counts(tmp_path, times, outcome, ratio):
    folder, runner, lines = put(tmp_path, entry(TASK)), Runner(*times), []
    (found,) = verify(folder, len(times), lines.append, runner)
    assert (found.task, found.outcome, found.ratio) == (TASK, outcome, pytest.approx(ratio))
    assert (found.recorded_s, found.now_s) == (1.1e-3, sorted(t for t, _ in times)[len(times) // 2])
    assert bool(found.reason) == (outcome != OK)
    assert lines == [f"round {n} of {len(times)}, kernel 1 of 1: {TASK}" for n in range(1, len(times) + 1)]
    assert runner.asked == [(TASK, Point((6, 2), trace=TRACE))] * len(times)
    assert len(runner.cpus) == runner.closed == len(times)  # fresh processes each time


def test_what_it_gained_and_gains_is_told(tmp_path):
    (found,) = verify(put(tmp_path, entry(TASK)), 1, start=Runner((16.0, 8.0)))
    assert found.reason == "it gained 1.250x over the hand-written schedule, and gains 0.500x now"


def test_a_real_record_is_compiled_and_measured(tmp_path):
    """Nothing faked, and nothing said of how fast it is."""
    cpu = Cpu.host(1)
    task = Task.named(f"{SITE.key} direct - NHWC bias+relu t1")
    (found,) = verify(put(tmp_path, real(task, cpu), target=cpu.text), 1)
    assert found.outcome in (OK, SLOWER, FASTER), found.reason
    assert found.now_s > 0
    assert found.ratio == pytest.approx(1.25 * found.now_s / found.baseline_s)


def test_what_disturbed_the_measuring_is_told_once(tmp_path):
    runner = Runner((8.0, 10.0), (8.0, 10.0), note="other processes used 1.8 CPUs while it was timed")
    (found,) = verify(put(tmp_path, entry(TASK)), 2, start=runner)
    assert (found.outcome, found.reason) == (OK, "other processes used 1.8 CPUs while it was timed")


def test_kernels_of_other_threads_have_a_runner_of_their_own(tmp_path):
    runner = Runner((8.0, 10.0), (8.0, 10.0))
    found = verify(put(tmp_path, entry(TASK), entry(OTHER)), 1, start=runner)
    assert {v.task: v.outcome for v in found} == {TASK: OK, OTHER: OK}
    assert {cpu.threads for cpu in runner.cpus} == {1, 2}
    assert runner.closed == 2


def test_one_that_fails_is_not_tried_again_and_costs_no_other(tmp_path):
    class FailsOnce(Runner):
        def submit(self, task, point):
            self.fields = {} if self.asked else {"outcome": TIMEOUT, "reason": "it took more than 9 s"}
            return super().submit(task, point)

    runner = FailsOnce((8.0, 10.0), (8.0, 10.0), (8.0, 10.0))
    failed, fine = verify(put(tmp_path, entry(TASK), entry(OTHER)), 2, start=runner)
    assert (failed.outcome, failed.reason, failed.now_s, failed.ratio) == (TIMEOUT, "it took more than 9 s", None, None)
    assert fine.outcome == OK


def test_a_record_of_another_definition_is_refused(tmp_path):
    (found,) = verify(put(tmp_path, entry(TASK, workload="f" * 16)), 1, start=Runner((8.0, 10.0)))
    assert (found.outcome, found.ratio) == (REFUSED, None)
    assert found.reason == f"it is of another definition of this kernel ({'f' * 16}, not {WORKLOAD})"


def test_a_record_of_no_kernel_of_this_version_is_refused_unmeasured(tmp_path):
    (found,) = verify(put(tmp_path, entry(TASK.replace(" - ", " F(9,9) "))), 1, start=Runner())
    assert found.outcome == REFUSED
    assert found.reason == "no lowering of this version has this kernel"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"device": replace(identity(), model="99x")}, "another kind of device .*: verify it there"),
        ({"tvm": "0.1"}, "can't be verified here: it was tuned with TVM 0.1"),
    ],
)
def test_a_log_of_elsewhere_can_not_be_verified(tmp_path, changes, words):
    folder = put(tmp_path, entry(TASK), **changes)
    with pytest.raises(XframeError, match=words):
        verify(folder, start=Runner())


def test_a_log_of_a_gpu_is_verified_where_there_is_one_like_it(tmp_path, monkeypatch):
    facts = [{"name": name, "arch": "sm_90", "cores": 16896} for name in ("NVIDIA H100", "NVIDIA H200")]
    monkeypatch.setattr(nvml, "gpus", lambda: facts)
    folder = put(tmp_path, entry(TASK), target="cuda -arch=sm_90", device=identity("cuda:1"))
    runner = Runner((8.0, 10.0))
    (found,) = verify(folder, 1, start=runner)
    assert found.outcome == OK
    assert runner.cpus == [replace(Gpu.named("sm_90"), multiprocessors=2)]  # those of the kernel's name
    facts.pop()
    with pytest.raises(XframeError, match=r"another kind of device \(NVIDIA H200 \(sm_90\)\): verify it there"):
        verify(folder, 1, start=runner)


def test_a_log_that_is_broken_or_not_there_is_one_sentence(tmp_path):
    folder = put(tmp_path, entry(TASK))
    (folder / "meta.json").write_text("{")
    for place, words in ((folder, "is refused: meta.json is not whole JSON"), (tmp_path / "none", "is missing")):
        with pytest.raises(XframeError, match=words):
            verify(place, start=Runner())


def test_no_rounds_make_no_sense(tmp_path):
    with pytest.raises(UsageError, match="--rounds 0 makes no sense"):
        verify(put(tmp_path, entry(TASK)), 0)


def test_the_runner_is_closed_when_it_is_interrupted(tmp_path):
    class Interrupted(Runner):
        def submit(self, task, point):
            raise KeyboardInterrupt

    runner = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        verify(put(tmp_path, entry(TASK)), 1, start=runner)
    assert runner.closed == 1
