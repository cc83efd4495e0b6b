"""Reading a profile of ONNX Runtime: planted events, and real ones of small graphs."""

import json
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
from onnx import helper

from xframe import artifact, zoo
from xframe.backends import ort_profile
from xframe.backends.cupti_activity import Activity, Call, Recording
from xframe.backends.nodes import Nodes
from xframe.backends.ort_profile import Join, Pass, algorithm, read
from xframe.backends.ort_session import Settings
from xframe.errors import NotHonoured, XframeError
from xframe.types import Artifact, ConvSite

SITE = ConvSite(1, 3, (8, 8), 16, (3, 3))


def node(name, ts, dur, op="Conv", shapes=((1, 3, 8, 8), (16, 3, 3, 3)), out=(1, 16, 6, 6), **args):
    more = {
        "op_name": op,
        "provider": "CPUExecutionProvider",
        "input_type_shape": [{"float": list(s)} for s in shapes],
        "output_type_shape": [{"float": list(out)}],
        **args,
    }
    return {"cat": "Node", "name": f"{name}_kernel_time", "ts": ts, "dur": dur, "tid": 7, "args": more}


def session(name, ts, dur):
    return {"cat": "Session", "name": name, "ts": ts, "dur": dur, "args": {}}


def joined(sites, *nodes):
    found = Artifact("m.onnx", "", "m", None, None, 17, (), (), tuple(sites))
    return Join(found, Nodes([helper.make_node(op, i, o, name) for op, name, i, o in nodes]))


def three_runs(*events, ts=1000, dur=100):
    """Two that are not looked at, then one with ``events``."""
    before = [session("model_run", 0, 50), node("first", 10, 5), session("model_run", 60, 50), node("warm", 70, 5)]
    return [*before, session("model_run", ts, dur), *events]


def test_the_third_run_is_read_and_placed_where_it_began():
    events = three_runs(
        session("SequentialExecutor::Execute", 1005, 90), node("c", 1010, 5), node("r", 1020, 2, "Relu")
    )
    (profile,) = read(events, [Pass(980e-6, 150e-6)], joined([("c", SITE)], ("Conv", "c", ["x", "w"], ["a"])))
    assert profile.wall == 150e-6
    assert [(k.name, k.kind, k.layer, k.site) for k in profile.kernels] == [
        ("Conv c", "conv", "c", SITE),
        ("Relu r", "activation", "", None),
    ]
    first = profile.kernels[0]
    assert (first.start, first.end) == (pytest.approx(30e-6), pytest.approx(35e-6))
    spans = [(s.name, s.kind, pytest.approx(s.start), pytest.approx(s.end)) for s in profile.host]
    assert spans == [
        ("call", "python", 0.0, 20e-6),
        ("model_run", "dispatch", 20e-6, 120e-6),
        ("SequentialExecutor::Execute", "dispatch", 25e-6, 115e-6),
        ("return", "python", 120e-6, 150e-6),
    ]


def test_what_profiling_costs_is_taken_from_its_node_unless_it_was_spent_after_it():
    events = three_runs(node("c", 1010, 30), node("r", 1042, 5, "Relu"), node("s", 1060, 20, "Relu"))
    (profile,) = read(events, [Pass(1000e-6, 100e-6)], joined([]), cost=lambda size: 8e-6)
    assert [(k.start, k.end) for k in profile.kernels] == [
        (pytest.approx(10e-6), pytest.approx(34e-6)),  # 2 of 8 us between it and the next one
        (pytest.approx(42e-6), pytest.approx(47e-6)),  # all of them
        (pytest.approx(60e-6), pytest.approx(80e-6)),  # and before the end of the run
    ]
    assert profile.cost == pytest.approx(24e-6)
    (profile,) = read(
        three_runs(node("c", 1010, 5), node("r", 1015, 5, "Relu")),
        [Pass(1e-3, 1e-4)],
        joined([]),
        cost=lambda size: 1.0,
    )
    assert all(k.start == k.end for k in profile.kernels)


def test_the_cost_is_by_what_a_node_went_through():
    sizes = {"activation_size": "100", "output_size": "10", "parameter_size": "1000"}
    seen = []
    events = three_runs(
        node("c", 1010, 5, **sizes),
        node("packed", 1020, 5, "FusedGemm", ((2, 30),), (2, 40), **{**sizes, "parameter_size": "160"}),
        node("known", 1030, 5, "MatMul", ((2, 3),), (2, 4), **sizes),
        node("vectors", 1040, 5, "MatMul", ((30,),), (), **{**sizes, "parameter_size": "0"}),
        node("unsaid", 1050, 5, "Relu"),
    )
    read(events, [Pass(1e-3, 1e-4)], joined([]), cost=lambda size: float(seen.append(size) or 0))
    assert seen == [1110, 110 + 4 * 30 * 40, 1110, 110 + 4 * 30, 0]


