"""Explaining: which rows are measured for it, what is asked about other lowerings, what becomes of each."""

import itertools
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.test_comparison import QUICK, rows
from xframe import environment, environments, launch, oracle, store
from xframe import explain as explaining
from xframe.analysis.counterfactuals import SAME, Change
from xframe.analysis.decomposition import TERMS
from xframe.comparison import Interrupted, Request, compare
from xframe.errors import Unavailable, UsageError
from xframe.explain import If, completed, explain, explanation, work
from xframe.registry import FRAMEWORKS, LOWERINGS, Row, defaults
from xframe.results import Level, Machine
from xframe.types import NARROW_BUDGET, ConvSite, Device, Outcome

TINY = Request("tiny", ("pytorch",), ("native",), threads=(1,), budget=replace(QUICK, rounds=1, profile=2))
MACHINE = Machine(1e12, (Level("memory", math.inf, 1e11),))
EXECUTOR = [("pytorch", "tvm", label, "OK") for label in (*defaults(LOWERINGS), "best")]
MS = 1e-3


@pytest.fixture
def known(monkeypatch):
    """The machine, which is not measured here, and however busy it is, the costs of ``best`` are kept."""
    monkeypatch.setattr(explaining.calibration, "machine", lambda threads, progress: MACHINE)
    monkeypatch.setattr(oracle, "FOREIGN", math.inf)


@pytest.fixture
def few(monkeypatch):
    """Less lowerings, and so less rows, each of which is a process."""
    for name in LOWERINGS.keys() - {"direct", "winograd"}:
        monkeypatch.delitem(LOWERINGS, name)


@pytest.fixture
def fakes(plugins, known, monkeypatch, tmp_path_factory):
    """Registers frameworks of ``fake_explained``; TVM is one whose lowerings have prices.

    They are the same in each test: the costs of ``best`` are measured in the first, and kept for the others.
    """
    monkeypatch.setenv("XFRAME_HOME", str(tmp_path_factory.getbasetemp() / "prices"))

    def use(**classes):
        plugins(tvm="Priced")
        for name, cls in classes.items():
            monkeypatch.setitem(FRAMEWORKS, name, Row(f"fake_explained:{cls}", (), name, FRAMEWORKS[name].aliases))

    return use


def test_rows_are_held_up_to_the_executor_on_one_export(fakes):
    """And a question is about the framework that it names, and about all otherwise."""
    fakes(pytorch="Native", tensorflow="Native")
    found = explain(replace(TINY, frameworks=("pytorch", "tf")), ["tf:conv1=gemm", "conv2=gemm"])
    assert rows(found.run)[:-3] == [
        ("pytorch", "native", "auto", "OK"), *EXECUTOR, ("tensorflow", "native", "auto", "OK"),
    ]  # fmt: skip
    assert [(m.case.framework, m.case.runner) for m in found.rows] == [("pytorch", "native"), ("tensorflow", "native")]
    assert [d.case.framework for d in found.decompositions] == ["pytorch", "tensorflow"]
    assert len(list(found.pairs())) == 1
    assert (found.run.machines, set(found.run.layers), found.notes) == ({1: MACHINE}, {1}, ())
    assert all(len(m.profiles) == 2 for m in found.run.measurements)
    asked = [(c.case.framework, c.asked) for c in found.counterfactuals if "best" not in c.asked]
    assert asked == [("pytorch", "conv2=gemm"), ("tensorflow", "conv1=gemm"), ("tensorflow", "conv2=gemm")]
    assert [m.case.plan.label for m in found.run.measurements[-3:]] == [
        "as pytorch", "as pytorch, conv2=gemm", "as tensorflow, conv1=gemm",
    ]  # fmt: skip  # both use the same lowerings


