"""Graphs written as ONNX: the same values, valid, cut anywhere."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.equivalence import small_nets
from xframe.check import emit
from xframe.equivalence.graph import Graph, Node, from_proto, from_spec
from xframe.equivalence.reference import Reference
from xframe.errors import ModelError
from xframe.normal import loading


def network(spec):
    graph = from_spec(spec, small_nets.weights(spec))
    return replace(graph, shapes=((1, *spec.input),)), small_nets.images(spec)


def session(model):
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    data = model if isinstance(model, str) else model.SerializeToString()
    return onnxruntime.InferenceSession(data, settings, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("spec", [small_nets.alexlike(softmax=True), small_nets.residual()], ids=lambda s: s.name)
def test_the_model_is_the_graph(spec):
    graph, x = network(spec)
    model = emit.model(graph)
    (exact,), (again,) = (Reference(g).evaluate([x]) for g in (graph, from_proto(model)))
    np.testing.assert_allclose(again.value, exact.value, rtol=0, atol=1e-3 * exact.bound.min())
    (got,) = session(model).run(None, {"input": x})
    assert (np.abs(got - exact.value) <= exact.bound).all()
    assert [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim] == list(exact.value.shape)


def test_every_intermediate_tensor_has_a_static_shape():
    graph, _ = network(small_nets.residual())
    told = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in emit.model(graph).graph.value_info}
    assert told["both"] == [1, 32, 12, 12]
    assert all(all(shape) for shape in told.values())


def test_a_part_is_what_lies_between_two_tensors():
    graph, x = network(small_nets.alexlike())
    names = ["pool1", "fc5"]
    pool, whole = Reference(replace(graph, outputs=tuple(names))).evaluate([x])
    part = emit.part(graph, {"pool1": pool.value.shape}, ["fc5"])
    assert [n.name for n in part.nodes][:2] == ["conv2", "relu2"]
    assert part.inputs == ("pool1",)
    assert not any(name.startswith("conv1") for name in part.constants)
    (got,) = session(emit.model(part)).run(None, {"pool1": pool.value.astype(np.float32)})
    assert (np.abs(got - whole.value) <= whole.bound).all()


def test_a_part_takes_what_else_it_needs_from_the_networks_own_inputs():
    graph, _ = network(small_nets.residual())
    part = emit.part(graph, {"bn2": (1, 16, 12, 12)}, ["sum"])
    assert part.inputs == ("bn2", "input")
    assert [n.name for n in part.nodes] == ["conv1", "bn1", "relu1", "sum"]


def test_a_tensor_that_is_not_there_is_named():
    graph, _ = network(small_nets.residual())
    with pytest.raises(ModelError, match="no tensor 'nobody'"):
        emit.part(graph, {}, ["nobody"])


def test_what_an_older_operator_set_has_as_an_attribute_becomes_an_input():
    nodes = (
        Node("clip", "Clip", ("x",), ("c",), {"min": 0.0, "max": 2}, 13),
        Node("pad", "Pad", ("c",), ("p",), {"pads": (0, 0, 1, 0, 0, 0, 0, 2), "value": 7.0}, 13),
        Node("drop", "Dropout", ("p",), ("y",), {"ratio": 0.5}, 13),
    )
    x = np.linspace(-3, 3, 12, dtype=np.float32).reshape(1, 1, 3, 4)
    graph = Graph(nodes, {}, ("x",), ("y",), (x.shape,))
    (got,) = session(emit.model(graph)).run(None, {"x": x})
    (exact,) = Reference(graph).evaluate([x])
    np.testing.assert_array_equal(got, exact.value.astype(np.float32))
    assert got[0, 0, 0, 0] == 7


def test_softmax_of_both_meanings_in_one_graph_is_refused():
    nodes = (
        Node("old", "Softmax", ("x",), ("s",), {"axis": 1}, 11),
        Node("new", "Softmax", ("s",), ("y",), {"axis": 1}, 13),
    )
    with pytest.raises(ModelError, match="before opset 13"):
        emit.model(Graph(nodes, {}, ("x",), ("y",), ((1, 2, 3),)))


def test_an_attribute_that_no_operator_set_has_is_refused():
    graph = Graph((Node("r", "Relu", ("x",), ("y",), {"slope": 1.0}, 13),), {}, ("x",), ("y",), ((1, 2),))
    with pytest.raises(ModelError, match=r"r \(Relu\).*no attribute slope"):
        emit.model(graph)


def test_nodes_that_are_no_valid_onnx_are_refused():
    graph = Graph((Node("n", "NoSuchOperator", ("x",), ("y",), {}, 13),), {}, ("x",), ("y",), ((1, 2),))
    with pytest.raises(ModelError, match="not valid ONNX"):
        emit.model(graph)


def test_half_precision_becomes_float32(tmp_path):
    w = np.arange(6, dtype=np.float16).reshape(2, 3)
    proto = helper.make_model(
        helper.make_graph(
            [
                helper.make_node("MatMul", ["x", "w"], ["m"], "product"),
                helper.make_node("Cast", ["m"], ["y"], "cast", to=TensorProto.DOUBLE),
            ],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT16, [1, 2])],
            [helper.make_tensor_value_info("y", TensorProto.DOUBLE, [1, 3])],
            [numpy_helper.from_array(w, "w")],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.save(proto, tmp_path / "half.onnx")
    (got,) = session(emit.model(loading.load(tmp_path / "half.onnx"))).run(None, {"x": np.ones((1, 2), np.float32)})
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, [[3, 5, 7]])


def test_weights_over_the_limit_of_one_file_lie_beside_it(tmp_path, monkeypatch):
    graph, x = network(small_nets.residual())
    emit.save(graph, tmp_path / "one.onnx")
    monkeypatch.setattr(emit, "ONE_FILE", 4096)
    emit.save(graph, tmp_path / "two.onnx")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one.onnx", "two.onnx", "two.onnx.data"]
    one, two = (session(str(tmp_path / f"{n}.onnx")).run(None, {"input": x})[0] for n in ("one", "two"))
    np.testing.assert_array_equal(one, two)
    with pytest.raises(ModelError, match="2 GB"):
        emit.model(graph)


def test_floating_tensors_leave_shapes_out():
    shape = np.array([1, -1], np.int64)
    nodes = (
        Node("relu", "Relu", ("x",), ("r",), {}, 17),
        Node("size", "Shape", ("r",), ("s",), {}, 17),
        Node("flat", "Reshape", ("r", "shape"), ("y",), {}, 17),
        Node("dead", "Relu", ("x",), ("unread",), {}, 17),
    )
    graph = Graph(nodes, {"shape": shape}, ("x",), ("y", "s"), ((1, 2, 3),))
    assert emit.floating(graph) == ["r", "y"]
