"""Gradients of live models: the same network in three frameworks agrees, and each planted fault is found and named."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper, numpy_helper

from xframe.check import gradients
from xframe.check.counterparts import counterparts, moves, twins, with_zero_biases
from xframe.check.gradient_words import fault
from xframe.check.signature import align
from xframe.check.subjects import open_all
from xframe.equivalence.graph import Graph, Node
from xframe.equivalence.reference import Judged
from xframe.equivalence.result import State

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from xframe.frameworks.pytorch_live import Module  # noqa: E402

X = np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32)
RNG = np.random.default_rng(0)
WEIGHTS = {
    "conv1.weight": RNG.standard_normal((6, 3, 3, 3)) / 4,
    "conv1.bias": np.zeros(6),  # as most frameworks begin with; conv2.bias has the same values
    "conv2.weight": RNG.standard_normal((6, 6, 3, 3)) / 5,
    "conv2.bias": np.zeros(6),
    "fc.weight": RNG.standard_normal((5, 96)) / 8,
    "fc.bias": RNG.standard_normal(5) / 8,
}
WEIGHTS = {name: w.astype(np.float32) for name, w in WEIGHTS.items()}


class Net(nn.Module):
    """A convolution, pooling, a residual branch, a product. ``branch``, ``pool`` and ``last`` can be replaced."""

    def __init__(self, branch=lambda x: x, pool=lambda x: F.max_pool2d(x, 2), last=lambda x: x):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.fc = nn.Linear(96, 5)
        self.replaced = branch, pool, last
        self.load_state_dict({name: torch.from_numpy(w) for name, w in WEIGHTS.items()})
        self.eval()

    def forward(self, x):
        branch, pool, last = self.replaced
        x = pool(torch.relu(self.conv1(x)))
        x = torch.relu(x + branch(self.conv2(x)))
        return last(self.fc(x.flatten(1)))


def last_axis(w):
    return w.transpose(2, 3, 1, 0)


def turned(w):
    """The product's weights for an image flattened channels last."""
    return w.reshape(5, 6, 4, 4).transpose(2, 3, 1, 0).reshape(96, 5)