def test_terms_the_question_by_default_and_the_same_of_a_stored_run(fakes, few, tmp_path):
    fakes(pytorch="Native")
    found = explain(TINY)
    (d,) = found.decompositions
    assert [t.name for t in d.terms] == [t for t in TERMS if t != "convolutions"]
    assert sum(t.seconds for t in d.terms) == pytest.approx(d.wall.seconds)
    assert d["overhead"]["dispatch"].seconds == pytest.approx(1 * MS)
    # direct costs 3 ms there; 1.5 ms with transforms at conv1, and nothing is cheaper at conv2
    assert {p.name: p.seconds for p in d["algorithm"].parts} == {
        "conv1": pytest.approx(1.5 * MS),
        "conv2": pytest.approx(0, abs=1e-9),
    }
    (c,) = found.counterfactuals
    assert c.asked == "the best lowering everywhere"
    assert c.changes == (Change("conv1", "direct", "winograd"),)
    assert c.predicted.seconds == pytest.approx((1.5 - 3) * MS)
    assert c.replaced.seconds == pytest.approx((1.5 - 2) * MS)
    assert c.measured is not None  # the row of the forced lowering direct is the plan that pytorch uses
    assert c.outcome == Outcome.OK
    again = explanation(TINY, store.load(store.write(found.run, tmp_path)))
    assert [x.to_json() for x in again.decompositions] == [d.to_json()]


def test_other_lowerings_are_run_in_turn_with_those_in_use(fakes):
    """But one that is refused, which is told, and one that is in use."""
    fakes(pytorch="Native")
    lines = []
    found = explain(TINY, ["conv2=winograd", "conv1=winograd", "all=direct", "conv1-conv2=gemm"], lines.append)
    labels = ["as pytorch", "as pytorch, conv1=winograd", "as pytorch, conv1-conv2=gemm"]
    assert rows(found.run)[6:] == [("pytorch", "tvm", label, "OK") for label in labels]
    _, refused, one, same, two = found.counterfactuals
    assert one.predicted.seconds == pytest.approx((1.5 - 3) * MS)
    assert one.replaced.seconds == pytest.approx((1.5 - 2) * MS)
    assert two.predicted.seconds == pytest.approx((4 - 3) * 2 * MS)
    assert one.measured is not None
    assert two.measured is not None
    assert (one.outcome, two.outcome) == (Outcome.OK, Outcome.OK)
    assert (same.changes, same.outcome) == ((), Outcome.OK)
    assert (refused.outcome, refused.measured) == (Outcome.UNSUPPORTED, None)
    assert "winograd at conv2: " in refused.reason
    assert "stride" in refused.reason
    plans = [m.case.plan for m in found.run.measurements[6:]]
    assert [[low for _, low in p.lowerings] for p in plans] == [["direct"] * 2, ["winograd", "direct"], ["gemm"] * 2]
    assert "other lowerings: timing, round 1 of 1" in lines
    assert [d.case.runner for d in found.decompositions] == ["native"]


def test_a_failed_row_and_one_without_a_profile_cost_themselves_alone(fakes, few, plugins):
    fakes(pytorch="Native", tensorflow="Blind", jax="Native")
    plugins(jax="Missing")
    found = explain(replace(TINY, frameworks=("pytorch", "tensorflow", "jax")))
    assert [d.case.framework for d in found.decompositions] == ["pytorch"]
    assert [m.case.framework for m in found.unexplained()] == ["tensorflow", "jax"]


def test_frameworks_of_environments_of_their_own_are_explained_by_their_own_times(fakes, monkeypatch):
    fakes(caffe="Native", theano="Blind")
    variables = {"PYTHONPATH": str(Path(__file__).parent)}
    monkeypatch.setattr(launch.environments, "find", lambda name: environments.Built(sys.executable, variables))
    for name in ("caffe", "theano"):
        monkeypatch.setitem(FRAMEWORKS, name, FRAMEWORKS[name]._replace(environment="old"))
    request = replace(TINY, frameworks=("caffe", "theano"))
    found = explanation(request, compare(request))
    assert [m.outcome for m in found.rows] == [Outcome.OK] * 2
    (d,) = found.decompositions
    assert d.case.framework == "caffe"
    assert d["overhead"]["dispatch"].seconds == pytest.approx(1 * MS)
    assert [m.case.framework for m in found.unexplained()] == ["theano"]


