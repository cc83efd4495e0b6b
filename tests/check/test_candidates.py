"""Subjects executed by backends, right and wrong ones: who changes the result, at which level, and where."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from xframe.check import candidates, emit, engine
from xframe.check.engine import Engines
from xframe.check.subjects import open_subject
from xframe.equivalence.reference import Reference
from xframe.equivalence.result import State
from xframe.errors import Unavailable, Unsupported, UsageError, WorkerDied
from xframe.registry import BACKENDS, Row
from xframe.worker.host import Worker

SHAPE = (1, 3, 8, 8)
FEEDS = [[np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)] for seed in (0, 1)]


def network(path, kind=TensorProto.FLOAT, batch=1):
    """conv c1, relu r1, max pooling p1, conv c2, y: their sum over the pixels."""
    rng = np.random.default_rng(0)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    weights = {"w1": (4, 3, 3, 3), "b1": (4,), "w2": (5, 4, 3, 3), "b2": (5,)}
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1] * 4),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("MaxPool", ["r1"], ["p1"], "pool1", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p1", "w2", "b2"], ["c2"], "conv2"),
        helper.make_node("GlobalAveragePool", ["c2"], ["y"], "mean"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, [batch, *SHAPE[1:]])],
        [helper.make_tensor_value_info("y", kind, [batch, 5, 1, 1])],
        [numpy_helper.from_array(rng.standard_normal(s).astype(dtype), n) for n, s in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture
def opened(tmp_path):
    return open_subject(str(network(tmp_path / "net.onnx")), "net", tmp_path)


@pytest.fixture
def fake(monkeypatch):
    """Puts a class of fake_backends in the place of ONNX Runtime."""
    here = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", str(here))

    def use(name):
        monkeypatch.setitem(BACKENDS, "ort", Row(f"fake_backends:{name}", (), "ort"))

    return use


@pytest.fixture
def one_level(monkeypatch):
    """The other levels of ONNX Runtime are not tried: a process each."""
    monkeypatch.setattr(candidates, "_levels", lambda *_: "")


def rows(opened, *runners, first=None, **more):
    own = [Reference(opened.graph).evaluate(feed) for feed in FEEDS]
    return candidates.rows(opened, runners, FEEDS, own, first, open_limit=120, run_limit=60, **more)


def test_every_level_of_onnx_runtime_is_right(opened):
    found = rows(opened, "ort", "ort all", "ort:disabled", "ort:basic", "ort:extended")
    assert [r.runner for r in found] == ["ort all", "ort disabled", "ort basic", "ort extended"]
    assert {r.state for r in found} == {State.EQUIVALENT}
    assert all(0 < r.own.ratio < 1 and r.first is None and not r.blamed for r in found)


def test_tvm_is_right_under_a_forced_lowering_and_judged_by_its_rounding(opened, tmp_path, monkeypatch):
    pytest.importorskip("tvm_ffi")
    monkeypatch.setenv("XFRAME_HOME", str(tmp_path / "home"))
    nodes = opened.graph.nodes[:2]  # one convolution: each takes seconds to compile
    emit.save(replace(opened.graph, nodes=nodes, outputs=("r1",)), tmp_path / "one.onnx")
    (row,) = rows(open_subject(str(tmp_path / "one.onnx"), "one", tmp_path), "tvm:winograd")
    assert (row.runner, row.state) == ("tvm winograd", State.EQUIVALENT), row.reason
    assert 0 < row.own.ratio < 1


def test_outputs_come_as_the_file_orders_them(opened):
    outputs = candidates.execute(opened, "ort:basic", FEEDS)
    assert [[y.shape for y in one] for one in outputs] == [[(1, 5, 1, 1)]] * 2
    assert not np.array_equal(outputs[0][0], outputs[1][0])


def test_a_wrong_operator_is_found_and_no_optimisation_blamed(opened, fake):
    fake("WrongPool")
    (row,) = rows(opened, "ort")
    assert row.state is State.DIFFERENT
    assert row.blamed == "pool1 (MaxPool)"
    assert "wrong at every level, with optimisations disabled too" in row.reason
    assert [(r.a, r.ok) for r in row.layers][:4] == [
        ("conv1", True), ("relu1", True), ("pool1", False), ("conv2", False)
    ]  # fmt: skip
    assert row.own.ratio > 1


def test_the_level_that_changes_the_result_is_named(opened, fake):
    fake("WrongFromExtended")
    right, wrong = rows(opened, "ort:basic", "ort:all")
    assert (right.state, wrong.state) == (State.EQUIVALENT, State.DIFFERENT)
    assert "right with optimisations disabled and basic, wrong from extended on" in wrong.reason


def test_a_fusion_that_vanishes_when_results_are_kept_is_named(opened, fake, one_level):
    fake("WrongFusion")
    (row,) = rows(opened, "ort")
    assert row.state is State.DIFFERENT
    assert row.blamed == "a fusion of conv1 (Conv) and relu1 (Relu)"
    assert "vanishes when intermediate results are kept" in row.reason
    assert all(layer.ok for layer in row.layers)


def test_a_backend_without_several_outputs_is_bisected(opened, fake, one_level):
    fake("OneOutput")
    (row,) = rows(opened, "ort")
    assert row.blamed == "pool1 (MaxPool)"
    assert "networks that end before pool1 are right" in row.reason


def test_not_a_number_never_passes(opened, fake, one_level):
    fake("NaN")
    (row,) = rows(opened, "ort")
    assert row.state is State.DIFFERENT
    assert "not finite" in row.reason
    assert row.blamed == "pool1 (MaxPool)"


@pytest.mark.parametrize(
    ("name", "words", "error"),
    [
        ("Refuses", "unsupported: no max pooling here", Unsupported),
        ("Crash", "SIGABRT", WorkerDied),
        ("Missing", "unavailable: .*pip install", Unavailable),
    ],
)
def test_what_does_not_run_is_unchecked_with_its_reason(opened, fake, monkeypatch, name, words, error):
    fake(name)
    if name == "Missing":
        monkeypatch.setitem(BACKENDS, "ort", Row("nowhere:Nothing", ("no_such_module",), "ort"))
    (row,) = rows(opened, "ort")
    assert row.state is State.UNCHECKED
    assert re.search(words, row.reason), row.reason
    assert row.own is None
    with pytest.raises(error):
        candidates.execute(opened, "ort", FEEDS)


def test_what_hangs_is_stopped_and_unchecked(opened, fake):
    fake("Hang")
    own = [Reference(opened.graph).evaluate(feed) for feed in FEEDS]
    (row,) = candidates.rows(opened, ["ort"], FEEDS, own, open_limit=60, run_limit=1)
    assert row.state is State.UNCHECKED
    assert "did not finish within 1 s" in row.reason


def test_kept_engines_start_one_process_for_several_models(opened, fake, monkeypatch):
    started = []
    monkeypatch.setattr(engine, "Worker", lambda *args: started.append(Worker(*args)) or started[-1])
    fake("Honest")
    with Engines(open_limit=120, run_limit=60) as engines:
        for _ in range(2):
            (row,) = rows(opened, "ort", engines=engines)
            assert row.state is State.EQUIVALENT
        assert len(started) == 1
        assert not started[0].dead
    assert started[0].dead


def test_one_that_fails_costs_no_other_its_row(opened, fake, monkeypatch):
    fake("Fails")
    monkeypatch.setitem(BACKENDS, "openvino", Row("fake_backends:Honest", (), "openvino"))
    bad, good = rows(opened, "ort", "openvino")
    assert (bad.state, good.state) == (State.UNCHECKED, State.EQUIVALENT)
    assert (good.runner, good.reason) == ("openvino", "")


def test_right_for_its_own_graph_but_not_what_the_first_computes(opened, fake):
    fake("Honest")
    own = [Reference(opened.graph).evaluate(feed) for feed in FEEDS]
    moved = [[replace(j, value=j.value + 0.1) for j in exact] for exact in own]
    (row,) = rows(opened, "ort", first=moved, first_name="original")
    assert row.state is State.DIFFERENT
    assert row.reason.startswith("right for its own graph, but not what original computes")
    assert row.own.ratio < 1 < row.first.ratio
    assert not row.blamed
    (row,) = rows(opened, "ort", first=own)
    assert (row.state, row.reason) == (State.EQUIVALENT, "")


class Doubles:
    """A live model, of one's own making."""

    kind, notes = "a function", ()

    def __init__(self, run):
        self.run = run


