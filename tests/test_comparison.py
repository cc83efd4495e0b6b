"""Comparing: every row that was asked for is there, in order, with a verdict or a reason."""

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import xframe
from tests import schedule_logs
from xframe import artifact, environment, store
from xframe.comparison import Interrupted, Request, compare
from xframe.errors import ModelError, UsageError
from xframe.measure import Budget
from xframe.registry import FRAMEWORKS, LOWERINGS, defaults
from xframe.subject import Subject
from xframe.types import ConvSite, Outcome, Plan

QUICK = Budget(rounds=2, min_samples=3, min_seconds=0.0, max_seconds=0.05, open_limit=120, run_limit=60)
TINY = Request("tiny", ("pytorch",), ("native", "tvm"), ("auto",), budget=QUICK, threads=(1,))


def rows(run):
    """(framework, runner, lowering, outcome) of each measurement."""
    flat = [store.row(m) for m in run.measurements]
    return [(r["framework"], r["backend"], r["lowering"], r["outcome"]) for r in flat]


def test_the_package_shows_the_library_calls(plugins):
    plugins(pytorch="Honest")
    asked = xframe.Request("tiny", ("pytorch",), ("native",), budget=QUICK, threads=(1,))
    for _ in range(2):  # a submodule of the same name would take its place after the first use
        assert rows(xframe.compare(asked)) == [("pytorch", "native", "auto", "OK")]


def test_defaults_are_all_frameworks_and_all_lowerings_with_a_fallback():
    asked = Request("alexnet").resolved()
    assert asked.frameworks == ("pytorch", "tensorflow", "jax")
    assert asked.runners == ("native", "ort", "tvm")
    assert asked.lowerings == ("auto", *defaults(LOWERINGS))
    assert asked.fallback == "direct"
    assert asked.threads == (len(environment.allowed_cpus()),)


def test_all_frameworks_are_those_that_are_no_other_way_to_run_one():
    every = Request("alexnet", ("all",)).resolved().frameworks
    assert {*every} == {name for name, row in FRAMEWORKS.items() if not row.variant_of}
    assert {"pytorch", "tensorflow", "jax", "caffe", "cntk", "theano"} <= {*every}
    assert "torch.compile" not in every
    named = Request("alexnet", ("torch.compile", "Caffe", "ALL")).resolved().frameworks
    assert named == ("torch.compile", "caffe", *(f for f in every if f != "caffe"))
    assert set(named) == set(FRAMEWORKS)


def test_a_framework_whose_environment_is_not_built_says_what_to_run(plugins, tmp_path, monkeypatch):
    """It costs its own rows alone."""
    plugins(pytorch="Honest", tvm="Honest")
    monkeypatch.setenv("XFRAME_ENVIRONMENTS", str(tmp_path))
    run = compare(replace(TINY, frameworks=("theano", "pytorch")))
    assert rows(run) == [
        ("theano", "native", "auto", "UNAVAILABLE"),
        ("theano", "tvm", "auto", "UNAVAILABLE"),
        ("pytorch", "native", "auto", "OK"),
        ("pytorch", "tvm", "auto", "OK"),
    ]
    assert all(m.reason.endswith("run xframe env create theano") for m in run.measurements[:2])


def test_an_explicit_lowering_implies_no_fallback():
    assert Request("alexnet", lowerings=("winograd",)).resolved().fallback is None


def test_aliases_resolve_and_duplicates_collapse():
    asked = Request("alexnet", ("torch", "pytorch", "TF"), ("onnxruntime", "tvm", "ort"), ("im2col", "gemm"), "Direct")
    asked = replace(asked, batches=(2, 2, 1)).resolved()
    assert asked.frameworks == ("pytorch", "tensorflow")
    assert asked.runners == ("native", "ort", "tvm")  # the native row is the baseline
    assert asked.lowerings == ("gemm",)
    assert (asked.fallback, asked.batches) == ("direct", (2, 1))
    assert replace(asked, runners=("tvm",), baseline=False).resolved().runners == ("tvm",)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batches": (0,)}, "--batch 0 makes no sense"),
        ({"threads": (1, -2)}, "--threads -2 makes no sense"),
        ({"seed": -1}, "--seed -1"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
        ({"frameworks": ("pytroch",)}, "did you mean pytorch"),
        ({"runners": ("tvn",)}, "did you mean tvm"),
        ({"runners": ("natve",)}, "did you mean native"),
        ({"lowerings": ("winogard",)}, "did you mean winograd"),
        ({"fallback": "dirct"}, "did you mean direct"),
        ({"fallback": "best"}, "unknown lowering 'best'"),
        ({"fallback": "auto"}, "unknown lowering 'auto'"),
        ({"fallback": "plan.json"}, "unknown lowering 'plan.json'"),
        ({"fallback": "implicit_gemm"}, "unknown lowering 'implicit_gemm'"),
        ({"runners": ("ort",), "lowerings": ("fft",)}, "--lowering needs --backend .*tvm"),
        ({"schedules": "absent"}, "there is no such folder; give one of schedule logs"),
        ({"runners": ("ort",), "lowerings": ("auto",), "schedules": "."}, "--schedules needs --backend tvm"),
        ({"model": "x.onnx", "frameworks": ("jax",)}, "is a file: leave it out"),
        ({"model": "x.onnx", "runners": ("native",)}, "has no native form"),
    ],
)
def test_a_senseless_request_is_refused_before_anything_is_loaded(changes, words):
    with pytest.raises(UsageError, match=words):
        replace(Request("alexnet"), **changes).resolved()


