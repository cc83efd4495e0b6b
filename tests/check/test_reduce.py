"""Disagreements made small: down to the node, a few numbers, and files that show it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from xframe.check import emit
from xframe.check.reduce import reduce, reduce_run
from xframe.check.subjects import open_subject
from xframe.equivalence.graph import Graph, Node
from xframe.equivalence.reference import Reference
from xframe.errors import UsageError, XframeError
from xframe.normal.canonical import canonical
from xframe.normal.match import match
from xframe.registry import BACKENDS, Row

SHAPE = (2, 3, 17, 17)
FEED = [np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)]


def network(**changed):
    """Convolution, LRN, pooling, grouped convolution, a sum, a product. ``changed``: node -> attributes, or a node."""
    rng = np.random.default_rng(0)
    nodes = [
        Node("conv1", "Conv", ("x", "w1", "b1"), ("c1",), {"pads": (1, 1, 1, 1), "kernel_shape": (3, 3)}, 17),
        Node("relu1", "Relu", ("c1",), ("r1",), {}, 17),
        Node("lrn", "LRN", ("r1",), ("n1",), {"size": 5, "alpha": 0.1}, 17),
        Node("pool", "MaxPool", ("n1",), ("p1",), {"kernel_shape": (2, 2), "strides": (2, 2)}, 17),
        Node("conv2", "Conv", ("p1", "w2", "b2"), ("c2",), {"pads": (1, 1, 1, 1), "group": 2}, 17),
        Node("relu2", "Relu", ("c2",), ("r2",), {}, 17),
        Node("conv3", "Conv", ("r2", "w3", "b3"), ("c3",), {"pads": (1, 1, 1, 1)}, 17),
        Node("sum", "Add", ("c3", "p1"), ("s",), {}, 17),
        Node("flat", "Flatten", ("s",), ("f",), {}, 17),
        Node("fc", "Gemm", ("f", "w4", "b4"), ("y",), {"transB": 1}, 17),
    ]
    shapes = {"w1": (8, 3, 3, 3), "w2": (8, 4, 3, 3), "w3": (8, 8, 3, 3), "w4": (6, 512)}
    constants = {n: rng.standard_normal(s).astype(np.float32) / s[1] for n, s in shapes.items()}
    constants |= {n.replace("w", "b"): rng.standard_normal(s[0]).astype(np.float32) for n, s in shapes.items()}
    nodes = [replace(n, attrs={**n.attrs, **changed.get(n.name, {})}) for n in nodes]
    return Graph(tuple(nodes), constants, ("x",), ("y",), (SHAPE,))


def changed_weight(graph, name, at, factor):
    array = graph.constants[name].copy()
    array[at] *= factor
    return replace(graph, constants={**graph.constants, name: array})


def reduced(a, b, folder):
    first, second = canonical(a), canonical(b)
    return reduce(first, second, match(first, second, ("A", "B")), [FEED], folder, names=("A", "B"))


def ran(model):
    """What ONNX Runtime gives for a model's own test data, and the exact outputs beside it."""
    data = model.parent / "test_data_set_0"
    arrays = {p.stem: onnx.numpy_helper.to_array(onnx.load_tensor(p)) for p in sorted(data.iterdir())}
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    feeds = {v.name: arrays[f"input_{i}"] for i, v in enumerate(session.get_inputs())}
    (got,) = session.run(None, feeds)
    np.testing.assert_allclose(got, arrays["output_0"], rtol=1e-4, atol=1e-5)
    return got


def nodes(path):
    return [n.op_type for n in onnx.load(path).graph.node]


