"""Loading ONNX files: what is found in good ones, and one clear refusal for each kind of bad one."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from xframe import artifact
from xframe.errors import ModelError
from xframe.types import ConvSite, TensorInfo

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def network(input_shape=(1, 4, 9, 9), weights=(6, 4, 3, 3), bias=6, dtype=TensorProto.FLOAT, opset=17, **attrs):
    """One convolution with weights of any shape, right or wrong."""
    tensors = [numpy_helper.from_array(np.ones(weights, np.float32), "w")]
    if bias:
        tensors.append(numpy_helper.from_array(np.zeros(bias, np.float32), "b"))
    node = helper.make_node("Conv", ["x", "w"] + ["b"] * bool(bias), ["y"], name="c1", **attrs)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", dtype, input_shape)],
        [helper.make_tensor_value_info("y", dtype, [None] * len(weights))],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.fixture
def put(tmp_path):
    def write(proto, name="net.onnx"):
        path = tmp_path / name
        path.write_bytes(proto if isinstance(proto, bytes) else proto.SerializeToString())
        return path

    return write


def refusal(path, *words):
    with pytest.raises(ModelError) as e:
        artifact.load(path)
    for word in (str(path), *words):
        assert word in str(e.value), f"{word!r} is missing in: {e.value}"


def test_describes_a_convolution(put):
    found = artifact.load(put(network(pads=[1, 0, 2, 1], strides=[2, 1], dilations=[1, 2])))
    site = ConvSite(1, 4, (9, 9), 6, (3, 3), (2, 1), (1, 0, 2, 1), (1, 2))
    assert found.conv_sites == (("c1", site),)
    assert found.inputs == (TensorInfo("x", (1, 4, 9, 9), "float32"),)
    assert found.outputs == (TensorInfo("y", (1, 6, *site.out_hw), "float32"),)
    assert (found.model, found.framework, found.opset) == ("net", None, 17)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize(("size", "kernel", "stride", "dilation"), [(9, 3, 2, 1), (8, 3, 2, 2), (11, 2, 3, 1)])
def test_automatic_padding_made_explicit(put, auto_pad, size, kernel, stride, dilation):
    proto = network((2, 4, size, size), (6, 4, kernel, kernel), auto_pad=auto_pad, strides=[stride] * 2, group=1)
    proto.graph.node[0].attribute.append(helper.make_attribute("dilations", [dilation] * 2))
    found = artifact.load(put(proto))
    (_, site), out = found.conv_sites[0], found.outputs[0].shape
    assert site.out_hw == out[2:]  # shape inference's own opinion
    total = site.pads[0] + site.pads[2]
    assert site.pads[0] == {"SAME_UPPER": total // 2, "SAME_LOWER": total - total // 2, "VALID": 0}[auto_pad]


def test_stamps_survive_saving(tmp_path):
    path = tmp_path / "deep" / "a.onnx"
    artifact.save(network(), path, "alexnet", "pytorch", "2.13.0", "NCHW")
    found = artifact.load(path)
    assert (found.model, found.framework, found.framework_version) == ("alexnet", "pytorch", "2.13.0")
    assert found.inputs[0].layout == found.outputs[0].layout == "NCHW"
    assert artifact.load(path, model="mine").model == "mine"
    assert [p.name for p in path.parent.iterdir()] == ["a.onnx"]
    artifact.save(onnx.load(path), path, "other", "jax", "1", "NHWC")  # stamped again, not twice
    assert artifact.load(path).model == "other"
    assert artifact.load(path).sha256 != found.sha256


@pytest.mark.parametrize(
    ("name", "sites", "first"),
    [
        ("bvlc_alexnet", 5, "n1c3h224w224o96k11x11s4x4p0.0.0.0d1x1g1float32"),
        ("zfnet512", 5, "n1c3h224w224o96k7x7s2x2p0.0.0.0d1x1g1float32"),
        ("vgg19", 16, "n1c3h224w224o64k3x3s1x1p1.1.1.1d1x1g1float32"),
        ("resnet50", 53, "n1c3h224w224o64k7x7s2x2p3.3.3.3d1x1g1float32"),
        ("squeezenet", 26, "n1c3h224w224o64k3x3s2x2p0.0.0.0d1x1g1float32"),
        ("inception_v1", 57, "n1c3h224w224o64k7x7s2x2p3.3.3.3d1x1g1float32"),
        ("inception_v2", 69, "n1c3h224w224o64k7x7s2x2p3.3.3.3d1x1g1float32"),
        ("densenet121", 121, "n1c3h224w224o64k7x7s2x2p3.3.3.3d1x1g1float32"),
        ("shufflenet", 49, "n1c3h224w224o24k3x3s2x2p1.1.1.1d1x1g1float32"),
    ],
)
def test_networks_of_the_onnx_package(name, sites, first):
    found = artifact.load(LIGHT / f"light_{name}.onnx")
    assert len(found.conv_sites) == sites
    assert found.conv_sites[0][1].key == first
    assert [x.shape for x in found.inputs] == [(1, 3, 224, 224)]
    if name == "bvlc_alexnet":
        assert [s.groups for _, s in found.conv_sites] == [1, 2, 1, 2, 2]


def test_convolutions_are_joined_through_what_keeps_images(put):
    """A residual sum, a concatenation and pooling join; fully connected layers end the way; the input is nobody's."""

    def conv(name, x):
        return helper.make_node("Conv", [x, "w"], [name], name=name, pads=[1] * 4)

    nodes = [
        conv("a", "x"),
        helper.make_node("Relu", ["a"], ["r"]),
        conv("b", "r"),
        helper.make_node("Add", ["r", "b"], ["s"]),
        conv("c", "s"),
        helper.make_node("Concat", ["b", "c"], ["t"], axis=0),
        helper.make_node("MaxPool", ["t"], ["p"], kernel_shape=[3, 3], pads=[1] * 4),
        conv("d", "p"),
        helper.make_node("Reshape", ["d", "flat"], ["f"]),
        helper.make_node("Gemm", ["f", "g"], ["h"]),
        helper.make_node("Reshape", ["h", "image"], ["i"]),
        conv("e", "i"),
    ]
    constants = {
        "w": np.ones((2, 2, 3, 3), np.float32), "g": np.ones((32, 32), np.float32),
        "flat": np.array([2, 32]), "image": np.array([2, 2, 4, 4]),
    }  # fmt: skip
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [k, 2, 4, 4]) for n, k in (("x", 1), ("e", 2))]
    graph = helper.make_graph(
        nodes, "g", infos[:1], infos[1:], [numpy_helper.from_array(v, n) for n, v in constants.items()]
    )
    path = put(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    assert artifact.conv_edges(artifact.load(path)) == [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)]


