"""What is Caffe's alone as a framework: layers in place, what compositions round, its profile, its BLAS, gradients."""

import glob
import os
import subprocess
import tempfile

import float64
import numpy as np
import onnx
import pytest
import torch
from float64 import close, output
from nets import EVERY, SMALL, TRAPS, random_net

from xframe import environments, launch, onnx_writer, registry, zoo
from xframe.errors import Unavailable, XframeError
from xframe.types import ModelSpec, layer
from xframe.worker import wire
from xframe.worker.host import plugin_row

#: Where Caffe may write in place, and where the last thing written there is not what a gradient needs.
IN_PLACE = ModelSpec(
    "places",
    (3, 9, 8),
    (
        layer("c", "conv", out=4, kernel=3, pads=1),
        layer("b", "batchnorm"),
        layer("r", "relu6"),
        layer("more", "add", ("r", "r", "c")),
        layer("r2", "relu6"),
        layer("d", "dropout", rate=0.5),
        layer("f", "flatten"),
        layer("r3", "relu"),
        layer("fc", "fc", out=5),
        layer("r4", "relu"),
    ),
)
_C = layer("c", "conv", out=4, kernel=3, stride=2)
_ROW = plugin_row(registry.FRAMEWORKS, "caffe")


@pytest.fixture(scope="module")
def worker():
    try:
        with launch.worker(registry.FRAMEWORKS, "caffe", 2) as started:
            yield started
    except Unavailable as e:
        pytest.skip(str(e))


@pytest.fixture
def job(tmp_path):
    def fields(spec, weights, batch=2):
        path = tmp_path / "weights.npz"
        np.savez(path, **weights)
        return {"plugin": _ROW, "spec": spec.to_json(), "weights": str(path), "batch": batch}

    return fields


def opened(worker, fields, threads=2):
    return worker.call("open", 60, runner="native", device="cpu", threads=threads, **fields)


def exported(worker, fields, tmp_path):
    raw = str(tmp_path / "raw")
    reply = worker.call("export", 60, path="", raw=raw, **fields)
    return onnx_writer.model(reply["form"], raw, fields["batch"])


@pytest.mark.parametrize("spec", [IN_PLACE, EVERY], ids=lambda s: s.name)
def test_in_place(worker, job, spec):
    weights, x = zoo.weights(spec), zoo.inputs((2, *spec.input), 1)
    opened(worker, job(spec, weights))
    for feed in (x, 3 * x, x):  # what was written over is there again in the next step
        (y,), _ = worker.run([feed], 60)
        close(y, output(spec, weights, feed))


def test_relu6_of_large_values(worker, job):
    """relu(x) - relu(x - 6) would be off by the rounding of x."""
    spec = ModelSpec("large", (3, 8, 7), (layer("r", "relu6"),))
    opened(worker, job(spec, {}))
    x = zoo.inputs((2, *spec.input), 1) * np.float32(1e6)
    (y,), _ = worker.run([x], 60)
    np.testing.assert_array_equal(y, np.clip(x, 0, 6))


def exact_gradients(spec, weights, x, cotangent):
    """By the input and each weight, with torch in float64."""
    leaves = {k: torch.tensor(v, dtype=torch.float64, requires_grad=True) for k, v in {"input": x, **weights}.items()}
    values = {"input": leaves["input"]}
    for item in spec.layers:
        own = {k.rpartition(".")[2]: v for k, v in leaves.items() if k.rpartition(".")[0] == item.name}
        values[item.name] = float64._layer(item, own, [values[s] for s in spec.sources()[item.name]])
    (values[spec.layers[-1].name] * torch.tensor(cotangent)).sum().backward()
    return {k: np.zeros(v.shape) if v.grad is None else v.grad.numpy() for k, v in leaves.items()}


@pytest.mark.parametrize(
    "spec",
    [EVERY, SMALL, IN_PLACE, random_net(0), random_net(1), TRAPS["flatten read by an unused fc, and out"]],
    ids=lambda s: s.name,
)
def test_gradients(worker, job, spec):
    weights, x = zoo.weights(spec), zoo.inputs((2, *spec.input), 1)
    cotangent = zoo.inputs(output(spec, weights, x).shape, 2)
    found = worker.gradients([x], [cotangent], 60, **job(spec, weights))
    exact = exact_gradients(spec, weights, x, cotangent)
    assert set(found) == {name for name in exact if name.rpartition(".")[2] not in ("mean", "var")}
    for name, gradient in found.items():
        scale = max(np.abs(exact[name]).max(), 1e-30)
        assert np.abs(gradient - exact[name]).max() <= 1e-5 * scale, name


def test_gradients_of_arrays_that_do_not_fit(worker, job):
    spec = ModelSpec("one", (3, 9, 7), (_C,))
    weights, x = zoo.weights(spec), zoo.inputs((2, *spec.input), 1)
    for feed, cotangent in ((x, x), (x[:1], zoo.inputs((2, 4, 4, 3), 2))):
        with pytest.raises(XframeError, match=r"one input of shape .* and one cotangent of shape"):
            worker.gradients([feed], [cotangent], 60, **job(spec, weights))


