"""A user's JAX function: with parameters, without, and as a flax module, which a class with ``apply`` stands in for."""

import numpy as np
import onnxruntime
import pytest
from nets import SMALL
from onnx import numpy_helper

from xframe import zoo
from xframe.errors import Unsupported, UsageError, XframeError
from xframe.frameworks import common

jax = pytest.importorskip("jax")
from jax import lax  # noqa: E402
from jax import numpy as jnp  # noqa: E402

from xframe.frameworks.jax import Jax  # noqa: E402
from xframe.frameworks.jax_live import Function  # noqa: E402

RNG = np.random.default_rng(0)
PARAMS = {
    "conv": {"kernel": RNG.standard_normal((3, 3, 3, 4), np.float32), "bias": np.zeros(4, np.float32)},
    "dense": {"kernel": RNG.standard_normal((4, 5), np.float32)},
}
FEEDS = [RNG.standard_normal((2, 6, 6, 3), np.float32), RNG.standard_normal((2, 5), np.float32)]


def network(params, image, other):
    conv = params["conv"]
    y = lax.conv_general_dilated(image, conv["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    y = jax.nn.gelu(y + conv["bias"], approximate=False)
    return y.mean((1, 2)) @ params["dense"]["kernel"] + other, y[:, ::2, 1:4]


class Flaxen:
    """As flax linen modules are called."""

    def apply(self, variables, *xs):
        return network(variables["params"], *xs)


def check(live, feeds=FEEDS):
    model = live.export(feeds)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    got = session.run(None, dict(zip([i.name for i in session.get_inputs()], feeds, strict=True)))
    for a, b in zip(live.run(feeds), got, strict=True):
        assert a.dtype == np.float32
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)
    return model


def test_a_function_with_parameters():
    live = Function((network, PARAMS))
    model = check(live)
    assert (live.kind, live.shapes()) == ("JAX function with parameters", None)
    assert [i.name for i in model.graph.input] == ["input_0", "input_1"]
    assert [o.name for o in model.graph.output] == ["output_0", "output_1"]
    assert {"conv.kernel", "conv.bias", "dense.kernel"} <= {t.name for t in model.graph.initializer}


def test_a_flax_module_and_its_variables():
    live = Function((Flaxen(), {"params": PARAMS}))
    assert "params.dense.kernel" in {t.name for t in check(live).graph.initializer}
    assert live.kind == "flax module with variables"


def test_a_plain_function():
    live = Function(lambda x: jnp.log1p(jnp.abs(jnp.sin(x))) + jnp.sign(jnp.floor(x)) * x.min(1, keepdims=True))
    assert [o.name for o in check(live, FEEDS[:1]).graph.output] == ["output"]
    assert live.kind == "JAX function"


def test_names_of_parameters_that_are_those_of_tensors():
    params = {"input": np.ones((3, 2), np.float32), "output": np.ones(2, np.float32)}
    check(Function((lambda p, x: x @ p["input"] * p["output"], params)), [np.ones((1, 3), np.float32)])
    check(Function((lambda p, x: x @ p, params["input"])), [np.ones((1, 3), np.float32)])


def test_gradients_have_the_layout_of_the_export():
    live = Function((network, PARAMS | {"steps": 3}))
    shapes = {t.name: tuple(t.dims) for t in live.export(FEEDS).graph.initializer}
    cotangents = [np.ones((2, 5), np.float32), np.zeros((2, 3, 3, 4), np.float32)]
    inputs, weights = live.gradients(FEEDS, cotangents)
    np.testing.assert_array_equal(inputs[1], cotangents[0])
    assert {name: g.shape for name, g in weights.items()}.items() <= shapes.items()
    assert weights.keys() == {"conv.kernel", "conv.bias", "dense.kernel"}
    want = jax.grad(
        lambda w: network({"conv": PARAMS["conv"] | {"kernel": w}, "dense": PARAMS["dense"]}, *FEEDS)[0].sum()
    )
    np.testing.assert_allclose(
        weights["conv.kernel"], want(PARAMS["conv"]["kernel"]).transpose(3, 2, 0, 1), rtol=1e-3, atol=1e-4
    )


def test_a_registered_network_has_the_weights_of_its_export():
    weights = zoo.weights(SMALL)
    x = common.to_channels_last(zoo.inputs((2, *SMALL.input), 1))
    live = Function.from_spec(SMALL, weights, 2)
    assert live.shapes() == [x.shape]
    model = live.export([x])
    (y,) = live.run([x])
    inputs, found = live.gradients([x], [y])
    assert inputs[0].shape == x.shape
    shapes = {t.name: tuple(t.dims) for t in model.graph.initializer}
    assert {n: g.shape for n, g in found.items() if n in shapes}.items() <= shapes.items()
    other = Function.from_spec(SMALL, weights, 2)
    other.place({t.name: numpy_helper.to_array(t) for t in Jax().export(SMALL, weights, 2).graph.initializer})
    _, placed = other.gradients([x], [y])
    assert placed["conv.weight"].shape == shapes["conv.weight"] == (4, 3, 3, 3)
    assert found.keys() == {name for name in weights if not name.endswith((".mean", ".var"))}


@pytest.mark.parametrize(
    ("thing", "error", "words"),
    [
        (lambda x: jnp.sort(x), Unsupported, "sort"),
        (lambda x: np.zeros((2, 2), np.float32), Unsupported, "depends on the input"),
        (lambda x: float(x), XframeError, "failed on float32"),
        (lambda x: None, UsageError, "gives no arrays"),
        ((lambda p, x, y, z: x, {}), XframeError, "failed on float32"),
        (3, UsageError, "no JAX function"),
    ],
)
def test_what_is_refused(thing, error, words):
    with pytest.raises(error, match=words) as e:
        Function(thing).export(FEEDS[:1])
    assert "\n" not in str(e.value)
