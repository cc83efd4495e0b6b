"""What is said about two layers whose settings differ: kind, both values and names, the reason where it is known."""

import numpy as np
import pytest
from hand_made import NAMES, Net, chain, told

from xframe.normal.match import match


def image(op, name, opset=13, weights=(), **attrs):
    """One operator on an image, that keeps its shape as far as the words are concerned."""

    def make(**change):
        net = Net(change={name: change} if change else None)
        return net.normal(net.add(op, name, "x", (1, 3, 16, 16), weights, opset=opset, **attrs))

    return make


CONV = image("Conv", "conv1", weights=(np.ones((4, 3, 3, 3), np.float32),), strides=[2, 2], pads=[0, 0, 1, 1], group=1)
LRN = image("LRN", "lrn1", alpha=1e-4, beta=0.75, bias=1.0, size=5)
POOL = image("AveragePool", "pool1", kernel_shape=[3, 3], strides=[2, 2])
RESIZE = image("Resize", "up", weights=(None, np.array([1, 1, 2, 2], np.float32)), mode="linear")

#: (net, what is changed in the second, kind, the sentence).
SENTENCES = [
    (
        CONV,
        {"pads": [1, 1, 1, 1]},
        "padding",
        "conv1 pads top 0, left 0, bottom 1, right 1 in caffe, and 1, 1, 1, 1 in pytorch: "
        "TensorFlow's SAME puts the odd pixel at the end",
    ),
    (CONV, {"pads": [1, 1, 0, 0]}, "padding", "at the other end (SAME_UPPER against SAME_LOWER)"),
    (CONV, {"pads": [0, 1, 0, 1]}, "padding", "the same four numbers, read in another order"),
    (CONV, {"pads": [0, 0, 0, 0]}, "padding", "and nothing in pytorch: caffe pads as TensorFlow's SAME does"),
    (CONV, {"strides": [1, 1]}, "stride", "conv1 has a stride of 2x2 in caffe, and 1x1 in pytorch"),
    (CONV, {"dilations": [2, 2]}, "dilation", "conv1 has a dilation of 1x1 in caffe, and 2x2 in pytorch"),
    (CONV, {"group": 3}, "groups", "conv1 has groups: 1 in caffe, and 3 in pytorch"),
    (
        LRN,
        {"alpha": 5e-4},
        "LRN",
        "lrn1 has alpha 0.0001 in caffe, and 0.0005 in pytorch: five times as much, its size: "
        "one divides alpha by the window's size and the other does not",
    ),
    (LRN, {"alpha": 2e-5}, "LRN", "and 2e-05 in pytorch: the first is five times as much, its size"),
    (LRN, {"alpha": 2e-4}, "LRN", "lrn1 has alpha 0.0001 in caffe, and 0.0002 in pytorch"),
    (LRN, {"beta": 0.5}, "LRN", "lrn1 has beta 0.75 in caffe, and 0.5 in pytorch"),
    (LRN, {"bias": 2.0}, "LRN", "lrn1 has bias (k) 1 in caffe, and 2 in pytorch"),
    (LRN, {"size": 2}, "LRN", "the one is the radius of the other (TensorFlow's depth_radius)"),
    (POOL, {"op": "MaxPool"}, "pooling", "pool1 takes the average in caffe, and the maximum in pytorch"),
    (POOL, {"ceil_mode": 1}, "pooling", "pool1 rounds the size of its output down to 16x16 in caffe, and up to 16x16"),
    (
        POOL,
        {"count_include_pad": 1},
        "pooling",
        "pool1 leaves the padding out of its averages in caffe, and counts it (count_include_pad) in pytorch",
    ),
    (POOL, {"kernel_shape": [2, 2]}, "kernel", "pool1 has a window of 3x3 in caffe, and 2x2 in pytorch"),
    (
        image("BatchNormalization", "bn1", epsilon=1e-3),
        {"epsilon": 1e-5},
        "epsilon",
        "bn1 adds epsilon 0.001 to the variance in caffe, and 1e-05 in pytorch: the defaults of Keras and of PyTorch",
    ),
    (
        image("BatchNormalization", "bn1"),
        {"training_mode": 1},
        "batch normalisation",
        "bn1 normalises by stored statistics (inference) in caffe, and normalises by the",
    ),
    (
        image("Relu", "act"),
        {"op": "LeakyRelu", "alpha": 0.2},
        "activation",
        "act is Relu in caffe, and LeakyRelu with a slope of 0.2 below zero in pytorch",
    ),
    (image("LeakyRelu", "act"), {"alpha": 0.3}, "activation", "act has a slope below zero of 0.01 in caffe, and 0.3"),
    (
        image("Gelu", "act", opset=20),
        {"approximate": "tanh"},
        "activation",
        "act is exact Gelu (erf) in caffe, and Gelu approximated by tanh in pytorch",
    ),
    (image("HardSigmoid", "act"), {"alpha": 1 / 6}, "activation", "has a slope of 0.2 in caffe, and 0.166667"),
    (image("Relu", "act"), {"op": "Clip", "min": 0.0, "max": 6.0}, "clip", "act is Relu in caffe, and Clip to 0 .. 6"),
    (
        image("Clip", "act", min=0.0, max=6.0),
        {"max": 1.0},
        "clip",
        "act is Clip to 0 .. 6 in caffe, and Clip to 0 .. 1 in pytorch",
    ),
    (
        image("Softmax", "prob", axis=1),
        {"axis": -1},
        "softmax axis",
        "prob normalises along axis 1 in caffe, and along axis 3 in pytorch: the default was axis 1 before opset 13",
    ),
    (RESIZE, {"mode": "nearest"}, "resize", "up interpolates by linear in caffe, and nearest in pytorch"),
    (
        RESIZE,
        {"coordinate_transformation_mode": "align_corners"},
        "resize",
        "up has the coordinate transformation half_pixel in caffe, and align_corners in pytorch",
    ),
    (
        image("Resize", "up", mode="nearest"),
        {"nearest_mode": "floor"},
        "resize",
        "up rounds to the nearest pixel by round_prefer_floor in caffe, and floor in pytorch",
    ),
    (
        image("Transpose", "turn", perm=[0, 2, 3, 1]),
        {"perm": [0, 3, 1, 2]},
        "layout",
        "turn transposes by 0, 2, 3, 1 in caffe, and 0, 3, 1, 2",
    ),
    (image("Cast", "half", to=1), {"to": 10}, "precision", "half casts to float32 in caffe, and to float16 in pytorch"),
    (
        image("Dropout", "d"),
        {"training_mode": 1},
        "dropout in training mode",
        "keeps them all (inference) in caffe, and drops",
    ),
    (image("Pad", "pad", pads=[0] * 8), {"mode": "reflect"}, "padding", "pads in mode constant in caffe, and reflect"),
    (image("Unheard", "odd", knob=1), {"knob": 2}, "attribute", "odd has knob 1 in caffe, and 2 in pytorch"),
    (image("Add", "join"), {"op": "Mul"}, "structure", "join is Add in caffe, and Mul in pytorch"),
]


