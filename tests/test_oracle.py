"""The plan ``best``: costs come from measured plans, the choice from costs, the row from running it."""

import json
import math
import re
import statistics
import time
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests import schedule_logs
from tests.lowering.networks import conv_data, network
from tests.test_comparison import QUICK, rows
from xframe import artifact, oracle, planning, store
from xframe.analysis.costs import EARLIER
from xframe.comparison import Request, compare
from xframe.jobs import Job
from xframe.types import ERROR_BUDGET, Artifact, Case, ConvSite, Device, Outcome, Plan

BEST = Request("pair", ("pytorch",), ("tvm",), ("best",), threads=(1,), baseline=False, budget=replace(QUICK, rounds=1))
#: Winograd and FFT refuse the second convolution.
PAIR = """
from xframe.types import ModelSpec, layer

SPEC = ModelSpec("pair", (3, 8, 8), (
    layer("conv1", "conv", out=4, kernel=3, pads=1), layer("relu1", "relu"),
    layer("conv2", "conv", out=4, kernel=1), layer("flatten", "flatten"), layer("fc", "fc", out=5),
))
"""


@pytest.fixture(autouse=True)
def pair(plugins, tmp_path, monkeypatch):
    """The network; and however busy this machine is, its costs are kept."""
    (tmp_path / "models" / "pair.py").write_text(PAIR)
    monkeypatch.setattr(oracle, "FOREIGN", math.inf)


def best(**changes):
    (m,) = compare(replace(BEST, **changes)).measurements
    return m


def chosen(m):
    return [m.case.plan[site] for _, site in m.case.artifact.conv_sites]


def kept(tmp_path):
    return sorted((tmp_path / "home" / "costs").glob("*.json"))


def test_each_convolution_takes_what_costs_least_and_the_prediction_is_told(plugins, tmp_path, monkeypatch):
    """And that costs are those of a disturbed machine, where they are: then they are not kept."""
    plugins(pytorch="Honest", tvm="Priced")
    monkeypatch.setattr(oracle, "FOREIGN", -1.0)
    m = best()
    assert any("while the costs of best were measured" in n for n in m.notes)
    assert kept(tmp_path) == []
    assert m.outcome == Outcome.OK
    assert chosen(m) == ["winograd", "direct"]
    assert m.case.plan.fallback == ()
    assert [s.requested for s in m.sites] == ["winograd", "direct"]
    parts = {k: v for k, v in m.prediction.items() if k not in ("total_s", "optimal")}
    assert m.prediction["optimal"]
    assert m.prediction["total_s"] == pytest.approx(sum(parts.values()))
    assert parts.pop("beyond_s") < 0  # a fake's step is shorter than what its profile says
    assert parts == {k: pytest.approx(v) for k, v in (("sites_s", 4e-3), ("conversions_s", 5e-4), ("other_s", 5e-3))}
    (note,) = (n for n in m.notes if n.startswith("best:"))
    assert note.startswith(f"best: predicted {m.prediction['total_s'] * 1e3:.2f} ms, measured ")


def test_time_for_opening_is_shared_with_the_plan_that_is_chosen(plugins, monkeypatch):
    """All of it is counted from when the comparison began, whose exports and reference come first."""
    plugins(pytorch="Honest", tvm="Priced")
    asked, real = [], oracle.measure

    def measured(jobs, budget, on_progress, since):
        asked.append((budget.opening, since))
        return real(jobs, budget, on_progress, since)

    before = time.monotonic()
    monkeypatch.setattr(oracle, "measure", measured)
    assert best(budget=replace(BEST.budget, opening=100.0)).outcome == Outcome.OK
    ((opening, since),) = asked
    assert opening == pytest.approx(60.0)
    assert before <= since <= time.monotonic()


@pytest.mark.parametrize("planted", ["SlowWinograd", "DearConversion"])
def test_a_planted_slow_lowering_or_conversion_is_not_chosen(plugins, planted):
    plugins(pytorch="Honest", tvm=planted)
    assert chosen(best()) == ["direct", "direct"]


