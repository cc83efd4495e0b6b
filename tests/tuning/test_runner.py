"""Trials in processes of their own: good candidates, and planted ones that harm nothing but themselves."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tuning import planted
from tests.tuning.planted import HOST, by_hand, task, trap
from xframe.errors import UsageError, WorkerDied, XframeError
from xframe.lowering.target import Cpu
from xframe.lowering.tasks import workload_of
from xframe.registry import LOWERINGS, Row
from xframe.tuning import build, runner
from xframe.tuning.points import CRASHED, FAILED, OK, TIMEOUT, WRONG, Point
from xframe.tuning.runner import LocalRunner


@pytest.fixture(scope="module", autouse=True)
def plugin():
    """Registered here alone: the children are told."""
    LOWERINGS["planted"] = Row("tests.tuning.planted:Planted", (), "")
    yield
    del LOWERINGS["planted"]


@pytest.fixture(scope="module")
def local(plugin):
    made = LocalRunner(HOST)
    yield made
    made.close()


def trial(local, of, point):
    return local.submit(of, point).result()


def test_a_good_candidate(local):
    of = task("winograd", relu=float("inf"))
    other = build.tiles(of, HOST)[1]
    point = Point((other.rows, other.vectors), (("unroll", 2),))
    done = trial(local, of, point)
    assert (done.point, done.outcome, done.reason) == (point, OK, "")
    assert 0 < done.share < 1
    assert len(done.seconds) == len(done.baseline) >= 3
    assert min(done.seconds + done.baseline) > 0
    assert done.cpu_s > 0
    assert json.loads(done.record)[1] == list(done.seconds)
    stages = of.stages(*build._no_weights(of), HOST, other)
    assert done.workload == workload_of(next(s for s in stages if s.schedule).func)
    assert len(json.loads(done.workload_line)) == 2
    assert not list(local._folder.glob("*.so"))


@pytest.mark.parametrize(
    "bad",
    [
        # The first is measured again in a fresh process, all others are in one from the start.
        {
            planted.SILENT: (WRONG, "not finite"),
            planted.NOT_FINITE: (WRONG, "not finite"),
            planted.WRONG: (WRONG, "times the bound"),
        },
        {planted.CRASHES: (CRASHED, "running the candidate ended its process: killed by SIGABRT")},
        {planted.HANGS: (TIMEOUT, "running the candidate did not end within 3 s")},
        {
            planted.UNSCHEDULABLE: (FAILED, "the schedule does not apply: Cannot find a block"),
            planted.STOPS_COMPILER: (CRASHED, "compiling the candidate ended its process: killed by SIGABRT"),
            planted.HOLDS_COMPILER: (TIMEOUT, "compiling the candidate did not end within 1 s"),
        },
    ],
    ids=["wrong", "crashes", "hangs", "compiling"],
)
def test_bad_candidates_cost_themselves_alone(local, bad, monkeypatch):
    """After them the hand-written one is measured, as a candidate like any other."""
    of = task("planted")
    for rows, (outcome, reason) in bad.items():
        with monkeypatch.context() as patch:
            if outcome == TIMEOUT:
                patch.setattr(local, "_timeout", 1.0 if rows == planted.HOLDS_COMPILER else 3.0)
            done = trial(local, of, trap(rows))
        assert (done.outcome, done.seconds) == (outcome, ()), done
        assert reason in done.reason
        assert "\n" not in done.reason
    good = trial(local, of, by_hand(of))
    assert (good.outcome, good.reason) == (OK, "")
    assert len(good.seconds) == len(good.baseline) >= 3
    assert not list(local._folder.glob("*.so"))


def test_a_point_that_the_task_does_not_have(local):
    done = trial(local, task(), Point((31, 31)))
    assert done.outcome == FAILED
    assert "31x31" in done.reason


def test_a_broken_trace(local):
    of = task()
    done = trial(local, of, replace(by_hand(of), trace="[[], []"))
    assert done.outcome == FAILED
    assert done.reason


class Process:
    """A child that answers as told: an exception is raised. ``starts`` counts fresh ones."""

    def __init__(self, *answers):
        self.answers, self.fresh, self.cpu_s, self.kills = list(answers), False, 0.0, 0

    def ask(self, doing, limit, function, *arguments):
        self.fresh = False
        if function is not runner._measure:
            return None
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self):
        self.fresh, self.kills = True, self.kills + 1


def measured(monkeypatch, local, *answers):
    process = Process(*answers)
    monkeypatch.setattr(local, "_measurer", process)
    built = type("Built", (), {"task": task()})
    return process, lambda: local._measure(built)


def test_what_dies_among_the_remains_of_others_has_another_chance(monkeypatch, local):
    process, measure = measured(monkeypatch, local, WorkerDied("once"), "fine")
    assert measure() == "fine"
    assert process.kills == 1


def test_what_dies_in_a_fresh_process_has_none(monkeypatch, local):
    process, measure = measured(monkeypatch, local, WorkerDied("once"), WorkerDied("twice"), "fine")
    with pytest.raises(WorkerDied, match="twice"):
        measure()
    assert process.kills == 2


def test_one_at_a_time_on_a_machine():
    path = Path(tempfile.gettempdir()) / f"xframe-measuring-{os.getuid()}.lock"
    entered = threading.Event()

    def other():
        with runner.alone():
            entered.set()

    with runner.alone():
        thread = threading.Thread(target=other)
        thread.start()
        with open(path) as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert not entered.is_set()
    thread.join()
    assert entered.is_set()


def test_where_no_process_starts_nobody_can_measure(monkeypatch):
    made = LocalRunner(HOST)
    try:
        monkeypatch.setattr("sys.executable", "/no/such/python")
        assert trial(made, task(), by_hand(task())).outcome == FAILED
        with pytest.raises(XframeError, match="can't start"):
            made.submit(task(), by_hand(task()))
    finally:
        made.close()


@pytest.mark.parametrize("arguments", [{"workers": 0}, {"timeout": 0.0}, {"timeout": -1.0}])
def test_numbers_that_make_no_sense(arguments):
    with pytest.raises(UsageError, match="make no sense"):
        LocalRunner(HOST, **arguments)


def test_folders_of_processes_that_are_gone_are_removed():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    gone, own = (Path(tempfile.gettempdir()) / f"xframe-tuning-{pid}-x" for pid in (process.pid, os.getpid()))
    for folder in (gone, own):
        folder.mkdir()
    try:
        made = LocalRunner(HOST)
        assert not gone.exists()
        assert own.exists()
        made.close()
    finally:
        shutil.rmtree(own)


def test_more_workers_compile_beside_the_measured_cpus(plugin, monkeypatch):
    """And their end: of what is measured, what waits to be, and what waits for a worker."""
    cpu = Cpu.host(1)
    made = LocalRunner(cpu, workers=2)
    of = task("planted", cpu=cpu)
    try:
        assert made.width == 2
        assert [t.result().outcome for t in [made.submit(of, by_hand(of, cpu)) for _ in range(3)]] == [OK] * 3
        entered, measure = threading.Event(), made._measure
        monkeypatch.setattr(made, "_measure", lambda built: entered.set() or measure(built))
        under_way = [made.submit(of, trap(planted.HANGS)) for _ in range(3)]
        assert entered.wait(60)
    finally:
        made.close()
    assert [t.result().outcome for t in under_way] == [FAILED] * 3
    assert all("closed" in t.result().reason for t in under_way)
    with pytest.raises(XframeError, match="closed"):
        made.submit(of, by_hand(of, cpu))
    assert not made._folder.exists()
