"""What is Theano's alone: expressions written by hand, exported; the layers of what its compiler made; its threads."""

import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import theano_expressions
from float64 import close, output
from nets import EVERY
from theano_expressions import CASES, REFUSED

from xframe import environments, launch, neutral, onnx_writer, registry, zoo
from xframe.errors import Unavailable
from xframe.frameworks.theano_kinds import kind_of
from xframe.types import ModelSpec, layer
from xframe.worker import wire
from xframe.worker.host import plugin_row

ROOT = Path(__file__).resolve().parents[2]

#: Grouped convolutions and LRN in the order of AlexNet, with what is fused on both sides of a pooling.
STEM = ModelSpec(
    "stem",
    (3, 20, 18),
    (
        layer("conv1", "conv", out=8, kernel=5, stride=2),
        layer("relu1", "relu"),
        layer("norm1", "lrn", size=5, alpha=0.1, beta=0.75, bias=1.0),
        layer("pool1", "maxpool", kernel=3, stride=2),
        layer("conv2", "conv", out=8, kernel=3, pads=1, groups=2),
        layer("bn2", "batchnorm"),
        layer("sum2", "add", ("pool1", "bn2")),
        layer("relu2", "relu"),
        layer("flatten", "flatten"),
        layer("drop", "dropout", rate=0.5),
        layer("fc3", "fc", out=16),
        layer("relu3", "relu"),
        layer("fc4", "fc", out=5),
        layer("prob", "softmax"),
    ),
)


@pytest.mark.parametrize(
    ("name", "op", "kind"),
    [
        ("CorrMM", "conv", "conv"), ("Elemwise", "conv", "elementwise"), ("Elemwise", "relu", "activation"),
        ("Sum", "lrn", "norm"), ("Elemwise", "add", "elementwise"), ("Sort", "conv", ""), ("Scan", "add", ""),
        ("Sort", "softmax", "softmax"), ("Sort", "", ""), ("Elemwise", "", "elementwise"),
    ],
)  # fmt: skip
def test_what_no_table_has_is_of_no_kind(name, op, kind):
    assert kind_of(name, op) == kind


@pytest.fixture(scope="module")
def built():
    try:
        return environments.find("theano")
    except Unavailable as e:
        pytest.skip(str(e))


@pytest.fixture(scope="module")
def exported(built, tmp_path_factory):
    """The folder in which the expressions are, exported in one process."""
    folder = tmp_path_factory.mktemp("expressions")
    environment = {**os.environ, **built.variables, "PYTHONPATH": str(ROOT)}
    command = [built.python, theano_expressions.__file__, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def run(path):
    """Output and operators of an exported graph."""
    model = onnx_writer.of_graph(neutral.load(str(path)))
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session, [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("name", CASES)
def test_an_expression(exported, name):
    path = exported / str(list(CASES).index(name))
    assert path.with_suffix(".graph").exists(), path.with_suffix(".refused").read_text()
    session, operators = run(path.with_suffix(".graph"))
    with np.load(path.with_suffix(".npz")) as arrays:
        (y,) = session.run(None, {"x": arrays["x"]})
        close(y, arrays["y"])
    assert sorted(operators) == sorted(CASES[name][1].split())


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal(exported, name):
    path = exported / str(len(CASES) + list(REFUSED).index(name))
    assert REFUSED[name][1] in path.with_suffix(".refused").read_text()


def open_in(worker, folder, spec, batch=2, threads=2):
    """Opens a network in a worker, which gives the right values; the reply."""
    weights = zoo.weights(spec)
    np.savez(folder / "weights.npz", **weights)
    fields = {"plugin": plugin_row(registry.FRAMEWORKS, "theano"), "runner": "native", "device": "cpu"}
    fields |= {"batch": batch, "threads": threads, "spec": spec.to_json(), "weights": folder / "weights.npz"}
    reply = worker.call("open", 300, **fields)
    x = zoo.inputs((batch, *spec.input), 1)
    (y,), _ = worker.run([x], 60)
    close(y, output(spec, weights, x))
    return reply


@pytest.fixture(scope="module")
def shared(built):
    """A worker that the tests of layers open their networks in, one after another."""
    with launch.worker(registry.FRAMEWORKS, "theano", 2) as worker:
        yield worker


def profiled(worker, passes=2):
    reply = worker.call("profile", 60, passes=passes)
    return wire.profiles_of(reply["profiles"])


@pytest.mark.parametrize("batch", [1, 2])  # a product with one row is another operator
def test_each_node_knows_its_layer_and_a_pass_is_intervals_in_order(shared, tmp_path, batch):
    open_in(shared, tmp_path, STEM, batch)
    first, second = profiled(shared)
    assert [k.name for k in first.kernels] == [k.name for k in second.kernels]
    for profile in (first, second):
        kernels = profile.kernels
        assert [(k.layer, k.algorithm) for k in kernels if k.kind == "conv"] == [
            ("conv1", "im2col+gemm"),
            ("conv2", "im2col+gemm"),
        ]
        assert {k.layer: k.site for k in kernels if k.kind == "conv"} == zoo.sites(STEM, batch)
        of = {kind: {k.layer for k in kernels if k.kind == kind} for kind in ("fc", "pool", "norm", "activation")}
        assert of == {
            "fc": {"fc3", "fc4"},
            "pool": {"pool1"},
            "norm": {"norm1", "bn2"},
            "activation": {"relu1", "relu3"},
        }
        assert {k.layer for k in kernels if k.kind == "softmax"} == {"prob"}
        assert all(k.layer in {x.name for x in STEM.layers} for k in kernels)
        assert all(k.kind for k in kernels)
        times = [t for k in kernels for t in (k.start, k.end)]
        assert times == sorted(times)
        assert times[0] > 0
        assert times[-1] < profile.wall
        assert 0 < profile.cost < profile.wall


def test_every_op_has_its_layer(shared, tmp_path):
    open_in(shared, tmp_path, EVERY)
    (profile,) = profiled(shared, 1)
    seen = {k.layer for k in profile.kernels}
    assert seen >= {"c1", "r1", "n1", "p1", "c2", "c3", "v", "m", "cat", "p3", "f", "fc1", "fc2", "s"}


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_are_those_that_were_asked_for(built, tmp_path, threads):
    wide = ModelSpec("wide", (3, 40, 40), (layer("conv", "conv", out=32, kernel=3),))  # BLAS shares it out
    with launch.worker(registry.FRAMEWORKS, "theano", threads) as worker:
        reply = open_in(worker, tmp_path, wide, threads=threads)
        assert reply["environment"]["threads"] == threads
        assert reply["notes"] == []
        # The worker's main thread and the one that reads its requests; all others are of BLAS.
        assert (len(os.listdir(f"/proc/{worker.pid}/task")) > 2) == (threads > 1)