def test_another_clock_puts_the_run_into_the_middle():
    (profile,) = read(three_runs(node("c", 1010, 5)), [Pass(12345.0, 150e-6)], joined([]))
    assert profile.host[0].end == pytest.approx(25e-6)
    assert profile.host[-1].start == pytest.approx(125e-6)


def test_runs_that_are_missing_are_said():
    with pytest.raises(XframeError, match="has 1 runs, 3 were made"):
        read([session("model_run", 0, 50)], [Pass(0.0, 1.0)], joined([]))


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("c2", []),  # it kept its name
        ("fused c2", []),
        ("c2_token_7", []),
        ("b_nchwc", [("Conv", "c2", ["x", "w"], ["b"])]),
        ("b_nchwc_token_3", [("Conv", "c2", ["x", "w"], ["b"])]),
        ("y_nchwc", [("Conv", "c2", ["x", "w"], ["b"]), ("Relu", "r", ["b"], ["y"])]),
    ],
)
def test_equal_convolutions_are_told_by_name(name, nodes):
    join = joined([("c1", SITE), ("c2", SITE)], *nodes)
    assert join([node(name, 0, 1)]) == [("c2", SITE, "conv")]


def test_equal_convolutions_without_a_name_come_in_the_order_of_the_graph():
    join = joined([("c1", SITE), ("c2", SITE)])
    assert [o.layer for o in join([node("a", 0, 1), node("b", 1, 1), node("c", 2, 1)])] == ["c1", "c2", ""]


def test_a_name_with_another_shape_is_not_believed():
    other = ConvSite(1, 3, (8, 8), 64, (3, 3))
    assert joined([("c1", other), ("c2", SITE)])([node("c1", 0, 1)]) == [("c2", SITE, "conv")]


def test_channels_may_be_padded_and_two_problems_of_a_shape_are_not_guessed():
    narrow = ConvSite(1, 3, (8, 8), 12, (3, 3))
    assert joined([("n", narrow)])([node("x", 0, 1)]) == [("n", narrow, "conv")]
    assert joined([("n", narrow), ("c", SITE)])([node("x", 0, 1)]) == [("", None, "conv")]


def test_other_nodes_are_told_by_name():
    join = joined([], ("Gemm", "g", ["x", "w"], ["a"]), ("MaxPool", "p", ["a"], ["b"]), ("Relu", "r", ["b"], ["c"]))
    names = ("fused g", "FusedGemm"), ("b_nchwc", "MaxPool"), ("c", "Relu"), ("ReorderOutput_token_1", "ReorderOutput")
    owners = join([node(name, i, 1, op) for i, (name, op) in enumerate(names)])
    assert owners == [("g", None, "fc"), ("p", None, "pool"), ("r", None, "activation"), ("", None, "layout")]


def test_a_scaling_of_channels_made_a_convolution_is_none():
    """A tensor that is really called so comes first."""
    scaled = {"shapes": ((1, 16, 6, 6), (16, 1, 1, 1))}
    nodes = [("Conv", "c", ["x", "w"], ["a"]), ("BatchNormalization", "n", ["a", "s"], ["b"])]
    assert joined([("c", SITE)], *nodes)([node("b_bn_nchwc", 0, 1, **scaled)]) == [("n", None, "norm")]
    nodes = [("BatchNormalization", "n", ["x", "s"], ["b"]), ("Conv", "c", ["b", "w"], ["b_bn"])]
    assert joined([("c", SITE)], *nodes)([node("b_bn_nchwc", 0, 1)]) == [("c", SITE, "conv")]


def test_kernels_of_a_gpu_belong_to_the_node_before_them():
    gpu = {"provider": "CUDAExecutionProvider"}
    events = three_runs(
        node("c", 1010, 5, **gpu),
        {"cat": "Kernel", "name": "implicit_convolve_sgemm", "ts": 1030, "dur": 20, "args": {}},
        {"cat": "Kernel", "name": "add_bias", "ts": 1050, "dur": 5, "args": {}},
    )
    join = joined([("c", SITE)], ("Conv", "c", ["x", "w"], ["a"]))
    (profile,) = read(events, [Pass(980e-6, 150e-6)], join)
    assert [(k.name, k.site, k.algorithm, k.kind) for k in profile.kernels] == [
        ("implicit_convolve_sgemm", SITE, "implicit_convolve_sgemm", "conv"),
        ("add_bias", SITE, "add_bias", "conv"),
    ]
    assert ("c_kernel_time", "dispatch") in [(s.name, s.kind) for s in profile.host]


