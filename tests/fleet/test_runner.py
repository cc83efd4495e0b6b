"""Trials over a tracker and three servers on loopback: none lost or doubled, whatever becomes of them."""

import contextlib
import json
import os
import signal
import threading
from dataclasses import replace

import pytest

from tests.fleet.conftest import KEY, serving, wait_for
from tests.tuning import planted
from tests.tuning.planted import SITE, by_hand, task, trap
from xframe.errors import UsageError, XframeError
from xframe.fleet import runner as runners
from xframe.fleet.runner import FleetRunner
from xframe.fleet.tracker import TrackerGone
from xframe.lowering.target import Cpu
from xframe.registry import LOWERINGS, Row
from xframe.schedules import device
from xframe.tuning import build
from xframe.tuning.points import CRASHED, FAILED, OK, TIMEOUT, WRONG, Point

CPU = Cpu.host(1)


@pytest.fixture(scope="module", autouse=True)
def plugin():
    """Registered here alone: neither the children nor the servers know it by themselves."""
    LOWERINGS["planted"] = Row("tests.tuning.planted:Planted", (), "")
    yield
    del LOWERINGS["planted"]


@contextlib.contextmanager
def running(fleet, key=KEY, workers=3, **options):
    """A runner, and the list of lines that it says."""
    said = []
    options = {"timeout": 30.0, "patience": 30.0, **options}
    runner = FleetRunner(fleet.address, key, workers, CPU, say=said.append, **options)
    try:
        yield runner, said
    finally:
        runner.close()


@pytest.fixture(scope="module")
def of():
    return task("direct", SITE, cpu=CPU)


@pytest.fixture(scope="module")
def points(of):
    """A few of the task, the hand-written one first."""
    tiles = build.tiles(of, CPU)[:4]
    return [Point((t.rows, t.vectors), (("unroll", u),)) for u in (1, 2) for t in tiles]


def test_each_point_has_one_trial(fleet, of, points):
    with running(fleet) as (runner, said):
        assert runner.identity == device.identity()
        assert runner.width == 3
        trials = [f.result() for f in [runner.submit(of, p) for p in points]]
    assert [t.point for t in trials] == points
    assert [(t.outcome, t.reason) for t in trials] == [(OK, "")] * len(points)
    assert {t.where for t in trials} <= set(fleet.servers)
    for trial in trials:
        assert 0 < trial.share < 1
        assert len(trial.seconds) == len(trial.baseline) >= 3
        assert json.loads(trial.record)[1] == list(trial.seconds)
        assert trial.cpu_s > 0
        assert trial.workload
    assert said == []


@pytest.mark.parametrize(
    ("rows", "outcome", "reason"),
    [
        (planted.WRONG, WRONG, "times the bound"),
        (planted.CRASHES, CRASHED, "3 servers were lost while it ran"),
        (planted.HANGS, TIMEOUT, "it did not end within 4 s"),
        (planted.UNSCHEDULABLE, FAILED, "no such block"),
        (planted.STOPS_COMPILER, CRASHED, "compiling the candidate ended its process"),
    ],
)
def test_a_bad_candidate_costs_itself_alone(fleet, rows, outcome, reason):
    bad = task("planted", cpu=CPU)
    with running(fleet, workers=2, timeout=4.0) as (runner, _):
        first, other = runner.submit(bad, trap(rows)), runner.submit(bad, by_hand(bad, CPU))
        assert (first.result().outcome, other.result().outcome) == (outcome, OK), (first.result(), other.result())
    assert reason in first.result().reason
    assert "\n" not in first.result().reason
    wait_for(lambda: fleet.free() == 3)  # its servers serve on


def test_servers_that_are_killed_in_mid_run(fleet, of, points):
    """One for good, of another its server process alone: that comes back."""
    gone, hurt, _ = fleet.servers
    with running(fleet, workers=4) as (runner, said):
        under_way = [runner.submit(of, p) for p in points]
        wait_for(lambda: fleet.free() == 0)
        fleet.kill(gone)
        (pid,) = serving(fleet.servers[hurt].pid)
        os.kill(pid, signal.SIGKILL)
        trials = [f.result() for f in under_way]
        wait_for(lambda: fleet.free() == 2)
        again = {runner.submit(of, points[0]).result().where for _ in range(2)}
    assert [(t.point, t.outcome) for t in trials] == [(p, OK) for p in points]
    assert all("measured again" in line for line in said)
    assert gone not in again
    del fleet.servers[gone]
    fleet.start_servers(1)


def test_a_server_that_hangs_is_given_up(fleet, of, points, monkeypatch):
    monkeypatch.setattr(runners, "GRACE_S", 1.0)
    monkeypatch.setattr(runners, "CONNECT_S", 4.0)
    stuck = next(iter(fleet.servers))
    with running(fleet, timeout=4.0) as (runner, said):
        under_way = [runner.submit(of, p) for p in points]
        wait_for(lambda: fleet.free() == 0)
        fleet.kill(stuck, signal.SIGSTOP)
        trials = [f.result() for f in under_way]
    assert [(t.point, t.outcome) for t in trials] == [(p, OK) for p in points]
    assert all(f"the server {stuck} is stuck" in line for line in said)
    fleet.kill(stuck)
    del fleet.servers[stuck]
    fleet.start_servers(1)


