"""Operators against ONNX Runtime in float32, on numbers that carry errors already, of odd shapes and wide ranges."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from xframe.equivalence.graph import from_proto
from xframe.equivalence.reference import Reference
from xframe.equivalence.verdict import judge

ort = pytest.importorskip("onnxruntime")

IMAGE = (2, 6, 7, 5)


def normal(*shape, seed=0, scale=1.0, shift=0.0):
    return (shift + scale * np.random.default_rng((seed, *shape)).standard_normal(shape)).astype(np.float32)


def model(op, shape, constants=(), opset=20, outputs=1, **attrs):
    """``op`` of x times 1.1 and of constants; None is an input left out."""
    tensors = [numpy_helper.from_array(np.float32(1.1), "factor")]
    tensors += [numpy_helper.from_array(c, f"c{i}") for i, c in enumerate(constants) if c is not None]
    names = ["" if c is None else f"c{i}" for i, c in enumerate(constants)]
    ends = [f"y{i}" for i in range(outputs)]
    nodes = [
        helper.make_node("Mul", ["x", "factor"], ["scaled"]),
        helper.make_node(op, ["scaled", *names], ends, name=op, **attrs),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ends]
    graph = helper.make_graph(nodes, "g", inputs, results, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def execute(proto, x):
    """Unoptimised: what is looked at are the kernels."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})


def agree(proto, x, loosest=1e-4):
    judged = Reference(from_proto(proto)).evaluate([x])
    verdict = judge(execute(proto, x), judged)
    assert verdict.ok, verdict.reason
    for one in judged:
        assert (one.bound <= loosest * np.abs(one.value).max()).all()


# -- Resize -----------------------------------------------------------------------------------------------------------

COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
SIZES = ([2, 6, 13, 9], [2, 6, 14, 15], [2, 6, 3, 2], [2, 6, 7, 1], [2, 6, 1, 11])


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_to_sizes(mode, coordinates, sizes):
    constants = (None, None, np.array(sizes, np.int64))
    proto = model("Resize", IMAGE, constants, mode=mode, coordinate_transformation_mode=coordinates)
    agree(proto, normal(*IMAGE))


@pytest.mark.parametrize("scales", [(2, 2), (3, 1.5), (0.6, 0.5), (1, 2.7)], ids=str)
@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric"])
def test_resize_by_scales(coordinates, nearest, scales):
    constants = (None, np.array([1, 1, *scales], np.float32))
    attrs = {"coordinate_transformation_mode": coordinates, "nearest_mode": nearest}
    agree(model("Resize", IMAGE, constants, mode="nearest", **attrs), normal(*IMAGE))
    agree(model("Resize", IMAGE, constants, mode="linear", **attrs), normal(*IMAGE))


def test_resize_modes_are_told_apart():
    """Each pair of modes that differ for this size differ in the reference by more than the bound."""
    x, sizes = normal(*IMAGE), np.array([2, 6, 14, 10], np.int64)
    for mode, kinds in (
        ("linear", [{"coordinate_transformation_mode": c} for c in ("half_pixel", "align_corners", "asymmetric")]),
        ("nearest", [{"coordinate_transformation_mode": "asymmetric", "nearest_mode": n} for n in ("floor", "ceil")]),
        ("cubic", [{"cubic_coeff_a": a} for a in (-0.75, -0.5)]),
    ):
        protos = [model("Resize", IMAGE, (None, None, sizes), mode=mode, **kind) for kind in kinds]
        for i, a in enumerate(protos):
            for j, b in enumerate(protos):
                assert judge(execute(b, x), Reference(from_proto(a)).evaluate([x])).ok == (i == j)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("op", ["Upsample", "Resize"])
def test_the_old_forms_of_resize(op, mode):
    scales = np.array([1, 1, 2, 3], np.float32)
    agree(model(op, IMAGE, (scales,), opset=9 if op == "Upsample" else 10, mode=mode), normal(*IMAGE))


