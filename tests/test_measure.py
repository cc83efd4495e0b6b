"""Measuring side by side: what one job does must not cost another its row."""

import itertools
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from xframe import environment, launch, measure, nvml, store
from xframe.errors import UsageError
from xframe.measure import Budget, Job
from xframe.registry import FRAMEWORKS, Row, Switch
from xframe.types import Case, ConvSite, ModelSpec, Outcome, Plan, layer
from xframe.worker import device_clock

FAKES = Path(__file__).parent / "worker"
SPEC = ModelSpec("tiny", (3, 4, 4), (layer("relu1", "relu"),))
FEEDS = [[np.random.default_rng(i).standard_normal((1, 3, 4, 4)).astype("float32")] for i in range(2)]
QUICK = Budget(rounds=2, min_samples=4, min_seconds=0.01, max_seconds=0.05, open_limit=30, run_limit=10)


def judge(outputs, sites):
    """Compares with the fakes' formula; the error is relative to a bound of 1e-5."""
    worst = max(float(np.abs(got[0] - 3 * feed[0]).max()) for got, feed in zip(outputs, FEEDS, strict=True))
    ok = worst <= 1e-5
    return SimpleNamespace(ok=ok, error=worst, bound=1e-5, ratio=worst / 1e-5, reason="" if ok else f"off by {worst:g}")


@pytest.fixture
def job(monkeypatch, tmp_path):
    """Makes a job that runs the fake of that name."""
    monkeypatch.setenv("PYTHONPATH", str(FAKES))
    weights = tmp_path / "weights.npz"
    np.savez(weights, w=np.ones(3, "float32"))

    def make(name, **changes):
        monkeypatch.setitem(FRAMEWORKS, name, Row("fakes:" + name, (), "none"))
        return Job(Case("tiny", name, "native", Plan(), "cpu", 1, 1), SPEC, weights, FEEDS, changes.pop("judge", judge))

    return make


@pytest.fixture(autouse=True)
def workers(monkeypatch):
    """All workers started; afterwards none may live."""
    started = []

    class Recorded(launch.Worker):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            started.append(self)

    monkeypatch.setattr(launch, "Worker", Recorded)
    yield started
    assert all(w._process.returncode is not None for w in started)
    assert not any(Path(w._folder).exists() for w in started)


def by_name(measurements):
    return {m.case.framework: m for m in measurements}


def test_a_row_on_a_gpu_has_the_times_of_its_clock_beside_those_of_the_host(job):
    cases = [replace((one := job("OnGpu")), case=replace(one.case, device=f"cuda:{i}")) for i in (0, 8, 9)]
    timed, failed, refused = rows = sorted(measure.measure(cases, QUICK), key=lambda m: m.case.device)
    assert [m.outcome for m in rows] == [Outcome.OK] * 3, [m.reason for m in rows]
    assert [len(r) for r in timed.device_rounds] == [len(r) for r in timed.rounds]
    assert set(timed.device_samples) == {2e-3}
    assert timed.environment["device_clock"] == {"how": device_clock.GATED, "empty_s": 3e-6}
    assert timed.environment["gpu"] == "CUDA GPU", "as the driver calls it, and here there is none"
    assert len(timed.environment["gpu_states"]) == len(timed.rounds)
    assert not any("clock" in note for note in timed.notes)
    assert refused.device_rounds == ()
    assert refused.notes.count("no times by the device's own clock: there is no clock on this device") == 1
    assert "no times by the device's own clock: RuntimeError: a driver that nobody knows" in failed.notes
    assert store.row(timed)["device_median_s"] == 2e-3
    assert store.row(timed)["device_clock"] == f"{device_clock.GATED}; with nothing between them 3.0 us"
    assert (store.row(refused)["device_median_s"], store.row(refused)["device_clock"]) == (None, None)