def test_native_runs_in_this_process(opened):
    honest = replace(opened, make_live=lambda: Doubles(lambda feeds: [j.value for j in exact(opened, feeds)]))
    (row,) = rows(honest, "native")
    assert (row.runner, row.state) == ("native", State.EQUIVALENT)

    def broken(feeds):
        raise ValueError("a layer is missing")

    (row,) = rows(replace(opened, make_live=lambda: Doubles(broken)), "native")
    assert row.state is State.UNCHECKED
    assert "ValueError: a layer is missing" in row.reason
    assert rows(opened, "native") == []


def exact(opened, feeds):
    return Reference(opened.graph).evaluate([np.asarray(x) for x in feeds])


def test_a_float16_file_runs_as_it_is_and_is_judged_as_such(tmp_path):
    path = network(tmp_path / "half.onnx", TensorProto.FLOAT16)
    half = open_subject(str(path), "half", tmp_path)
    (row,) = rows(half, "ort")
    assert row.state is State.EQUIVALENT, row.reason
    assert "computes in float16" in row.reason
    (outputs, _) = candidates.execute(half, "ort", FEEDS)
    assert outputs[0].dtype == np.float16


def test_a_file_of_free_sizes_runs_with_those_of_the_feeds(tmp_path, fake, monkeypatch):
    free = open_subject(str(network(tmp_path / "free.onnx", batch="N")), "free", tmp_path)
    (row,) = rows(free, "ort")
    assert (row.state, row.reason) == (State.EQUIVALENT, "")
    fake("Honest")
    monkeypatch.setitem(BACKENDS, "openvino", BACKENDS["ort"])
    (row,) = rows(free, "openvino")
    assert (row.state, row.reason) == (State.EQUIVALENT, "run as a float32 file of fixed sizes")


@pytest.mark.parametrize("name", ["ort:most", "openvino:fast", "tvm:magic", "nobody", "native:cpu"])
def test_unknown_runners_are_refused(opened, name):
    with pytest.raises(UsageError):
        rows(opened, name)


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        (["disabled"], ["basic", "extended", "all"], "right with optimisations disabled, wrong from basic on"),
        (
            ["disabled", "basic", "extended"],
            ["all"],
            "right with optimisations disabled, basic and extended, wrong at all",
        ),
        (["disabled", "all"], ["basic"], "right with optimisations disabled and all, wrong with basic"),
        (["disabled"], [], ""),
    ],
)
def test_levels_in_words(right, wrong, words):
    assert candidates.levels_in_words(right, wrong) == words
