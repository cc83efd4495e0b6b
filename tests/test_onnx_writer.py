"""Models of neutral graphs, and old files made models of today: valid, and the same function."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from xframe import artifact, neutral, onnx_writer
from xframe.errors import ModelError, Unsupported

RNG = np.random.default_rng(0)
WEIGHTS = {
    name: RNG.standard_normal(shape).astype(np.float32)
    for name, shape in {"w": (4, 3, 3, 3), "b": (4, 1, 1), "m": (32, 5), "v": (5,)}.items()
}


def run(model, *feed):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip((i.name for i in session.get_inputs()), feed, strict=True)))[0]


def old(*more, last="d", shape=(1, 5), numbers=(1, 32), ir_version=4):
    """A network as exporters wrote it in 2018: opset 9, weights among the inputs, fixed at batch 1."""
    nodes = [
        helper.make_node("Pad", ["x"], ["p"], mode="constant", pads=[0, 0, 1, 0, 0, 0, 0, 1], value=0.0),
        helper.make_node("Conv", ["p", "w"], ["c"], "Convolution8", strides=[2, 2], kernel_shape=[3, 3]),
        helper.make_node("Add", ["c", "b"], ["a"], "Plus9"),
        helper.make_node("Relu", ["a"], ["r"], "ReLU10"),
        helper.make_node("Reshape", ["r", "s"], ["f"], "Reshape11"),
        helper.make_node("MatMul", ["f", "m"], ["t"], "Times12"),
        helper.make_node("Add", ["t", "v"], ["d"], "Plus13"),
        *more,
    ]
    weights = [numpy_helper.from_array(v, n) for n, v in WEIGHTS.items()]
    weights.append(numpy_helper.from_array(np.array(numbers, np.int64), "s"))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, 8, 4))]
    inputs += [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in weights]
    graph = helper.make_graph(
        nodes, "CNTKGraph", inputs, [helper.make_tensor_value_info(last, TensorProto.FLOAT, shape)], weights
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=ir_version)
    return model.SerializeToString()


def outputs(feed):
    """Of that network, in float64."""
    x = np.pad(feed.astype(np.float64), ((0, 0), (0, 0), (1, 0), (0, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::2, ::2]
    image = np.einsum("ncyxij,ocij->noyx", windows, WEIGHTS["w"]) + WEIGHTS["b"]
    return np.maximum(image, 0).reshape(len(feed), -1) @ WEIGHTS["m"] + WEIGHTS["v"]


@pytest.mark.parametrize("ir_version", [3, 4])
def test_an_old_file_becomes_a_model_of_today(ir_version):
    made = onnx_writer.modern(old(ir_version=ir_version), 1)
    onnx.checker.check_model(made, full_check=True)
    assert artifact.opset(made) == neutral.OPSET
    assert [v.name for v in made.graph.input] == ["input"]
    assert [v.name for v in made.graph.output] == ["output"]
    feed = RNG.standard_normal((1, 3, 8, 4)).astype(np.float32)
    np.testing.assert_allclose(run(made, feed), outputs(feed), atol=1e-5)


def test_large_weights_stay_what_they_are(monkeypatch):
    monkeypatch.setattr(artifact, "SMALL_BYTES", 64)
    feed = RNG.standard_normal((1, 3, 8, 4)).astype(np.float32)
    np.testing.assert_allclose(run(onnx_writer.modern(old(), 1), feed), outputs(feed), atol=1e-5)


def test_another_batch_is_put_in_the_place_of_1_and_told():
    made = onnx_writer.modern(old(), 3)
    onnx.checker.check_model(made, full_check=True)
    assert [d.dim_value for d in made.graph.input[0].type.tensor_type.shape.dim] == [3, 3, 8, 4]
    assert [d.dim_value for d in made.graph.output[0].type.tensor_type.shape.dim] == [3, 5]
    feed = RNG.standard_normal((3, 3, 8, 4)).astype(np.float32)
    np.testing.assert_allclose(run(made, feed), outputs(feed), atol=1e-5)
    assert {p.key: p.value for p in made.metadata_props}["batch"].startswith("3, put in the place of 1")


@pytest.mark.parametrize(
    ("nodes", "shape", "words"),
    [
        (
            [helper.make_node("Transpose", ["d"], ["e"], "swap", perm=[1, 0])],
            (5, 1),
            "swap .* works along it",
        ),
        ([helper.make_node("Softmax", ["d"], ["e"], "soft", axis=0)], (1, 5), "works along it"),
        ([helper.make_node("Concat", ["d", "d"], ["e"], "two", axis=0)], (2, 5), r"two \(Concat\) works along it"),
        ([helper.make_node("Unsqueeze", ["d"], ["e"], "wrap", axes=[1])], (1, 1, 5), None),
        ([helper.make_node("ReduceSum", ["d"], ["e"], "sum", keepdims=0, axes=[1])], (1,), None),
        ([helper.make_node("ReduceMax", ["d"], ["e"], "most", keepdims=0)], (), "output has the shape"),
    ],
)
def test_what_depends_on_the_batch_is_refused(nodes, shape, words):
    data = old(*nodes, last="e", shape=shape)
    onnx_writer.modern(data, 1)
    if words is None:
        feed = RNG.standard_normal((2, 3, 8, 4)).astype(np.float32)
        both, one = run(onnx_writer.modern(data, 2), feed), onnx_writer.modern(data, 1)
        np.testing.assert_allclose(both, np.concatenate([run(one, feed[:1]), run(one, feed[1:])]), atol=1e-5)
        return
    with pytest.raises(Unsupported, match=f"fixes the batch at 1, and 2 can't be put in its place: .*{words}"):
        onnx_writer.modern(data, 2)


def test_what_is_fixed_at_more_than_1_stays_so():
    made = onnx_writer.modern(old(), 3).SerializeToString()
    assert onnx_writer.modern(made).SerializeToString() == onnx_writer.modern(made, 3).SerializeToString()
    with pytest.raises(Unsupported, match=r"fixes the batch at \[3\], and 2 was asked for"):
        onnx_writer.modern(made, 2)


def test_what_is_no_file_of_onnx_is_refused():
    with pytest.raises(ModelError, match="is no ONNX file"):
        onnx_writer.modern(b"\xff\xff nothing")


def test_a_neutral_graph_becomes_a_model(tmp_path):
    path = str(tmp_path / "graph")
    nodes = (
        neutral.Node("Conv", "c", ("input", "w", "bias"), ("c",), {"pads": [1, 0, 0, 1], "strides": [2, 2]}),
        neutral.Node("Reshape", "f", ("c", "shape"), ("output",), {}),
    )
    weights = {"w": WEIGHTS["w"], "bias": WEIGHTS["b"].reshape(4), "shape": np.array([2, -1], np.int64)}
    graph = neutral.Graph("net", (("input", (2, 3, 8, 4)),), (("output", (2, 32)),), nodes, weights)
    neutral.save(graph, path)
    made = onnx_writer.model("graph", path, 2)
    assert artifact.opset(made) == neutral.OPSET
    feed = RNG.standard_normal((2, 3, 8, 4)).astype(np.float32)
    x = np.pad(feed.astype(np.float64), ((0, 0), (0, 0), (1, 0), (0, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::2, ::2]
    want = np.einsum("ncyxij,ocij->noyx", windows, WEIGHTS["w"]) + WEIGHTS["b"]
    np.testing.assert_allclose(run(made, feed), want.reshape(2, 32), atol=1e-5)


@pytest.mark.parametrize(
    ("node", "shape"),
    [
        (neutral.Node("Conv", "c", ("input", "missing"), ("output",), {}), (1, 4)),
        (neutral.Node("Relu", "r", ("input",), ("output",), {"slope": 1}), (1, 4)),
        (neutral.Node("NoSuchOperator", "n", ("input",), ("output",), {}), (1, 4)),
        (neutral.Node("Relu", "r", ("input",), ("output",), {}), (1, 5)),
    ],
)
def test_a_graph_that_makes_no_sense_is_refused(tmp_path, node, shape):
    path = str(tmp_path / "graph")
    neutral.save(neutral.Graph("net", (("input", (1, 4)),), (("output", shape),), (node,), {}), path)
    with pytest.raises(ModelError, match="the export of net is not valid ONNX"):
        onnx_writer.model("graph", path, 1)
