"""The check of a machine with a GPU: what it does without one, with little time, and when it is stopped."""

import subprocess
import sys
from pathlib import Path

import pytest

from xframe import comparison, store
from xframe.errors import UsageError, XframeError
from xframe.gpucheck import check, machine, networks, steps, words
from xframe.gpucheck.journal import CUT, DONE, FAILED, INCOMPLETE, SKIPPED, Found, Journal
from xframe.gpucheck.settings import Step
from xframe.results import Measurement, Run
from xframe.types import Case, Outcome, Plan

ROOT = Path(__file__).parents[2]


def only(monkeypatch, **runs):
    """The check has these steps alone."""
    made = [Step(name, 0.5, run) for name, run in runs.items()]
    monkeypatch.setattr(steps, "steps", lambda settings, progress: iter(made))


def checked(settings, folder):
    return check.check(settings, Journal(folder), lambda line: None)


def states(found):
    return {f.step: f.state for f in found if f.step != "machine"}


def test_without_a_gpu_it_says_what_is_there_and_ends(monkeypatch, tmp_path, settings, plugins):
    monkeypatch.setattr(machine, "devices", lambda: 0)
    monkeypatch.setattr(machine, "working", lambda table: {})
    found = checked(settings(), tmp_path)
    assert set(states(found).values()) == {SKIPPED}
    assert [*states(found)][:3] == ["roofs", "network batch 1", "best batch 1"]
    text = "\n".join(words.lines(found))
    assert "GPU        none: no NVIDIA driver" in text
    assert "libraries  cudnn: missing" in text or "libraries  cudnn: /" in text
    assert not words.complete(found)


def test_a_folder_that_holds_nothing_is_told_before_anything_is_looked_at(monkeypatch, tmp_path, settings):
    monkeypatch.setattr(machine, "facts", lambda: pytest.fail("it looked at the machine"))
    with pytest.raises(UsageError, match="holds no compiled networks"):
        checked(settings(prebuilt=tmp_path / "none"), tmp_path / "found")
    assert not (tmp_path / "found").exists()


def test_what_was_done_is_not_done_again_and_its_time_goes_to_the_others(gpu, monkeypatch, tmp_path, settings):
    ran = []

    def good(place, limit):
        ran.append(("good", round(limit, -1)))
        return (), {"a": 1}

    def bad(place, limit):
        ran.append(("bad", round(limit, -1)))
        raise XframeError("it broke")

    only(monkeypatch, good=good, bad=bad)
    for _ in range(2):
        found = checked(settings(minutes=10), tmp_path)
    assert ran == [("good", 300), ("bad", 600), ("bad", 600)]
    assert states(found) == {"good": DONE, "bad": FAILED}
    assert next(f for f in found if f.step == "good").facts == {"a": 1}
    assert next(f for f in found if f.step == "bad").reason == "it broke"


def timed(*outcomes):
    """Rows of these outcomes, those that are OK with a time."""
    case = Case("tiny", None, "tvm", Plan(), "cuda", 1, 1)
    ok = Outcome.OK
    return [Measurement(case, o, "" if o == ok else "why", rounds=((1.0,),) if o == ok else ()) for o in outcomes]


def test_a_step_whose_rows_broke_is_tried_again_after_those_that_had_no_turn(gpu, monkeypatch, tmp_path, settings):
    """Which rows broke is told; what can't be done here, or was wrong, another try finds again."""
    rows, ran = [timed(Outcome.OK, Outcome.TIMEOUT, Outcome.FAILED), timed(Outcome.OK, Outcome.UNSUPPORTED)], []

    def broke(place, limit):
        ran.append("broke")
        return rows.pop(0), {}

    def cut(place, limit):
        ran.append("cut")
        raise comparison.Interrupted(Run(1, "now", [], {}, []))

    only(monkeypatch, broke=broke, cut=cut, other=lambda place, limit: (ran.append("other"), ((), {}))[1])
    found = checked(settings(minutes=10), tmp_path)
    assert states(found) == {"broke": INCOMPLETE, "cut": CUT, "other": SKIPPED}
    assert found[1].reason == "1 of 3 rows TIMEOUT, 1 of 3 rows FAILED"
    found = checked(settings(minutes=10), tmp_path)
    assert ran == ["broke", "cut", "other", "broke", "cut"]
    assert states(found) == {"broke": DONE, "cut": CUT, "other": DONE}


def test_what_needs_a_step_that_was_cut_off_does_not_come_before_it(gpu, monkeypatch, tmp_path, settings):
    ran = []

    def run(place, limit):
        ran.append(place.name)
        return (), {}

    made = [Step("tuning", 0.5, run), Step("tuned", 0.4, run, after="tuning"), Step("other", 0.1, run)]
    monkeypatch.setattr(steps, "steps", lambda settings, progress: iter(made))
    for name, state in (("tuning", CUT), ("tuned", SKIPPED), ("other", SKIPPED)):
        Journal(tmp_path).write(Found(name, state))
    checked(settings(minutes=10), tmp_path)
    assert ran == ["other", "tuning", "tuned"]


@pytest.mark.parametrize("outcome", [Outcome.UNAVAILABLE, Outcome.UNSUPPORTED, Outcome.MISMATCH])
def test_a_step_without_a_time_is_not_done(gpu, monkeypatch, tmp_path, settings, outcome):
    only(monkeypatch, none=lambda place, limit: (timed(outcome, outcome), {}))
    (_, one) = checked(settings(minutes=1), tmp_path)
    assert (one.state, one.reason) == (INCOMPLETE, "none of 2 rows has a time")