def jax_net(inner=lambda x: x):
    import jax
    from jax import lax

    def conv(p, name, x):
        dims = ("NHWC", "HWIO", "NHWC")
        return (
            lax.conv_general_dilated(x, p[f"{name}.weight"], (1, 1), "SAME", dimension_numbers=dims) + p[f"{name}.bias"]
        )

    def net(p, x):
        x = jax.nn.relu(conv(p, "conv1", x))
        x = inner(lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"))
        x = jax.nn.relu(x + conv(p, "conv2", x))
        return x.reshape(x.shape[0], -1) @ p["fc.weight"] + p["fc.bias"]

    laid = {n: last_axis(w) if w.ndim == 4 else turned(w) if w.ndim == 2 else w for n, w in WEIGHTS.items()}
    return net, laid


def tf_net(inner=lambda x: x):
    tf = pytest.importorskip("tensorflow")
    layers = tf.keras.layers
    image = tf.keras.Input((8, 8, 3), batch_size=2)
    x = layers.MaxPooling2D(2)(layers.Conv2D(6, 3, padding="same", activation="relu", name="conv1")(image))
    x = layers.Lambda(inner)(x)
    x = layers.ReLU()(layers.Add()([x, layers.Conv2D(6, 3, padding="same", name="conv2")(x)]))
    model = tf.keras.Model(image, layers.Dense(5, name="fc")(layers.Flatten()(x)))
    for name in ("conv1", "conv2", "fc"):
        w = WEIGHTS[f"{name}.weight"]
        model.get_layer(name).set_weights([last_axis(w) if w.ndim == 4 else turned(w), WEIGHTS[f"{name}.bias"]])
    return model


def opened(folder, feed=X, **subject):
    return open_all(subject, folder, [[feed]])[0]


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    """The network, opened once: most faults leave its graph as it is."""
    return opened(tmp_path_factory.mktemp("right"), right=Net())


@pytest.fixture(scope="module")
def keras(tmp_path_factory):
    """The network in Keras; what is put into the list stands before its second convolution."""
    hook = []
    model = tf_net(lambda x: hook[0](x) if hook else x)
    return opened(tmp_path_factory.mktemp("keras"), X.transpose(0, 2, 3, 1), keras=model), hook


def alike(right, name, module=None):
    """The same graph under a name, with another live model or none."""
    live = None if module is None else lambda: Module(module)
    return replace(right, subject=replace(right.subject, name=name), make_live=live)


def compare(a, b, feeds=(X,)):
    signature = align(a.interface, b.interface)
    assert signature.aligned, signature.verdict
    return gradients.compare(a, b, signature, [[x] for x in feeds])


def test_three_frameworks_agree(right, keras, tmp_path):
    for other in (opened(tmp_path, X.transpose(0, 2, 3, 1), jax=jax_net()), keras[0]):
        verdict, rows = compare(right, other, (X, 2 * X))
        assert verdict.state is State.EQUIVALENT, verdict
        assert {row.a for row in rows} == {rows[0].a, "conv1.weight", "conv2.weight", "fc.weight", "fc.bias"}
        assert all(row.ok for row in rows)
        assert rows[0].shape == X.shape


class WrongPool(torch.autograd.Function):
    """Forward takes the largest; backward shares out as an average would."""

    @staticmethod
    def forward(ctx, x):
        return F.max_pool2d(x, 2)

    @staticmethod
    def backward(ctx, g):
        return F.interpolate(g, scale_factor=2) / 4


FAULTS = {
    "branch detached": ({"branch": lambda x: x.detach()}, "conv2.weight in b is zero", "; so is conv2.bias"),
    "all detached": ({"last": lambda x: x.detach() + 0 * x}, "fc.weight in b is zero", "from the outputs on"),
    "doubled": ({"last": lambda x: x * 2 - x.detach()}, "fc.weight in b is 2 times the exact one", "are fc.bias"),
    "sign": (
        {"pool": lambda x: 2 * F.max_pool2d(x, 2).detach() - F.max_pool2d(x, 2)},
        "has the wrong sign",
        "it is right; look at",
    ),
    "average for maximum": ({"pool": WrongPool.apply}, "conv1.weight in b is wrong", "it is right"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_named(right, name):
    plant, text, more = FAULTS[name]
    verdict, _ = compare(right, alike(right, "b", Net(**plant)))
    assert verdict.state is State.DIFFERENT, verdict
    assert text in verdict.reason
    assert more in verdict.reason
    assert not any(" in right " in d.text for d in verdict.differences)


def test_a_fault_in_the_first_is_found_too(right):
    verdict, _ = compare(alike(right, "a", Net(**FAULTS["doubled"][0])), right)
    assert verdict.state is State.DIFFERENT
    assert "the gradient of fc.weight in a is 2 times the exact one" in verdict.reason


def test_what_is_cut_off_in_jax_and_tensorflow(right, keras, tmp_path):
    import jax
    import tensorflow as tf

    in_jax = opened(tmp_path, X.transpose(0, 2, 3, 1), jax=jax_net(jax.lax.stop_gradient))
    keras[1].append(tf.stop_gradient)
    for other in (in_jax, keras[0]):
        verdict, _ = compare(right, other)
        assert verdict.state is State.DIFFERENT, verdict
        (zero,) = (d for d in verdict.differences if d.kind == "gradient is zero")
        assert zero.where.startswith("conv1")
        assert "conv2" not in zero.text.split("(on the way")[0]
    keras[1].clear()


def test_another_function_has_other_gradients(right, tmp_path):
    b = opened(tmp_path, b=Net(pool=lambda x: F.avg_pool2d(x, 2)))
    verdict, _ = compare(right, b)
    assert verdict.state is State.DIFFERENT
    assert "(exact: x of right)" in verdict.reason


def test_files_have_exact_gradients_only(right):
    verdict, rows = compare(alike(right, "a"), right)
    assert verdict.state is State.EQUIVALENT
    assert rows
    assert "a is no live model" in verdict.reason
    verdict, rows = compare(alike(right, "a"), alike(right, "b"))
    assert verdict.state is State.UNCHECKED
    assert rows == ()
    assert "neither" in verdict.reason


def test_a_registered_network(tmp_path, plugins):
    x = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
    (a,) = open_all({"a": "tiny@jax"}, tmp_path, [[x.transpose(0, 2, 3, 1)]])
    verdict, rows = compare(a, a, (x.transpose(0, 2, 3, 1),))
    assert verdict.state is State.EQUIVALENT, verdict
    assert {row.a.split(".")[-1] for row in rows} == {"input", "weight", "bias"}


def test_what_can_not_be_told_is_no_pass(right):
    """A weight that the export does not have; a gradient that is smaller than its rounding error."""
    other = Net()
    other.extra = nn.Parameter(torch.zeros(3))
    verdict, _ = compare(right, alike(right, "b", other))
    assert verdict.state is State.UNCHECKED
    assert verdict.reason == "extra of b is not in its export as it is"


def test_gradients_that_are_all_zero_are_no_pass(tmp_path):
    """Below a softmax that is 0 or 1 to the last bit."""
    shape = helper.make_tensor_value_info("x", 1, (2, 4)), helper.make_tensor_value_info("y", 1, (2, 4))
    nodes = [helper.make_node("Mul", ["x", "w"], ["z"]), helper.make_node("Softmax", ["z"], ["y"])]
    scale = numpy_helper.from_array(np.full(4, 1e9, np.float32), "w")
    proto = helper.make_model(helper.make_graph(nodes, "net", shape[:1], shape[1:], [scale]), ir_version=8)
    del proto.opset_import[:]
    proto.opset_import.append(helper.make_opsetid("", 17))

    class Zeros:
        def gradients(self, feeds, cotangents):
            return [np.zeros((2, 4), np.float32)], {"w": np.zeros(4, np.float32)}

    x = np.linspace(1, 2, 8).astype(np.float32).reshape(2, 4)
    (a,) = open_all({"a": proto}, tmp_path, [[x]])
    verdict, _ = compare(a, replace(a, make_live=Zeros), (x,))
    assert verdict.state is State.UNCHECKED, verdict
    assert "all gradients of a are zero" in verdict.reason


def test_weights_of_equal_values_may_have_changed_names(right):
    """Both biases are zero, so an exporter may have taken one for the other; a fault is a fault all the same."""

    class Renamed(Module):
        def gradients(self, feeds, cotangents):
            inputs, w = super().gradients(feeds, cotangents)
            w["conv1.bias"], w["conv2.bias"] = w["conv2.bias"] * self.factor, w["conv1.bias"]
            return inputs, w

    live = Renamed(Net())
    for live.factor, state in ((1, State.EQUIVALENT), (3, State.DIFFERENT)):
        verdict, _ = compare(right, replace(right, make_live=lambda: live))
        assert verdict.state is state, verdict
    assert [d.where for d in verdict.differences] == ["conv2.bias"]


# Words


def described(change, noise=1e-6):
    exact = np.random.default_rng(0).standard_normal((8, 4))
    return fault(change(exact).astype(np.float32), Judged("w", exact, np.full(exact.shape, noise)))


def test_words():
    assert described(np.zeros_like).kind == "is zero"
    assert described(np.negative).kind == "has the wrong sign"
    assert described(lambda g: -0.5 * g).text == "is -0.5 times the exact one"
    assert described(lambda g: np.where(np.arange(8)[:, None] < 2, 0, g)).text.startswith("is zero in 8 of 32 elements")
    assert described(lambda g: g + (np.arange(4) == 2)).text.endswith("8 of 32 elements are beyond their bounds")
    assert described(lambda g: g.T).kind == "shape"
    assert described(lambda g: g * np.inf).kind == "is not finite"


# Layouts


@pytest.mark.parametrize(
    "move",
    [
        lambda w: w,
        lambda w: w.transpose(2, 3, 1, 0),
        lambda w: w.reshape(6, -1),
        lambda w: w.reshape(6, -1).T,
        lambda w: w.transpose(2, 3, 1, 0).reshape(-1, 6),
        lambda w: w.reshape(6, 4, 10).transpose(0, 2, 1).reshape(6, 40),
    ],
)
def test_a_gradient_lies_as_its_weight_does(move):
    weight, gradient = np.random.default_rng(0).standard_normal((2, 6, 4, 2, 5)).astype(np.float32)
    (back,) = moves(move(weight), weight)
    np.testing.assert_array_equal(back(move(gradient)), gradient)
    (there,) = moves(weight, move(weight))
    np.testing.assert_array_equal(there(gradient), move(gradient))


def test_weights_are_known_by_their_values():
    w, v = np.random.default_rng(0).standard_normal((2, 6, 4, 3, 3)).astype(np.float32)
    zeros = np.zeros(6, np.float32)
    a = {"w": w, "v": v, "zero": zeros, "twice": w[0], "again": w[0]}
    b = {"kernel": last_axis(w), "scaled": 2 * v, "bias": zeros, "part": w[0]}
    assert [(name, other) for name, other, _ in counterparts(a, b)] == [("w", "kernel")]
    assert twins(a) == [["twice", "again"]]


def test_a_bias_that_an_exporter_dropped_comes_back():
    w = np.ones((4, 3, 1, 1), np.float32)
    nodes = Node("a", "Conv", ("x", "a.weight"), ("y",)), Node("b", "Conv", ("y", "b.weight"), ("z",))
    net = Graph(nodes, {"a.weight": w, "b.weight": np.ones((4, 4, 1, 1))}, ("x",), ("z",), ((),))
    back = with_zero_biases(net, {"b.bias": (4,), "a.gain": (1,), "c.bias": (4,)})
    assert [n.inputs for n in back.nodes] == [("x", "a.weight"), ("y", "b.weight", "b.bias")]
    assert set(back.constants) == {"a.weight", "b.weight", "b.bias"}


def test_values_that_leave_the_layout_open_give_every_way():
    assert len(moves(np.eye(2), np.eye(2))) == 2
    assert moves(np.eye(2), 2 * np.eye(2)) == []
