"""Sessions over a runner with made-up times: what is shared out, kept, reported; stopped anyhow, and gone on with."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tuning.fake import HOST, FakeRunner, crashes, spaces, speed, task, work
from xframe import files
from xframe.errors import Unsupported, UsageError, XframeError
from xframe.schedules import log
from xframe.tuning import journal, search, session
from xframe.tuning.kernel import FINALISTS, REPEATS
from xframe.tuning.result import Interrupted, Stopped
from xframe.tuning.session import shares, tune

ROOT = Path(__file__).resolve().parents[2]
SMALL, LARGE = task(16), task(32)
AGAIN = FINALISTS * REPEATS


@pytest.fixture(autouse=True)
def _home(monkeypatch, tmp_path):
    monkeypatch.setenv("XFRAME_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(search, "Spaces", spaces)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "schedules"


def run(out, runner=None, works=None, trials=40, **options):
    works = [work(SMALL, LARGE)] if works is None else works
    return tune(works, runner or FakeRunner(), HOST, out, trials, **{"strategy": "replay", **options})


def logs(out):
    """Entries by task, by the last two parts of their log's folder."""
    return {"/".join(p.parent.parts[-2:]): log.read(p.parent).entries for p in sorted(out.glob("*/*/*/meta.json"))}


def journals():
    return sorted((files.home() / "tuning").glob("*/*.jsonl"))


def kinds(path):
    return [json.loads(line)["record"]["kind"] for line in path.read_bytes().splitlines()]


def test_what_is_faster_is_in_the_log_with_its_samples(out):
    report = run(out)
    (entries,) = logs(out).values()
    assert set(entries) == {SMALL.name, LARGE.name}
    for row in report.rows:
        entry = entries[row.task.name]
        assert entry == row.entry
        assert entry.knobs["unroll"] == 2
        assert entry.gain == pytest.approx(1.25)
        assert (entry.space, entry.seed, entry.trials, entry.transferred) == ("template", 0, row.trials, None)
        assert len(entry.seconds) == len(entry.baseline) == REPEATS * 9
        assert entry.share == 0.25
        assert row.reason == ""
    assert report.gain == pytest.approx(1.25)
    assert report.trials == 40 + 2 * AGAIN
    assert report.cpu_s >= report.trials
    assert [p.name for p in report.logs] == ["direct"]
    assert kinds(journals()[0])[-1] == "end"


def test_what_is_not_faster_keeps_its_template(out):
    report = run(out, FakeRunner(lambda t, p: speed(t, p) if t == LARGE else 1.0))
    small, _ = report.rows
    assert (small.entry, small.gain, small.seconds) == (None, 1.0, small.by_hand)
    assert "schedules was faster" in small.reason
    assert set(*logs(out).values()) == {LARGE.name}
    assert report.gain == pytest.approx(1.25**0.5)


def test_trials_go_by_the_time_that_kernels_take(out):
    runner = FakeRunner()
    report = run(out, runner, [work(task(8), task(64), task(128))], trials=60)
    counts = [row.trials for row in report.rows]
    assert sum(counts) == 60
    assert counts == [4, 19, 37]
    order = [name for name, _ in runner.asked]
    assert order[:3] == [task(n).name for n in (8, 64, 128)]  # all by hand first
    assert list(dict.fromkeys(order[3:])) == [task(n).name for n in (128, 64, 8)]  # then the longest first


@pytest.mark.parametrize(
    ("total", "seconds", "expected"),
    [
        (100, {"a": 3.0, "b": 1.0}, {"a": 75, "b": 25}),
        (20, {"a": 1000.0, "b": 1.0, "c": 1.0}, {"a": 12, "b": 4, "c": 4}),
        (7, {"a": 1000.0, "b": 1.0, "c": 1.0}, {"a": 3, "b": 2, "c": 2}),
        (10, {"a": 1.0, "b": 1.0, "c": 1.0}, {"a": 4, "b": 3, "c": 3}),
        (12, {"a": 0.1, "b": 0.1, "c": 0.1}, {"a": 4, "b": 4, "c": 4}),
        (5, {"a": 0.1}, {"a": 5}),
        (0, {"a": 0.1, "b": 0.1}, {"a": 0, "b": 0}),
        (5, {}, {}),
    ],
)
def test_shares(total, seconds, expected):
    found = shares(total, seconds)
    assert sum(found.values()) == (total if seconds else 0)
    assert found == expected