def test_the_export_is_not_that_of_an_environment_which_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setenv("XFRAME_ENVIRONMENTS", str(tmp_path))
    for asked, exporter in (("caffe,pytorch", "pytorch"), ("tensorflow,caffe", "tensorflow"), ("cntk,caffe", "cntk")):
        full = completed(replace(TINY, model="alexnet", frameworks=tuple(asked.split(","))))
        assert [pair for pair in full.pairs if pair[1] == "tvm"] == [(exporter, "tvm")]


def test_a_machine_that_can_not_be_measured_leaves_the_floor_out(fakes, few, monkeypatch):
    """Of the executor's rows, too, which are explained where it is named."""

    def missing(threads, progress):
        progress("the roofs may be too low")
        raise Unavailable("TVM is not here")

    fakes(pytorch="Native")
    monkeypatch.setattr(explaining.calibration, "machine", missing)
    lines = []
    found = explain(replace(TINY, runners=("native", "tvm")), on_progress=lines.append)
    assert "the roofs may be too low" in lines
    assert found.notes == ("no floor: TVM is not here",)
    assert len(found.decompositions) == len(found.rows) == 4
    assert all(d["floor"].seconds == 0 for d in found.decompositions)
    assert found.run.machines == {}


def test_on_another_device_no_cpu_is_calibrated():
    found, notes = explaining._machines(replace(TINY, device="cuda:0"), lambda line: None)
    assert (found, notes) == ({}, ["no floor: what cuda:0 reaches at most is not measured with a run"])


def test_what_a_gpu_has_no_units_for_is_refused_before_plans_are_run_for_it(monkeypatch):
    site, full = ConvSite(1, 16, (9, 9), 16, (3, 3)), replace(TINY, device="cuda", error_budget=NARROW_BUDGET)

    def refused(arch):
        monkeypatch.setattr(environment, "gpu_device", lambda index: Device("gpu", "cuda", "GPU", arch, 1, index))
        return explaining._refusal("gemm_tf32", site, full)

    assert refused("sm_90") == ""
    assert "sm_70" in refused("sm_70")


def test_what_stands_for_an_unknown_algorithm_is_not_run_against_itself(fakes, few):
    fakes(pytorch="Vague")
    found = explain(TINY, ["conv1=direct", "conv1=winograd"])
    _, same, other = found.counterfactuals
    assert same.changes == (Change("conv1", None, "direct"),)
    assert (same.outcome, same.measured, same.reason) == (Outcome.OK, None, SAME)
    assert other.measured is not None
    assert len(found.run.measurements) == 4 + 2


@pytest.mark.parametrize(("when", "count"), [("timing, round 1 of 1", 4), ("other lowerings: timing, round 1 of 1", 6)])
def test_an_interrupt_keeps_the_rows_and_what_explains_them(fakes, few, when, count):
    fakes(pytorch="Native")

    def press(line):
        if line == when:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        explain(TINY, ["conv1=winograd"], press)
    run = caught.value.run
    assert len(run.measurements) == count
    assert (run.machines, list(run.layers)) == ({1: MACHINE}, [1])
    assert len(explanation(TINY, run).rows) == 1


def test_a_senseless_request_is_refused_before_anything_is_measured(plugins):
    plugins()
    lines = []
    for request, words in (
        (replace(TINY, frameworks=("pytroch",)), "did you mean pytorch"),
        (replace(TINY, threads=(0,)), "--threads 0"),
        (replace(TINY, model="x.onnx", frameworks=None), "has no native form"),
    ):
        with pytest.raises(UsageError, match=words):
            explain(request, (), lines.append)
    with pytest.raises(UsageError, match="there is no convolution 'conv9'; there are: conv1, conv2"):
        explain(TINY, ["conv9=fft"], lines.append)
    assert lines == []


def test_an_error_budget_is_the_executor_s(plugins):
    plugins()
    assert completed(replace(TINY, error_budget=1e-5)).resolved().error_budget == 1e-5


@pytest.fixture
def layers(plugins):
    plugins()
    return work(replace(TINY, batches=(1, 2)))