def test_profile(worker, job):
    spec = EVERY
    reply = opened(worker, job(spec, zoo.weights(spec)))
    worker.run([zoo.inputs((2, *spec.input), 1)], 60)
    profiles = wire.profiles_of(worker.call("profile", 60, passes=2)["profiles"])
    assert len(profiles) == 2
    sites, kinds = zoo.sites(spec, 2), {"sum": "elementwise", "cat": "copy", "f": "layout", "d": "copy", "s": "softmax"}
    for profile in profiles:
        convolutions = {k.layer: k for k in profile.kernels if k.kind == "conv"}
        assert {name: k.site for name, k in convolutions.items()} == sites
        assert {name: k.algorithm for name, k in convolutions.items()} == {
            "c1": "im2col + GEMM",
            "c2": "im2col + GEMM",
            "c3": "GEMM",
        }
        told = {k.layer: k.kind for k in profile.kernels}
        assert {item.name for item in spec.layers} <= set(told)
        assert {name: told[name] for name in kinds} == kinds
        assert all(k.kind for k in profile.kernels)
        ends = [0.0, *(t for k in profile.kernels for t in (k.start, k.end)), profile.wall]
        assert ends == sorted(ends)
        assert 0 < profile.cost < profile.wall
    assert reply["environment"]["convolution"].startswith("im2col + GEMM, OpenBLAS")


def test_a_convolution_is_exported_as_one_node(worker, job, tmp_path):
    """What Caffe has as two layers, or as an identity, is not what a compiler should see."""
    spec = ModelSpec(
        "nodes",
        (4, 9, 8),
        (
            layer("c", "conv", out=6, kernel=3, pads=1, groups=2),
            layer("b", "batchnorm"),
            layer("r", "relu"),
            layer("p", "maxpool", kernel=3, stride=2, pads=1),
            layer("d", "dropout", rate=0.5),
            layer("f", "flatten"),
            layer("fc", "fc", out=3),
        ),
    )
    weights = zoo.weights(spec)
    model = exported(worker, job(spec, weights), tmp_path)
    nodes = [(node.op_type, node.name) for node in model.graph.node]
    assert nodes == [
        ("Conv", "c"),
        ("BatchNormalization", "b"),
        ("Relu", "r"),
        ("MaxPool", "p"),
        ("Flatten", "f"),
        ("Gemm", "fc"),
    ]
    held = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    assert set(held) == set(weights)
    for name, value in weights.items():
        np.testing.assert_array_equal(held[name], value)
    assert not any(a.name == "ceil_mode" for node in model.graph.node for a in node.attribute)


def test_threads(worker, job):
    """The BLAS takes as many as were asked for, and says so."""
    fields = job(SMALL, zoo.weights(SMALL))
    assert [opened(worker, fields, n)["environment"]["threads"] for n in (2, 1, 2)] == [2, 1, 2]


#: The CPU time that products took on all threads but the first, and on that one, in clock ticks.
MULTIPLY = """
import ctypes, os, sys, time
import numpy as np
from xframe.frameworks import caffe_blas

def ticks():
    times = {}
    for task in os.listdir("/proc/self/task"):
        with open("/proc/self/task/%s/stat" % task) as f:
            times[int(task)] = sum(int(t) for t in f.read().rsplit(")", 1)[1].split()[11:13])
    return np.array([sum(times.values()) - times[os.getpid()], times[os.getpid()]])

n = 1500
a, c = np.ones((2, n, n), np.float32)
p, q = (x.ctypes.data_as(ctypes.c_void_p) for x in (a, c))
assert caffe_blas.set_threads(int(sys.argv[1])) == int(sys.argv[1])
time.sleep(0.5)  # threads that were just made spin for a while
before = ticks()
for _ in range(12):
    caffe_blas._library.cblas_sgemm(
        101, 111, 111, n, n, n, ctypes.c_float(1), p, n, p, n, ctypes.c_float(0), q, n
    )
assert (c == n).all()
print(*ticks() - before)
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one CPU")
def test_products_run_on_as_many_threads():
    try:
        built = environments.find("caffe")
    except Unavailable as e:
        pytest.skip(str(e))
    variables = {**os.environ, **built.variables, "OPENBLAS_NUM_THREADS": "2", "PYTHONPATH": os.getcwd()}

    def ticks(threads):
        command = [built.python, "-c", MULTIPLY, str(threads)]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
        return map(int, done.stdout.split())

    others, first = ticks(1)
    assert others <= first / 20
    others, first = ticks(2)
    assert others > first / 4


def test_nothing_stays_on_the_disk(worker, job):
    before = set(glob.glob(os.path.join(tempfile.gettempdir(), "xframe-caffe-*")))
    opened(worker, job(SMALL, zoo.weights(SMALL)))
    assert set(glob.glob(os.path.join(tempfile.gettempdir(), "xframe-caffe-*"))) <= before