@pytest.mark.parametrize(("make", "change", "kind", "sentence"), SENTENCES, ids=[s[3][:40] for s in SENTENCES])
def test_each_setting_has_its_sentence(make, change, kind, sentence):
    assert told(make(), make()) == []
    said = told(make(), make(**change))
    assert [k for k, _ in said][:1] == [kind]
    assert sentence in said[0][1]
    assert all(name in said[0][1] for name in NAMES)
    assert not match(make(), make(**change), NAMES).equal


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (image("LRN", "n", size=5), image("LRN", "n", size=5, alpha=0.0001, beta=0.75, bias=1.0)),
        (image("Clip", "c", min=0.0, max=6.0), image("Clip", "c", weights=(np.float32(0), np.float32(6)))),
        (image("Clip", "c", min=0.0), image("Clip", "c", weights=(np.float32(0), np.finfo(np.float32).max))),
        (image("Softmax", "s", opset=11), image("Softmax", "s", axis=1)),
        (image("Softmax", "s"), image("Softmax", "s", axis=3)),
        (image("MaxPool", "p", kernel_shape=[2, 2]), image("MaxPool", "p", kernel_shape=[2, 2], strides=[1, 1])),
        (image("BatchNormalization", "b", momentum=0.1), image("BatchNormalization", "b", momentum=0.9)),
        (image("Dropout", "d", ratio=0.5), image("Dropout", "d", ratio=0.1)),
        (image("Resize", "r", mode="linear"), image("Resize", "r", mode="linear", nearest_mode="floor")),
        (image("Reshape", "r", weights=(np.array([1, -1]),)), image("Flatten", "r", axis=1)),
        (image("ReduceMean", "m", axes=[-1, -2]), image("ReduceMean", "m", weights=(np.array([3, 2]),))),
    ],
)
def test_defaults_and_spellings_are_no_differences(a, b):
    assert told(a(), b()) == []


def test_a_layer_with_another_name_in_the_other_file_is_named_by_both():
    def net(name, pads):
        made = Net()
        return made.normal(made.conv("x", name, 4, pads=pads))

    a, b = net("conv1", (1, 1, 1, 1)), net("conv1", (0, 0, 2, 2))
    b = type(b)(b.graph, b.shapes, b.weights, {"conv1": ("/features/0/Conv", "/features/1/BatchNormalization")}, {})
    ((_, text),) = told(a, b)
    assert text.startswith("conv1 (/features/0/Conv + /features/1/BatchNormalization in pytorch) pads top 1")


def test_biases_that_only_one_has():
    zeros, ones = np.zeros(10, np.float32), np.ones(10, np.float32)
    given = chain({"fc7": {1: ones}})
    without = chain({"fc7": {1: None}})
    ((kind, text),) = told(given, without)
    assert (kind, text) == ("bias", "fc7 has a bias in caffe, and none in pytorch")
    ((kind, text),) = told(without, given)
    assert (kind, text) == ("bias", "fc7 has none in caffe, and a bias in pytorch")
    found = match(without, chain({"fc7": {1: zeros}}), NAMES)
    assert [d.harmless for d in found.differences] == [True]
    assert found.equal
    assert not match(without, given, NAMES).equal


def test_all_differences_are_told_in_the_order_of_the_layers():
    changed = chain(
        {"conv1": {"pads": [0, 0, 2, 2]}, "norm1": {"alpha": 1e-3}, "pool2": {"op": "AveragePool"}, "prob": {"axis": 0}}
    )
    assert [kind for kind, _ in told(chain(), changed)] == ["padding", "LRN", "pooling", "softmax axis"]