def test_what_a_small_space_leaves_goes_to_the_others(out, monkeypatch):
    class Short:
        def __init__(self, points):
            self.points = points

        def propose(self, n):
            found, self.points = self.points[:n], self.points[n:]
            return found

        def learn(self, trials):
            pass

    from xframe.tuning.search import Search

    def proposer(_, task):
        search = Search(task, HOST, "replay", 0)
        return Short(search.propose(3)) if task == LARGE else search

    monkeypatch.setattr(session._Session, "_proposer", proposer)
    report = run(out, trials=40)
    assert [row.trials for row in report.rows] == [37, 3]


def test_a_kernel_of_several_plans_is_tuned_once_and_is_in_all_their_logs(out):
    runner = FakeRunner()
    works = [work(SMALL, LARGE), work(LARGE, model="other"), work(LARGE, lowering="winograd")]
    report = run(out, runner, works)
    assert [row.works for row in report.rows] == [
        ("net-b1/direct",),
        ("net-b1/direct", "other-b1/direct", "net-b1/winograd"),
    ]
    assert len(runner.asked) == len(set(runner.asked)) + 2 * FINALISTS * REPEATS
    found = logs(out)
    assert {name: set(entries) for name, entries in found.items()} == {
        "net-b1/direct": {SMALL.name, LARGE.name},
        "other-b1/direct": {LARGE.name},
        "net-b1/winograd": {LARGE.name},
    }


@pytest.mark.parametrize("width", [1, 3, 16])
def test_as_many_are_under_way_as_the_runner_likes(out, width):
    runner = FakeRunner(width=width, delay=0.002)
    report = run(out, runner)
    runner.close()
    assert 1 <= runner.most <= width
    assert (runner.most > 1) == (width > 1)
    assert [row.entry.knobs["unroll"] for row in report.rows] == [2, 2]
    assert sum(row.trials for row in report.rows) == 40


def test_a_runner_that_fails_for_all_stops_it_in_words(out):
    runner = FakeRunner(crashes)
    with pytest.raises(
        Stopped, match=r"nothing could be measured; of the first kernel, its .* CRASHED, killed by SIGSEGV"
    ):
        run(out, runner)
    assert len(runner.asked) == 4
    assert logs(out) == {}


def test_failures_are_counted_by_kind(out):
    def ratio(task, point):
        unroll, hand = dict(point.knobs)["unroll"], speed(task, point)
        return {4: ("TIMEOUT", "10 s"), 2: ("WRONG", "2 times the bound")}.get(unroll, hand)

    report = run(out, FakeRunner(ratio))
    for row in report.rows:
        assert set(row.failures) <= {"TIMEOUT", "WRONG"}
        assert sum(row.failures.values()) >= 1
        assert row.entry is None or row.entry.knobs["unroll"] == 1
    assert sum(sum(r.failures.values()) for r in report.rows) > 10


def test_when_nobody_measures_any_more_what_was_decided_is_kept(out):
    runner = FakeRunner(last=35 + AGAIN)
    runner.error = XframeError("no server is left")
    with pytest.raises(Stopped, match="no server is left") as stopped:
        run(out, runner)
    small, large = stopped.value.report.rows
    assert large.entry is not None
    assert (small.entry, small.reason) == (None, "not finished: --resume goes on")
    assert set(*logs(out).values()) == {LARGE.name}
    again = FakeRunner()
    report = run(out, again, resume=True)
    assert [row.trials for row in report.rows] == [row.trials for row in run(out / "whole").rows]
    assert len(runner.asked) + len(again.asked) == 40 + 2 * AGAIN


