"""Conformance of every registered framework: natively, exported and differentiated, against float64.

Those of isolated environments run there, and are skipped where theirs is not built (``xframe env create``).
"""

import numpy as np
import onnx
import onnxruntime
import pytest
from float64 import close, output
from nets import EVERY, SMALL, TRAPS, random_net
from remote import Remote

from xframe import registry, zoo
from xframe.equivalence import backward
from xframe.equivalence.graph import from_spec
from xframe.errors import Unavailable, UsageError

pytestmark = pytest.mark.usefixtures("_torchlib")
ISOLATED = [name for name, row in registry.FRAMEWORKS.items() if row.environment]
HERE = [name for name in registry.chosen(registry.FRAMEWORKS, ["all"], "framework") if name not in ISOLATED]


@pytest.fixture(scope="module")
def remote(tmp_path_factory):
    """Isolated frameworks by name, each with its workers."""
    made = {}

    def of(name):
        if name not in made:
            made[name] = Remote(name, tmp_path_factory.mktemp(name))
        return made[name]

    yield of
    for one in made.values():
        one.close()


@pytest.fixture(params=[*HERE, *ISOLATED])  # torch.compile has tests of its own
def framework(request, remote):
    try:
        return remote(request.param) if request.param in ISOLATED else registry.load(registry.FRAMEWORKS, request.param)
    except Unavailable as e:
        pytest.skip(str(e))


def native(framework, spec, weights, x):
    network = framework.build(spec, weights, "cpu", len(x), 2)
    network.bind([x])
    network.step()
    network.sync()
    (y,) = network.fetch()
    network.close()
    return y


def exported(framework, spec, weights, x):
    """The export's output in ONNX Runtime, canonical, and the model."""
    model = framework.export(spec, weights, len(x))
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    if framework.layout == "NHWC":
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    (y,) = session.run(None, {"input": x})
    return (y.transpose(0, 3, 1, 2) if framework.layout == "NHWC" and y.ndim == 4 else y), model


def case(spec, batch=2):
    weights, x = zoo.weights(spec), zoo.inputs((batch, *spec.input), 1)
    return weights, x, output(spec, weights, x)


def test_every_op(framework):
    weights, x, want = case(EVERY)
    close(native(framework, EVERY, weights, x), want)
    y, model = exported(framework, EVERY, weights, x)
    close(y, want)
    graph = model.graph
    image = {"NCHW": [2, 3, 23, 19], "NHWC": [2, 23, 19, 3]}[framework.layout]
    assert [(i.name, [d.dim_value for d in i.type.tensor_type.shape.dim]) for i in graph.input] == [("input", image)]
    assert [i.name for i in graph.output] == ["output"]
    initializers = {i.name: i for i in graph.initializer}
    products = [node for node in graph.node if node.op_type in ("Conv", "Gemm")]
    assert [node.op_type for node in products].count("Conv") == 3
    assert [node.op_type for node in products].count("Gemm") == 2
    for node in products:  # a compiler needs the weights as constants, and finds the bias in its node
        assert len(node.input) == 3
        assert all(initializers[name].data_type == onnx.TensorProto.FLOAT for name in node.input[1:])
    assert not any(node.metadata_props for node in graph.node)


@pytest.mark.parametrize("trap", TRAPS)
def test_trap(framework, trap):
    weights, x, want = case(TRAPS[trap])
    close(native(framework, TRAPS[trap], weights, x), want)
    close(exported(framework, TRAPS[trap], weights, x)[0], want)


@pytest.mark.parametrize("seed", range(3))
def test_random_geometry(framework, seed):
    weights, x, want = case(random_net(seed))
    close(native(framework, random_net(seed), weights, x), want)
    close(exported(framework, random_net(seed), weights, x)[0], want)