def test_a_step_has_the_time_that_it_needs_at_least_or_is_not_begun(gpu, monkeypatch, tmp_path, settings):
    limits = []

    def run(place, limit):
        limits.append(round(limit))
        return (), {}

    made = [Step("small", 0.01, run, least=30.0), Step("other", 0.9, run), Step("none", 0.09, run, least=70.0)]
    monkeypatch.setattr(steps, "steps", lambda settings, progress: iter(made))
    found = checked(settings(minutes=1), tmp_path)
    assert limits[0] == 30
    assert states(found) == {"small": DONE, "other": DONE, "none": SKIPPED}


def test_what_the_machine_was_that_the_rows_are_of_stays_when_it_has_no_gpu_any_more(
    gpu, monkeypatch, tmp_path, settings
):
    only(monkeypatch, good=lambda place, limit: ((), {}))
    checked(settings(minutes=1), tmp_path)
    monkeypatch.setattr(machine, "devices", lambda: 0)
    monkeypatch.setattr(machine, "facts", lambda: {"gpus": None, "why": "no NVIDIA driver"})
    found = checked(settings(minutes=1), tmp_path)
    assert found[0].facts["gpus"] == [{"name": "H200"}]
    assert states(found) == {"good": DONE}


def test_another_try_that_gets_less_far_takes_nothing_away(gpu, monkeypatch, tmp_path, settings):
    def bad(place, limit):
        raise XframeError("it broke")

    only(monkeypatch, bad=bad)
    for rows, state in ((({"median_s": 1.0}, {"median_s": None}), CUT), (({"median_s": None},), FAILED)):
        Journal(tmp_path).write(Found("bad", CUT, rows=rows))
        (_, kept) = checked(settings(minutes=1), tmp_path)
        assert (kept.state, len(kept.rows)) == (state, len(rows) if state == CUT else 0)


def test_a_step_that_breaks_costs_itself_alone(gpu, monkeypatch, tmp_path, settings):
    def odd(place, limit):
        raise ZeroDivisionError("odd")

    only(monkeypatch, odd=odd, good=lambda place, limit: ((), {}))
    found = checked(settings(minutes=1), tmp_path)
    assert states(found) == {"odd": FAILED, "good": DONE}


def test_without_time_a_step_is_not_begun(gpu, monkeypatch, tmp_path, settings):
    only(monkeypatch, late=lambda place, limit: ((), {}))
    found = checked(settings(minutes=0.01), tmp_path)
    assert states(found) == {"late": SKIPPED}
    assert "s were left" in found[-1].reason


STOPPED = """
import signal, sys, time
from pathlib import Path
from xframe import comparison
from xframe.gpucheck import check, machine, steps, words
from xframe.gpucheck.journal import Journal
from xframe.gpucheck.settings import Settings, Step
from xframe.results import Run

place, how = Path(sys.argv[1]), sys.argv[2]


def slow(folder, limit):
    try:
        if how != "time":
            signal.raise_signal(getattr(signal, how))
        while True:
            time.sleep(0.001)
    except KeyboardInterrupt:
        raise comparison.Interrupted(Run(1, "now", [], {}, [])) from None


share = 0.001 if how == "time" else 0.5  # of a minute
made = [Step("slow", share, slow, {"site": "c"}, 0.05), Step("after", 1 - share, lambda folder, limit: ((), {}))]
steps.steps = lambda settings, progress: iter(made)
machine.devices = lambda: 1
machine.facts = lambda: {}
before = [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGALRM)]
found = check.check(Settings(minutes=1), Journal(place), lambda line: None)
for one in found:
    print(one.step, one.state, one.reason, one.facts.get("site", ""), sep=": ")
print(words.stopped(found))
assert [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGALRM)] == before
assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
"""


@pytest.mark.parametrize(
    ("how", "reason", "after", "stopped"),
    [
        ("SIGTERM", "interrupted", "skipped: interrupted", True),
        ("SIGALRM", "interrupted", "skipped: interrupted", True),
        ("time", "after 0 s", "done: ", False),
    ],
)
def test_a_step_that_is_stopped_keeps_its_rows_and_what_they_are_of(tmp_path, how, reason, after, stopped):
    """By someone who wants the process to end, a stray alarm, or its own when its time is over.

    In a process of its own, whose main thread handles signals and which nothing else has changed.
    """
    command = [sys.executable, "-c", STOPPED, str(tmp_path), how]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    told = ["machine: done: : ", f"slow: cut off: {reason}: c", f"after: {after}: ", str(stopped)]
    assert done.stdout.splitlines() == told, done.stderr
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "slow" / "run.json").exists()


def test_rows_stay_that_are_measured_when_time_is_up(monkeypatch, tmp_path):
    run = Run(1, "now", [], {}, [])

    def late(done, place):
        raise KeyboardInterrupt

    monkeypatch.setattr(comparison, "compare", lambda request, progress: run)
    monkeypatch.setattr(store, "write", late)
    with pytest.raises(comparison.Interrupted) as stopped:
        networks.compared(comparison.Request("tiny"), tmp_path, print)
    assert stopped.value.run is run


def test_a_step_file_that_is_cut_is_nothing(tmp_path):
    journal = Journal(tmp_path)
    journal.write(Found("a b", DONE, rows=({"x": 1},)))
    assert journal.known("a b").rows == ({"x": 1},)
    (tmp_path / "a-b" / "step.json").write_text("{")
    assert journal.known("a b") is None
    assert list(journal) == []


def test_what_imports_here_is_found_out_at_once_and_not_what_no_check_runs(plugins):
    plugins(pytorch="Honest", tensorflow="Missing")
    table = {name: machine.FRAMEWORKS[name] for name in ("pytorch", "torch.compile", "tensorflow")}
    found = machine.working(table)
    assert list(found) == ["pytorch", "tensorflow"]
    assert found["pytorch"] == "1.0"
    assert found["tensorflow"].startswith("missing: tensorflow needs the Python module no_such_module")