def test_the_state_of_a_gpu_is_that_right_after_the_steps_that_the_host_times(job, monkeypatch):
    """Before those that wait at a gate, behind which it is idle.."""
    done, send = [], launch.Worker.send
    monkeypatch.setattr(launch.Worker, "send", lambda w, cmd, **fields: (done.append(cmd), send(w, cmd, **fields)))

    def watch(index):
        try:
            while True:
                yield {"reasons": [], "after": done[-1]}
        finally:
            done.append("closed")

    monkeypatch.setattr(nvml, "watch", watch)
    one = job("OnGpu")
    (m,) = measure.measure([replace(one, case=replace(one.case, device="cuda"))], replace(QUICK, profile=0))
    assert [s["after"] for s in m.environment["gpu_states"]] == ["time"] * QUICK.rounds
    visits = [x for x in done if x in ("time", "closed", "time_by_device")]
    assert visits == ["time", "closed", "time_by_device"] * QUICK.rounds


def test_a_good_row_has_everything(job):
    stages = []
    (m,) = measure.measure([job("Fine")], QUICK, lambda case, stage: stages.append(stage))
    assert stages == ["open", "round 1 of 2", "round 2 of 2", "verify again", "profile 1 of 1"]
    assert "group" not in m.environment
    assert m.outcome == Outcome.OK
    assert m.reason == ""
    assert len(m.rounds) == 2
    assert all(len(r) >= 4 for r in m.rounds)
    assert {"import", "build", "compile", "first"} <= set(m.seconds)
    assert m.error <= m.error_bound
    assert m.error_ratio == pytest.approx(m.error / 1e-5)
    assert m.sites[0].selected == "direct"
    assert [k.name for k in m.kernels] == ["conv1_direct", "copy"]
    assert m.peak_bytes > 10 << 20
    assert m.environment["fake"] == "1.0"
    assert m.environment["cpus"] == environment.pinned_cpus(1)
    assert "a fake" in m.notes
    assert m.device_rounds == (), "on a CPU"
    assert not {"device_clock", "gpu", "gpu_states"} & set(m.environment)