def test_a_server_that_lies_about_its_key(fleet, of, points):
    liar = fleet.start_odd("liar", KEY)
    with running(fleet, expected=device.identity()) as (runner, said):
        trials = [f.result() for f in [runner.submit(of, p) for p in points]]
        told = wait_for(lambda: [line for line in said if liar in line])
    fleet.kill(liar)
    del fleet.servers[liar]
    assert [(t.point, t.outcome) for t in trials] == [(p, OK) for p in points]
    assert liar not in {t.where for t in trials}
    assert len(told) == len(said) == 1
    assert f"the server {liar} is refused: it calls itself {KEY}, but is not the device" in told[0]
    assert "Intel Xeon (family 6, model 85)" in told[0]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("liar", "Intel Xeon"),
        ("old", "has TVM 0.1, and libraries are built by"),
        ("mute", "does not say what it is in a way that can be read"),
    ],
)
def test_where_all_are_refused_nothing_is_measured(fleet, kind, words):
    server = fleet.start_odd(kind, kind)
    with pytest.raises(XframeError, match=f"no server of {kind} could be measured on for 2 s: {server} .*{words}"):
        FleetRunner(fleet.address, kind, 1, CPU, patience=2.0, expected=device.identity(), say=lambda line: None)


def test_a_slow_server_and_one_whose_samples_are_none(fleet, of, points):
    slow, vain = fleet.start_odd("slow", "odd"), fleet.start_odd("vain", "odd")
    with running(fleet, "odd", workers=2) as (runner, said):
        trials = [f.result() for f in [runner.submit(of, p) for p in points[:3]]]
    assert [(t.outcome, t.where) for t in trials] == [(OK, slow)] * 3
    assert all(f"the server {vain} gave samples that make no sense" in line for line in said)


def test_a_server_of_tvms_own(fleet, of, points):
    fleet.start_stock("stock")
    with pytest.raises(XframeError, match="can't say what it is, as it is no 'xframe fleet server'"):
        FleetRunner(fleet.address, "stock", 1, CPU, patience=2.0, say=lambda line: None)
    with running(fleet, "stock", workers=1, allow_unknown=True) as (runner, _):
        trial = runner.submit(of, points[1]).result()
        assert runner.identity is None
    assert (trial.outcome, trial.reason, trial.note) == (OK, "", "timed by TVM's own server")
    assert 0 < trial.share < 1
    assert len(trial.seconds) == len(trial.baseline) >= 3


def test_a_tracker_that_is_restarted(fleet, of, points):
    with running(fleet) as (runner, _):
        before = [runner.submit(of, p) for p in points]
        before[0].result()
        fleet.tracker_process.kill()
        fleet.tracker_process.wait()
        fleet.start_tracker()
        after = runner.submit(of, points[0])
        trials = [f.result() for f in [*before, after]]
    assert [(t.point, t.outcome) for t in trials] == [(p, OK) for p in [*points, points[0]]]
    wait_for(lambda: fleet.free() == 3)


def test_a_target_that_a_server_can_not_run(fleet):
    cpu = replace(CPU, text="llvm -mcpu=sapphirerapids -mattr=+avx512fp16,+avx512vp2intersect")
    with pytest.raises(XframeError, match=r"lacks instructions of the target .*avx512vp2inter.*give --target 'll"):
        FleetRunner(fleet.address, KEY, 1, cpu, patience=2.0, say=lambda line: None)
    with pytest.raises(XframeError, match="gives a kernel 1 threads at most, and 2 are asked for"):
        FleetRunner(fleet.address, KEY, 1, Cpu.host(2), patience=2.0, say=lambda line: None)


def test_no_server_of_that_key(fleet):
    with pytest.raises(XframeError, match=rf"no server of arm .*the tracker has none, only .*{KEY} \(3\).*; start one"):
        FleetRunner(fleet.address, "arm", 1, CPU, patience=0.5, say=lambda line: None)


def test_no_tracker(fleet):
    with pytest.raises(TrackerGone, match=r"no tracker answers at 127\.0\.0\.1:9"):
        FleetRunner("127.0.0.1:9", KEY, 1, CPU)


@pytest.mark.parametrize("arguments", [{"workers": 0}, {"timeout": 0.0}, {"key": "two words"}, {"tracker": "here"}])
def test_requests_that_make_no_sense(arguments):
    with pytest.raises(UsageError):
        FleetRunner(**{"tracker": "127.0.0.1:9", "key": KEY, "workers": 1, "cpu": CPU, **arguments})


def test_after_its_end(fleet):
    bad = task("planted", cpu=CPU)
    with running(fleet) as (runner, _):
        under_way = [runner.submit(bad, trap(planted.HANGS)) for _ in range(4)]
        wait_for(lambda: fleet.free() < 3)
    for future in under_way:
        with pytest.raises(XframeError, match="the runner was closed"):
            future.result()
    with pytest.raises(XframeError, match="closed"):
        runner.submit(bad, trap(planted.WRONG))
    assert not runner._folder.exists()
    assert threading.active_count() < 20


def test_all_servers_gone(fleet, of, points):
    """The last test of the fleet: one error for all that waits, and for whatever comes."""
    with running(fleet, patience=2.0) as (runner, _):
        under_way = [runner.submit(of, p) for p in points]
        wait_for(lambda: fleet.free() == 0)
        for address in fleet.servers:
            fleet.kill(address)
        fleet.servers.clear()
        ends = [f.exception() or f.result() for f in under_way]
        lost = {str(e) for e in ends if isinstance(e, XframeError)}
        with pytest.raises(XframeError, match=f"no server of {KEY}") as error:
            runner.submit(of, points[0])
    assert lost == {str(error.value)}
    assert all(isinstance(e, XframeError) or e.outcome == OK for e in ends)