def test_a_target_that_can_not_be_used_stops_all_before_anything_is_run(plugins):
    plugins(pytorch="Wrong", tvm="Wrong")
    lines = []
    with pytest.raises(UsageError, match="--target 'cuda' is not the target of a CPU"):
        compare(replace(TINY, target="cuda"), lines.append)
    assert lines == ["loading tiny"]


def test_budget_and_target_are_in_the_plan_of_every_row_that_has_one(plugins):
    plugins(pytorch="Honest", tvm="Honest")
    run = compare(replace(TINY, lowerings=("auto", "fft", "direct"), error_budget=1e-5, target="llvm"))
    plans = {(m.case.runner, m.case.plan.label): m.case.plan for m in run.measurements}
    found = {row: (plan.error_budget, plan.target) for row, plan in plans.items()}
    assert found.pop(("native", "auto"))[1] is None
    assert found.pop(("tvm", "auto"))[1] == "llvm"
    assert set(found.values()) == {(1e-5, "llvm")}
    assert run.environment["request"]["resolved"]["target"] == "llvm"


def test_forced_plans_take_tuned_kernels_and_refused_logs_are_told(plugins, tmp_path, monkeypatch):
    plugins(pytorch="Honest", tvm="Honest")
    monkeypatch.setenv("XFRAME_SCHEDULES", str(tmp_path / "logs"))
    asked = replace(TINY, runners=("tvm",), lowerings=("auto", "gemm", "direct"), baseline=False)
    site = ConvSite(1, 3, (8, 8), 4, (3, 3), pads=(1, 1, 1, 1))
    schedule_logs.put(tmp_path / "logs", schedule_logs.entry(f"{site.key} gemm im2col NCHW bias+relu t1"))
    broken = schedule_logs.put(tmp_path / "logs", schedule_logs.entry(f"{site.key} direct - NCHW bias+relu t1"))
    (broken / "database_workload.json").unlink()

    def rows(**changes):
        """Of each row, how many records it has, and what it tells of logs."""
        found = compare(replace(asked, **changes)).measurements
        told = [[n for n in m.notes if "schedule log" in n] for m in found]
        return [(len(m.case.plan.tuned), notes) for m, notes in zip(found, told, strict=True)]

    auto, gemm, (direct, (note,)) = rows()
    assert (auto, gemm, direct) == ((0, []), (1, []), 0)
    assert "direct is refused: database_workload.json is missing" in note
    assert rows(schedules="none", lowerings=("gemm", "direct")) == [(0, [])] * 2
    targeted = rows(target="llvm")
    assert targeted[0] == (0, [])
    assert [(count, len(notes)) for count, notes in targeted[1:]] == [(0, 1)] * 2


def test_tuned_kernels_run_and_the_row_says_from_which_log(plugins, convnet, tmp_path):
    """Nothing faked: what is recorded is compiled, verified and timed."""
    from xframe.lowering import pipeline
    from xframe.lowering.target import Cpu

    path, cpu = convnet(), Cpu.host(1)
    sites = [s for _, s in artifact.load(path).conv_sites]
    plan = Plan("gemm", tuple((s, "gemm") for s in sites))
    first, second = pipeline.tasks(onnx.load(path), plan, cpu)
    stale = replace(schedule_logs.real(second, cpu), workload="0" * 16)
    schedule_logs.put(tmp_path / "logs", schedule_logs.real(first, cpu), stale, target=cpu.text)
    asked = Request(str(path), runners=("tvm",), lowerings=("auto", "gemm"), budget=QUICK, threads=(1,))
    auto, forced = compare(replace(asked, schedules=str(tmp_path / "logs"))).measurements
    assert (auto.outcome, store.row(auto)["schedules"]) == (Outcome.OK, [])
    assert (forced.outcome, forced.reason) == (Outcome.OK, "")
    log = "logs/device/net-b1/gemm"
    told = [(s["site"], s["name"], s["schedule"]) for s in store.row(forced)["schedules"]]
    assert told[0] == (sites[0].key, "conv1", f"tuned, {log}")
    assert told[1][:2] == (sites[1].key, "conv2")
    assert told[1][2].startswith(f"template, as the record in {log} is refused: it is of another definition")