def test_load_of_other_processes_is_seen_and_noted(job):
    """Against a process that does nothing but compute."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            (m,) = measure.measure([job("Fine")], replace(QUICK, min_seconds=0.2, max_seconds=0.3))
        finally:
            other.kill()
    assert len(m.environment["foreign_load"]) == 2
    assert max(m.environment["foreign_load"]) > 0.15
    assert any("other processes used up to" in n for n in m.notes)


def test_visits_interleave_and_their_order_is_recorded(job):
    done = list(measure.measure([job("Fine"), job("Noisy")], QUICK))
    visits = [m.environment["visits"] for m in done]
    assert sorted(visits) == [[0, 2], [1, 3]]


def test_bad_rows_say_why_and_cost_no_other(job):
    bad = {
        "Crash": (Outcome.FAILED, "killed by SIGABRT"),
        "CrashInBuild": (Outcome.FAILED, "exit code 3"),
        "Killed": (Outcome.FAILED, "out of memory?"),
        "OutOfMemory": (Outcome.FAILED, "out of memory: MemoryError"),
        "PluginError": (Outcome.FAILED, "ValueError: first line"),
        "Refuses": (Outcome.UNSUPPORTED, "no dilation here"),
        "Unfaithful": (Outcome.NOT_HONOURED, "something else ran"),
        "NaN": (Outcome.MISMATCH, "before timing: off by nan"),
        "Stale": (Outcome.MISMATCH, "before timing: the outputs are the same for different inputs"),
        "Frozen": (Outcome.MISMATCH, "after timing: the outputs are the same for different inputs"),
        "Late": (Outcome.MISMATCH, "after timing: off by 1"),
    }
    first, *others = bad
    names = ["Fine", first, "Noisy", *others, "Noted"]  # among them, and at both ends
    done = by_name(measure.measure([job(name) for name in names], QUICK))
    assert set(done) == set(names)
    for name in set(names) - set(bad):
        assert (done[name].outcome, len(done[name].rounds)) == (Outcome.OK, 2)
    for name, (outcome, words) in bad.items():
        assert (name, done[name].outcome) == (name, outcome)
        assert words in done[name].reason
        assert "\n" not in done[name].reason
        if outcome == Outcome.MISMATCH and "off by" in words:
            assert done[name].error is not None
        if "before" in words or outcome != Outcome.MISMATCH:
            assert not done[name].samples  # nothing wrong was ever timed


def test_a_hang_is_a_timeout(job):
    done = by_name(measure.measure([job("Hang"), job("Fine")], replace(QUICK, run_limit=1)))
    assert done["Hang"].outcome == Outcome.TIMEOUT
    assert "within 1 s" in done["Hang"].reason
    assert "waiting for a lock" in done["Hang"].environment["stderr"]
    assert done["Fine"].outcome == Outcome.OK


def test_a_profile_with_other_kernels_than_planned_does(job):
    (m,) = measure.measure([job("OtherKernels")], QUICK)
    assert m.outcome == Outcome.NOT_HONOURED
    assert m.reason == "no kernel of it ran"


def test_profiled_passes_are_taken_in_turn(job):
    stages = []
    done = list(measure.measure([job("Fine"), job("Noisy")], replace(QUICK, profile=3), lambda c, s: stages.append(s)))
    assert [len(m.profiles) for m in done] == [3, 3]
    assert all(len(m.plain) >= 3 for m in done)
    assert done[0].kernels == done[0].profiles[0].kernels != ()
    assert [s for s in stages if s.startswith("profile")] == [f"profile {n} of 2" for n in (1, 1, 2, 2)]


def test_profiled_passes_are_taken_beside_every_round(job):
    stages = []
    budget = replace(QUICK, rounds=3, profile=8)
    (m,) = measure.measure([job("Noted")], budget, lambda c, s: stages.append(s))
    assert len(m.profiles) == 8 <= len(m.plain)
    taken = m.environment["profiled"]
    assert [(rounds, passes) for rounds, passes, _ in taken] == [(1, 2), (2, 3), (3, 3)]
    assert sum(steps for *_, steps in taken) == len(m.plain)
    assert m.notes.count("planted") == 1, "what is to be known of its profiles is told once"
    told = [f"{what} of 3" for n in (1, 2, 3) for what in (f"round {n}", f"profile {n}")]
    assert [s for s in stages if s.startswith(("round", "profile"))] == told


def test_options_reach_the_plugin_and_its_environment(job, monkeypatch):
    switches = (Switch("mode", ("slow", "fast"), (("fast", (("FAKE_MODE", "9"), ("FAKE_FLAGS", "--fast"))),)),)
    monkeypatch.setenv("FAKE_FLAGS", "--mine")
    one = job("Options")
    monkeypatch.setitem(FRAMEWORKS, "Options", FRAMEWORKS["Options"]._replace(switches=switches))
    turned = replace(one, case=replace(one.case, options=(("mode", "fast"),)))
    usual, fast = measure.measure([one, turned], replace(QUICK, workers=1))
    assert usual.environment["options"] == {}
    assert (fast.environment["options"], fast.environment["mode"]) == ({"mode": "fast"}, "9")
    assert fast.environment["flags"] == "--mine --fast"
    no_switch, no_value = "no switch 'mod'; it has: mode", "can't be 'x'; it can be: slow, fast"
    for wrong, words in ((("mod", "fast"), no_switch), (("mode", "x"), no_value)):
        (m,) = measure.measure([replace(one, case=replace(one.case, options=(wrong,)))], QUICK)
        assert m.outcome == Outcome.FAILED
        assert words in m.reason


def test_no_profile_if_none_is_wanted(job):
    (m,) = measure.measure([job("Fine")], replace(QUICK, profile=0))
    assert (m.outcome, m.profiles, m.kernels) == (Outcome.OK, (), ())


def test_a_profile_that_crashes_does_not_cost_the_row(job):
    (m,) = measure.measure([job("BadProfile")], replace(QUICK, profile=2))
    assert m.outcome == Outcome.OK
    assert m.kernels == ()
    assert sum("no profile: the worker process died" in n for n in m.notes) == 1


def test_a_judge_that_raises_fails_its_row_only(job):
    def broken(outputs, sites):
        raise KeyError("no reference")

    done = by_name(measure.measure([job("Fine"), job("Noisy", judge=broken)], QUICK))
    assert done["Noisy"].outcome == Outcome.FAILED
    assert "KeyError" in done["Noisy"].reason
    assert done["Fine"].outcome == Outcome.OK


def test_equal_outputs_are_fine_where_the_reference_says_so(job):
    def judge_stale(outputs, sites):
        return SimpleNamespace(ok=all(np.all(o[0] == 5) for o in outputs), error=0.0, bound=1.0, ratio=0.0, reason="no")

    (m,) = measure.measure([replace(job("Stale", judge=judge_stale), inputs_matter=False)], QUICK)
    assert m.outcome == Outcome.OK


def test_a_slow_step_is_timed_at_least_once_a_round_and_noted(job):
    (m,) = measure.measure([job("Slow")], replace(QUICK, min_samples=3))
    assert [len(r) for r in m.rounds] == [1, 1]
    assert any("2 of 2 visits ended at their cap" in n for n in m.notes)


def test_what_does_not_fit_goes_in_groups(job, workers):
    jobs = [job("Fine"), job("Noisy"), job("Noted")]
    done = list(measure.measure(jobs, replace(QUICK, workers=2, rounds=1)))
    assert [m.outcome for m in done] == [Outcome.OK] * 3
    groups = sorted(n for m in done for n in m.notes if n.startswith("group"))
    assert [g.partition(":")[0] for g in groups] == ["group 1", "group 1", "group 2"]
    assert sorted(m.environment["group"] for m in done) == [1, 1, 2]


def test_what_is_not_open_when_time_is_up_costs_itself_alone(job, monkeypatch):
    """Time is up when the first is open: one is stuck then, and one has not begun."""
    opened, real = [], measure.Row.open
    monkeypatch.setattr(measure.Row, "open", lambda row: opened.append(real(row)))
    monkeypatch.setattr(measure, "time", SimpleNamespace(monotonic=lambda: 1e9 * bool(opened)))
    jobs = [job("HangInBuild"), job("Fine"), job("Noisy")]
    done = by_name(measure.measure(jobs, replace(QUICK, rounds=1, opening=1000.0, starts=2)))
    assert {name: m.outcome for name, m in done.items()} == {
        "HangInBuild": Outcome.TIMEOUT,
        "Fine": Outcome.OK,
        "Noisy": Outcome.TIMEOUT,
    }
    for name in ("HangInBuild", "Noisy"):
        assert done[name].reason.partition(",")[0] == "it was not open after 1000 s"


def test_time_for_opening_is_counted_from_when_its_caller_began(job):
    """What was prepared before, such as exports, took of it: nothing is opened that can't be in time."""
    (m,) = measure.measure([job("Fine")], replace(QUICK, opening=5.0), since=time.monotonic() - 5.0)
    assert (m.outcome, m.rounds) == (Outcome.TIMEOUT, ())


