"""A user's Caffe model as ONNX: each type of layer against Caffe itself, and what is refused."""

import os
import re
import subprocess
from pathlib import Path

import caffe_cases
import numpy as np
import onnxruntime
import pytest
from caffe_cases import CASES, REFUSED, layer, source

from xframe import artifact, environments, launch, registry
from xframe.equivalence.reference import Reference
from xframe.equivalence.verdict import judge
from xframe.errors import ModelError, Unavailable, Unsupported, UsageError, XframeError
from xframe.exports import convert
from xframe.worker.host import plugin_row

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def built():
    try:
        return environments.find("caffe")
    except Unavailable as e:
        pytest.skip(str(e))


@pytest.fixture(scope="module")
def folder(built, tmp_path_factory):
    """All cases with weights, inputs, and Caffe's own outputs."""
    folder = tmp_path_factory.mktemp("caffe")
    for name, text in CASES.items():
        (folder / f"{name}.prototxt").write_text(text)
    variables = {**os.environ, **built.variables, "OPENBLAS_NUM_THREADS": "1"}
    command = [built.python, str(Path(__file__).with_name("caffe_run.py")), str(folder)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def converting(built):
    """Convert as ``xframe.exports.convert`` does, in one worker for all."""
    with launch.worker(registry.FRAMEWORKS, "caffe", 1) as worker:
        yield worker


@pytest.fixture
def converted(converting, tmp_path):
    def ask(given, batch=None):
        from xframe import onnx_writer

        raw, path = tmp_path / "raw", tmp_path / "m.onnx"
        row = plugin_row(registry.FRAMEWORKS, "caffe")
        files = [str(p) for p in given]
        reply = converting.call("convert", 60, plugin=row, files=files, batch=batch, model="m", path=path, raw=raw)
        artifact.save(onnx_writer.model(reply["form"], str(raw), batch), path, **reply["stamps"])
        return artifact.load(path)

    return ask


def in_ort(made, feeds):
    session = onnxruntime.InferenceSession(made.path, providers=["CPUExecutionProvider"])
    return session.run(None, {info.name: x for info, x in zip(made.inputs, feeds, strict=True)})


def compare(made, arrays):
    """Caffe and ONNX Runtime within the bound around the exact outputs of the exported graph."""
    feeds = [arrays[f"in:{info.name}"] for info in made.inputs]
    exact = Reference.of_onnx(made).evaluate(feeds)
    names = [info.name for info in made.outputs]
    assert sorted(names) == sorted(name[4:] for name in arrays if name.startswith("out:"))
    of_caffe = [arrays[f"out:{name}"] for name in names]
    for who, outputs in (("caffe", of_caffe), ("ort", in_ort(made, feeds))):
        assert [y.shape for y in outputs] == [j.value.shape for j in exact]
        verdict = judge(outputs, exact)
        assert verdict.ok, (who, verdict)


@pytest.mark.parametrize("name", CASES)
def test_a_layer(folder, converted, name):
    made = converted([folder / f"{name}.prototxt", folder / f"{name}.caffemodel"])
    with np.load(folder / f"{name}.npz") as arrays:
        compare(made, dict(arrays))


@pytest.mark.parametrize(
    ("name", "operators"),
    [
        ("batch norm and scale", ["BatchNormalization", "Relu"]),
        ("batch norm that others read", ["BatchNormalization", "Mul", "Add", "Relu"]),
        ("at most one", ["Clip", "Tanh"]),
        ("concat with constants", ["Pad", "Concat"]),
        ("inner product of images", ["Reshape", "Gemm", "Reshape"]),
        ("two outputs, and values in one place", ["Conv", "BatchNormalization", "Relu", "MaxPool", "Tanh"]),
    ],
)
def test_what_layers_become(folder, converted, name, operators):
    made = converted([folder / f"{name}.prototxt", folder / f"{name}.caffemodel"])
    nodes = artifact.read(made.path).graph.node
    assert [node.op_type for node in nodes] == operators
    assert len({node.name for node in nodes}) == len(nodes)


def test_no_type_is_without_a_case(converting, tmp_path):
    """What the walker says that it can is what is tested."""
    path = tmp_path / "m.prototxt"
    path.write_text(source((1, 2)) + layer("x", "MVN", "data"))
    with pytest.raises(Unsupported) as e:
        ask(converting, tmp_path, path)
    assert str(e.value).partition("these can: ")[2].split(", ") == list(caffe_cases.TYPES)
    text = " ".join(CASES.values())
    assert [t for t in caffe_cases.TYPES if f'type: "{t}"' not in text] == []


def ask(converting, tmp_path, *given, batch=None):
    """Convert files as they are; the weights are those of no layer unless given."""
    given = list(given)
    if len(given) == 1:
        given.append(tmp_path / "none.caffemodel")
        given[1].write_bytes(b"\x0a\x01m\xa2\x06\x03\x0a\x01?")  # a network `m` with a layer `?`
    row = plugin_row(registry.FRAMEWORKS, "caffe")
    paths = [str(p) for p in given]
    return converting.call(
        "convert", 60, plugin=row, files=paths, batch=batch, model="m", path="", raw=str(tmp_path / "raw")
    )


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(converting, tmp_path, name):
    text, words = REFUSED[name]
    path = tmp_path / "m.prototxt"
    path.write_text(source((1, 6, 9, 7)) + text)
    with pytest.raises(XframeError) as e:
        ask(converting, tmp_path, path)
    assert isinstance(e.value, ModelError | Unsupported) or type(e.value) is XframeError
    assert re.search(words, str(e.value)), e.value
    assert "\n" not in str(e.value)
    assert "Error:" not in str(e.value).replace("ParseError:", "")  # an error of ours, no other's


def test_weights_that_do_not_fit(folder, converting, tmp_path):
    one, other = folder / "convolution square.prototxt", folder / "convolution of two.caffemodel"
    with pytest.raises(
        XframeError, match=r"layer x \(Convolution\): it needs 1 blobs of weights, and the file .* has 0"
    ):
        ask(converting, tmp_path, one, other)
    wide = tmp_path / "wide.prototxt"
    wide.write_text(one.read_text().replace("num_output: 4", "num_output: 5"))
    with pytest.raises(XframeError, match=r"its blob 0 has the shape \(4, 6, 3, 3\), and it needs \(5, 6, 3, 3\)"):
        ask(converting, tmp_path, wide, one.with_suffix(".caffemodel"))


def test_broken_files(folder, converting, tmp_path):
    text, weights = folder / "inner product.prototxt", folder / "inner product.caffemodel"
    cut = tmp_path / "cut.caffemodel"
    cut.write_bytes(weights.read_bytes()[:-7])
    odd = tmp_path / "odd.caffemodel"
    odd.write_bytes(weights.read_bytes() + b"\x0c")  # the end of a group that never began
    for given, words in (
        ([text, cut], r"cut\.caffemodel is no \.caffemodel, or it is cut short"),
        ([text, odd], r"odd\.caffemodel is no \.caffemodel"),
        ([text, tmp_path / "none.caffemodel"], r"can't read .*none\.caffemodel: No such file"),
        ([text, text], r"is no \.caffemodel"),
        ([weights, text], "no network in Caffe's text format"),
        ([text, weights, cut], "a Caffe model is two files"),
        ([tmp_path, weights], "can't read .*: Is a directory"),
    ):
        with pytest.raises(XframeError, match=words):
            ask(converting, tmp_path, *given)
    (tmp_path / "hdf5.caffemodel").write_bytes(b"\x89HDF\r\n")
    with pytest.raises(XframeError, match="is an HDF5 file"):
        ask(converting, tmp_path, text, tmp_path / "hdf5.caffemodel")


def test_of_2013(converting, tmp_path):
    path = tmp_path / "m.prototxt"
    path.write_text('layers { layer { name: "c" type: "conv" num_output: 3 } bottom: "data" top: "c" }')
    with pytest.raises(Unsupported, match="in the form of 2013"):
        ask(converting, tmp_path, path)


def test_what_only_training_needs_is_left_out(folder, converted, tmp_path):
    """The network that a user trained, with losses and accuracies, is the one that is deployed."""
    deploy = folder / "inner product.prototxt"
    train = tmp_path / "train.prototxt"
    train.write_text(
        deploy.read_text()
        + source((2,), "label")
        + layer("loss", "SoftmaxWithLoss", "x label")
        + layer("right", "Accuracy", "x label", None, "include { phase: TEST }")
    )
    made = converted([train, deploy.with_suffix(".caffemodel")])
    assert [info.name for info in made.inputs] == ["data"]
    with np.load(deploy.with_suffix(".npz")) as arrays:
        compare(made, dict(arrays))


def test_another_batch(folder, converted):
    made = converted([folder / "convolution 1.prototxt", folder / "convolution 1.caffemodel"], batch=5)
    assert made.inputs[0].shape[0] == made.outputs[0].shape[0] == 5
    with np.load(folder / "convolution 1.npz") as arrays:
        x, y = arrays["in:data"], arrays["out:x"]
    (got,) = in_ort(made, [np.concatenate([x, x, x[:1]])])
    np.testing.assert_allclose(got, np.concatenate([y, y, y[:1]]), rtol=1e-4, atol=1e-5)


def test_an_old_file_of_weights(built, folder, converted, tmp_path):
    """Blobs of 2014 have four dimensions, always."""
    deploy = folder / "layers of 2014.prototxt"
    code = """
import sys
from caffe.proto import caffe_pb2
new, old = caffe_pb2.NetParameter(), caffe_pb2.NetParameter()
new.ParseFromString(open(sys.argv[1], "rb").read())
for layer in new.layer:
    made = old.layers.add(name=layer.name)
    for blob in layer.blobs:
        dims = [1] * (4 - len(blob.shape.dim)) + list(blob.shape.dim)
        made.blobs.add(num=dims[0], channels=dims[1], height=dims[2], width=dims[3], data=blob.data)
open(sys.argv[2], "wb").write(old.SerializeToString())
"""
    old = tmp_path / "old.caffemodel"
    variables = {**os.environ, **built.variables}
    subprocess.run([built.python, "-c", code, deploy.with_suffix(".caffemodel"), old], env=variables, check=True)
    made = converted([deploy, old])
    with np.load(deploy.with_suffix(".npz")) as arrays:
        compare(made, dict(arrays))


def test_from_the_host(folder, tmp_path):
    made = convert("caffe", [folder / "relu.prototxt", folder / "relu.caffemodel"], tmp_path / "made.onnx")
    assert (made.framework, made.model) == ("caffe", "relu")
    with pytest.raises(UsageError, match="did you mean caffe"):
        convert("cafe", [], tmp_path / "made.onnx")


def test_weights_in_double_precision(built, folder, converted, tmp_path):
    """Caffe can be built for them, and writes them to a field of their own."""
    deploy = folder / "convolution 1.prototxt"
    code = """
import sys
from caffe.proto import caffe_pb2
net = caffe_pb2.NetParameter()
net.ParseFromString(open(sys.argv[1], "rb").read())
for layer in net.layer:
    for blob in layer.blobs:
        blob.double_data.extend(blob.data)
        del blob.data[:]
open(sys.argv[2], "wb").write(net.SerializeToString())
"""
    double = tmp_path / "double.caffemodel"
    variables = {**os.environ, **built.variables}
    subprocess.run([built.python, "-c", code, deploy.with_suffix(".caffemodel"), double], env=variables, check=True)
    with np.load(deploy.with_suffix(".npz")) as arrays:
        compare(converted([deploy, double]), dict(arrays))