def test_costs_are_measured_once_and_the_plan_can_be_saved_and_read_back(plugins, tmp_path):
    """For frameworks of the same convolutions, and in later runs until the file is damaged."""
    plugins(pytorch="Honest", jax="Honest", tvm="Priced")
    lines = []
    run = compare(replace(BEST, frameworks=("pytorch", "jax"), lowerings=("best", "gemm")), lines.append)
    assert rows(run) == [(f, "tvm", low, "OK") for f in ("pytorch", "jax") for low in ("best", "gemm")]
    measured = {x for x in lines if x.startswith("costs of best") and x.endswith(": open")}
    assert {x.split()[5] for x in measured} == {"gemm,", "direct,", "winograd,", "fft,"}
    assert all("pytorch" in x for x in measured)
    (path,) = kept(tmp_path)
    assert all(len(r["kernels_s"]) % oracle.PASSES == 0 for r in json.loads(path.read_text())["sites"])
    store.write(run, tmp_path / "out")
    (plan,) = (tmp_path / "out").glob("best-*.json")
    assert plan.name == "best-pair-b1-t1.json"
    assert best(lowerings=(str(plan),)).case.plan == run.measurements[0].case.plan

    def measures_again():
        lines.clear()
        (m, *_) = compare(BEST, lines.append).measurements
        assert chosen(m) == ["winograd", "direct"]
        again = any(x.startswith("costs of best") for x in lines)
        assert any(re.fullmatch(rf"{EARLIER} \d{{4}}-\d\d-\d\d \d\d:\d\d", n) for n in m.notes) != again
        return again

    assert not measures_again()
    path.write_text(path.read_text()[:-20])
    assert measures_again()
    assert kept(tmp_path) == [path]
    assert not measures_again()


def test_costs_are_those_of_tuned_kernels_and_the_best_plan_has_those_of_its_lowerings(plugins, tmp_path, monkeypatch):
    plugins(pytorch="Honest", tvm="Priced")
    monkeypatch.setenv("XFRAME_SCHEDULES", str(tmp_path / "logs"))
    (tmp_path / "logs").mkdir()
    first, second = [s for _, s in best().case.artifact.conv_sites]
    names = [
        f"{first.key} winograd F(4,3) NCHW bias+relu t1",
        f"{first.key} gemm im2col NCHW bias+relu t1",
        f"{second.key} direct - NHWC bias t1",
    ]
    for name in names:
        schedule_logs.put(tmp_path / "logs", schedule_logs.entry(name))
    lines = []
    (m,) = compare(BEST, lines.append).measurements
    assert any(x.startswith("costs of best") for x in lines)
    assert chosen(m) == ["winograd", "direct"]
    assert {t.task for t in m.case.plan.tuned} == {names[0], names[2]}
    plans = [json.loads(path.read_text())["of"]["plans"] for path in kept(tmp_path)]
    counts = [{p["label"]: len(p["tuned"]) for p in each} for each in plans]
    assert {"gemm": 1, "direct": 1, "winograd": 2, "fft": 1} in counts
    assert {"gemm": 0, "direct": 0, "winograd": 0, "fft": 0} in counts
    lines.clear()
    compare(BEST, lines.append)
    assert not any(x.startswith("costs of best") for x in lines)


@pytest.mark.parametrize(
    ("backend", "words", "keeps"),
    [("WinogradIsWrong", "MISMATCH: before timing", 1), ("WinogradCrashes", "FAILED: the worker process died", 0)],
)
def test_a_lowering_that_fails_is_left_out_with_a_note(plugins, tmp_path, backend, words, keeps):
    """A crash may have been chance: the costs without it are not kept."""
    plugins(pytorch="Honest", tvm=backend)
    m = best()
    assert m.outcome == Outcome.OK
    assert chosen(m) == ["direct", "direct"]
    assert any(n.startswith(f"winograd is left out of best: {words}") for n in m.notes)
    assert len(kept(tmp_path)) == keeps