# -- transposed convolution -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "kernel", "attrs"),
    [
        (1, (3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        (1, (3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
        (1, (4, 2), {"strides": [3, 2], "pads": [0, 1, 2, 0], "output_padding": [2, 0]}),
        (2, (3, 3), {"strides": [1, 2], "pads": [1, 0, 1, 2]}),
        (6, (2, 2), {"strides": [2, 2]}),
        (3, (3, 2), {"strides": [2, 3], "dilations": [2, 1], "pads": [2, 0, 1, 1]}),
        (1, (1, 1), {"strides": [2, 2]}),
        (1, (2, 2), {"pads": [3, 1, 0, 2]}),
        (1, (3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        (1, (3, 3), {"strides": [2, 2], "output_shape": [14, 10]}),
    ],
)
def test_transposed_convolution(groups, kernel, attrs):
    w, bias = normal(6, 4, *kernel, seed=1), normal(4 * groups, seed=2)
    for constants in ((w,), (w, bias)):
        agree(model("ConvTranspose", IMAGE, constants, group=groups, **attrs), normal(*IMAGE))


def test_transposed_convolution_of_one_dimension():
    agree(model("ConvTranspose", (2, 6, 9), (normal(6, 3, 4),), strides=[3], pads=[1, 2]), normal(2, 6, 9))


# -- functions of one number ------------------------------------------------------------------------------------------

FUNCTIONS = [
    ("Gelu", {}),
    ("Gelu", {"approximate": "tanh"}),
    ("Mish", {}),
    ("Softplus", {}),
    ("Softsign", {}),
    ("Selu", {}),
    ("Selu", {"alpha": 2.0, "gamma": 30.0}),
    ("Celu", {"alpha": 3.0}),
    ("Elu", {"alpha": 0.5}),
    ("ThresholdedRelu", {"alpha": 0.5}),
    ("HardSwish", {}),
    ("Sin", {}),
    ("Floor", {}),
    ("Ceil", {}),
    ("Round", {}),
    ("Sign", {}),
]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 8.0])
@pytest.mark.parametrize(("op", "attrs"), FUNCTIONS)
def test_functions(op, attrs, scale):
    x = np.concatenate([normal(500, scale=scale), np.float32([0, -0.0, 1e-30, -1e-7])])
    judged = Reference(from_proto(model(op, x.shape, **attrs))).evaluate([x])
    verdict = judge(execute(model(op, x.shape, **attrs), x), judged)
    assert verdict.ok, verdict.reason
    assert np.median(judged[0].bound) < 1e-5 * max(np.abs(judged[0].value).max(), 1.0)


def test_gelu_forms_are_told_apart():
    exact, other = model("Gelu", IMAGE), model("Gelu", IMAGE, approximate="tanh")
    x = normal(*IMAGE)
    assert not judge(execute(other, x), Reference(from_proto(exact)).evaluate([x])).ok
    assert not judge(execute(exact, x), Reference(from_proto(other)).evaluate([x])).ok


# -- normalisations and reductions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (0.0, 0.01), (30.0, 1.0), (-3.0, 0.1)])
def test_normalisations(shift, scale):
    x = normal(*IMAGE, scale=scale, shift=shift)
    loosest = 1e-4 * (1 + abs(shift / scale) ** 2)  # a mean that is far from zero cancels
    channels = normal(6, seed=1), normal(6, seed=2)
    agree(model("InstanceNormalization", IMAGE, channels), x, loosest)
    agree(model("GroupNormalization", IMAGE, channels, opset=21, num_groups=3, epsilon=1e-3), x, loosest)
    agree(model("GroupNormalization", IMAGE, [c[:3] for c in channels], opset=18, num_groups=3), x, loosest)
    for axis, shape in ((-1, (5,)), (1, (6, 7, 5)), (2, (7, 5))):
        agree(model("LayerNormalization", IMAGE, (normal(*shape), normal(*shape, seed=1)), axis=axis), x, loosest)
        agree(model("LayerNormalization", IMAGE, (normal(*shape),), axis=axis), x, loosest)
    agree(model("MeanVarianceNormalization", IMAGE), x, loosest)
    for p in (1, 2):
        agree(model("LpNormalization", IMAGE, axis=1, p=p), x)


@pytest.mark.parametrize("op", ["Mean", "Sum", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp"])
@pytest.mark.parametrize("axes", [(2, 3), (1,), None])
def test_reductions(op, axes):
    constants = () if axes is None else (np.array(axes, np.int64),)
    x = normal(*IMAGE, scale=0.2, shift=0.9) if op == "Prod" else normal(*IMAGE)
    for keep in (0, 1):
        agree(model(f"Reduce{op}", IMAGE, constants, keepdims=keep), x, 1e-3)


@pytest.mark.parametrize("attrs", [{}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1}])
def test_cumulative_sums(attrs):
    agree(model("CumSum", IMAGE, (np.int64(1),), **attrs), normal(*IMAGE))


@pytest.mark.parametrize("equation", ["nchw,oc->nohw", "nchw,nchw->nc", "nchw,w->nhc"])
def test_einsum(equation):
    sizes = dict(zip("nchwo", (*IMAGE, 4), strict=True))
    other = normal(*(sizes[k] for k in equation.split("->")[0].split(",")[1]), seed=1)
    agree(model("Einsum", IMAGE, (other,), equation=equation), normal(*IMAGE))


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("ceil", [0, 1])
def test_dilated_average_pooling(count, ceil):
    attrs = {"kernel_shape": [3, 2], "dilations": [2, 2], "strides": [2, 1], "pads": [1, 1, 1, 1]}
    agree(model("AveragePool", IMAGE, ceil_mode=ceil, count_include_pad=count, **attrs), normal(*IMAGE))


def test_moves():
    x = normal(*IMAGE)
    at = np.random.default_rng(0).integers(-5, 5, (2, 6, 7, 3))
    agree(model("GatherElements", IMAGE, (at,), axis=3), x)
    agree(model("GatherND", IMAGE, (np.array([[[0, 1], [5, 2]], [[1, 1], [2, 6]]]),), batch_dims=1), x)
    agree(model("Trilu", IMAGE, (np.array(1),), upper=0), x)


def test_a_half_precision_network():
    """Weights and inputs in float16: exact numbers as any; what is rounded to float16 has that bound."""
    w = normal(4, 6, 3, 3).astype(np.float16)
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        helper.make_node("Conv", ["h", "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Cast", ["r"], ["half"], to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["half"], ["y"], to=TensorProto.FLOAT),
    ]
    x = normal(*IMAGE)
    ends = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, IMAGE)]
    graph = helper.make_graph(nodes, "g", inputs, ends, [numpy_helper.from_array(w, "w")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (judged,) = Reference(from_proto(proto)).evaluate([x])
    wide = [helper.make_node("Conv", ["h32", "w32"], ["c"]), *nodes[2:3], helper.make_node("Identity", ["r"], ["y"])]
    tensors = [numpy_helper.from_array(w.astype(np.float32), "w32")]
    h = x.astype(np.float16).astype(np.float32)
    inputs = [helper.make_tensor_value_info("h32", TensorProto.FLOAT, IMAGE)]
    wide_model = helper.make_model(
        helper.make_graph(wide, "g", inputs, ends, tensors), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    (plain,) = Reference(from_proto(wide_model)).evaluate([h])
    np.testing.assert_allclose(judged.value, plain.value, rtol=1e-12)
    rounded = plain.value.astype(np.float16)
    assert judge([rounded], [judged]).ok
    assert not judge([rounded], [plain]).ok
