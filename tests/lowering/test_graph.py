"""Operators lowered channels-last, against ONNX's own node cases and against float64 in small graphs."""

import warnings

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.backend.test.case.node import collect_testcases

from tests.lowering.networks import HOST, build, everywhere, network, run, usual
from xframe import artifact, registry
from xframe.equivalence.reference import Reference
from xframe.equivalence.verdict import judge
from xframe.errors import Unsupported
from xframe.lowering import pipeline
from xframe.lowering.graph import Graph
from xframe.lowering.operators import OPERATORS
from xframe.types import ConvSite, Plan

#: One expected result is written with four digits. Two resize to a fraction as length, where the specification and
#: runtimes take the tensor's own.
LEFT_OUT = {
    "test_averagepool_2d_ceil_last_window_starts_on_pad",
    "test_resize_downsample_scales_linear_align_corners",
    "test_resize_downsample_scales_cubic_align_corners",
}


def planned(model, lowering="direct") -> Plan:
    """Every convolution of ``model`` by one lowering, found by lowering it once."""

    class Any:
        label = lowering
        lowerings: tuple = ()
        tuned: tuple = ()
        error_budget = Plan.error_budget

        def __getitem__(self, site):
            self.lowerings = (*self.lowerings, (site, lowering))
            return lowering

    plan = Any()
    Graph(model, plan, {lowering: registry.load(registry.LOWERINGS, lowering)}, HOST, OPERATORS).lower()
    return Plan(lowering, plan.lowerings)


def lowered(model, feeds):
    return run(build(model, planned(model)), feeds)


def _cases():
    """ONNX's cases whose one operator is in our table, over float32 data of ranks that networks have."""
    wanted = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ONNX makes cases of overflow, too
        cases = collect_testcases(None)
    for case in cases:
        nodes = case.model.graph.node
        if case.name in LEFT_OUT:
            continue
        if len(nodes) != 1 or nodes[0].op_type not in OPERATORS or nodes[0].domain:
            continue
        inputs, outputs = case.data_sets[0]
        if any(getattr(x, "dtype", None) != np.float32 for x in (inputs[0], *outputs)) or 0 in inputs[0].shape:
            continue
        wanted.append(case)
    return wanted


def _with_constants(case):
    """The case's model with all inputs but the data made initializers, and the feeds that remain.

    Of element-wise operators with several operands, all are data.
    """
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    graph, (inputs, outputs) = model.graph, case.data_sets[0]
    several = {"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Concat"}
    feeds, kept = [], []
    for i, (info, value) in enumerate(zip(list(graph.input), inputs, strict=True)):
        if i == 0 or (graph.node[0].op_type in several and value.dtype == np.float32):
            kept.append(info)
            feeds.append(value)
        else:
            graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), info.name))
    del graph.input[:]
    graph.input.extend(kept)
    return model, feeds, outputs


CASES = _cases()


def test_there_are_cases():
    covered = {c.model.graph.node[0].op_type for c in CASES}
    assert len(CASES) > 100
    assert covered >= OPERATORS.keys() - {"Identity", "Dropout", "Sum", "Split", "HardSwish"}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_node_case(case):
    (model, feeds, outputs), got, refusal = _with_constants(case), [], ""
    try:
        got = lowered(model, feeds)
    except Unsupported as e:
        refusal = str(e)
    if refusal:
        assert case.model.graph.node[0].op_type in refusal
        pytest.skip(f"refused: {refusal}")
    for y, want in zip(got, outputs, strict=False):
        assert y.shape == want.shape
        np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)


def check(tmp_path, model, lowering="direct", made=build):
    """Lowered under a plan, the model agrees with its float64 reference."""
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    loaded = artifact.load(path)
    x = np.random.default_rng(0).standard_normal(loaded.inputs[0].shape, dtype=np.float32)
    built = made(model, everywhere(lowering, *(s for _, s in loaded.conv_sites)))
    judged = Reference.of_onnx(loaded).evaluate([x], {s.site: s.rounding for s in built.sites})
    verdict = judge(run(built, [x]), judged)
    assert verdict.ok, verdict.reason
    return built


def kernels(mod) -> set[str]:
    return {v.name_hint for v in mod.functions} - {"main"}


def weights(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(shape[-1] * 3))


