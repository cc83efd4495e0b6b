"""A user's Keras model, tf.function and tf.Module."""

import numpy as np
import onnxruntime
import pytest
from nets import SMALL
from onnx import numpy_helper

from xframe import zoo
from xframe.errors import UsageError, XframeError
from xframe.frameworks import common

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from xframe.frameworks.tensorflow import TensorFlow  # noqa: E402
from xframe.frameworks.tensorflow_live import Model  # noqa: E402

FEED = np.random.default_rng(0).standard_normal((2, 6, 6, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    layers = keras.layers
    image, other = keras.Input((6, 6, 3), name="image"), keras.Input((5,), name="other")
    y = layers.Conv2D(4, 3, strides=2, padding="same", name="conv")(image)
    y = layers.BatchNormalization(name="bn")(y)
    y = layers.Dropout(0.5)(layers.ReLU()(y))
    y = layers.DepthwiseConv2D(3, padding="same", name="depthwise")(y)
    y = layers.Dense(5, name="dense")(layers.GlobalAveragePooling2D()(y))
    made = keras.Model([image, other], [layers.Add()([y, other]), layers.Softmax()(y)])
    for v in made.variables:
        if v.dtype == "float32" and len(v.shape) == 1:
            v.assign(np.random.default_rng(len(v.path)).uniform(0.5, 1.5, v.shape))
    return made


def check(live, feeds):
    proto = live.export(feeds)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    got = session.run(None, dict(zip([i.name for i in session.get_inputs()], feeds, strict=True)))
    for a, b in zip(live.run(feeds), got, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)
    return proto


def test_a_keras_model(model, capfd):
    live, other = Model(model), np.ones((2, 5), np.float32)
    proto = check(live, [FEED, other])
    assert live.kind == "Keras model"
    assert live.shapes() == [(None, 6, 6, 3), (None, 5)]
    assert live.notes == ()
    assert capfd.readouterr().out == ""
    assert [i.name for i in proto.graph.input] == ["input_0", "input_1"]
    assert [o.name for o in proto.graph.output] == ["output_0", "output_1"]
    shapes = {t.name: tuple(t.dims) for t in proto.graph.initializer}
    assert shapes["conv/kernel"] == (4, 3, 3, 3)
    assert {v.path for v in model.variables if v.dtype == "float32"} <= shapes.keys()  # none was folded into another
    cotangents = [other, np.zeros((2, 5), np.float32)]
    inputs, weights = live.gradients([FEED, other], cotangents)
    np.testing.assert_array_equal(inputs[1], other)
    assert {"conv/kernel", "dense/kernel", "depthwise/kernel", "bn/gamma"} <= weights.keys()
    assert {n: g.shape for n, g in weights.items() if n in shapes}.items() <= shapes.items()
    np.testing.assert_allclose(weights["dense/bias"], np.full(5, 2), rtol=1e-6)


def test_a_subclassed_keras_model():
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(3)

        def call(self, x, y):
            return self.dense(x) + y

    live = Model(Net())
    assert live.shapes() is None
    check(live, [np.ones((1, 4), np.float32), np.ones((1, 3), np.float32)])


class Counting(tf.Module):
    """Counts its calls in a variable, as moving statistics are kept."""

    def __init__(self, count=True):
        self.count = count
        super().__init__(name="counting")
        self.w = tf.Variable(np.random.default_rng(1).standard_normal((3, 3, 3, 4)).astype(np.float32), name="w")
        self.calls = tf.Variable(1.0, trainable=False, name="calls")

    def __call__(self, x):
        y = tf.nn.conv2d(x, self.w, 2, "SAME") * self.calls
        if self.count:
            self.calls.assign_add(1.0)
        return y


class Said(tf.Module):
    def __call__(self, x):
        return self.name


def test_a_module_is_left_as_it_was():
    module = Counting()
    live = Model(module)
    (y,) = live.run([FEED])
    np.testing.assert_array_equal(live.run([FEED])[0], y)
    assert float(module.calls) == 1
    assert live.kind == "tf.Module"
    inputs, weights = live.gradients([FEED], [np.ones_like(y)])
    assert weights.keys() == {"w"}
    assert weights["w"].shape == (3, 3, 3, 4)
    assert inputs[0].shape == FEED.shape
    assert float(module.calls) == 1
    with pytest.raises(XframeError, match=r"tf2onnx of the tf\.Module counting failed"):
        live.export([FEED])


def test_a_module_is_exported_with_its_weights():
    live = Model(Counting(count=False))
    assert {"w": (4, 3, 3, 3)}.items() <= {t.name: tuple(t.dims) for t in check(live, [FEED]).graph.initializer}.items()
    _, weights = live.gradients([FEED], live.run([FEED]))
    assert weights["w"].shape == (4, 3, 3, 3)


def test_functions_with_and_without_a_signature():
    w = tf.Variable(np.ones((4, 2), np.float32), name="w")
    free = tf.function(lambda x: tf.matmul(x, w))
    live = Model(free)
    assert (live.kind, live.shapes()) == ("tf.function", None)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    assert "w" in {t.name for t in check(live, [x]).graph.initializer}
    _, weights = live.gradients([x], [np.ones((2, 2), np.float32)])
    np.testing.assert_array_equal(weights["w"][:, 0], x.sum(0))
    signed = tf.function(lambda x: tf.matmul(x, w), input_signature=[tf.TensorSpec((None, 4), tf.float32)])
    assert Model(signed).shapes() == [(None, 4)]
    concrete = Model(signed.get_concrete_function())
    assert (concrete.kind, concrete.shapes()) == ("concrete function", [(None, 4)])
    check(concrete, [x])


@pytest.mark.parametrize("signature", [None, [tf.TensorSpec((2, 4), tf.float32)]], ids=["free", "signed"])
def test_tensors_from_outside_are_constants_of_the_export(signature):
    """Of a network and of its file: their names in TensorFlow count on from one export to the next."""
    w, last = tf.constant(np.arange(8, dtype=np.float32).reshape(4, 2)), tf.constant([1, 0])
    live = Model(tf.function(lambda x: tf.gather(tf.matmul(x, w) + w[0], last, axis=1), input_signature=signature))
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    first, second = check(live, [x]), check(live, [x])
    assert len(first.graph.input) == 1
    assert first.graph == second.graph


def test_inputs_keep_their_order_and_are_kept_unread():
    function = tf.function(lambda x, y, z: (y - z, z, tf.ones((1, 4))), autograph=False)
    feeds = [np.full((1, 4), i, np.float32) for i in range(3)]
    proto = check(Model(function), feeds)
    assert [i.name for i in proto.graph.input] == ["input_0", "input_1", "input_2"]
    assert [o.name for o in proto.graph.output] == ["output_0", "output_1", "output_2"]


def test_a_saved_model(tmp_path):
    module = tf.Module()
    module.w = tf.Variable(np.ones((4, 2), np.float32))
    module.serve = tf.function(
        lambda x: {"y": tf.matmul(x, module.w)}, input_signature=[tf.TensorSpec((2, 4), tf.float32, name="x")]
    )
    tf.saved_model.save(module, str(tmp_path), signatures={"serving_default": module.serve})
    live = Model(tf.saved_model.load(str(tmp_path)))
    assert (live.kind, live.shapes()) == ("SavedModel", [(2, 4)])
    check(live, [np.ones((2, 4), np.float32)])


def test_a_registered_network_has_the_weights_of_its_export():
    weights = zoo.weights(SMALL)
    x = common.to_channels_last(zoo.inputs((2, *SMALL.input), 1))
    live = Model.from_spec(SMALL, weights, 2)
    assert live.shapes() == [x.shape]
    (y,) = live.run([x])
    constants = {t.name: numpy_helper.to_array(t) for t in TensorFlow().export(SMALL, weights, 2).graph.initializer}
    live.place(constants)
    inputs, found = live.gradients([x], [y])
    assert inputs[0].shape == x.shape
    shapes = {name: w.shape for name, w in constants.items()}
    assert shapes["conv.weight"] == (4, 3, 3, 3)
    assert {n: g.shape for n, g in found.items() if n in shapes}.items() <= shapes.items()
    assert {"conv.weight", "grouped.bias", "bn.scale", "fc.weight"} <= found.keys()
    assert not any(n.endswith((".mean", ".var")) for n in found)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: tf.constant(1.0), UsageError, "can't be run"),
        (lambda: tf.function(lambda x: tf.matmul(x, x)), XframeError, "failed on float32"),
        (lambda: Said("nothing"), UsageError, "no tensors"),
    ],
)
def test_what_is_refused(make, error, words):
    with pytest.raises(error, match=words) as e:
        Model(make()).run([FEED])
    assert "\n" not in str(e.value)