def test_bind_step_fetch(framework, monkeypatch):
    if type(framework).__name__ == "TensorFlow":  # a process that asks oneDNN takes seconds, and has tests of its own
        monkeypatch.setattr("xframe.frameworks.tensorflow_profile.asked", lambda *_: [])
    spec = TRAPS["image out"]
    weights, x, want = case(spec)
    network = framework.build(spec, weights, "cpu", 2, 2)
    network.bind([x])
    network.step()
    network.sync()
    (first,) = network.fetch()
    kept = first.copy()
    network.bind([-x])
    network.step()
    network.sync()
    (second,) = network.fetch()
    close(second, output(spec, weights, -x))
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(first, kept)  # a later step must not write into what was fetched
    close(first, want)
    (profile,) = network.profile(1)
    assert {(k.layer, k.site) for k in profile.kernels if k.kind == "conv"} == {("c", zoo.sites(spec, 2)["c"])}
    assert profile.wall > sum(k.end - k.start for k in profile.kernels if k.kind == "conv") > 0
    starts, ends = [k.start for k in profile.kernels], [0.0, *(k.end for k in profile.kernels)]
    assert bool(profile.note) == (starts == ends[:-1]), "where kernels leave nothing to the host, that is told"
    assert list(network.sites) == []
    assert network.environment
    assert all(s >= 0 for s in network.seconds.values())
    for wrong in ([x[:1]], [x.astype("float64")], [], [x, x]):
        with pytest.raises(UsageError, match="was built for one float32"):
            network.bind(wrong)
    network.close()
    assert network.environment


def test_weights_from_a_file_and_wrong_ones(framework, tmp_path, monkeypatch):
    monkeypatch.setenv("XFRAME_HOME", str(tmp_path))
    spec = TRAPS["depthwise"]
    weights, x, want = case(spec)
    with np.load(zoo.weights_file(spec)) as stored:
        close(native(framework, spec, stored, x), want)
    with pytest.raises(UsageError, match=r"c\.bias"):
        framework.build(spec, {"c.weight": weights["c.weight"]}, "cpu", 2, 1)
    with pytest.raises(UsageError, match=r"c\.weight has shape"):
        framework.export(spec, weights | {"c.weight": weights["c.bias"]}, 2)


def test_export_is_reproducible(framework):
    weights = zoo.weights(TRAPS["image out"])
    one, two = (framework.export(TRAPS["image out"], weights, 1).SerializeToString() for _ in range(2))
    assert one == two


def test_devices(framework):
    spec = TRAPS["image out"]
    with pytest.raises(Unavailable, match="cuda:99"):
        framework.build(spec, zoo.weights(spec), "cuda:99", 1, 1)
    with pytest.raises(UsageError, match="unknown device 'tpu'"):
        framework.build(spec, zoo.weights(spec), "tpu", 1, 1)


def test_threads_are_told_as_they_are(framework):
    """A framework that can't change its threads in this process says so; it never claims what it was asked for."""
    spec = TRAPS["image out"]
    weights = zoo.weights(spec)
    framework.build(spec, weights, "cpu", 1, 2).close()
    network = framework.build(spec, weights, "cpu", 1, 1)
    told = [v for k, v in network.environment.items() if k in ("threads", "intra_op_threads")]
    assert len(told) == 1
    assert told == [1] or any("can't change to 1" in note for note in network.notes)
    framework.build(spec, weights, "cpu", 1, 2).close()


@pytest.mark.parametrize("name", ISOLATED)
@pytest.mark.parametrize("spec", [SMALL, TRAPS["flatten read by fc and add"]], ids=lambda spec: spec.name)
def test_gradients(remote, name, spec):
    """Of the frameworks that run elsewhere; those of this process are differentiated as live models."""
    try:
        framework = remote(name)
    except Unavailable as e:
        pytest.skip(str(e))
    weights, x, _ = case(spec)
    cotangent = zoo.inputs(zoo.shapes(spec, len(x))[spec.layers[-1].name], 2)
    found = framework.gradients(spec, weights, len(x), [x], [cotangent])
    exact = backward.gradients(from_spec(spec, weights), {"input": x}, [cotangent])
    learnt = {n for n in zoo.tensors(spec) if not n.endswith((".mean", ".var"))}
    assert learnt <= set(found) <= set(exact)
    for each, gradient in found.items():
        assert gradient.dtype == np.float32
        assert gradient.shape == exact[each].value.shape
        assert (np.abs(gradient - exact[each].real) <= exact[each].bound).all(), each