def test_flatten_turns_the_weights_not_the_image(tmp_path):
    """After a channels-last image, fc weights are permuted at compile time and no transpose is left."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3]),
        helper.make_node("Flatten", ["c"], ["f"]),
        helper.make_node("Gemm", ["f", "u", "b"], ["y"], transB=1),
    ]
    constants = {"w": weights(8, 3, 3, 3), "u": weights(5, 8 * 4 * 6), "b": weights(5)}
    model = network(nodes, {"x": (2, 3, 6, 8)}, {"y": (2, 5)}, constants)
    check(tmp_path, model)
    mod, _, _ = pipeline.forced(model, planned(model), HOST)
    assert not [v.name_hint for v in mod.functions if "transpose" in v.name_hint]


def test_flattened_image_with_another_reader(tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3]),
        helper.make_node("Flatten", ["c"], ["f"]),
        helper.make_node("Relu", ["f"], ["r"]),
        helper.make_node("Add", ["r", "a"], ["y"]),
    ]
    constants = {"w": weights(8, 3, 3, 3), "a": weights(1, 8 * 4 * 6)}
    check(tmp_path, network(nodes, {"x": (2, 3, 6, 8)}, {"y": (2, 192)}, constants))


def test_channels_last_input_needs_no_copy(tmp_path):
    """What TensorFlow exports: NHWC in, a transpose before the first convolution, one after the last."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["t", "w"], ["c"], kernel_shape=[3, 3]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Transpose", ["r"], ["y"], perm=[0, 2, 3, 1]),
    ]
    model = network(nodes, {"x": (2, 6, 8, 16)}, {"y": (2, 4, 6, 8)}, {"w": weights(8, 16, 3, 3)})
    check(tmp_path, model)
    mod, _, _ = pipeline.forced(model, planned(model), HOST)
    assert kernels(mod) == {"conv1_direct_product"}


def test_batchnorm_and_relu_are_folded_into_the_convolution(tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3]),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
        helper.make_node("Relu", ["n"], ["y"]),
    ]
    constants = {"w": weights(8, 16, 3, 3), "s": weights(8), "b": weights(8), "m": weights(8), "v": weights(8) ** 2}
    model = network(nodes, {"x": (1, 16, 6, 8)}, {"y": (1, 8, 4, 6)}, constants)
    built = check(tmp_path, model)
    mod, _, _ = pipeline.forced(model, planned(model), HOST)
    assert len(built.sites) == 1
    assert kernels(mod) == {"conv1_direct_pad", "conv1_direct_product", "transpose"}  # its output is NCHW


@pytest.mark.parametrize("lowering", registry.defaults(registry.LOWERINGS))
def test_relu6_is_folded_into_the_convolution(lowering, tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3]),
        helper.make_node("Clip", ["c", "zero", "six"], ["y"]),
    ]
    constants = {"w": weights(16, 16, 3, 3), "zero": np.float32(0), "six": np.float32(6)}
    model = network(nodes, {"x": (1, 16, 6, 8)}, {"y": (1, 16, 4, 6)}, constants)
    built = check(tmp_path, model, lowering)
    (y,) = run(built, [weights(1, 16, 6, 8, seed=1) * 10])
    assert {0, 6} < set(y.flat)  # it cuts at both ends
    mod, _, _ = pipeline.forced(model, planned(model, lowering), HOST)
    assert all(name.startswith("conv1") for name in kernels(mod) - {"transpose"})


@pytest.mark.parametrize(
    ("lowering", "op", "first"),
    [*((name, "Add", True) for name in registry.defaults(registry.LOWERINGS)), ("direct", "Sum", False)],
)
def test_a_residual_is_added_by_the_convolution(lowering, op, first, tmp_path):
    """ResNet's block: the image that is there already is added before the ReLU, in the same kernel."""
    nodes = [
        helper.make_node("Conv", ["x", "u"], ["a"], kernel_shape=[3, 3], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Conv", ["r", "w", "b"], ["c"], kernel_shape=[3, 3], pads=[1] * 4),
        helper.make_node(op, ["c", "r"] if first else ["r", "c"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    constants = {"u": weights(20, 5, 3, 3), "w": weights(20, 20, 3, 3), "b": weights(20)}
    model = network(nodes, {"x": (2, 5, 7, 9)}, {"y": (2, 20, 7, 9)}, constants)
    check(tmp_path, model, lowering, usual)
    mod, _, _ = pipeline.forced(model, planned(model, lowering), HOST)
    assert all(name.startswith("conv") for name in kernels(mod) - {"transpose"})


@pytest.mark.parametrize("lowering", ["direct", "gemm"])
@pytest.mark.parametrize("groups", [1, 24])
def test_a_pointwise_or_depthwise_convolution_adds_it_too(lowering, groups, tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "u"], ["r"], kernel_shape=[1, 1]),
        helper.make_node("Conv", ["r", "w"], ["c"], kernel_shape=[1, 1], group=groups),
        helper.make_node("Add", ["c", "r"], ["y"]),
    ]
    constants = {"u": weights(24, 5, 1, 1), "w": weights(24, 24 // groups, 1, 1)}
    check(tmp_path, network(nodes, {"x": (1, 5, 7, 9)}, {"y": (1, 24, 7, 9)}, constants), lowering)


def test_what_is_broadcast_or_comes_later_is_no_residual(tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "u"], ["c"], kernel_shape=[1, 1]),
        helper.make_node("GlobalAveragePool", ["x"], ["p"]),
        helper.make_node("Add", ["c", "p"], ["s"]),
        helper.make_node("Conv", ["s", "u"], ["d"], kernel_shape=[1, 1]),
        helper.make_node("MaxPool", ["s"], ["q"], kernel_shape=[1, 1]),
        helper.make_node("Add", ["d", "q"], ["y"]),
    ]
    check(tmp_path, network(nodes, {"x": (1, 16, 6, 8)}, {"y": (1, 16, 6, 8)}, {"u": weights(16, 16, 1, 1)}))


@pytest.mark.parametrize("bounds", [(-1, 6), (0, -1)])
def test_any_other_clip_is_an_operator_of_its_own(bounds, tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3]),
        helper.make_node("Clip", ["c", "low", "high"], ["y"]),
    ]
    constants = {"w": weights(8, 16, 3, 3), "low": np.float32(bounds[0]), "high": np.float32(bounds[1])}
    check(tmp_path, network(nodes, {"x": (1, 16, 6, 8)}, {"y": (1, 8, 4, 6)}, constants))