def on_gpu(name, ts, dur, tid=1, **more):
    return {**node(name, ts, dur, **more, provider="CUDAExecutionProvider"), "tid": tid}


def of_a_recording(*launches, events=(), passes=None, sites=(("c", SITE),)):
    """The kernels of a pass of 150 us that began at 980 us. ``launches``: a kernel's name, when it was called and when
    it ran, in us since the profile began, and the thread of the call."""
    activities, calls = [], {}
    for number, (name, called, ran, thread) in enumerate(launches):
        activities.append(Activity(name, ran * 1000, (ran + 5) * 1000, 7, number))
        if called is not None:
            calls[number] = Call(called * 1000, called * 1000 + 900, thread)
    join = joined(sites, ("Conv", "c", ["x", "w"], ["a"]), ("MaxPool", "p", ["a"], ["b"]))
    events = events or three_runs(on_gpu("c", 1010, 20), on_gpu("p", 1030, 10, op="MaxPool"))
    (profile,) = read(events, passes or [Pass(980e-6, 150e-6)], join, Recording(tuple(activities), calls))
    return [(k.name, k.kind, k.layer, k.site, k.algorithm) for k in profile.kernels], profile


def test_a_recorded_kernel_is_of_the_node_that_launched_it():
    found, profile = of_a_recording(
        ("nchwToNhwcKernel", 1011, 1015, 1),
        ("implicit_convolve_sgemm", 1013, 1050, 1),
        ("Memset", 1028, 1060, 1),
        ("pooling_fw", 1031, 1070, 1),
    )
    assert found == [
        ("nchwToNhwcKernel", "layout", "c", None, ""),
        ("implicit_convolve_sgemm", "conv", "c", SITE, "implicit_convolve_sgemm"),
        ("Memset", "copy", "c", None, ""),
        ("pooling_fw", "pool", "p", None, ""),
    ]
    first = profile.kernels[0]
    assert (first.start, first.end) == (pytest.approx(35e-6), pytest.approx(40e-6))
    assert {("c_kernel_time", "dispatch"), ("p_kernel_time", "dispatch")} <= {(s.name, s.kind) for s in profile.host}


@pytest.mark.parametrize(
    "launch",
    [
        ("k", 1005, 1050, 1),  # before the nodes
        ("k", 1045, 1050, 1),  # after them
        ("k", 1012, 1050, 2),  # on another thread
        ("k", None, 1050, 1),  # its call is not there
    ],
)
def test_a_recorded_kernel_that_no_node_launched_is_of_nobody(launch):
    assert of_a_recording(launch)[0] == [("k", "", "", None, "")]


def test_what_ran_in_another_pass_is_not_of_this_one():
    found, profile = of_a_recording(
        ("before", 900, 970, 1), ("k", 1012, 1050, 1), ("late", 1012, 1126, 1), ("after", 1012, 1131, 1)
    )
    assert [name for name, *_ in found] == ["k", "late"]
    assert profile.kernels[-1].end == profile.wall  # its last microsecond is beside the pass


def test_nodes_of_another_clock_launched_nothing_that_is_known():
    found, _ = of_a_recording(("k", 1012, 1050, 1), passes=[Pass(970e-6 - 1e-9, 110e-6)])
    assert found == [("k", "", "", None, "")]


def test_a_cuda_graph_is_captured_in_more_runs_of_the_first_step():
    events = [session("model_run", -60, 50), *three_runs(on_gpu("c", 1010, 5))]
    with pytest.raises(XframeError, match="has 4 runs, 3 were made"):
        read(events, [Pass(980e-6, 150e-6)], joined([]))
    (profile,) = read(events, [Pass(980e-6, 150e-6)], joined([]), captures=True)
    assert [s.start for s in profile.host if s.name == "c_kernel_time"] == [pytest.approx(30e-6)]


