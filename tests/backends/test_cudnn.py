"""The cudnn backend on a stand-in for NVIDIA's libraries that computes, and checks every argument."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from xframe import artifact, registry, zoo
from xframe.analysis.labels import algorithms
from xframe.backends import cudnn, cudnn_convolution, cudnn_device, cudnn_library, cudnn_rounding
from xframe.backends.cudnn import Cudnn
from xframe.equivalence.reference import Reference
from xframe.equivalence.verdict import judge
from xframe.errors import Unavailable, Unsupported, UsageError, XframeError
from xframe.types import ConvSite, Plan


def network(tmp_path, nodes, weights, shape, out, opset=17):
    rng = np.random.default_rng(0)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)],
        [
            numpy_helper.from_array(
                (w if isinstance(w, (np.ndarray, np.generic)) else rng.standard_normal(w).astype("float32") * 0.3), n
            )
            for n, w in weights.items()
        ],
    )
    path = tmp_path / "n.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    return artifact.load(path)


def forced(model, name):
    return Plan(name, tuple(dict.fromkeys((site, name) for _, site in model.conv_sites)))


def right(executable, model, seed=0):
    """Runs it, and holds the outputs against float64."""
    feed = [zoo.inputs(i.shape, seed) for i in model.inputs]
    executable.bind([x.copy() for x in feed])
    executable.step()
    executable.step()
    executable.sync()
    roundings = {s.site: s.rounding for s in executable.sites}
    verdict = judge(executable.fetch(), Reference.of_onnx(model).evaluate(feed, roundings))
    assert verdict.ok, verdict.reason


def ran(fake):
    """(algorithm, math) of each convolution that ran, in their order."""
    rows = [dict(p.split("=") for p in line.split()[1:]) for line in fake.log() if line.startswith("conv")]
    return [(int(r["algo"]), int(r["math"])) for r in rows]


@pytest.mark.parametrize("name", ["gemm", "implicit_gemm", "implicit_precomp_gemm"])
def test_a_forced_algorithm_is_what_runs_at_every_site(fake, model, name):
    executable = Cudnn().compile(model, forced(model, name), "cuda", 1)
    right(executable, model)
    assert set(ran(fake)) == {(cudnn_library.ALGORITHMS[name], cudnn_library.MATH["fma"])}
    assert [s.requested for s in executable.sites] == [s.selected for s in executable.sites] == [name, name]
    sizes = executable.environment["workspace_bytes"]
    assert set(sizes) == {"conv1", "conv2"}
    assert (min(sizes.values()) > 0) == (name != "implicit_gemm")
    assert all(f"workspace {sizes[s.name]} bytes" in s.detail for s in executable.sites)
    executable.close()


def test_a_step_may_be_one_graph(fake, model):
    """Of the same calls, on what was bound last; profiles are of the calls one by one, as without it."""
    executable = Cudnn().compile(model, forced(model, "gemm"), "cuda", 1, {"cuda_graph": "on"})
    assert executable.environment["cuda_graph"] == "on"
    for seed in (0, 1):
        right(executable, model, seed)
    launched = [line for line in fake.log() if line.startswith("graph")]
    (profile,) = executable.profile(1)
    assert len(launched) == 4
    assert set(launched) == {f"graph of {len(profile.kernels)}"}
    assert len(executable.environment["workspace_bytes"]) == 2
    executable.close()


def test_what_can_not_be_captured_is_an_error(fake, model):
    fake.fail("cudaGraphInstantiate", 801)
    with pytest.raises(XframeError, match="cudaGraphInstantiate"):
        Cudnn().compile(model, forced(model, "gemm"), "cuda", 1, {"cuda_graph": "on"})


@pytest.mark.parametrize("name", ["fft", "fft_tiling", "winograd", "winograd_nonfused", "direct"])
def test_a_refusal_is_told_in_cudnns_own_words(fake, model, name):
    """conv2 has a stride of three, which none of these can do."""
    with pytest.raises(
        Unsupported,
        match=rf"refuses {name} at \d of 2.*_SUPPORTED \(3000\): CUDNN_STATUS_NOT_SUPPORTED_SHAPE, algorithm \d can't",
    ):
        Cudnn().compile(model, forced(model, name), "cuda", 1)
    assert fake.live() == 0


def test_sites_that_are_refused_take_the_fallback_and_say_so(fake, model):
    executable = Cudnn().compile(model, forced(model, "winograd"), "cuda", 1, {"fallback": "gemm"})
    right(executable, model)
    assert [(s.requested, s.selected) for s in executable.sites] == [("winograd", "winograd"), ("gemm", "gemm")]
    assert [algorithm for algorithm, _ in ran(fake)][-2:] == [6, 2]
    assert list(executable.environment["refusals"]) == ["conv2"]
    assert any("conv2: gemm, because cuDNN refuses winograd" in n for n in executable.notes)
    executable.close()


def test_a_site_that_refuses_the_fallback_too_is_told_with_both(fake, model):
    both = r"refuses winograd at 1 of 2 .*\(3\d+\).*, and the fallback fft: CUDNN_STATUS_\w+ \(3\d+\).*; name another"
    for name, told in (("winograd", both), ("fft", r"refuses fft at 1 of 2 ((?!fallback).)*; name another")):
        with pytest.raises(Unsupported, match=told):
            Cudnn().compile(model, forced(model, name), "cuda", 1, {"fallback": "fft"})
    assert fake.live() == 0


def test_without_a_plan_the_fastest_that_keeps_float32_runs(fake, model):
    executable = Cudnn().compile(model, Plan(), "cuda", 1)
    right(executable, model)
    assert [s.selected for s in executable.sites] == ["winograd_nonfused", "implicit_precomp_gemm"]
    assert {math for _, math in ran(fake)} == {3}
    told = {(f["algorithm"], f["math"]): f for f in executable.environment["algorithms"]["conv2"]}
    assert told["gemm", "default"]["seconds"] > 0  # it has no tensor cores to leave alone
    assert {math for name, math in told if name == "implicit_precomp_gemm"} == {"tensor_op", "default", "fma"}
    assert told["fft", "default"]["refused"] == "CUDNN_STATUS_NOT_SUPPORTED (3000)"
    assert told["fft", "default"]["seconds"] is None
    executable.close()


def test_an_algorithm_without_tensor_cores_is_the_fastest_where_it_is(fake, model, monkeypatch):
    """It is offered with the default math alone, and runs with that of float32."""
    found = cudnn_convolution.Convolution.found
    fewer = lambda self, exhaustive: [f for f in found(self, exhaustive) if f.algorithm in ("gemm", "winograd")]  # noqa: E731
    monkeypatch.setattr(cudnn_convolution.Convolution, "found", fewer)
    executable = Cudnn().compile(model, Plan(), "cuda", 1)
    right(executable, model)
    assert [s.selected for s in executable.sites] == ["winograd", "gemm"]
    assert {math for _, math in ran(fake)} == {cudnn_library.MATH["fma"]}
    executable.close()


def test_heuristics_measure_nothing(fake, model):
    executable = Cudnn().compile(model, Plan(), "cuda", 1, {"algorithm_search": "heuristic"})
    assert all(f["seconds"] is None for f in executable.environment["algorithms"]["conv1"])
    executable.close()


def test_tf32_is_asked_for_by_its_switch_alone(fake, model):
    executable = Cudnn().compile(model, forced(model, "gemm"), "cuda", 1, {"use_tf32": "on"})
    right(executable, model)
    assert {math for _, math in ran(fake)} == {cudnn_library.MATH["default"]}
    assert "cublas math 3" in fake.log()
    assert executable.environment["tf32"] is True
    assert {s.rounding.operands for s in executable.sites} == {2.0**-11}
    executable.close()


def test_a_workspace_that_can_not_be_had_is_a_refusal(fake, model):
    fake.limit(40000)
    with pytest.raises(Unsupported, match="out of memory"):
        Cudnn().compile(model, forced(model, "gemm"), "cuda", 1)
    assert fake.live() == 0


@pytest.mark.parametrize(
    ("full", "words"),
    [(True, r"need a workspace of \d+ bytes, .*out of memory.*; take a smaller batch"), (False, "cudaMalloc failed")],
)
def test_memory_that_is_gone_when_all_is_chosen_is_a_refusal_too(fake, model, monkeypatch, full, words):
    """As where another row has taken it meanwhile; a device that is lost then is an error."""
    choose = cudnn._Chosen

    def then(*network):
        chosen = choose(*network)
        fake.limit(0) if full else fake.fail("cudaMalloc", 700)
        return chosen

    monkeypatch.setattr(cudnn, "_Chosen", then)
    with pytest.raises(XframeError, match=words) as e:
        Cudnn().compile(model, forced(model, "gemm"), "cuda", 1)
    assert isinstance(e.value, Unsupported) == full
    assert fake.live() == 0


def test_a_refusal_may_come_only_when_it_runs(fake, model):
    fake.fail("cudnnConvolutionForward", 3007)
    with pytest.raises(Unsupported, match=r"\(3007\)"):
        Cudnn().compile(model, forced(model, "gemm"), "cuda", 1)


@pytest.mark.parametrize("function", ["cudnnConvolutionForward", "cudnnGetConvolutionForwardWorkspaceSize"])
def test_a_failure_after_which_the_device_answers_is_a_refusal(fake, model, function):
    fake.fail(function, 5000)
    with pytest.raises(Unsupported, match=r"EXECUTION_FAILED \(5000\)[;,] .*the fallback implicit_gemm: "):
        Cudnn().compile(model, forced(model, "gemm"), "cuda", 1, {"fallback": "implicit_gemm"})
    assert fake.live() == 0


def test_reasons_are_told_of_the_call_that_failed(fake, model):
    """What cuDNN tells in a search that succeeds is of no later call."""
    fake.fail("cudnnConvolutionForward", 4000)
    with pytest.raises(XframeError, match=r"cuDNN has no algorithm") as error:
        Cudnn().compile(model, Plan(), "cuda", 1)
    assert "succeeded" not in str(error.value)


@pytest.mark.parametrize("function", ["cudnnConvolutionForward", "cudnnGetConvolutionForwardWorkspaceSize"])
def test_a_device_that_is_lost_is_an_error(fake, model, function):
    fake.fail(function, 5000)
    fake.fail("cudaStreamSynchronize", 700)
    with pytest.raises(XframeError, match="CUDNN_STATUS_EXECUTION_FAILED") as e:
        Cudnn().compile(model, forced(model, "gemm"), "cuda", 1, {"fallback": "implicit_gemm"})
    assert not isinstance(e.value, Unsupported)
    assert fake.live() == 0


def test_an_error_in_a_step_is_raised(fake, model):
    executable = Cudnn().compile(model, forced(model, "gemm"), "cuda", 1)
    executable.bind([zoo.inputs(i.shape, 0) for i in model.inputs])
    fake.fail("cudnnConvolutionForward", 5000)
    with pytest.raises(XframeError, match="cudnnConvolutionForward failed: CUDNN_STATUS_EXECUTION_FAILED"):
        executable.step()
    executable.close()


def test_devices(fake, model):
    fake.devices(2)
    executable = Cudnn().compile(model, Plan(), "cuda:1", 1)
    assert fake.log()[0] == "device 1"
    executable.close()
    with pytest.raises(Unavailable, match=r"cuda:2 was asked for, this process sees 2"):
        Cudnn().compile(model, Plan(), "cuda:2", 1)
    with pytest.raises(Unsupported, match="cuda or cuda:<number> only"):
        Cudnn().compile(model, Plan(), "cpu", 1)
    with pytest.raises(UsageError, match="on gpu: it runs on cuda"):
        Cudnn().compile(model, Plan(), "gpu", 1)


def test_no_driver_is_told_in_cudas_words(fake, model):
    fake.fail("cudaGetDeviceCount", 100)
    with pytest.raises(Unavailable, match="no CUDA-capable device"):
        Cudnn().compile(model, Plan(), "cuda", 1)


def test_an_old_cudnn_is_refused(fake):
    fake.version(8905)
    with pytest.raises(Unavailable, match="needs cuDNN 9"):
        Cudnn()


def test_plans_of_other_backends_are_refused(fake, model):
    with pytest.raises(Unsupported, match="no algorithm im2col"):
        Cudnn().compile(model, forced(model, "im2col"), "cuda", 1)
    with pytest.raises(Unsupported, match="asks for best"):
        Cudnn().compile(model, Plan("best"), "cuda", 1)


def test_its_profiles_are_of_the_calls_with_their_sites(fake, model):
    executable = Cudnn().compile(model, forced(model, "gemm"), "cuda", 1)
    executable.bind([zoo.inputs(i.shape, 0) for i in model.inputs])
    executable.step()
    profiles = executable.profile(2)
    assert len(profiles) == 2
    for profile in profiles:
        kernels = [k for k in profile.kernels if k.kind == "conv"]
        assert [k.site for k in kernels] == [site for _, site in model.conv_sites]
        assert {k.algorithm for k in kernels} == {"cudnn:gemm"}
        assert [k.layer for k in kernels] == ["conv1", "conv2"]
        assert {k.name for k in profile.kernels if k.role == "bias"} == {"cudnnAddTensor"}
        assert all(k.end > k.start >= 0 for k in profile.kernels)
        assert all(a.end <= b.start + 1e-9 for a, b in zip(profile.kernels, profile.kernels[1:], strict=False))
        assert profile.kernels[-1].end <= profile.wall + 1e-9
    executable.close()


@pytest.mark.parametrize(("settings", "gated"), [(41, True), (cudnn_device.GATE_LONGEST + 1, False)])
def test_a_gate_is_as_long_as_it_must_be_or_the_row_says_so(fake, model, settings, gated):
    executable = Cudnn().compile(model, forced(model, "gemm"), "cuda", 1)
    executable.bind([zoo.inputs(i.shape, 0) for i in model.inputs])
    fake.gate(settings)
    first, second = executable.profile(2)
    assert first.note == second.note == ("" if gated else cudnn.UNGATED)
    assert all(k.end > k.start >= 0 for k in first.kernels)
    executable.close()


def test_a_host_that_was_held_up_once_makes_no_gate_longer_for_ever(fake, model):
    executable = Cudnn().compile(model, forced(model, "gemm"), "cuda", 1)
    executable.bind([zoo.inputs(i.shape, 0) for i in model.inputs])
    fake.gate(8 * cudnn_device.GATE_TIMES)
    executable.profile(1)
    assert executable._gpu._gates > 4 * cudnn_device.GATE_TIMES
    fake.gate(1)
    assert all(p.note == "" for p in executable.profile(30))
    assert executable._gpu._gates == cudnn_device.GATE_TIMES
    executable.close()


def test_an_event_that_can_not_be_asked_for_is_an_error(fake, model):
    executable = Cudnn().compile(model, forced(model, "gemm"), "cuda", 1)
    executable.bind([zoo.inputs(i.shape, 0) for i in model.inputs])
    fake.fail("cudaEventQuery", 700)
    with pytest.raises(XframeError, match="cudaEventQuery"):
        executable.profile(1)
    executable.close()


NODES = {
    "poolings": (
        [
            helper.make_node("MaxPool", ["x"], ["a"], "ceil", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
            helper.make_node("MaxPool", ["a"], ["b"], "uneven", kernel_shape=[2, 2], pads=[0, 0, 1, 1]),
            helper.make_node("AveragePool", ["b"], ["c"], "average", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            helper.make_node("GlobalMaxPool", ["c"], ["y"], "all"),
        ],
        {},
        (2, 3, 10, 9),
        (2, 3, 1, 1),
    ),
    "dense": (
        [
            helper.make_node("LRN", ["x"], ["a"], "lrn", size=5, alpha=0.1, beta=0.75, bias=2.0),
            helper.make_node("Flatten", ["a"], ["b"], "flat"),
            helper.make_node("Gemm", ["b", "w", "v"], ["c"], "fc", transB=1),
            helper.make_node("Clip", ["c", "zero", "six"], ["d"], "relu6"),
            helper.make_node("Softmax", ["d"], ["y"], "softmax", axis=1),
        ],
        {"w": (7, 63), "v": (7,), "zero": np.float32(0), "six": np.float32(6)},
        (2, 7, 3, 3),
        (2, 7),
    ),
    "branches": (
        [
            helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["n"], "norm"),
            helper.make_node("Relu", ["n"], ["r"], "relu"),
            helper.make_node("Conv", ["r", "w"], ["c"], "uneven", pads=[0, 0, 1, 1], strides=[2, 2]),
            helper.make_node("Conv", ["r", "g", "h"], ["d"], "groups", pads=[1, 1, 1, 1], strides=[2, 2], group=2),
            helper.make_node("Add", ["c", "d"], ["e"], "sum"),
            helper.make_node("Concat", ["e", "d", "c"], ["y"], "concat", axis=1),
        ],
        {
            "s": (4,), "b": (4,), "m": (4,), "v": np.linspace(1, 2, 4, dtype=np.float32), "w": (6, 4, 2, 2),
            "g": (6, 2, 3, 3), "h": (6,),
        },
        (2, 4, 8, 8),
        (2, 18, 4, 4),
    ),
    "channels last": (
        [
            helper.make_node("Transpose", ["x"], ["t"], "in", perm=[0, 3, 1, 2]),
            helper.make_node("Conv", ["t", "w", "v"], ["c"], "conv", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["r"], "relu"),
            helper.make_node("Transpose", ["r"], ["o"], "out", perm=[0, 2, 3, 1]),
            helper.make_node("Reshape", ["o", "shape"], ["f"], "flat"),
            helper.make_node("MatMul", ["f", "k"], ["y"], "fc"),
        ],
        {"w": (5, 3, 3, 3), "v": (5,), "k": (80, 6), "shape": np.array([2, 80], np.int64)},
        (2, 4, 4, 3),
        (2, 6),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NODES)
def test_the_rest_of_a_network_is_right_too(fake, tmp_path, case):
    model = network(tmp_path, *NODES[case])
    executable = Cudnn().compile(model, Plan(), "cuda", 1)
    right(executable, model, 1)
    right(executable, model, 2)
    executable.close()


def test_padding_that_a_convolution_needs_is_of_its_site(fake, tmp_path):
    node = helper.make_node("Conv", ["x", "w"], ["y"], "uneven", pads=[0, 1, 1, 2], strides=[2, 1])
    model = network(tmp_path, [node], {"w": (4, 2, 2, 3)}, (2, 2, 8, 7), (2, 4, 4, 8))
    executable = Cudnn().compile(model, Plan(), "cuda", 1)
    kernels = [k for k in executable.profile(1)[0].kernels if k.layer == "uneven"]
    sites = [(k.kind, k.role, k.site) for k in kernels]
    assert sites == [("layout", "pad", executable.sites[0].site), ("conv", "convolution", executable.sites[0].site)]
    assert executable.sites[0].name == "uneven"
    executable.close()


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (helper.make_node("Tan", ["x"], ["y"], "odd"), "have no Tan"),
        (helper.make_node("Clip", ["x", "low"], ["y"], "odd"), "node odd .Clip.: limits"),
        (helper.make_node("LRN", ["x"], ["y"], "odd", size=17), "node odd .LRN.: a size of 17"),
        (
            helper.make_node("AveragePool", ["x"], ["y"], "odd", kernel_shape=[2, 2], pads=[0, 0, 1, 1]),
            "node odd .AveragePool.: an average over windows with the padding",
        ),
    ],
)
def test_what_cudnn_has_no_function_for_is_refused_by_name(fake, tmp_path, node, why):
    model = network(
        tmp_path, [node], {"low": np.float32(-1)} if "low" in node.input else {}, (1, 3, 4, 4), (1, 3, 4, 4)
    )
    with pytest.raises(Unsupported, match=why):
        Cudnn().compile(model, Plan(), "cuda", 1)
    assert fake.live() == 0


def test_registered_switches_are_those_it_knows():
    switches = {s.name: s.values for s in registry.BACKENDS["cudnn"].switches}
    assert switches["fallback"] == ("none", *cudnn.NAMES)
    assert registry.BACKENDS["cudnn"].algorithms == cudnn.NAMES
    assert set(switches) == {"fallback", "algorithm_search", "use_tf32", "cuda_graph"}
    by_default = (*cudnn_library.ALGORITHMS, "graph_fastest", "graph_nhwc")
    assert algorithms("cudnn", by_default=True) == by_default
    row = registry.BACKENDS["cudnn"]
    assert {row.general, *row.absent, *row.where_named} <= set(row.algorithms)


def test_inputs_that_do_not_fit_are_refused(fake, model):
    executable = Cudnn().compile(model, Plan(), "cuda", 1)
    with pytest.raises(XframeError, match="has inputs x; 2 were given"):
        executable.bind([np.zeros((2, 3, 12, 12), np.float32)] * 2)
    with pytest.raises(XframeError, match="the input x is"):
        executable.bind([np.zeros((1, 3, 12, 12), np.float32)])
    executable.close()


def test_an_output_of_another_size_is_an_error(fake):
    gpu, ones = cudnn_device.Gpu(0), (1, 1)
    problem = cudnn_convolution.Problem((1, 3, 8, 8), (4, 3, 3, 3), (1, 4, 5, 6), (0, 0), ones, ones, 1)
    with pytest.raises(XframeError, match=r"cuDNN computes \(1, 4, 6, 6\) where \(1, 4, 5, 6\)"):
        cudnn_convolution.Convolution(gpu, problem)
    gpu.close()


SITE = ConvSite(1, 64, (28, 28), 64, (3, 3), pads=(1, 1, 1, 1))


def test_transformed_algorithms_round_more():
    assert cudnn_rounding.of_algorithm("gemm", SITE).length == SITE.reduction
    winograd = cudnn_rounding.of_algorithm("winograd", SITE)
    assert (winograd.growth > 1, winograd.reach) == (True, (3, 3))
    assert cudnn_rounding.of_algorithm("fft_tiling", SITE).reach == (30, 30)
    assert cudnn_rounding.of_algorithm("winograd", ConvSite(1, 8, (9, 9), 8, (1, 1))).growth == 1