def test_pairs_are_all_that_is_run_and_exported(plugins):
    plugins(pytorch="Honest", tensorflow="ExportFails", ort="Honest")
    lines = []
    asked = Request("tiny", ("pytorch", "tensorflow"), ("native", "ort"), budget=QUICK, threads=(1,))
    run = compare(replace(asked, pairs=(("tensorflow", "native"), ("pytorch", "ort"))), lines.append)
    assert rows(run) == [("pytorch", "ort", "auto", "OK"), ("tensorflow", "native", "auto", "OK")]
    assert "tensorflow: export, batch 1" not in lines
    assert "pytorch: export, batch 1" in lines


def test_rows_come_in_the_order_asked_whatever_became_of_them(plugins):
    plugins(pytorch="Wrong", tensorflow="ExportFails", jax="Missing", ort="Honest", tvm="Honest")
    lines = []
    asked = Request("tiny", lowerings=("auto", "winograd", "direct"), budget=QUICK, batches=(2,), threads=(1,))
    run = compare(asked, lines.append, ["xframe", "compare"])
    expected = [
        ("pytorch", "native", "auto", "MISMATCH"),
        ("pytorch", "ort", "auto", "OK"),
        ("pytorch", "tvm", "auto", "OK"),
        ("pytorch", "tvm", "winograd", "UNSUPPORTED"),
        ("pytorch", "tvm", "direct", "OK"),
        ("tensorflow", "native", "auto", "OK"),
        *(("tensorflow", "ort" if i == 0 else "tvm", low, "FAILED")
          for i, low in enumerate(("auto", "auto", "winograd", "direct"))),
        ("jax", "native", "auto", "UNAVAILABLE"),
        *(("jax", "ort" if i == 0 else "tvm", low, "UNAVAILABLE")
          for i, low in enumerate(("auto", "auto", "winograd", "direct"))),
    ]  # fmt: skip
    assert rows(run) == expected
    assert {m.case.batch for m in run.measurements} == {2}
    reasons = {(m.case.framework, m.case.runner, m.outcome): m.reason for m in run.measurements}
    assert "--fallback" in reasons["pytorch", "tvm", Outcome.UNSUPPORTED]
    assert "stride 3x3" in reasons["pytorch", "tvm", Outcome.UNSUPPORTED]
    assert "no export of tensorflow: ValueError: no rule" in reasons["tensorflow", "ort", Outcome.FAILED]
    assert "pip install 'xframe-eval[jax]'" in reasons["jax", "tvm", Outcome.UNAVAILABLE]
    assert "times the bound" in reasons["pytorch", "native", Outcome.MISMATCH]
    assert any("export, batch 2" in line for line in lines)
    assert lines.count("timing, round 1 of 2") == 1
    assert run.command == ["xframe", "compare"]
    assert run.environment["request"]["resolved"]["fallback"] is None


def test_a_fallback_is_used_and_told(plugins):
    plugins(pytorch="Honest", tvm="Honest")
    run = compare(replace(TINY, lowerings=("winograd",), fallback="gemm"))
    assert rows(run)[1] == ("pytorch", "tvm", "winograd", "OK")
    plan = run.measurements[1].case.plan
    assert sorted(low for _, low in plan.lowerings) == ["gemm", "winograd"]
    assert "gemm, because winograd refuses" in plan.fallback[0][1]
    assert {s.requested for s in run.measurements[1].sites} == {"gemm", "winograd"}


def test_a_plan_file_is_a_lowering_and_one_for_other_sites_fails_its_row(plugins, tmp_path, convnet):
    plugins(pytorch="Honest", tvm="Honest")
    sites = [s for _, s in artifact.load(convnet()).conv_sites]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"label": "mine", "lowerings": {s.key: "direct" for s in sites}}))
    run = compare(replace(TINY, model=str(convnet()), frameworks=None, lowerings=(str(path),)))
    assert rows(run) == [(None, "tvm", "mine", "OK")]
    run = compare(replace(TINY, lowerings=(str(path),)))
    assert run.measurements[1].outcome == Outcome.FAILED
    assert "names no lowering for" in run.measurements[1].reason
    with pytest.raises(UsageError, match=r"can't read the plan .*absent.json"):
        compare(replace(TINY, lowerings=("absent.json",)))