def key(layers, batch, name):
    return next(w.site.key for w in layers[batch] if w.name == name)


@pytest.mark.parametrize(
    ("text", "framework", "lowerings"),
    [
        ("conv1=fft", None, {"conv1": "fft"}),
        (" conv1 - conv2 = Im2col ", None, {"conv1": "gemm", "conv2": "gemm"}),
        ("torch:conv1=fft,conv2=direct", "pytorch", {"conv1": "fft", "conv2": "direct"}),
        ("all=winograd", None, {"conv1": "winograd", "conv2": "winograd"}),
        ("{key}=fft", None, {"conv2": "fft"}),
    ],
)
def test_questions_are_read(layers, text, framework, lowerings):
    made = If.parse(text.replace("{key}", key(layers, 1, "conv2")), layers, ("pytorch",))
    assert (made.framework, dict(made.lowerings)) == (framework, lowerings)
    assert set(made.at(layers[2]).values()) == set(lowerings.values())
    assert all(site.batch == 2 for site in made.at(layers[2]))


def test_equal_convolutions_have_one_lowering():
    """A plan names them by what they compute."""
    twins = work(Request("resnet50", ("pytorch",), ("native",), threads=(1,)))
    sites = {w.name: w.site for w in twins[1] if w.site is not None}
    one, other = next((a, b) for a, b in itertools.combinations(sites, 2) if sites[a] == sites[b])
    with pytest.raises(UsageError, match=f"two lowerings for {one} and {other}, which are equal convolutions"):
        If.parse(f"{one}=winograd,{other}=gemm", twins, ("pytorch",))
    made = If.parse(f"{one}=winograd,{other}=winograd", twins, ("pytorch",))
    assert made.at(twins[1]) == {sites[one]: "winograd"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("conv1", "give LAYERS=LOWERING"),
        ("=fft", "give LAYERS=LOWERING"),
        ("conv1=fast", "unknown lowering 'fast'"),
        ("conv2-conv1=fft", "no convolution 'conv2-conv1'"),
        ("fc=fft", "no convolution 'fc'; there are: conv1, conv2"),
        ("jax:conv1=fft", "jax is not explained, add it to --framework"),
        ("nothing:conv1=fft", "no convolution 'nothing:conv1'"),
        ("caffe:conv1=fft", "caffe is not explained, add it to --framework"),
        ("conv1=fft,all=gemm", "names two lowerings for conv1"),
    ],
)
def test_senseless_questions_are_refused(layers, text, words):
    with pytest.raises(UsageError, match=words):
        If.parse(text, layers, ("pytorch",))


def test_a_file_s_layers_are_its_nodes(convnet, plugins, known, few):
    plugins(ort="Honest", tvm="Priced")
    request = replace(TINY, model=str(convnet(batch=2)), frameworks=None, runners=("ort",))
    assert [w.name for w in work(request)[2] if w.site] == ["conv1", "conv2"]
    found = explain(request, ["conv1=winograd"])
    assert {(m.case.framework, m.case.batch) for m in found.run.measurements} == {(None, 2)}
    assert [c.asked for c in found.counterfactuals] == ["the best lowering everywhere", "conv1=winograd"]


def test_pytorch_and_the_executor_explained_for_real(plugins, known, few):
    """Nothing faked but the roofs of the machine; with two of the lowerings, at a batch at which a step takes long, so
    that there are less of them."""
    pytest.importorskip("torch")
    plugins()
    found = explain(replace(TINY, batches=(256,)), ["conv1=winograd"])
    native, *_ = found.run.measurements
    assert (native.outcome, native.reason) == (Outcome.OK, "")
    (d,) = found.decompositions
    assert sum(t.seconds for t in d.terms) == pytest.approx(d.wall.seconds)
    assert {k.kind for k in native.kernels} >= {"conv", "fc"}
    best, asked = found.counterfactuals
    assert asked.outcome == Outcome.OK, asked.reason
    assert asked.measured is not None
    assert best.asked == "the best lowering everywhere"