def test_a_convolution_that_two_read_keeps_its_value(tmp_path):
    """The Relu behind it must not be fused when somebody else reads the sum before it."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Add", ["c", "r"], ["y"]),
    ]
    check(tmp_path, network(nodes, {"x": (1, 16, 6, 8)}, {"y": (1, 8, 4, 6)}, {"w": weights(8, 16, 3, 3)}))


def test_a_convolution_that_is_an_output_keeps_its_value(tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    outputs = {"c": (1, 8, 4, 6), "y": (1, 8, 4, 6)}
    check(tmp_path, network(nodes, {"x": (1, 16, 6, 8)}, outputs, {"w": weights(8, 16, 3, 3)}))


def test_the_same_convolution_twice(tmp_path):
    """Two equal sites with different weights: both carry the plan's lowering, each its own kernel."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3], pads=[1] * 4),
        helper.make_node("Conv", ["c", "v"], ["y"], kernel_shape=[3, 3], pads=[1] * 4),
    ]
    constants = {"w": weights(16, 16, 3, 3), "v": weights(16, 16, 3, 3, seed=1)}
    built = check(tmp_path, network(nodes, {"x": (1, 16, 7, 7)}, {"y": (1, 16, 7, 7)}, constants), "winograd")
    assert [(s.name, s.selected) for s in built.sites] == [("conv1", "winograd"), ("conv2", "winograd")]


def test_pytorchs_lrn_becomes_one_operator(tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3]),
        helper.make_node("Mul", ["c", "c"], ["q"]),
        helper.make_node("Unsqueeze", ["q", "one"], ["u"]),
        helper.make_node("Pad", ["u", "pads"], ["p"]),
        helper.make_node("AveragePool", ["p"], ["a"], kernel_shape=[5, 1, 1]),
        helper.make_node("Squeeze", ["a", "one"], ["s"]),
        helper.make_node("Mul", ["s", "alpha"], ["m"]),
        helper.make_node("Add", ["m", "k"], ["d"]),
        helper.make_node("Pow", ["d", "beta"], ["e"]),
        helper.make_node("Div", ["c", "e"], ["y"]),
    ]
    constants = {
        "w": weights(8, 3, 3, 3),
        "one": np.array([1], np.int64),
        "pads": np.array([0, 0, 2, 0, 0, 0, 0, 2, 0, 0], np.int64),
        "alpha": np.float32(0.5),
        "k": np.float32(2),
        "beta": np.float32(0.75),
    }
    model = network(nodes, {"x": (1, 3, 6, 8)}, {"y": (1, 8, 4, 6)}, constants)
    check(tmp_path, model)
    mod, _, _ = pipeline.forced(model, Plan("direct", ((ConvSite(1, 3, (6, 8), 8, (3, 3)), "direct"),)), HOST)
    assert any(v.name_hint.startswith("lrn") for v in mod.functions)


@pytest.mark.parametrize(
    ("op", "attrs"),
    [("Tanh", {}), ("Sigmoid", {}), ("Erf", {}), ("Exp", {}), ("Gelu", {}), ("Gelu", {"approximate": "tanh"})],
    ids=str,
)
def test_a_function_is_right_wherever_it_is_taken(op, attrs, tmp_path):
    """Near zero, where 1 - exp cancels, too, and where a Gelu is nearly 0 or nearly x."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[1, 1]),
        helper.make_node(op, ["c"], ["y"], **attrs),
        helper.make_node(op, ["x"], ["z"], **attrs),
    ]
    scales = np.logspace(-4, 1, 7 * 3).reshape(7, 3, 1, 1).astype(np.float32)
    model = network(nodes, {"x": (2, 3, 7, 9)}, {"y": (2, 7, 7, 9), "z": (2, 3, 7, 9)}, {"w": scales}, 20)
    check(tmp_path, model)


def test_an_operator_without_a_rule_is_named():
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3]),
        helper.make_node("Celu", ["c"], ["y"], name="strange"),
    ]
    model = network(nodes, {"x": (1, 3, 6, 8)}, {"y": (1, 8, 4, 6)}, {"w": weights(8, 3, 3, 3)})
    with pytest.raises(Unsupported, match=r"Celu \(node 'strange'\).*auto"):
        pipeline.build(model, everywhere("direct", ConvSite(1, 3, (6, 8), 8, (3, 3))), HOST)