def test_the_edges_of_a_residual_network():
    """ResNet-50: 53 convolutions; the sums make each block read what several convolutions made."""
    found = artifact.load(LIGHT / "light_resnet50.onnx")
    edges = artifact.conv_edges(found)
    assert {b for _, b in edges} == set(range(1, 53))
    assert all(a < b for a, b in edges)
    assert (0, 1) in edges
    assert max(sum(b == n for _, b in edges) for n in range(53)) > 2


def test_other_ranks_are_no_sites(put):
    assert artifact.load(put(network((1, 4, 9), (6, 4, 3)))).conv_sites == ()
    assert artifact.load(put(network((1, 4, 9, 9, 9), (6, 4, 3, 3, 3)))).conv_sites == ()


def test_files_that_are_no_model(put, tmp_path):
    whole = network().SerializeToString()
    refusal(tmp_path / "none.onnx", "no such file")
    refusal(tmp_path, "folder")
    refusal(put(b""), "empty")
    refusal(put(b"# a readme, not a model\n" * 9))
    refusal(put(whole[: len(whole) // 2]), "cut short")
    refusal(put(b"\x08\x08"), "no nodes")
    refusal(put(b"\x80\x04\x95cposix\nsystem\n."))  # a pickle is never loaded


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (("batch", 4, 9, 9), ("dimension 0 of input x", "batch", "fixed")),
        ((1, 4, None, 9), ("dimension 2 of input x", "fixed")),
        ((1, 4, 0, 9), ("dimension 2 of input x is 0",)),
        ((1, 4, -3, 9), ("dimension 2 of input x is -3",)),
        (None, ("input x", "rank")),
    ],
)
def test_sizes_that_are_not_fixed(put, shape, words):
    refusal(put(network(shape)), *words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bias": 5}, ("c1", "bias", "6")),
        ({"weights": (6, 3, 3, 3)}, ("c1",)),
        ({"weights": (6, 2, 3, 3), "group": 3}, ("c1",)),
        ({"weights": (5, 2, 3, 3), "bias": 5, "group": 2}, ("c1",)),
        ({"weights": (6, 4, 3)}, ()),
        ({"kernel_shape": [5, 5]}, ("c1",)),
        ({"strides": [0, 1]}, ()),
        ({"pads": [0, -1, 0, 0]}, ()),
        ({"input_shape": (1, 4, 2, 9)}, ()),
        ({"opset": 6}, ("opset 6", "version_converter")),
    ],
)
def test_convolutions_that_do_not_fit(put, changes, words):
    refusal(put(network(**changes)), *words)


