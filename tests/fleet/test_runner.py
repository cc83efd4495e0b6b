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
def running(fleet, key, workers=1, **options):
    """A runner, which puts the lines that it says into its list ``said``."""
    said = []
    options = {"timeout": 30.0, "patience": 30.0, "expected": device.identity(), **options}
    runner = FleetRunner(fleet.address, key, workers, CPU, say=said.append, **options)
    runner.said = said
    try:
        yield runner
    finally:
        runner.close()


@pytest.fixture(scope="module")
def started(fleet, plugin):
    with running(fleet, KEY, workers=3) as runner:
        yield runner


@pytest.fixture
def runner(started):
    """One for most tests, as its processes take seconds to start; it has said nothing yet."""
    started.said.clear()
    return started


@pytest.fixture(scope="module")
def of():
    return task("direct", SITE, cpu=CPU)


@pytest.fixture(scope="module")
def points(of):
    """A few of the task, the hand-written one first."""
    tiles = build.tiles(of, CPU)[:2]
    return [Point((t.rows, t.vectors), (("unroll", u),)) for u in (1, 2) for t in tiles]


def all_of(runner, of, points):
    """Their trials, submitted together."""
    return [f.result() for f in [runner.submit(of, p) for p in points]]


def harm_what_is_met(monkeypatch, *harms):
    """Each of ``harms`` is done to another server, when a session with it has begun. Their addresses, as it happens."""
    harmed, lock, meet = [], threading.Lock(), FleetRunner._meet

    def met(self, child, since):
        found = meet(self, child, since)
        with lock:
            server = str(found.server)
            if server not in harmed and len(harmed) < len(harms):
                harms[len(harmed)](server)
                harmed.append(server)
        return found

    monkeypatch.setattr(FleetRunner, "_meet", met)
    return harmed


def test_each_point_has_one_trial(fleet, runner, of, points):
    assert runner.identity == device.identity()
    assert runner.width == 3
    trials = all_of(runner, of, points)
    assert [t.point for t in trials] == points
    assert [(t.outcome, t.reason) for t in trials] == [(OK, "")] * len(points)
    assert {t.where for t in trials} <= set(fleet.servers)
    for trial in trials:
        assert 0 < trial.share < 1
        assert len(trial.seconds) == len(trial.baseline) >= 3
        assert json.loads(trial.record)[1] == list(trial.seconds)
        assert trial.cpu_s > 0
        assert trial.workload
    assert runner.said == []
    assert not list(runner._folder.glob("*.so"))


def test_bad_candidates_cost_themselves_alone(fleet, runner, monkeypatch):
    """All at once: each is one server's, or no server's, while the others measure."""
    monkeypatch.setattr(runner, "_timeout", 5.0)
    bad = task("planted", cpu=CPU)
    expected = {
        planted.HANGS: (TIMEOUT, "it did not end within 5 s"),
        planted.CRASHES: (CRASHED, "3 servers were lost while it ran"),
        planted.WRONG: (WRONG, "times the bound"),
        planted.UNSCHEDULABLE: (FAILED, "no such block"),
    }
    trials = all_of(runner, bad, [*map(trap, expected), by_hand(bad, CPU)])
    assert [t.outcome for t in trials] == [*(outcome for outcome, _ in expected.values()), OK], trials
    for trial, (_, reason) in zip(trials, expected.values(), strict=False):
        assert reason in trial.reason
        assert "\n" not in trial.reason
    wait_for(lambda: fleet.free() == 3)  # its servers serve on


def test_servers_that_are_killed_in_mid_run(fleet, runner, of, points, monkeypatch):
    """One for good, of another its server process alone: that comes back."""

    def hurt(server):
        (pid,) = serving(fleet.servers[server].pid)
        os.kill(pid, signal.SIGKILL)

    harmed = harm_what_is_met(monkeypatch, fleet.kill, hurt)
    trials = all_of(runner, of, points)
    assert [(t.point, t.outcome) for t in trials] == [(p, OK) for p in points]
    assert len(harmed) == 2
    for server in harmed:
        assert [line for line in runner.said if server in line and "its trial is measured again" in line]
    gone, _ = harmed
    assert gone not in {t.where for t in trials}
    del fleet.servers[gone]
    wait_for(lambda: fleet.free() == 2)
    fleet.start_servers(1)


def test_a_server_that_hangs_is_given_up(fleet, runner, of, points, monkeypatch):
    monkeypatch.setattr(runners, "GRACE_S", -27.0)  # it may answer before its time is over
    harmed = harm_what_is_met(monkeypatch, lambda server: fleet.kill(server, signal.SIGSTOP))
    trials = all_of(runner, of, points)
    (stuck,) = harmed
    assert [(t.point, t.outcome) for t in trials] == [(p, OK) for p in points]
    assert f"the server {stuck} is stuck: " in " ".join(runner.said)
    fleet.kill(stuck, signal.SIGCONT)
    wait_for(lambda: fleet.free() == 3)  # it serves on when it can