def test_a_forced_plan_is_visited_and_profiled_before_what_picks_by_itself(job, monkeypatch):
    """Where time is up in the midst of it, those kernels must be known that were asked for by name."""
    seen, real = [], measure.Row.visit
    monkeypatch.setattr(measure.Row, "visit", lambda row, n: seen.append(row.job.case.framework) or real(row, n))
    forced, site = job("Noisy"), ConvSite.parse("n1c3h4w4o2k3x3s1x1p0.0.0.0d1x1g1float32")
    forced = replace(forced, case=replace(forced.case, plan=Plan("gemm", ((site, "gemm"),))))
    list(measure.measure([job("Fine"), forced], replace(QUICK, rounds=1)))
    assert seen == ["Noisy", "Fine"]


def test_little_memory_means_one_at_a_time(job, monkeypatch):
    monkeypatch.setattr(environment, "available_bytes", lambda: 100 << 20)
    done = list(measure.measure([job("Fine"), job("Noisy")], replace(QUICK, rounds=1)))
    assert {n.partition(":")[0] for m in done for n in m.notes if n.startswith("group")} == {"group 1", "group 2"}


def test_more_threads_than_cpus_is_noted(job):
    many = job("Fine")
    (m,) = measure.measure([replace(many, case=replace(many.case, threads=999))], QUICK)
    assert m.outcome == Outcome.OK
    assert any("999 threads on the" in n for n in m.notes)