def test_a_branching_network_in_tvm(tmp_path):
    """A sum and a concatenation, nothing faked: what was chosen is what ran, and costs least by what was kept."""
    names = ["a", "b", "c", "d"]
    sites = [ConvSite(1, n, (9, 9), 16, (3, 3), pads=(1, 1, 1, 1)) for n in (16, 16, 16, 32)]
    nodes = [
        helper.make_node("Conv", ["x", "wa"], ["a"], "a", pads=[1] * 4),
        helper.make_node("Conv", ["a", "wb"], ["b"], "b", pads=[1] * 4),
        helper.make_node("Add", ["a", "b"], ["s"]),
        helper.make_node("Conv", ["s", "wc"], ["c"], "c", pads=[1] * 4),
        helper.make_node("Concat", ["c", "s"], ["t"], axis=1),
        helper.make_node("Conv", ["t", "wd"], ["d"], "d", pads=[1] * 4),
    ]
    constants = {f"w{n}": conv_data(s, i)[1] for i, (n, s) in enumerate(zip(names, sites, strict=True))}
    onnx.save(network(nodes, {"x": (1, 16, 9, 9)}, {"d": (1, 16, 9, 9)}, constants), tmp_path / "net.onnx")
    assert artifact.conv_edges(artifact.load(tmp_path / "net.onnx")) == [(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)]
    m = best(model=str(tmp_path / "net.onnx"), frameworks=None)
    assert (m.outcome, m.reason) == (Outcome.OK, "")
    assert [s.selected for s in m.sites] == [m.case.plan[s] for s in sites]
    assert {k.site for k in m.kernels} == {*sites, None}
    assert "product" in {k.role for k in m.kernels}
    (path,) = kept(tmp_path)
    least: dict[str, float] = {}
    for r in json.loads(path.read_text())["sites"]:
        cost = statistics.median(r["kernels_s"]) + statistics.median(r["conversions_s"])
        least[r["site"]] = min(cost, least.get(r["site"], math.inf))
    assert set(least) == {s.key for s in sites}
    assert m.prediction["sites_s"] + m.prediction["conversions_s"] == pytest.approx(sum(least.values()))


def test_costs_are_those_of_one_device():
    """Behind the same processor another GPU may stand."""
    known = Artifact("a.onnx", "ab", "m", None, "1", 17, (), (), (("conv", ConvSite(1, 3, (8, 8), 4, (3, 3))),))
    job = Job(Case("m", None, "tvm", Plan("best"), "cuda", 1, 1, known), None, None, ((), ()), print)

    def facts(name, arch):
        gpu, logs = Device("gpu", "cuda", name, arch, 1), planning.Schedules(planning.NONE)
        return json.dumps(oracle.Oracle(gpu, "direct", QUICK, logs, print)._facts(job, []))

    assert len({facts(*gpu) for gpu in (("A", "sm_80"), ("B", "sm_80"), ("A", "sm_90"), ("A", "sm_80"))}) == 3


def test_nothing_left_says_why(plugins):
    plugins(pytorch="Honest", tvm="Unfaithful")
    m = best()
    assert m.outcome == Outcome.NOT_HONOURED
    assert "no lowering could be measured at n1c3h8w8" in m.reason
    assert "something else would have run" in m.reason


def test_the_plan_is_proved_like_any_other(plugins):
    plugins(pytorch="Honest", tvm="BestIsUnfaithful")
    m = best()
    assert (m.outcome, m.reason) == (Outcome.NOT_HONOURED, "something else would have run")
    assert m.prediction["total_s"] == pytest.approx(9.5e-3 + m.prediction["beyond_s"])


def test_a_network_without_convolutions_has_nothing_to_choose(plugins, tmp_path):
    plugins(tvm="Priced")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "dense",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")],
    )
    path = tmp_path / "dense.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    (m,) = compare(Request(str(path), runners=("tvm",), lowerings=("best",), budget=QUICK, threads=(1,))).measurements
    assert m.outcome == Outcome.UNSUPPORTED
    assert "has none" in m.reason


def test_every_lowering_refusing_a_convolution_is_told(plugins):
    plugins(pytorch="Honest", tvm="Priced")
    m = best(error_budget=1e-9)
    assert m.outcome == Outcome.UNSUPPORTED
    assert "every lowering refuses" in m.reason
    assert "error budget" in m.reason


def test_on_a_gpu_it_chooses_among_what_may_be_chosen():
    """Not opt-in lowerings, unless they are named, or the error budget lets the products of tensor cores in."""
    gpu, site = Device("gpu", "cuda", "GPU", "sm_90", 1), ConvSite(1, 16, (9, 9), 16, (3, 3), pads=(1, 1, 1, 1))

    def measured(named=(), budget=ERROR_BUDGET):
        one = oracle.Oracle(gpu, "direct", QUICK, planning.Schedules(planning.NONE), print, named)
        return [plan.label for plan in one._forced([site], Plan("best", error_budget=budget))]

    usual = ["gemm", "direct", "winograd", "fft"]
    assert measured() == usual
    assert measured(("best", "gemm_explicit")) == [*usual, "gemm_explicit"]
    assert measured(budget=0.02) == [*usual, "gemm_tf32", "gemm_fp16"]
