"""From rows to verdicts: strictly on rows by a clock that is set by hand, and by structure on real ones."""

import contextlib
import os
import subprocess
import tempfile
from dataclasses import replace

import pytest

from tests.selftest import loud_lies, made_up
from xframe import environment, zoo
from xframe.analysis import floors
from xframe.analysis.decomposition import explained
from xframe.frameworks.pytorch import PyTorch
from xframe.measure import Budget
from xframe.registry import FRAMEWORKS, Row
from xframe.results import Measurement, Run
from xframe.selftest import attribution, verdict
from xframe.selftest.attribution import Setting, judged
from xframe.selftest.lies import LIES
from xframe.types import Case, Outcome, Plan

TIMED = [name for name, lie in LIES.items() if lie.timed]
QUICK = Budget(rounds=1, min_samples=2, min_seconds=0.01, max_seconds=0.1, profile=0)
MODEL = """
from xframe.types import ModelSpec, layer

SPEC = ModelSpec("small", (16, 64, 64), (
    layer("conv1", "conv", out=32, kernel=3, pads=1), layer("relu1", "relu"),
    layer("pool1", "maxpool", kernel=2, stride=2), layer("conv2", "conv", out=128, kernel=3, pads=1),
    layer("relu2", "relu"), layer("pool2", "maxpool", kernel=2, stride=2), layer("flatten", "flatten"),
    layer("fc", "fc", out=10),
))
"""


@pytest.fixture
def model(monkeypatch, tmp_path):
    """Some milliseconds in one thread."""
    (tmp_path / "small.py").write_text(MODEL)
    monkeypatch.setenv("XFRAME_MODELS", str(tmp_path))
    return "small"


def test_every_lie_that_takes_time_is_found_where_it_is(tmp_path):
    found = judged(made_up.run(tmp_path, TIMED), TIMED)
    assert list(found) == [*TIMED, "none"]
    assert {name: f.reason for name, f in found.items()} == dict.fromkeys(found, "")
    for name in TIMED:
        assert found[name].planted == pytest.approx(5e-4)
        assert found[name].seconds == pytest.approx(5e-4, rel=0.1)
    assert found["kernel"].lands == "convolutions, conv2"
    assert not any(tmp_path.iterdir())  # what was read is gone


@pytest.mark.parametrize(
    ("lie", "lands"),
    [
        ("sleep", "kernel"),
        ("spin", "kernel"),
        ("spin", "transpose"),
        ("kernel", "spin"),
        ("transpose", "allocation"),
        ("allocation", "spin"),
    ],
)
def test_a_lie_that_shows_elsewhere_is_a_miss(tmp_path, lie, lands):
    """The spin instead of the allocation is in the overhead too, in another part of it."""
    found = judged(made_up.run(tmp_path, [lie], lands=lands), [lie])
    assert not found[lie].ok
    assert found["none"].ok


@pytest.mark.parametrize("lie", TIMED)
def test_a_lie_of_another_size_than_it_clocked_is_a_miss(tmp_path, lie):
    found = judged(made_up.run(tmp_path, [lie], clocked=1e-3), [lie])
    assert "1.000 ms were planted and 0." in found[lie].reason


def test_a_row_without_a_profile_is_a_miss_with_its_reason(tmp_path):
    run = made_up.run(tmp_path, ["spin"])
    *others, lying = run.measurements
    lying = replace(lying, profiles=(), notes=("no profile: it crashed",))
    found = judged(replace(run, measurements=(*others, lying)), ["spin"])
    assert not found["spin"].ok
    assert "no profile: it crashed" in found["spin"].reason


def test_a_row_that_failed_is_a_miss_with_its_reason(tmp_path):
    run = made_up.run(tmp_path, ["spin"])
    *others, lying = run.measurements
    failed = replace(lying, outcome=Outcome.FAILED, reason="it crashed", profiles=(), environment={})
    found = judged(replace(run, measurements=(*others, failed)), ["spin"])
    assert (found["spin"].ok, found["spin"].reason) == (False, "FAILED: it crashed")
    assert "none" not in found  # nothing was planted that it could be held against


def test_without_the_honest_row_nothing_is_found(tmp_path):
    run = made_up.run(tmp_path, ["spin"])
    honest, *others = run.measurements
    broken = replace(honest, profiles=(), notes=("no profile: it crashed",))
    found = judged(replace(run, measurements=(broken, *others)), ["spin"])
    assert not found["spin"].ok
    assert "pytorch can't be explained" in found["spin"].reason


def test_planted_rows_leave_the_registry_as_it_was():
    kept = dict(FRAMEWORKS)
    with attribution.registered(FRAMEWORKS, {"jax": Row("x:Y", (), ""), "z": Row("x:Y", (), "")}):
        assert FRAMEWORKS["jax"].where == "x:Y"
        assert "z" in FRAMEWORKS
    assert list(kept.items()) == list(FRAMEWORKS.items())


