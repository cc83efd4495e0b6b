"""Ablation: every value of every switch is measured beside the defaults, and what helped is put together."""

from dataclasses import replace

import pytest

from tests import fake_switches
from xframe import environment, store
from xframe.ablation import ablate, settings
from xframe.analysis.ablations import ALONE, DEFAULT, TOGETHER, TRIED, WORST, ablations, rows
from xframe.analysis.algorithms import told
from xframe.comparison import Interrupted, Request
from xframe.errors import UsageError
from xframe.measure import Budget
from xframe.registry import BACKENDS, FRAMEWORKS, Row, Switch
from xframe.types import Outcome

QUICK = Budget(rounds=3, min_samples=3, min_seconds=0.0, max_seconds=0.3, open_limit=120, run_limit=60)
TINY = Request("tiny", ("pytorch",), (), budget=QUICK, threads=(1,))


@pytest.fixture
def switches(plugins, monkeypatch):
    """Registers the fake with some of its switches, as pytorch and ort; without: it has none."""
    monkeypatch.setattr(environment, "allowed_cpus", lambda: [0])
    monkeypatch.setattr(environment, "pinned_cpus", lambda threads: None)
    monkeypatch.delitem(FRAMEWORKS, "torch.compile")  # it is another way to run pytorch, and would be tried

    def use(*names, ort=()):
        chosen = tuple(s for s in fake_switches.SWITCHES if s.name in names)
        monkeypatch.setitem(
            FRAMEWORKS, "pytorch", Row("tests.fake_switches:Switched", (), "x", ("torch",), False, chosen)
        )
        monkeypatch.setitem(BACKENDS, "ort", Row("tests.fake_switches:Switched", (), "x", (), False, ort))

    return use


def test_each_other_value_alone_then_one_thread_and_all(monkeypatch):
    monkeypatch.setattr(environment, "allowed_cpus", lambda: [0, 1, 2, 3])
    two = (Switch("a", ("x", "y", "z")), Switch("b", ("off", "on")))
    values = [(("a", "y"),), (("a", "z"),), (("b", "on"),)]
    assert settings(two, 4) == [*values, (("threads", "1"),)]
    assert settings(two, 2) == [*values, (("threads", "1"),), (("threads", "4"),)]
    assert settings((), 1) == [(("threads", "4"),)]


def test_what_helps_is_put_together_and_measured_again_with_the_worst(switches):
    switches("fast", "extra", "slow")
    run = ablate(TINY)
    (found,) = ablations(run.measurements)
    alone = {str(s): s.verdict.value for s in found.of(ALONE)}
    assert alone == {"fast=on": "faster", "extra=on": "faster", "slow=on": "slower"}
    assert {str(s) for s in found.of(TRIED)} == {"fast=on", "fast=on, extra=on"}
    assert str(found.together) == "fast=on"  # with it the other adds nothing
    assert 2.5 < found.together.speedup.value < 5
    assert (str(found.worst), found.worst.step) == ("slow=on", WORST)
    assert 7 < found.worst_to_best.value < 14


def kept(run, folder):
    """It is read again as it was."""
    again = store.load(store.write(run, folder))
    assert [told for _, told in rows(again.measurements)] == [told for _, told in rows(run.measurements)]
    assert again.environment["network"] == run.environment["network"]


def test_every_set_has_the_defaults_and_is_told_in_the_rows(switches, tmp_path):
    switches("fast", "slow")
    run = ablate(TINY)
    sets = {}
    for m in run.measurements:
        about = m.environment["ablation"]
        sets.setdefault(about["set"], []).append((about["step"], about["changed"]))
        assert dict(m.case.options) == about["changed"]
    assert list(sets.values()) == [
        [(DEFAULT, {}), (ALONE, {"fast": "on"}), (ALONE, {"slow": "on"})],
        [(DEFAULT, {}), (TOGETHER, {"fast": "on"}), (WORST, {"slow": "on"})],
    ]
    kept(run, tmp_path)


def test_memory_for_few_makes_more_sets_each_with_the_defaults(switches):
    switches("fast", "slow", "wrong")
    run = ablate(replace(TINY, budget=replace(QUICK, workers=2)))
    first = [m.environment["ablation"] for m in run.measurements][:6]
    assert [a["step"] for a in first] == [DEFAULT, ALONE] * 3
    assert len({a["set"] for a in first}) == 3
    assert not any("memory did not allow" in n for m in run.measurements for n in m.notes)


def test_a_value_that_is_refused_or_breaks_the_numbers_is_a_row_with_its_reason(switches, tmp_path):
    switches("wrong", "refused")
    run = ablate(TINY)
    (found,) = ablations(run.measurements)
    outcomes = {str(s): s.measurement.outcome for s in found.settings}
    assert outcomes == {"wrong=on": Outcome.MISMATCH, "refused=on": Outcome.UNSUPPORTED}
    assert all(s.speedup is None and s.measurement.reason for s in found.settings)
    assert (found.together, found.worst, found.worst_to_best) == (None, None, None)
    kept(run, tmp_path)