def test_ctrl_c_keeps_what_was_decided(out):
    with pytest.raises(Interrupted) as stopped:
        run(out, FakeRunner(last=35 + AGAIN))
    assert [row.entry is not None for row in stopped.value.report.rows] == [False, True]
    assert set(*logs(out).values()) == {LARGE.name}


@pytest.mark.parametrize("last", [0, 1, 3, 20, 45, 52])
def test_resumed_anywhere_it_ends_as_if_never_stopped(out, last):
    whole = FakeRunner()
    expected = run(out / "whole", whole)
    for path in journals():
        path.unlink()
    first, second = FakeRunner(last=last), FakeRunner()
    if last < len(whole.asked):
        with pytest.raises(Interrupted):
            run(out / "parts", first)
    else:
        run(out / "parts", first)
    report = run(out / "parts", second, resume=True)
    assert first.asked + second.asked == whole.asked
    assert [(r.entry.tile, r.entry.knobs) for r in report.rows] == [
        (r.entry.tile, r.entry.knobs) for r in expected.rows
    ]
    assert report.trials == len(second.asked)
    assert any("trials are from the journal" in note for note in report.notes) == (last > 0)


def test_resumed_with_more_trials_a_finished_run_goes_on(out):
    run(out, trials=20)
    runner = FakeRunner()
    report = run(out, runner, trials=40, resume=True)
    assert sum(row.trials for row in report.rows) == 40
    assert 20 <= len(runner.asked) <= 20 + 2 * AGAIN


