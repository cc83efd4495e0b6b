"""What layers can't do without, counted by hand; of a spec and of the same network as a file."""

import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from xframe import artifact, zoo
from xframe.analysis.floors import KIND, ONNX_KIND, file_layers, floors, layers
from xframe.results import LayerWork, Level, Machine
from xframe.types import KINDS, OPS, ConvSite, ModelSpec, layer

NET = ModelSpec(
    "net",
    (4, 9, 9),
    (
        layer("conv", "conv", out=8, kernel=3, pads=1, groups=2),
        layer("bn", "batchnorm"),
        layer("relu", "relu"),
        layer("lrn", "lrn", size=3, alpha=1.0, beta=0.75, bias=1.0),
        layer("bare", "batchnorm"),
        layer("add", "add", inputs=("bare", "conv")),
        layer("down", "conv", out=16, kernel=1, stride=2),
        layer("pool", "maxpool", kernel=2, stride=2),
        layer("both", "concat", inputs=("pool", "pool")),
        layer("flatten", "flatten"),
        layer("drop", "dropout", rate=0.5),
        layer("fc", "fc", out=10),
        layer("soft", "softmax"),
    ),
)


def test_what_each_layer_can_not_do_without():
    found = {w.name: w for w in layers(NET, 2)}
    image = 4 * 2 * 8 * 9 * 9
    conv = ConvSite(2, 4, (9, 9), 8, (3, 3), pads=(1, 1, 1, 1), groups=2)
    down = ConvSite(2, 8, (9, 9), 16, (1, 1), (2, 2))
    assert found == {
        "conv": LayerWork("conv", "conv", conv, conv.flop, image // 2 + image, 4 * (8 * 2 * 9 + 8)),
        "bn": LayerWork("bn", "norm", None, 0, 0),  # in the weights of the convolution before it
        "relu": LayerWork("relu", "activation", None, 0, 0),
        "lrn": LayerWork("lrn", "norm", None, 0, 2 * image),
        "bare": LayerWork("bare", "norm", None, 0, 2 * image, 4 * 4 * 8),
        "add": LayerWork("add", "elementwise", None, 0, image),  # the other image alone
        # A stride of two leaves every other row and column but the last unread.
        "down": LayerWork("down", "conv", down, down.flop, 4 * 2 * (8 * 5 * 5 + 16 * 5 * 5), 4 * (8 * 16 + 16)),
        "pool": LayerWork("pool", "pool", None, 0, 4 * 2 * 16 * (5 * 5 + 2 * 2)),
        "both": LayerWork("both", "copy", None, 0, 0),
        "fc": LayerWork("fc", "fc", None, 2 * 2 * 128 * 10, 4 * 2 * (128 + 10), 4 * (128 * 10 + 10)),
        "soft": LayerWork("soft", "softmax", None, 0, 4 * 2 * (10 + 10)),
    }
    assert list(found) == [x.name for x in NET.layers if x.op not in ("flatten", "dropout")]


def test_every_op_is_of_a_kind_or_computes_nothing():
    assert set(OPS) - set(KIND) == {"flatten", "dropout"}
    assert set(KIND.values()) | set(ONNX_KIND.values()) <= set(KINDS)


def file(path):
    g = np.random.default_rng(0)

    def constant(name, *shape):
        return numpy_helper.from_array(g.standard_normal(shape).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "cw", "cb"], ["c"], "conv", pads=[1] * 4, group=2),
        helper.make_node("BatchNormalization", ["c", *["v"] * 4], ["b"], "bn"),
        helper.make_node("Relu", ["b"], ["r"], "relu"),
        helper.make_node("Add", ["r", "c"], ["s"], "add"),
        helper.make_node("Mul", ["s", "v1"], ["t"], "scale"),
        helper.make_node("Conv", ["t", "dw"], ["d"], "down", strides=[2, 2]),
        helper.make_node("MaxPool", ["d"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["p"], ["q"], "mean"),
        helper.make_node("Flatten", ["q"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "fw", "fb"], ["z"], "fc", transB=1),
        helper.make_node("MatMul", ["z", "mw"], ["y"], "fc2"),
    ]
    weights = [constant("cw", 8, 2, 3, 3), constant("cb", 8), numpy_helper.from_array(np.ones(8, np.float32), "v"),
               constant("v1", 8, 1, 1), constant("dw", 16, 8, 1, 1), constant("fw", 10, 16), constant("fb", 10),
               constant("mw", 10, 5)]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 4, 9, 9))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 5))],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return artifact.load(path)


def test_a_file_has_the_layers_of_its_nodes(tmp_path):
    found = {w.name: w for w in file_layers(file(tmp_path / "net.onnx"))}
    spec = {w.name: w for w in layers(NET, 2)}
    image = 4 * 2 * 8 * 9 * 9
    assert found["conv"] == spec["conv"]
    assert found["pool"] == spec["pool"]
    assert found["down"].image_bytes == spec["down"].image_bytes
    assert found["down"].weight_bytes == 4 * 8 * 16
    assert [found[n] for n in ("bn", "relu", "scale")] == [
        LayerWork("bn", "norm", None, 0, 0),
        LayerWork("relu", "activation", None, 0, 0),
        LayerWork("scale", "elementwise", None, 0, 0),
    ]
    assert found["add"] == LayerWork("add", "elementwise", None, 0, image)
    assert found["mean"].image_bytes == 4 * 2 * (16 * 2 * 2 + 16)
    assert found["fc"] == LayerWork("fc", "fc", None, 2 * 2 * 16 * 10, 4 * 2 * (16 + 10), 4 * (16 * 10 + 10))
    assert found["fc2"] == LayerWork("fc2", "fc", None, 2 * 2 * 10 * 5, 4 * 2 * (10 + 5), 4 * 10 * 5)
    assert list(found) == ["conv", "bn", "relu", "add", "scale", "down", "pool", "mean", "fc", "fc2"]


def test_floors_are_the_rooflines():
    """The weights of the network as a whole are in memory, though those of each layer would fit a cache."""
    machine = Machine(100.0, (Level("L2", 1000, 50.0), Level("memory", math.inf, 5.0)))
    work = [
        LayerWork("a", "conv", None, 1000.0, 100, 10),
        LayerWork("b", "fc", None, 10.0, 100, 600),
        LayerWork("c", "fc", None, 10.0, 100, 600),
        LayerWork("d", "pool", None, 0.0, 500),
        LayerWork("e", "activation", None, 0.0, 0),
    ]
    seconds, limits = zip(*floors(work, machine), strict=True)
    assert seconds == pytest.approx((10.0, 120.0, 120.0, 10.0, 0.0))
    assert limits[:4] == ("compute", "memory", "memory", "L2")


def test_alexnet_counts_its_known_numbers():
    """1.43 GFLOP (Krizhevsky 2014's network at 224 pixels: 0.71 G multiply-adds) and 61.1 M parameters."""
    found = layers(zoo.spec("alexnet"), 1)
    assert sum(w.flop for w in found) == pytest.approx(2 * 714.2e6, rel=1e-3)
    assert sum(w.weight_bytes for w in found) == 4 * 61_100_840