def test_a_cached_output_costs_its_row_the_outcome_and_needs_no_honest_one(model, monkeypatch):
    asked, compare = [], attribution.compare
    monkeypatch.setattr(attribution, "compare", lambda request, *a: asked.append(request) or compare(request, *a))
    (found,) = attribution.attribution(Setting(model, threads=1, budget=QUICK), ("cached",), lambda line: None)
    assert (found.ok, found.found) == (True, "MISMATCH"), found.reason
    assert asked[0].frameworks == ("pytorch+cached",)


def recorded(name, network):
    """A row of a pass that was really profiled, the least disturbed of some. Its own time is all of its samples."""
    quickest = min(network.profile(12), key=lambda p: p.wall)
    times = (quickest.wall - quickest.cost,)
    case = Case("small", name, "native", Plan(), "cpu", 1, 1)
    return Measurement(case, Outcome.OK, rounds=(times,), profiles=(quickest,), plain=times)


def test_in_real_profiles_each_lie_is_in_its_term(model, tmp_path, monkeypatch):
    """By the decomposition's arithmetic alone: what is loud in a pass is in the terms of the same pass, however busy
    the machine is. An honest step is a quarter of each lie."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spec = replace(zoo.spec(model), input=(16, 32, 32))
    classes = {"honest": PyTorch, **{n: getattr(loud_lies, LIES[n].where.partition(":")[2]) for n in TIMED}}
    networks = {n: c().build(spec, zoo.weights(spec), "cpu", 1, 1) for n, c in classes.items()}
    for network in networks.values():
        network.bind([zoo.inputs((1, *spec.input), 0)])
    rows = tuple(recorded(*item) for item in networks.items())
    honest, *lying = explained(Run(1, "now", (), {}, rows, {}, {1: floors.layers(spec, 1)}))
    for name, one in zip(TIMED, lying, strict=True):
        terms = {t.name: t for t in one.difference(honest).terms}
        most = max(terms.values(), key=lambda t: t.seconds)
        assert most.name == LIES[name].lands, name
        if LIES[name].at_layer:
            assert max(most.parts, key=lambda t: t.seconds).name == "conv2"
        if LIES[name].part:
            assert most[LIES[name].part].seconds > 0.1 * most.seconds


def interrupted(processes):
    with attribution.load(2):
        assert [p.poll() for p in processes] == [None, None]
        raise KeyboardInterrupt


def test_a_load_ends_with_its_block(monkeypatch):
    started, popen = [], subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1])
    with pytest.raises(KeyboardInterrupt):
        interrupted(started)
    assert all(p.returncode is not None for p in started)


def test_a_load_of_other_processes_is_in_the_notes(plugins):
    plugins(pytorch="Resting")
    budget = Budget(rounds=1, min_samples=2, min_seconds=0.3, max_seconds=0.5, profile=0)
    (found,) = attribution.attribution(Setting("tiny", threads=1, budget=budget), ("load",), lambda line: None)
    assert found.ok, found.reason
    assert "other processes used" in found.found


def test_a_note_of_a_load_that_is_not_there_is_a_miss(plugins, monkeypatch):
    plugins(pytorch="Honest")
    monkeypatch.setattr(attribution, "load", lambda processes: contextlib.nullcontext())
    monkeypatch.setattr(environment, "busy_seconds", lambda: None)  # nobody can tell what the machine does
    (found,) = attribution.attribution(Setting("tiny", threads=1, budget=QUICK), ("load",), lambda line: None)
    assert (found.ok, found.reason) == (False, "no note tells of the load")


@pytest.mark.skipif("XFRAME_QUIET" not in os.environ, reason="judges times: set XFRAME_QUIET=1 on a quiet machine")
def test_in_pytorch_each_lie_is_the_largest_difference_and_a_cached_output_no_row(model, monkeypatch):
    """The small form, with lies so loud that a busy machine does not matter: their terms and parts are right."""
    names, differences, timed = [*TIMED, "cached"], {}, verdict.timed
    for name in TIMED:
        cls = LIES[name].where.partition(":")[2]
        monkeypatch.setitem(LIES, name, LIES[name]._replace(where=f"tests.selftest.loud_lies:{cls}"))

    def seen(name, lie, planted, difference, at):
        differences[name] = difference
        return timed(name, lie, planted, difference, at)

    monkeypatch.setattr(verdict, "timed", seen)
    budget = Budget(rounds=2, min_samples=5, min_seconds=0.05, max_seconds=0.3, profile=9)
    found = {f.lie: f for f in attribution.attribution(Setting(model, threads=1, budget=budget), names, print)}
    assert list(found) == ["none", *names]
    assert found["cached"].ok, found["cached"].reason
    for name in TIMED:
        terms = sorted(differences[name].terms, key=lambda t: t.seconds)
        assert terms[-1].name == LIES[name].lands, found[name].reason
    assert max(differences["kernel"]["convolutions"].parts, key=lambda t: t.seconds).name == "conv2"
    overhead = differences["allocation"]["overhead"]
    assert overhead["allocation"].seconds > 0.1 * overhead.seconds
