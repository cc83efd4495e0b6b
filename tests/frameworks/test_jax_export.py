"""The walk over a jaxpr, for functions that are not ours."""

import numpy as np
import onnxruntime
import pytest
from float64 import close, output
from nets import EVERY

from xframe import zoo
from xframe.errors import Unsupported
from xframe.frameworks import common

jax = pytest.importorskip("jax")
from jax import lax  # noqa: E402
from jax import numpy as jnp  # noqa: E402

from xframe.frameworks.jax import network  # noqa: E402
from xframe.frameworks.jax_export import to_onnx  # noqa: E402


def run(function, params, x):
    """Output of the exported function, its node types, and what JAX itself gives."""
    model = to_onnx(function, params, x.shape)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    with jax.default_matmul_precision("highest"):
        want = np.asarray(jax.jit(function)(params, x))
    return session.run(None, {"input": x})[0], [n.op_type for n in model.graph.node], want


def test_every_op_from_plain_primitives():
    weights, x = zoo.weights(EVERY), zoo.inputs((2, *EVERY.input), 1)
    y, ops, _ = run(lambda w, x: network(EVERY, w, x), common.channels_last(EVERY, weights), common.to_channels_last(x))
    close(y, output(EVERY, weights, x))
    assert {"Exp", "AveragePool", "Pow"} <= set(ops)
    assert "LRN" not in ops


FUNCTIONS = {
    "unary": lambda p, x: jnp.log(jnp.exp(x) + 1) * jnp.sqrt(jnp.abs(x)) - lax.rsqrt(x**2 + 1) + jax.nn.sigmoid(-x),
    "powers": lambda p, x: x**3 + jnp.square(x) + jnp.abs(x) ** 1.5 + jnp.tanh(x),
    "leaky relu": lambda p, x: jax.nn.leaky_relu(x),
    "relu6": lambda p, x: jax.nn.relu6(x * 5),
    "relu of a wider zero": lambda p, x: lax.max(x.sum(-1, keepdims=True), jnp.zeros(x.shape)),
    "mean over the image": lambda p, x: x.mean((1, 2)),
    "reduce after a lazy transpose": lambda p, x: x.transpose(0, 3, 1, 2).max((2,)) + x.sum(1).transpose(0, 2, 1),
    "layouts that differ": lambda p, x: x.transpose(0, 3, 2, 1) + x.transpose(0, 3, 1, 2).transpose(0, 1, 3, 2),
    "concatenate": lambda p, x: jnp.concatenate([x.transpose(0, 3, 1, 2), jnp.ones((2, 1, 5, 5))], 1),
    "pad": lambda p, x: jnp.pad(x, ((0, 0), (1, 2), (0, 3), (0, 0)), constant_values=2.0).transpose(0, 3, 1, 2),
    "broadcast": lambda p, x: x * x.sum((1, 2))[:, None, None, :] + jnp.broadcast_to(p["b"], x.shape),
    "squeeze": lambda p, x: x.sum((3,), keepdims=True).squeeze(3),
    "softmax": lambda p, x: jax.nn.softmax(x, 1),
    "nchw convolution": lambda p, x: lax.conv(x.transpose(0, 3, 1, 2), p["w"].transpose(3, 2, 0, 1), (1, 1), "SAME"),
    "two readers of a product": lambda p, x: (y := x.reshape(2, -1) @ p["m"]) + p["d"] + y,
    "weight on the left": lambda p, x: p["m"].T @ x.reshape(2, -1).T + p["d"][:, None],
    "bias that is no bias": lambda p, x: x.reshape(2, -1) @ p["m"] + p["e"],
    "dead code": lambda p, x: (jnp.sin(p["b"]).sum() * 0, jnp.exp(x), x + 1)[2],
    "nothing at all": lambda p, x: x,
    "transposed": lambda p, x: x.transpose(3, 0, 2, 1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 5, 5, 4), np.float32)
    shapes = {"b": (4,), "w": (3, 3, 4, 6), "m": (100, 7), "d": (7,), "e": (2, 1)}
    params = {k: rng.standard_normal(s, np.float32) for k, s in shapes.items()}
    y, ops, want = run(FUNCTIONS[name], params, x)
    assert y.shape == want.shape
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)
    assert "Gemm" not in ops  # none of these has a bias that Gemm could take alone
    assert name != "dead code" or ops == ["Add"]


def test_names_follow_the_parameters():
    params = {"dense": {"kernel": np.ones((6, 3), np.float32), "bias": np.ones(3, np.float32)}}
    model = to_onnx(lambda p, x: jax.nn.relu(x @ p["dense"]["kernel"] + p["dense"]["bias"]), params, (2, 6))
    assert {i.name for i in model.graph.initializer} == {"dense.kernel", "dense.bias"}
    assert [n.op_type for n in model.graph.node] == ["Gemm", "Relu"]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda p, x: jnp.cumsum(x, 1), "cumsum"),
        (lambda p, x: jnp.sort(x), "sort"),
        (lambda p, x: lax.fori_loop(0, 3, lambda i, v: v + x, x), "scan|while"),
        (lambda p, x: lax.conv_transpose(x, p, (2, 2), "SAME"), "lhs_dilation"),
        (lambda p, x: lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 2), (1, 1, 1, 1), "VALID"), "two of four axes"),
        (lambda p, x: jnp.einsum("nhwc,nhwc->n", x, x), "dot_general"),
        (lambda p, x: (x, x), "must be one array"),
        (lambda p, x: p, "must be one array"),
    ],
)
def test_refusals_name_what_they_refuse(function, words):
    with pytest.raises(Unsupported, match=words):
        to_onnx(function, np.ones((3, 3, 4, 4), np.float32), (2, 5, 5, 4))