def test_what_can_not_be_measured_is_refused(job):
    cold, training, odd = job("Fine"), job("Noisy"), job("Slow")
    jobs = [
        replace(cold, case=replace(cold.case, cache="cold")),
        replace(training, case=replace(training.case, direction="backward")),
        replace(odd, case=replace(odd.case, runner="tvm")),
    ]
    done = by_name(measure.measure(jobs, QUICK))
    assert done["Fine"].outcome == done["Noisy"].outcome == Outcome.UNSUPPORTED
    assert "needs an artifact" in done["Slow"].reason
    with pytest.raises(UsageError, match="two different feeds"):
        replace(cold, feeds=FEEDS[:1])
    with pytest.raises(UsageError, match="rounds must be positive"):
        Budget(rounds=0)


def interrupt_at(stage, name):
    """Once, as one presses Ctrl-C once."""
    left = [KeyboardInterrupt]

    def progress(case, at):
        if left and at == stage and case.framework == name:
            raise left.pop()

    return progress


def collect(jobs, budget, progress):
    """The rows that came out before the interrupt did."""
    rows = []
    with pytest.raises(KeyboardInterrupt):
        rows.extend(measure.measure(jobs, budget, progress))
    return by_name(rows)


def test_interrupt_between_rounds_keeps_what_was_timed(job):
    rows = collect([job("Fine"), job("Noisy")], replace(QUICK, rounds=3), interrupt_at("round 2 of 3", "Noisy"))
    assert {n: len(m.rounds) for n, m in rows.items()} in ({"Fine": 2, "Noisy": 1}, {"Fine": 1, "Noisy": 1})
    for m in rows.values():
        assert m.outcome == Outcome.OK
        assert any("interrupted after" in n for n in m.notes)


def test_interrupt_before_anything_was_timed_keeps_failures_only(job):
    rows = collect([job("Refuses"), job("Fine")], QUICK, interrupt_at("round 1 of 2", "Fine"))
    assert set(rows) == {"Refuses"}


def test_interrupt_while_opening_leaves_no_process(job, workers):
    assert collect([job("Fine"), job("Slow"), job("Noisy")], QUICK, interrupt_at("open", "Slow")) == {}
    assert len(workers) <= 2


def test_passes_follow_the_timed_samples_of_their_own_row(job):
    """Not those of the others: a machine may change its speed within seconds."""
    said = []
    jobs = [job("Fine"), job("Noisy")]
    list(measure.measure(jobs, replace(QUICK, rounds=2, profile=2), lambda c, s: said.append((c.framework, s))))
    each = [
        (n, s)
        for r in (1, 2)
        for n in ("Fine", "Noisy")
        for s in (f"round {r} of 2", "verify again", f"profile {r} of 2")
    ]
    assert [x for x in said if x[1] != "open"] == each


def test_interrupt_before_one_is_verified_again_keeps_all(job):
    rows = collect([job("Fine"), job("Noisy")], QUICK, interrupt_at("verify again", "Fine"))
    assert {name: (m.outcome, len(m.rounds)) for name, m in rows.items()} == {
        "Fine": (Outcome.OK, 2), "Noisy": (Outcome.OK, 1),
    }  # fmt: skip


def test_second_interrupt_ends_at_once(job):
    def progress(case, at):
        if at in ("round 2 of 2", "verify again"):
            raise KeyboardInterrupt

    assert collect([job("Fine"), job("Noisy")], QUICK, progress) == {}