def started(out, seeds, delay, trials):
    """Sessions in processes of their own, one for each seed, which TVM does not make load PyTorch."""
    code = (
        "from xframe.worker.alone import without_frameworks as alone\nwith alone(): from tests.tuning.fake import main"
    )
    command = [sys.executable, "-c", f"{code}\nmain()", str(out), seeds, str(delay), str(trials)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines():
    return sum(path.read_bytes().count(b"\n") for path in journals())


def test_kill_9_loses_at_most_the_trial_under_way(out):
    with started(out, "0", 0.03, 40) as process:
        while lines() < 12 and process.poll() is None:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert process.returncode == -signal.SIGKILL
    (path,) = journals()
    kept = lines() - 1
    assert kept >= 11
    runner = FakeRunner()
    report = run(out, runner, resume=True)
    assert journals() == [path]
    assert kept + len(runner.asked) == 40 + 2 * AGAIN
    assert all(row.entry.knobs["unroll"] == 2 for row in report.rows)


def test_two_at_once_lose_nothing(out):
    """With the same settings, too."""
    told, errors = started(out, "0,0,1", 0.002, 30).communicate(timeout=120)
    assert told.strip().endswith("[0, 0, 0]"), errors
    (entries,) = logs(out).values()
    assert set(entries) == {SMALL.name, LARGE.name}
    assert [kinds(path)[-1] for path in journals()] == ["end"] * 3


def test_a_full_disk_stops_it_with_one_message_and_loses_nothing(out, monkeypatch):
    count, append = [0], os.write

    def full(descriptor, data):
        count[0] += 1
        if count[0] > 15:
            raise OSError(28, "No space left on device")
        return append(descriptor, data)

    runner, again = FakeRunner(), FakeRunner()
    with monkeypatch.context() as patch:
        patch.setattr(journal.os, "write", full)
        with pytest.raises(Stopped, match=r"can't write the journal .*: No space left on device; .*--resume"):
            run(out, runner)
    report = run(out, again, resume=True)
    assert all(row.entry for row in report.rows)
    assert len(runner.asked) - 1 + len(again.asked) == 40 + 2 * AGAIN  # the trial that could not be written is lost


def test_a_log_that_can_not_be_written_loses_nothing(out, monkeypatch):
    def full(folder, _):
        raise XframeError(f"can't write the schedule log {folder}: No space left on device")

    runner, again = FakeRunner(), FakeRunner()
    with monkeypatch.context() as patch:
        patch.setattr(session, "update", full)
        with pytest.raises(Stopped, match="No space left on device"):
            run(out, runner)
    assert all(row.entry for row in run(out, again, resume=True).rows)
    assert len(runner.asked) + len(again.asked) == 40 + 2 * AGAIN


def test_what_can_not_be_written_is_told_before_a_trial(out, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "out", out):
        runner = FakeRunner()
        with pytest.raises(XframeError, match=r"can't write to the folder|MiB free, and tuning wants"):
            run(folder, runner)
        assert runner.asked == []
        monkeypatch.setattr(journal, "LEAST_FREE", 1 << 60)


@pytest.mark.parametrize("broken", ["truncated", "other version"])
def test_a_log_that_can_not_be_added_to_is_told_before_a_trial(out, broken):
    run(out)
    (meta,) = out.glob("*/*/*/meta.json")
    if broken == "truncated":
        meta.write_bytes(meta.read_bytes()[:-20])
    else:
        log.write(meta.parent, replace(log.read(meta.parent), tvm="0.1"))
    runner = FakeRunner()
    with pytest.raises(XframeError, match=r"is refused|different versions of TVM"):
        run(out, runner)
    assert runner.asked == []


def test_a_slower_record_does_not_take_the_place_of_a_faster_one(out):
    run(out)
    run(out, FakeRunner(lambda t, p: min(1.0, 1.1 * speed(t, p))), seed=1)
    (entries,) = logs(out).values()
    assert all(entry.gain == pytest.approx(1.25) for entry in entries.values())


def test_records_of_other_kernels_are_starting_points(out):
    """Those of another image size: tried right after the hand-written one, and marked where they win."""
    site = replace(SMALL.variant.site, in_hw=(12, 12))
    other = replace(SMALL, variant=replace(SMALL.variant, site=site))
    run(out, works=[work(other)])
    ((_, entries),) = logs(out).items()
    known = log.read(next(out.glob("*/*/*/meta.json")).parent)
    runner = FakeRunner()
    run(out / "new", runner, [work(SMALL)], known=[known])
    assert dict(runner.asked[1][1].knobs)["unroll"] == entries[other.name].knobs["unroll"] == 2
    runner = FakeRunner(last=2)
    with pytest.raises(Interrupted):
        run(out / "new", runner, [work(SMALL)], known=[known])
    start = runner.asked[1][1]
    best = FakeRunner(lambda task, point: 0.5 if point == start else 1.0)
    (row,) = run(out / "new", best, [work(SMALL)], resume=True).rows
    assert row.entry.transferred == other.name


def test_progress_tells_how_far_it_is(out):
    states = []
    run(out, on_progress=states.append)
    assert (states[0].done, states[0].total, states[0].task) == (0, 40, None)
    assert [s.done for s in states] == sorted(s.done for s in states)
    assert states[-1].done == 40
    assert states[-1].gain == pytest.approx(1.25)
    assert states[-1].flop_per_s == pytest.approx(1.25 * states[-1].by_hand_flop_per_s)
    assert all(s.left_s is not None and s.left_s >= 0 for s in states[1:])
    assert {s.doing for s in states[1:]} == {"by hand", "searching", "confirming"}


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"works": []}, Unsupported, "nothing to tune"),
        ({"works": [work()]}, Unsupported, "nothing to tune"),
        ({"trials": 3}, UsageError, "--trials 3 is too few for 2 kernels: .* at least 4"),
        ({"space": "all"}, UsageError, "--space 'all': there are template and auto"),
        ({"strategy": "luck"}, UsageError, "luck"),
    ],
)
def test_a_request_without_sense_is_refused_before_anything(out, options, error, words):
    runner = FakeRunner()
    with pytest.raises(error, match=words):
        run(out, runner, **options)
    assert runner.asked == []


def test_what_disturbed_trials_is_told(out):
    class Disturbed(FakeRunner):
        def _trial(self, task, point):
            return replace(super()._trial(task, point), note="other processes used 1.5 CPUs")

    report = run(out, Disturbed())
    assert report.notes == ("52 of 52 trials have a remark, the last: other processes used 1.5 CPUs",)
