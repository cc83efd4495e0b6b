"""Names of nodes, read without the weights."""

import onnx
import pytest
from onnx import TensorProto, helper

from xframe.backends.nodes import Nodes
from xframe.errors import ModelError


def graph(*nodes):
    return Nodes([helper.make_node(op, inputs, outputs, name) for op, name, inputs, outputs in nodes])


def test_a_file_is_read(convnet):
    path = convnet()
    found = Nodes.read(str(path))
    assert list(found) == ["conv1", "relu1", "conv2", "pool"]
    assert [found.named(n) for n in ("conv1", "r1", "y", "w1", "nothing")] == ["conv1", "relu1", "pool", "", ""]


def test_weights_are_skipped_whatever_their_size(tmp_path):
    """Large, and of every kind of field that stands beside them."""
    info = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    big = helper.make_tensor("big", TensorProto.FLOAT, [1 << 18], bytes(1 << 20), raw=True)
    node = helper.make_node("Identity", ["small"], ["y"], "last")
    small = helper.make_tensor("small", TensorProto.FLOAT, [1], [1.0])
    model = helper.make_model(helper.make_graph([node], "g", [], [info], [big, small]), doc_string="x" * 300)
    onnx.save(model, tmp_path / "m.onnx")
    assert list(Nodes.read(str(tmp_path / "m.onnx"))) == ["last"]


def test_a_node_without_a_name_is_called_after_its_output():
    nodes = graph(("Relu", "", ["x"], ["y"]))
    assert list(nodes) == ["y"]
    assert nodes.named("y") == "y"


def test_what_comes_before_stops_at_the_operator():
    nodes = graph(
        ("Conv", "first", ["x", "w"], ["a"]),
        ("Conv", "main", ["a", "w"], ["b"]),
        ("Conv", "skip", ["a", "w"], ["c"]),
        ("Relu", "inner", ["b"], ["d"]),
        ("Add", "sum", ["d", "c"], ["e"]),
        ("Relu", "last", ["e"], ["y"]),
    )
    assert nodes.before("last", "Conv") == ["skip", "main"]  # the nearest first
    assert nodes.before("main", "Conv") == ["main"]
    assert nodes.before("sum", "Gemm") == []


def test_a_file_that_is_no_model(tmp_path):
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"\x3a\xff\xff\xff\xff\x7f")  # a graph that is longer than the file
    with pytest.raises(ModelError, match="can't be read"):
        Nodes.read(str(path))
