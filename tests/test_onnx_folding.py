"""What is folded computes the same before and after; what must stay stays."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from xframe import onnx_folding

X = (2, 3, 8, 7)


def rng():
    return np.random.default_rng(5)


def model(nodes, constants, outputs, shape=X):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(made)


def run(made, shape=X):
    onnx.checker.check_model(made, full_check=True)
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": rng().standard_normal(shape).astype(np.float32)})


def folded(made, shape=X):
    """Operators after folding, whose outputs are what they were."""
    before = run(made, shape)
    onnx_folding.fold(made)
    for one, two in zip(before, run(made, shape), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5)
    return [node.op_type for node in made.graph.node]


def weight(*shape):
    return rng().standard_normal(shape).astype(np.float32)


def padded(value=0.0, pads=(0, 0, 1, 2, 0, 0, 0, 1), **attributes):
    nodes = [
        helper.make_node("Pad", ["x", "p", "v"], ["a"], "pad", **attributes),
        helper.make_node("Conv", ["a", "w"], ["b"], "conv", pads=[0, 1, 0, 0]),
        helper.make_node("Add", ["b", "bias"], ["y"], "biased"),
    ]
    constants = {"p": np.array(pads), "v": np.float32(value), "w": weight(4, 3, 3, 3), "bias": weight(4, 1, 1)}
    return model(nodes, constants, ["y"])


def test_padding_and_bias_go_into_the_convolution():
    made = padded()
    assert folded(made) == ["Conv"]
    (conv,) = made.graph.node
    assert list(conv.input) == ["x", "w", "bias"]
    assert list(conv.output) == ["y"]
    assert [list(a.ints) for a in conv.attribute if a.name == "pads"] == [[1, 3, 0, 1]]
    assert {t.name: list(t.dims) for t in made.graph.initializer} == {"w": [4, 3, 3, 3], "bias": [4]}


@pytest.mark.parametrize(
    "made",
    [
        padded(value=1.0),
        padded(pads=(0, 0, 0, 0, 0, 0, -1, 0)),
        padded(mode="edge"),
        padded(pads=(1, 0, 0, 0, 0, 0, 0, 0)),
    ],
    ids=["of ones", "cropping", "of the edge", "of the batch"],
)
def test_other_padding_stays(made):
    assert folded(made) == ["Pad", "Conv"]


def test_padding_that_something_else_reads_stays():
    made = padded()
    made.graph.output.append(next(v for v in made.graph.value_info if v.name == "a"))
    assert folded(made) == ["Pad", "Conv"]


def pooled(value, pads, operator="MaxPool"):
    nodes = [
        helper.make_node("Pad", ["x", "p", "v"], ["a"], "pad"),
        helper.make_node(operator, ["a"], ["y"], "pool", kernel_shape=[2, 3]),
    ]
    return model(nodes, {"p": np.array(pads), "v": np.float32(value)}, ["y"])


def test_a_maximum_pads_with_less_than_anything():
    assert folded(pooled(-np.inf, (0, 0, 1, 2, 0, 0, 0, 2))) == ["MaxPool"]


@pytest.mark.parametrize(
    "made",
    [
        pooled(0.0, (0, 0, 1, 1, 0, 0, 0, 0)),
        pooled(-np.inf, (0, 0, 0, 0, 0, 0, 2, 0)),
        pooled(0.0, (0, 0, 1, 1, 0, 0, 0, 0), "AveragePool"),
    ],
    ids=["of zeros", "a window of padding alone", "an average"],
)
def test_a_pooling_that_pads_otherwise_keeps_its_node(made):
    assert len(folded(made)) == 2


def added(bias, shape, op="Conv"):
    nodes = [helper.make_node(op, ["x", "w"], ["b"], "product"), helper.make_node("Add", ["b", "c"], ["y"], "sum")]
    weights = weight(4, 3, 3, 3) if op == "Conv" else weight(5, 4)
    return model(nodes, {"w": weights, "c": bias}, ["y"], shape)


@pytest.mark.parametrize("shape", [(1, 4, 1, 1), (4, 1, 1)])
def test_a_bias_is_one_value_a_channel(shape):
    assert folded(added(weight(*shape), X)) == ["Conv"]


@pytest.mark.parametrize("shape", [(1,), (5,), (4, 6, 5), (2, 4, 1, 1)])
def test_another_constant_is_added(shape):
    assert folded(added(weight(*shape), X)) == ["Conv", "Add"]


def test_a_matrix_product_and_its_bias_are_one():
    made = added(weight(4), (2, 5), "MatMul")
    assert folded(made, (2, 5)) == ["Gemm"]
    assert list(made.graph.node[0].input) == ["x", "w", "c"]


@pytest.mark.parametrize(("bias", "shape"), [((2, 4), (2, 5)), ((4,), (3, 2, 5))])
def test_a_product_of_more_dimensions_or_of_another_addend_stays(bias, shape):
    assert folded(added(weight(*bias), shape, "MatMul"), shape) == ["MatMul", "Add"]


def test_a_bias_that_two_read_stays():
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["b"], "one"),
        helper.make_node("Add", ["b", "c"], ["y"], "sum"),
        helper.make_node("Mul", ["x0", "c"], ["z"], "other"),
        helper.make_node("ReduceMax", ["b"], ["x0"], "max"),
    ]
    nodes = [nodes[0], nodes[3], nodes[1], nodes[2]]
    assert folded(model(nodes, {"w": weight(4, 3, 3, 3), "c": weight(4, 1, 1)}, ["y", "z"])) == [
        "Conv",
        "ReduceMax",
        "Add",
        "Mul",
    ]


def test_shapes_are_named_after_what_they_are_for_and_constants_in_order():
    nodes = [
        helper.make_node("Mul", ["x", "m"], ["a"], "scale"),
        helper.make_node("Reshape", ["a", "R1799_shape"], ["b"], "flat"),
        helper.make_node("MatMul", ["b", "w"], ["y"], "fc"),
    ]
    constants = {"w": weight(168, 4), "R1799_shape": np.array([2, 168]), "m": weight(1)}
    made = model(nodes, constants, ["y"])
    assert folded(made) == ["Mul", "Reshape", "MatMul"]
    assert [t.name for t in made.graph.initializer] == ["m", "flat.shape", "w"]