def test_other_number_formats(put):
    half = network(dtype=TensorProto.FLOAT16, bias=0)
    half.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((6, 4, 3, 3), np.float16), "w"))
    refusal(put(half), "float16", "float32")
    integers = network(bias=0)
    integers.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.int8), "q"))
    refusal(put(integers), "q", "int8", "float32")
    refusal(put(network(dtype=TensorProto.DOUBLE)), "double")
    quantized = network()
    quantized.graph.initializer.append(numpy_helper.from_array(np.float32(0.1), "scale"))
    quantized.graph.node.insert(0, helper.make_node("QuantizeLinear", ["x", "scale"], ["q"], name="quant"))
    refusal(put(quantized), "quantized", "quant")


def test_batchnorm_of_the_wrong_length(put):
    proto = network()
    for name in "smvt":
        proto.graph.initializer.append(numpy_helper.from_array(np.ones(5 if name == "m" else 6, np.float32), name))
    proto.graph.node.append(helper.make_node("BatchNormalization", ["y", "s", "t", "m", "v"], ["z"], name="bn"))
    proto.graph.output[0].name = "z"
    refusal(put(proto))


def test_output_whose_shape_depends_on_data(put):
    proto = network()
    proto.graph.node.append(helper.make_node("NonZero", ["y"], ["z"]))
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("z", TensorProto.INT64, [4, None]))
    refusal(put(proto), "output z")


def external(tmp_path, location="net.data"):
    proto = network(weights=(6, 4, 31, 31), input_shape=(1, 4, 40, 40))
    path = tmp_path / "net.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="net.data", size_threshold=1024)
    stored = onnx.load(path, load_external_data=False)
    stored.graph.initializer[0].external_data[0].value = location
    path.write_bytes(stored.SerializeToString())
    return path


def test_external_data(tmp_path):
    path = external(tmp_path)
    assert artifact.load(path).conv_sites[0][1].kernel == (31, 31)
    data = tmp_path / "net.data"
    data.write_bytes(data.read_bytes()[:-1])
    refusal(path, "net.data", "cut short")
    data.unlink()
    refusal(path, "net.data", "not there")


@pytest.mark.parametrize("location", ["../net.data", "/etc/passwd", ""])
def test_external_data_outside_the_folder(tmp_path, location):
    (tmp_path / "inside").mkdir()
    (tmp_path / "net.data").write_bytes(bytes(200_000))
    refusal(external(tmp_path / "inside", location), "outside the model's folder")


def test_local_functions_are_inlined(put):
    imports = [helper.make_opsetid("", 17)]
    body = [helper.make_node("Conv", ["a", "k"], ["r"], name="inner")]
    function = helper.make_function("own", "Block", ["a", "k"], ["r"], body, imports)
    graph = helper.make_graph(
        [helper.make_node("Block", ["x", "w"], ["y"], domain="own", name="block")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 4, 9, 9))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 4)],
        [numpy_helper.from_array(np.ones((6, 4, 3, 3), np.float32), "w")],
    )
    proto = helper.make_model(
        graph, functions=[function], opset_imports=[*imports, helper.make_opsetid("own", 1)], ir_version=9
    )
    assert len(artifact.load(put(proto)).conv_sites) == 1