def test_its_events_are_of_the_systems_clock_and_threads(tmp_path, convnet):
    """By which kernels that were recorded beside it find their nodes."""
    loaded = artifact.load(convnet())
    bound = Settings(loaded.path, 1, "cpu").open(str(tmp_path / "profile"))
    bound.bind(loaded, [zoo.inputs(i.shape, 0) for i in loaded.inputs])
    before = time.time_ns()
    bound.step()
    after = time.time_ns()
    start = bound.session.get_profiling_start_time_ns()
    events = json.loads(Path(bound.session.end_profiling()).read_text())
    nodes = [e for e in events if e["cat"] == "Node"]
    assert {e["tid"] for e in nodes} == {threading.get_native_id()}
    assert all(before - 2000 <= start + e["ts"] * 1000 <= start + (e["ts"] + e["dur"]) * 1000 <= after for e in nodes)


def test_a_node_that_ran_on_the_cpu_is_not_what_was_asked_for():
    gpu = {"provider": "CUDAExecutionProvider"}
    ort_profile._on_the_gpu(three_runs(node("c", 1010, 5, **gpu))[4:], "cuda")
    with pytest.raises(
        NotHonoured, match=r"cuda:1 was asked for .* nodes of the graph: odd \(Tan\) by CPUExecutionProvider$"
    ):
        ort_profile._on_the_gpu(
            [node("c", 1010, 5, **gpu), node("odd", 1020, 5, "Tan"), node("odd", 1030, 5, "Tan")], "cuda:1"
        )


@pytest.mark.parametrize("weights", [(16, 5, 3, 3), (16, 3, 3, 5)])
def test_images_may_lie_channels_last(weights):
    site = ConvSite(1, 5, (8, 8), 16, (3, 3))
    join = joined([("other", ConvSite(1, 40, (8, 8), 16, (3, 3))), ("c", site)])
    assert join([node("x", 0, 1, shapes=((1, 8, 8, 5), weights), out=(1, 6, 6, 16))]) == [("c", site, "conv")]


def test_a_node_that_runs_others_is_no_kernel():
    events = three_runs(node("inner", 1010, 5, "Relu"), node("outer", 1005, 20, "If"))
    (profile,) = read(events, [Pass(980e-6, 150e-6)], joined([]))
    assert [k.name for k in profile.kernels] == ["Relu inner"]


@pytest.mark.parametrize(
    ("name", "site", "words"),
    [
        ("a_nchwc", ConvSite(1, 64, (9, 9), 32, (3, 3)), "mlas:nchwc_direct"),
        ("a_nchwc", ConvSite(1, 64, (9, 9), 32, (1, 1)), "mlas:nchwc_pointwise"),
        ("a_nchwc", ConvSite(1, 64, (9, 9), 64, (3, 3), groups=64), "mlas:nchwc_depthwise"),
        ("a_nchwc_token_1", ConvSite(1, 3, (9, 9), 64, (3, 3)), "mlas:nchwc_from_nchw"),
        ("a_nchwc", ConvSite(1, 8, (9, 9), 64, (1, 1)), "mlas:nchwc"),
    ],
)
def test_on_blocks_of_channels_it_is_always_direct(name, site, words):
    assert algorithm(name, site, "AMD64") == algorithm(name, site, "aarch64") == words


@pytest.mark.parametrize(
    ("site", "words"),
    [
        (ConvSite(1, 5, (9, 9), 7, (1, 1)), "mlas:gemm_direct"),
        (ConvSite(1, 5, (9, 9), 7, (1, 1), stride=(2, 2)), "mlas:im2col_gemm"),
        (ConvSite(1, 5, (9, 9), 7, (3, 3)), "mlas:im2col_gemm"),
        (ConvSite(1, 7, (9, 9), 7, (3, 3), groups=7), ""),
    ],
)
def test_else_it_is_a_product(site, words):
    assert algorithm("conv1", site, "x86_64") == words
    assert algorithm("conv1", site, "aarch64") == ""  # other kernels may take over there


def test_a_real_profile_has_every_convolution_and_what_moves_data(tmp_path, convnet):
    from xframe.backends.ort import OnnxRuntime
    from xframe.types import Plan

    loaded = artifact.load(convnet())
    built = OnnxRuntime().compile(loaded, Plan(), "cpu", 1)
    built.bind([zoo.inputs(i.shape, 0) for i in loaded.inputs])
    first, second = built.profile(2)
    built.close()
    for profile in (first, second):
        convolutions = [k for k in profile.kernels if k.kind == "conv"]
        assert [(k.layer, k.site) for k in convolutions] == list(loaded.conv_sites)
        assert all(a.end <= b.start for a, b in pairwise(profile.kernels))
        assert {s.name for s in profile.host} >= {"call", "model_run", "return"}
        assert profile.cost == first.cost > 0