INTERRUPTED = """
import signal, sys
from pathlib import Path
from tests.test_measure import FEEDS, QUICK, SPEC, judge, launch, measure
from xframe.registry import FRAMEWORKS, Row
from xframe.types import Case, Plan

next_is, send = [], launch.Worker.send


def then_a_signal(worker, cmd, **fields):
    send(worker, cmd, **fields)
    if cmd == "time" and next_is == ["round 2 of 2", "Slow"]:
        signal.setitimer(signal.ITIMER_REAL, 0.05)


def handler(number, frame):
    raise KeyboardInterrupt


def job(name):
    FRAMEWORKS[name] = Row("fakes:" + name, (), "none")
    return measure.Job(Case("tiny", name, "native", Plan(), "cpu", 1, 1), SPEC, Path(sys.argv[1]), FEEDS, judge)


launch.Worker.send = then_a_signal
measure.GRACE = float(sys.argv[2])
signal.signal(signal.SIGALRM, handler)


def progress(case, at):
    next_is[:] = [at, case.framework]


try:
    for m in measure.measure([job("Fine"), job("Slow")], QUICK, progress):
        print(m.case.framework, m.outcome.value, len(m.rounds))
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs setitimer")
@pytest.mark.parametrize(("grace", "rows"), [(1.0, ["Fine OK 2", "Slow OK 2"]), (0.0, ["Fine OK 2"])])
def test_a_signal_in_the_middle_of_a_step_costs_no_row_whose_visit_ends_in_time(tmp_path, grace, rows):
    """A real signal while the host waits for a reply: 0.05 s after it asked for a step that takes 0.2 s.

    In a process of its own: what other tests loaded has threads and handlers that a signal may meet.
    """
    np.savez(tmp_path / "weights.npz", w=np.ones(3, "float32"))
    env = {**os.environ, "PYTHONPATH": str(FAKES)}
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "weights.npz"), str(grace)]
    done = subprocess.run(command, cwd=FAKES.parents[1], env=env, capture_output=True, text=True, timeout=60)
    assert sorted(done.stdout.splitlines()) == [*rows, "interrupted"], done.stderr


def test_an_interrupt_in_a_visit_that_does_not_end_keeps_the_rounds_that_were_verified(job, monkeypatch):
    visit = measure.Row.visit

    def stopped(row, number):
        if number == 3:
            row.kill()
            raise KeyboardInterrupt
        visit(row, number)

    monkeypatch.setattr(measure.Row, "visit", stopped)
    m = collect([job("Fine")], replace(QUICK, rounds=4, profile=2), lambda case, stage: None)["Fine"]
    assert (m.outcome, len(m.rounds), m.environment["visits"]) == (Outcome.OK, 2, [0, 1])
    assert "interrupted after 2 of 4 rounds" in m.notes


def test_abandoned_iteration_ends_the_workers(job, workers):
    stream = measure.measure([job("Refuses"), job("Fine"), job("Noisy")], QUICK)
    next(stream)
    stream.close()
    assert all(w.dead for w in workers)


def test_a_feed_too_many_still_only_costs_its_row(job):
    three = replace(job("Fine"), feeds=[*FEEDS, FEEDS[0]])
    done = by_name(measure.measure([three, job("Noisy")], QUICK))
    assert "same for different inputs" in done["Fine"].reason
    assert done["Noisy"].outcome == Outcome.OK


def test_host_facts_are_complete_and_plain():
    import json

    facts = environment.capture()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["device"] == environment.cpu_device().slug
    assert facts["versions"]["numpy"] == np.__version__
    assert facts["cores"] == len(facts["cpus_allowed"])


@pytest.mark.parametrize(
    ("model", "flags", "slug"),
    [
        ("Intel(R) Xeon(R) Platinum 8480C CPU @ 2.00GHz", "avx avx2 avx512f", "intel-xeon-platinum-8480c-avx512-"),
        ("AMD EPYC 9R14 96-Core Processor", "avx avx2 avx512f", "amd-epyc-9r14-avx512-"),
        ("AMD Ryzen 7 3700X 8-Core Processor", "avx avx2", "amd-ryzen-7-3700x-avx2-"),
    ],
)
def test_device_slug(monkeypatch, model, flags, slug):
    monkeypatch.setattr(environment, "cpuinfo", lambda: {"model name": model, "flags": flags})
    assert environment.cpu_device().slug.startswith(slug)


def test_device_slug_without_cpuinfo(monkeypatch):
    monkeypatch.setattr(environment, "cpuinfo", dict)
    monkeypatch.setattr(environment.platform, "processor", lambda: "")
    monkeypatch.setattr(environment.platform, "machine", lambda: "arm64")
    assert environment.cpu_device().slug.startswith("arm64-arm64-")


def test_pinning_takes_separate_cores_first(monkeypatch):
    siblings = {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}
    monkeypatch.setattr(environment, "allowed_cpus", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(environment, "_read", lambda path: siblings[int(path.parent.parent.name[3:])])
    assert [environment.pinned_cpus(n) for n in (1, 2, 3, 9)] == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]


def test_counting_of_visits_goes_on_over_rows_that_fall_out(job):
    done = by_name(measure.measure([job("Late"), job("Fine")], replace(QUICK, rounds=3)))
    seen = sorted(itertools.chain(done["Late"].environment["visits"], done["Fine"].environment["visits"]))
    assert seen == list(range(6))


def test_profiles_are_spread_over_the_rounds(job):
    """So that a drift of the machine hits the timed samples and the passes alike."""
    stages = []
    (m,) = measure.measure([job("Fine")], replace(QUICK, rounds=3, profile=5), lambda c, s: stages.append(s))
    assert (m.outcome, len(m.rounds), len(m.profiles)) == (Outcome.OK, 3, 5)
    each = [("round %d of 3", "verify again", "profile %d of 3")] * 3
    assert stages == ["open", *(line % n if "%" in line else line for n, e in enumerate(each, 1) for line in e)]


@pytest.mark.parametrize(("fresh", "processes", "turns"), [(False, 1, 1), (True, 3, 3)])
def test_no_process_is_timed_in_which_a_gpu_was_traced(job, fresh, processes, turns):
    stages = []
    one = job("OnGpu")
    one = replace(one, case=replace(one.case, device="cuda:0"))
    budget = replace(QUICK, rounds=3, profile=3, fresh=fresh)
    (m,) = measure.measure([one], budget, lambda c, s: stages.append(s))
    assert (m.outcome, len(m.rounds), len(m.profiles), m.environment["processes"]) == (Outcome.OK, 3, 3, processes)
    told = [s for s in stages if s.startswith(("round", "profile"))]
    rounds, profiles = [f"round {n} of 3" for n in (1, 2, 3)], [f"profile {n + 1} of {turns}" for n in range(turns)]
    assert told == ([s for pair in zip(rounds, profiles, strict=True) for s in pair] if fresh else rounds + profiles)


def test_a_profile_that_crashes_in_mid_run_leaves_the_verified_rounds(job):
    bad, fine = measure.measure([job("BadProfile"), job("Fine")], replace(QUICK, rounds=3, profile=3))
    assert (bad.outcome, len(bad.rounds)) == (Outcome.OK, 1)
    assert "1 of 3 rounds: its process died in a profile" in bad.notes
    assert (fine.outcome, len(fine.rounds), len(fine.profiles)) == (Outcome.OK, 3, 3)


def test_interrupt_in_a_profile_in_mid_run_keeps_what_is_verified(job):
    rows = collect(
        [job("Fine"), job("Noisy")], replace(QUICK, rounds=3, profile=3), interrupt_at("profile 2 of 3", "Fine")
    )
    assert {name: (m.outcome, len(m.rounds)) for name, m in rows.items()} == {
        "Fine": (Outcome.OK, 2), "Noisy": (Outcome.OK, 1),
    }  # fmt: skip
    assert all(f"interrupted after {len(m.rounds)} of 3 rounds" in m.notes for m in rows.values())


def test_each_round_can_have_a_process_of_its_own(job, workers):
    stages = []
    budget = replace(QUICK, rounds=3, profile=3, fresh=True)
    (m,) = measure.measure([job("Fine")], budget, lambda c, s: stages.append(s))
    assert (m.outcome, len(m.rounds), len(m.profiles), m.environment["processes"]) == (Outcome.OK, 3, 3, 3)
    assert stages.count("verify again") == 3
    assert [s for s in stages if "open" in s] == ["open", "open again", "open again"]
    assert len(m.notes) == len(set(m.notes))


def test_a_process_that_fails_later_costs_the_row(job, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_ONCE", str(tmp_path))
    done = by_name(measure.measure([job("OnceFine"), job("Fine")], replace(QUICK, rounds=2, fresh=True)))
    assert (done["OnceFine"].outcome, len(done["OnceFine"].rounds)) == (Outcome.FAILED, 1)
    assert done["Fine"].outcome == Outcome.OK