def test_a_server_that_lies_about_its_key_and_one_that_can_not_say(fleet, runner, of, points):
    """The second is TVM's own."""
    liar, stock = fleet.start_odd(KEY, "liar", "stock")
    trials = all_of(runner, of, points)
    for _ in range(10):  # it may be the turn of others first
        if len(runner.said) < 2:
            trials += all_of(runner, of, points[:1])
    for server in (liar, stock):
        fleet.kill(server)
        del fleet.servers[server]
    assert {t.outcome for t in trials} == {OK}
    assert not {liar, stock} & {t.where for t in trials}
    assert len(runner.said) == 2
    (told,) = (line for line in runner.said if liar in line)
    assert f"the server {liar} is refused: it calls itself {KEY}, but is not the device" in told
    assert "Intel Xeon (family 6, model 85)" in told
    assert any(f"the server {stock} is refused: it can't say what it is, as it is no 'xf" in x for x in runner.said)


def test_where_all_are_refused_nothing_is_measured(fleet):
    """That comes last, as a server that was granted in vain is free again some seconds later only."""
    (server,) = fleet.start_odd("strange", "liar")
    with running(fleet, "strange", workers=None, expected=None) as runner:  # the first says what others must be
        assert runner.identity.family == "6"
        assert runner.width == 2  # one more than there are servers
        runner._expected, runner._patience = device.identity(), 0.5
        words = f"no server of strange could be measured on for 0.5 s: {server} .*Intel Xeon"
        with pytest.raises(XframeError, match=words):
            runner._first()


def test_a_slow_server_and_one_whose_samples_are_none(fleet, of, points):
    """And the end of a runner while the slow one measures."""
    slow, vain = fleet.start_odd("odd", "slow", "vain")
    with running(fleet, "odd", workers=2) as runner:
        trials = all_of(runner, of, points[:2])
        assert [(t.outcome, t.where) for t in trials] == [(OK, slow)] * 2
        assert all(f"the server {vain} gave samples that make no sense" in line for line in runner.said)
        wait_for(lambda: fleet.free("odd") == 2)
        under_way = [runner.submit(of, p) for p in points * 3]  # a machine that stalls may end some
        wait_for(lambda: fleet.free("odd") < 2)
    errors = [str(error) for future in under_way if (error := future.exception())]
    assert errors, "the slow one had all day"
    assert all("the runner was closed" in error for error in errors)
    assert {future.result().outcome for future in under_way if not future.exception()} <= {OK}
    with pytest.raises(XframeError, match="closed"):
        runner.submit(of, points[0])
    assert not runner._folder.exists()


def test_a_server_of_tvms_own_and_then_none(fleet, of, points, monkeypatch):
    """It is measured on where that is allowed. When it is gone: one error for all that waits, and for what comes."""
    (only,) = fleet.start_odd("stock", "stock")
    with running(fleet, "stock", workers=2, expected=None, allow_unknown=True) as runner:
        assert runner.identity is None
        (trial,) = all_of(runner, of, points[1:2])
        runner._patience = 1.0
        harm_what_is_met(monkeypatch, fleet.kill)
        errors = {str(f.exception()) for f in [runner.submit(of, p) for p in points]}
        with pytest.raises(XframeError, match="no server of stock could be measured on for 1 s: the tracker") as error:
            runner.submit(of, points[0])
    del fleet.servers[only]
    assert (trial.outcome, trial.reason, trial.note) == (OK, "", "timed by TVM's own server")
    assert 0 < trial.share < 1
    assert len(trial.seconds) == len(trial.baseline) >= 3
    assert errors == {str(error.value)}


def test_a_tracker_that_is_restarted(fleet, runner, of, points):
    before = [runner.submit(of, p) for p in points]
    before[0].result()
    fleet.tracker_process.kill()
    fleet.tracker_process.wait()
    fleet.start_tracker()
    after = runner.submit(of, points[0])
    trials = [f.result() for f in [*before, after]]
    assert [(t.point, t.outcome) for t in trials] == [(p, OK) for p in [*points, points[0]]]
    wait_for(lambda: fleet.free() == 3)


def test_a_target_that_a_server_can_not_run(runner, monkeypatch):
    cpu = replace(CPU, text="llvm -mcpu=sapphirerapids -mattr=+avx512fp16,+avx512vp2intersect")
    for name, value in {"_cpu": cpu, "_patience": 0.5, "_unable": ""}.items():
        monkeypatch.setattr(runner, name, value)
    with pytest.raises(XframeError, match=r"lacks instructions of the target .*avx512vp2inter.*give --target 'll"):
        runner._first()


def test_no_server_of_that_key(fleet):
    with (
        pytest.raises(XframeError, match=rf"no server of arm .*the tracker has none, only {KEY} \(3\).*; start one"),
        running(fleet, "arm", patience=0.5),
    ):
        pass


def test_no_tracker(fleet):
    with pytest.raises(TrackerGone, match=r"no tracker answers at 127\.0\.0\.1:9"):
        FleetRunner("127.0.0.1:9", KEY, 1, CPU)


@pytest.mark.parametrize("arguments", [{"workers": 0}, {"timeout": 0.0}, {"key": "two words"}, {"tracker": "here"}])
def test_requests_that_make_no_sense(arguments):
    with pytest.raises(UsageError):
        FleetRunner(**{"tracker": "127.0.0.1:9", "key": KEY, "workers": 1, "cpu": CPU, **arguments})