def test_a_switch_that_changes_nothing_on_the_device_is_a_row_that_says_so_and_starts_no_worker(switches, monkeypatch):
    switches("fast", "slow")
    chosen = FRAMEWORKS["pytorch"].switches
    here = tuple(s._replace(devices=("cuda",)) if s.name == "fast" else s for s in chosen)
    monkeypatch.setitem(FRAMEWORKS, "pytorch", FRAMEWORKS["pytorch"]._replace(switches=here))
    (found,) = ablations(ablate(TINY).measurements)
    fast, slow = found.of(ALONE)
    assert (fast.measurement.outcome, slow.measurement.outcome) == (Outcome.UNSUPPORTED, Outcome.OK)
    assert fast.measurement.reason.startswith(
        "fast=on was asked for on cpu: this switch of pytorch changes what runs on"
    )
    assert (fast.measurement.rounds, "python" in fast.measurement.environment) == ((), False)
    assert found.together is None


def test_threads_are_tried_and_never_the_worst(switches, monkeypatch):
    switches("slow")
    monkeypatch.setattr(environment, "allowed_cpus", lambda: [0, 1])
    run = ablate(replace(TINY, threads=(2,)))
    (found,) = ablations(run.measurements)
    assert [str(s) for s in found.of(ALONE)] == ["slow=on", "threads=1"]
    assert [s.measurement.case.threads for s in found.of(ALONE)] == [2, 1]
    assert str(found.worst) == "slow=on"


def test_backends_take_the_export_of_the_first_framework(switches):
    switches("slow", ort=(fake_switches.OTHER,))
    run = ablate(replace(TINY, runners=("ort",), batches=(1, 2)))
    found = ablations(run.measurements)
    assert [(a.default.case.runner, a.default.case.batch) for a in found] == [
        ("native", 1), ("ort", 1), ("native", 2), ("ort", 2),
    ]  # fmt: skip
    assert found[1].default.case.artifact.framework == "pytorch"
    assert {str(s) for s in found[1].of(ALONE)} == {"level=basic", "level=none"}


def test_on_a_gpu_each_setting_is_profiled_after_its_last_round_and_shows_its_algorithms(switches, monkeypatch):
    switches(ort=(fake_switches.OTHER,))
    monkeypatch.setitem(BACKENDS, "ort", BACKENDS["ort"]._replace(where="tests.fake_switches:Telling"))
    measured = ablate(replace(TINY, runners=("ort",), device="cuda")).measurements
    rows = {dict(m.case.options).get("level", "all"): m for m in measured if m.case.runner == "ort"}
    assert {level: {name for name, _ in told(m).values()} for level, m in rows.items()} == {
        "all": {"gemm"}, "basic": {"winograd"}, "none": {"gemm"}
    }  # fmt: skip
    assert all([turn[:2] for turn in m.environment["profiled"]] == [(QUICK.rounds, 1)] for m in rows.values())
    on_cpu = ablate(replace(TINY, runners=("ort",))).measurements
    assert not any(m.profiles for m in on_cpu)


def test_a_file_has_backends_only(switches, convnet):
    switches(ort=(fake_switches.OTHER,))
    run = ablate(replace(TINY, model=str(convnet()), frameworks=None, runners=("ort",)))
    (found,) = ablations(run.measurements)
    assert (found.default.case.framework, found.default.outcome) == (None, Outcome.OK)


def test_an_export_that_fails_costs_the_backend_alone(switches, plugins, monkeypatch):
    switches("slow", ort=(fake_switches.OTHER,))
    monkeypatch.setattr("xframe.exports.export", _no_export)
    run = ablate(replace(TINY, runners=("ort",)))
    native, ort = ablations(run.measurements)
    assert native.default.outcome == Outcome.OK
    assert (ort.default.outcome, ort.settings) == (Outcome.FAILED, ())


def _no_export(*args):
    from xframe.errors import XframeError

    raise XframeError("no rule for this layer")


def test_a_backend_without_switches_is_refused_before_anything_is_loaded(switches):
    switches("slow")
    lines = []
    with pytest.raises(UsageError, match="--backend ort has no switches"):
        ablate(replace(TINY, runners=("ort",)), lines.append)
    assert lines == []


def test_an_interrupt_keeps_the_sets_that_were_finished(switches, monkeypatch):
    switches("fast", "slow")
    lines = []

    def stop(line):
        lines.append(line)
        if any("fast=on" in x and x.endswith("OK") for x in lines) and "timing" in line:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as e:
        ablate(TINY, stop)
    steps = [m.environment["ablation"]["step"] for m in e.value.run.measurements]
    assert steps[:3] == [DEFAULT, ALONE, ALONE]
    assert len(ablations(e.value.run.measurements)) == 1


def test_another_way_to_run_the_framework_is_a_setting_too(switches, monkeypatch):
    switches("fast", "slow")
    variant = Row("tests.fake_switches:Switched", (), "x", (), True, fake_switches.SWITCHES[:1], "pytorch")
    monkeypatch.setitem(FRAMEWORKS, "torch.compile", variant)
    (found,) = ablations(ablate(TINY).measurements)
    assert [str(s) for s in found.of(ALONE)] == ["fast=on", "slow=on", "framework=torch.compile"]
    assert found.of(ALONE)[2].measurement.case.framework == "torch.compile"
    assert str(found.together) == "fast=on"
    assert settings((), 1, ("torch.compile",)) == [(("framework", "torch.compile"),)]


def test_what_another_way_to_run_it_lacks_is_not_tried_with_it(switches, monkeypatch):
    switches("fast")
    variant = Row("tests.fake_switches:Faster", (), "x", (), True, (), "pytorch")
    monkeypatch.setitem(FRAMEWORKS, "torch.compile", variant)
    (found,) = ablations(ablate(TINY).measurements)
    assert [str(s) for s in found.settings] == ["fast=on", "framework=torch.compile", "framework=torch.compile"]
    assert found.together.measurement.case.framework == "torch.compile"