def test_a_file_has_its_own_batch_and_no_framework(plugins, convnet):
    plugins(ort="Honest", tvm="Honest")
    asked = Request(str(convnet(batch=3)), lowerings=("auto", "gemm"), budget=QUICK, threads=(1,))
    run = compare(asked)
    assert rows(run) == [(None, "ort", "auto", "OK"), (None, "tvm", "auto", "OK"), (None, "tvm", "gemm", "OK")]
    assert {m.case.batch for m in run.measurements} == {3}
    assert rows(compare(replace(asked, batches=(3,), lowerings=("auto",))))[0][3] == "OK"
    with pytest.raises(UsageError, match=r"net\.onnx is fixed at batch 3"):
        compare(replace(asked, batches=(1, 3)))


def test_a_channels_last_file_is_fed_and_judged_in_its_own_layout(plugins, tmp_path):
    """Its first output is an image, so that both the feeds and the outputs have to be turned."""
    plugins(ort="Honest")
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["t", "w"], ["c"], "conv"),
        helper.make_node("Transpose", ["c"], ["y"], perm=[0, 2, 3, 1]),
    ]
    graph = helper.make_graph(
        nodes,
        "nhwc",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 7, 9, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5, 7, 4])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "nhwc.onnx"
    artifact.save(model, path, "nhwc", "tensorflow", "1", "NHWC")
    feeds = Subject.of(str(path)).feeds(1, 0)
    assert [x.shape for (x,) in feeds] == [(1, 3, 7, 9)] * 2
    assert not np.array_equal(*[x for (x,) in feeds])
    asked = Request(str(path), runners=("ort",), budget=QUICK, threads=(1,))
    (m,) = compare(asked).measurements
    assert m.outcome == Outcome.OK
    assert m.error_ratio <= 1
    plugins(ort="Wrong")
    assert compare(asked).measurements[0].outcome == Outcome.MISMATCH


def test_outputs_may_ignore_the_inputs_only_where_the_reference_does(plugins, tmp_path):
    plugins(ort="Honest")
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "zero"], ["z"]), helper.make_node("Add", ["z", "one"], ["y"])],
        "constant",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(np.float32([v]), n) for n, v in (("zero", 0), ("one", 1))],
    )
    path = tmp_path / "constant.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    subject = Subject.of(str(path))
    assert subject.judge(subject.feeds(1, 0))[1] is False
    run = compare(Request(str(path), runners=("ort",), budget=QUICK, threads=(1,)))
    assert run.measurements[0].outcome == Outcome.OK


def test_an_operator_the_reference_lacks_ends_the_run(convnet):
    path = convnet(extra=[helper.make_node("Twist", ["c2"], ["t"], "twist", domain="nobody")])
    with pytest.raises(ModelError, match=r"Twist|twist"):
        compare(Request(str(path), runners=("ort",), budget=QUICK))


def test_an_interrupt_keeps_what_was_measured(plugins):
    plugins(pytorch="Honest", tensorflow="Honest", ort="Honest")

    def press(line):
        if line == "timing, round 2 of 2":
            raise KeyboardInterrupt

    asked = replace(TINY, frameworks=("pytorch", "tensorflow"), runners=("ort",), batches=(1, 2), lowerings=None)
    with pytest.raises(Interrupted) as caught:
        compare(asked, press)
    run = caught.value.run
    assert [(m.case.batch, m.case.framework, m.outcome) for m in run.measurements] == [
        (batch, framework, Outcome.OK if batch == 1 else Outcome.FAILED)
        for batch in (1, 2) for framework in ("pytorch", "pytorch", "tensorflow", "tensorflow")
    ]  # fmt: skip
    assert all("interrupted after 1 of 2 rounds" in " ".join(m.notes) for m in run.measurements[:4])
    assert {m.reason for m in run.measurements[4:]} == {"interrupted before it was measured"}


def test_an_interrupt_in_an_export_leaves_rows_too(plugins):
    plugins(pytorch="Honest", tvm="Honest")

    def press(line):
        if "export" in line:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        compare(TINY, press)
    assert [r[3] for r in rows(caught.value.run)] == ["FAILED", "FAILED"]