PLANTED = {
    "padding": (network(conv2={"pads": (0, 0, 2, 2)}), ["Conv"], 40),
    "LRN": (network(lrn={"alpha": 0.5}), ["LRN"], 8),
    "pooling": (
        network(pool={"kernel_shape": (2, 2), "strides": (2, 2), "dilations": (2, 2), "pads": (0, 0, 1, 1)}),
        ["MaxPool"],
        30,
    ),
    "one weight": (changed_weight(network(), "w3", (6, 5, 2, 0), 1.5), ["Conv"], 20),
    "one bias": (changed_weight(network(), "b1", 3, 2.0), ["Conv"], 20),
    "product": (changed_weight(network(), "w4", (4, 300), 3.0), ["Gemm"], 10),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_difference_shrinks_to_its_node(name, tmp_path):
    other, ops, most = PLANTED[name]
    found = reduced(network(), other, tmp_path / "out")
    assert [nodes(m) for m in found.models] == [ops, ops]
    assert found.inputs[0][0] == 1
    assert sum(np.prod(s) for s in found.inputs) <= most
    first, second = map(ran, found.models)
    assert first.shape == second.shape
    assert np.abs(first - second).max() > 1e-4
    assert found.sentence in (tmp_path / "out" / "README.txt").read_text()
    assert found.sentence.startswith("A and B part at ")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["README.txt", "a", "b"]


def with_ceiling(crop):
    """Its pooling keeps the last partial window; ``crop``: cut off again, so that nothing is changed."""
    graph = network(pool={"ceil_mode": 1})
    nodes = {n.name: n for n in graph.nodes}
    if crop:
        cut = Node("crop", "Slice", ("p0", "starts", "ends", "axes"), ("p1",), {}, 17)
        nodes["pool"] = replace(nodes["pool"], outputs=("p0",))
        nodes = {k: v for n in nodes.values() for k, v in ((n.name, n), *([("crop", cut)] if n.name == "pool" else []))}
    held = {"starts": np.array([0, 0]), "ends": np.array([8, 8]), "axes": np.array([2, 3])}
    return replace(graph, nodes=tuple(nodes.values()), constants={**graph.constants, **held})


def ending_in_a_mean(graph):
    """Up to the sum, then the mean over the pixels."""
    mean = Node("mean", "GlobalAveragePool", ("s",), ("y",), {}, 17)
    return replace(graph, nodes=(*graph.nodes[:-2], mean))


def test_other_shapes_on_the_way_to_a_difference_are_the_difference(tmp_path):
    found = reduced(ending_in_a_mean(network()), ending_in_a_mean(with_ceiling(crop=False)), tmp_path)
    assert [nodes(m) for m in found.models] == [["MaxPool"], ["MaxPool"]]
    first, second = map(ran, found.models)
    assert first.shape != second.shape
    assert f"they give {list(first.shape)} and {list(second.shape)}" in found.sentence


def test_other_shapes_that_change_nothing_are_no_difference(tmp_path):
    with pytest.raises(UsageError, match="nothing to reduce"):
        reduced(network(), with_ceiling(crop=True), tmp_path)


def test_a_layer_that_only_one_has_stays_with_its_neighbour(tmp_path):
    graph = network()
    extra = Node("extra", "Sigmoid", ("c2",), ("e",), {}, 17)
    at = next(i for i, n in enumerate(graph.nodes) if n.name == "relu2")
    made = (*graph.nodes[:at], extra, replace(graph.nodes[at], inputs=("e",)), *graph.nodes[at + 1 :])
    found = reduced(graph, replace(graph, nodes=made), tmp_path)
    ops = [nodes(m) for m in found.models]
    assert ops in ([["Relu"], ["Sigmoid", "Relu"]], [["Conv"], ["Conv", "Sigmoid"]], [["Relu"], ["Sigmoid"]])
    first, second = map(ran, found.models)
    assert np.abs(first - second).max() > 1e-4


def test_swapped_outputs_shrink_to_what_gives_them(tmp_path):
    ends = ("s", "p1")
    found = reduced(replace(network(), outputs=ends), replace(network(), outputs=ends[::-1]), tmp_path)
    assert [nodes(m) for m in found.models] == [["MaxPool", "Add"], ["MaxPool"]]
    first, second = map(ran, found.models)
    assert not np.array_equal(first, second)


def test_two_that_agree_have_nothing_to_reduce(tmp_path):
    with pytest.raises(UsageError, match="nothing to reduce"):
        reduced(network(), network(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_was_written_before_is_replaced_and_nothing_else(tmp_path):
    out, secret = tmp_path / "out", tmp_path / "secret"
    secret.mkdir()
    (secret / "kept").write_text("mine")
    reduced(network(), PLANTED["LRN"][0], out)
    (out / "b").rename(tmp_path / "moved")
    (out / "b").symlink_to(secret)
    reduced(network(), PLANTED["padding"][0], out)
    assert nodes(out / "a" / "model.onnx") == ["Conv"]
    assert not (out / "b").is_symlink()
    assert [p.name for p in secret.iterdir()] == ["kept"]
    (out / "a" / "notes.md").write_text("mine")
    with pytest.raises(UsageError, match=r"notes.md, which is not ours"):
        reduced(network(), PLANTED["LRN"][0], out)
    assert nodes(out / "a" / "model.onnx") == ["Conv"]
    assert sorted(p.name for p in out.iterdir()) == ["README.txt", "a", "b"]


def test_a_folder_that_can_not_be_made_is_an_error_in_words(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(XframeError, match="choose another folder"):
        reduced(network(), PLANTED["LRN"][0], tmp_path / "file" / "out")


@pytest.fixture
def opened(tmp_path):
    emit.save(network(), tmp_path / "net.onnx")
    return open_subject(str(tmp_path / "net.onnx"), "net", tmp_path)


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    return lambda name: monkeypatch.setitem(BACKENDS, "ort", Row(f"fake_backends:{name}", (), "ort"))


def test_a_backend_that_is_wrong_shrinks_to_the_operator(opened, fake, tmp_path):
    fake("WrongPool")
    found = reduce_run(opened, "ort", [FEED], tmp_path / "out")
    assert nodes(tmp_path / "out" / "model.onnx") == ["MaxPool"]
    assert found.nodes == (1,)
    assert np.prod(found.inputs[0]) <= 9
    assert found.statistics.ratio > 1
    assert found.sentence.startswith("ort all computes pool (MaxPool) of net wrong: ")
    ran(tmp_path / "out" / "model.onnx")  # ONNX Runtime itself gives the exact outputs


def test_a_fusion_shrinks_to_the_nodes_that_are_fused(opened, fake, tmp_path):
    fake("WrongFusion")
    reduce_run(opened, "ort", [FEED], tmp_path / "out")
    assert nodes(tmp_path / "out" / "model.onnx") == ["Conv", "Relu"]


def test_a_backend_that_is_right_has_nothing_to_reduce(opened, tmp_path):
    with pytest.raises(UsageError, match="ort all computes net right"):
        reduce_run(opened, "ort", [FEED], tmp_path)
    with pytest.raises(UsageError, match="as a whole"):
        reduce_run(opened, "native", [FEED], tmp_path)


def test_the_test_data_are_the_exact_outputs(tmp_path):
    found = reduced(network(), PLANTED["one weight"][0], tmp_path)
    model = onnx.load(found.models[1])
    data = found.models[1].parent / "test_data_set_0"
    x, y = (onnx.numpy_helper.to_array(onnx.load_tensor(data / f"{n}_0.pb")) for n in ("input", "output"))
    from xframe.equivalence.graph import from_proto

    (exact,) = Reference(from_proto(model)).evaluate([x])
    np.testing.assert_array_equal(y, exact.value.astype(np.float32))
