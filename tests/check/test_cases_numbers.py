"""Cases of normalisations, activations and number formats: the equal and the unequal side, end to end."""

import math

import numpy as np
import pytest
from onnx import TensorProto
from small_models import DIFFERENT, EQUIVALENT, UNCHECKED, model, node, weights

from xframe import check_equivalence

W = weights(6, 3, 3, 3)


def lrn(size=5, alpha=1e-4, bias=1.0):
    return model(node("LRN", "x", "y", size=size, alpha=alpha, beta=0.75, bias=bias), x=(1, 8, 5, 5))


def lrn_in_parts(alpha):
    """As TensorFlow means it, alpha not divided by the size: depth 5, written with an average over channels."""
    return model(
        node("Mul", "x x", "q"),
        node("Unsqueeze", "q one", "u"),
        node("AveragePool", "u", "m", kernel_shape=[5, 1, 1], pads=[2, 0, 0, 2, 0, 0], count_include_pad=1),
        node("Squeeze", "m one", "s"),
        node("Mul", "s a", "scaled"),
        node("Add", "scaled k", "base"),
        node("Pow", "base p", "d"),
        node("Div", "x d", "y"),
        x=(1, 8, 5, 5),
        one=np.array([1]),
        a=np.float32(5 * alpha),
        k=np.float32(1.0),
        p=np.float32(0.75),
    )


LOUD = {"value_range": (-100.0, 100.0)}  # alpha is 1e-4: it shows in images of this range


def test_lrn_scaled_by_its_size(checked):
    state, text = checked(lrn(alpha=1e-4), lrn(alpha=2e-5), **LOUD)
    assert state is DIFFERENT
    assert "alpha" in text
    assert "size" in text


def test_lrn_that_does_not_scale_by_size(checked):
    assert checked(lrn(alpha=5e-4), lrn_in_parts(alpha=1e-4), **LOUD)[0] is EQUIVALENT
    assert checked(lrn(alpha=1e-4), lrn_in_parts(alpha=1e-4), **LOUD)[0] is DIFFERENT


def test_lrn_size(checked):
    state, text = checked(lrn(size=5, alpha=0.1), lrn(size=3, alpha=0.1))
    assert state is DIFFERENT
    assert "5 channels in first, and of 3 in second" in text


BN = {"scale": 1 + weights(6, scale=0.2), "shift": weights(6, seed=1), "mean": weights(6, seed=2)}
BN["var"] = np.abs(weights(6, seed=3)) + 0.05


def normalised(**attrs):
    return model(
        node("Conv", "x w", "c"), node("BatchNormalization", "c scale shift mean var", "y", **attrs), w=W, **BN
    )


def test_batchnorm_momentum_means_nothing_at_inference(checked):
    assert checked(normalised(momentum=0.9), normalised(momentum=0.99))[0] is EQUIVALENT


@pytest.mark.parametrize("fold", [True, False])
def test_batchnorm_folded_into_the_convolution(checked, fold):
    factor = BN["scale"].astype(np.float64) / np.sqrt(BN["var"].astype(np.float64) + 1e-5)
    w = (W * factor.reshape(-1, 1, 1, 1)).astype(np.float32)
    b = (BN["shift"] - BN["mean"] * factor).astype(np.float32)
    folded = model(node("Conv", "x w b", "y"), w=w, b=b)
    # Without folding, two forms that differ are not passed for what some inputs show.
    assert checked(normalised(), folded, fold_batchnorm=fold)[0] is (EQUIVALENT if fold else UNCHECKED)
    other = model(node("Conv", "x w b", "y"), w=w * np.float32(1.001), b=b)
    state, text = checked(normalised(), other, fold_batchnorm=fold)
    assert state is DIFFERENT
    assert "conv" in text


@pytest.mark.parametrize("fold", [True, False])
def test_batchnorm_epsilon(checked, fold):
    state, text = checked(normalised(), normalised(epsilon=1e-3), fold_batchnorm=fold)
    assert state is DIFFERENT
    assert "epsilon" in text


def test_softmax_before_and_after_opset_13(checked):
    """The same axis means all axes from it on before opset 13, that one alone since."""
    old = model(node("Conv", "x w", "c"), node("Softmax", "c", "y", axis=1), w=W, opset=11)
    new = model(node("Conv", "x w", "c"), node("Softmax", "c", "y", axis=1), w=W, opset=13)
    state, text = checked(old, new)
    assert state is DIFFERENT
    assert "softmax" in text.lower()
    assert "ax" in text


def test_softmax_of_logits_is_the_same_in_all_opsets(checked):
    dense = {"x": (3, 7), "w": weights(7, 5)}
    old = model(node("MatMul", "x w", "c"), node("Softmax", "c", "y"), opset=11, **dense)
    new = model(node("MatMul", "x w", "c"), node("Softmax", "c", "y", axis=-1), opset=13, **dense)
    assert checked(old, new)[0] is EQUIVALENT
    state, text = checked(old, model(node("MatMul", "x w", "c"), node("Softmax", "c", "y", axis=0), **dense))
    assert state is DIFFERENT
    assert "ax" in text


def clipped(high=6.0, way="inputs", scale=4.0):
    conv, w = node("Conv", "x w", "c"), W * np.float32(scale)
    if way == "attributes":
        return model(conv, node("Clip", "c", "y", min=0.0, max=high), w=w, opset=9)
    bounds = {"low": np.float32(0), "high": np.float32(high)}
    if way == "inputs":
        return model(conv, node("Clip", "c low high", "y"), w=w, **bounds)
    return model(conv, node("Relu", "c", "r"), node("Min", "r high", "y"), w=w, high=bounds["high"])


@pytest.mark.parametrize("way", ["attributes", "minimum"])
def test_clip_in_other_words(checked, way):
    assert checked(clipped(), clipped(way=way))[0] is EQUIVALENT
    state, text = checked(clipped(), clipped(5.0, way))
    assert state is DIFFERENT
    assert "5" in text


def gelu(way):
    conv = node("Conv", "x w", "c")
    if way != "parts":
        return model(conv, node("Gelu", "c", "y", approximate=way), w=W, opset=20, ir=9)
    parts = [node("Div", "c r", "d"), node("Erf", "d", "e"), node("Add", "e one", "f"), node("Mul", "c f", "g")]
    values = {"r": np.float32(math.sqrt(2)), "one": np.float32(1), "half": np.float32(0.5)}
    return model(conv, *parts, node("Mul", "g half", "y"), w=W, **values)


def test_gelu_in_its_parts(checked):
    assert checked(gelu("none"), gelu("parts"))[0] is EQUIVALENT


@pytest.mark.parametrize("first", ["none", "parts"])
def test_gelu_exact_is_not_tanh(checked, first):
    state, text = checked(gelu(first), gelu("tanh"))
    assert state is DIFFERENT
    assert "tanh" in text


def halved(w, whole=False):
    """Weights in float16, cast to float32; ``whole``: everything in float16."""
    if whole:
        return model(node("Conv", "x w", "y"), w=w.astype(np.float16), dtype=TensorProto.FLOAT16)
    return model(node("Cast", "w", "v", to=TensorProto.FLOAT), node("Conv", "x v", "y"), w=w.astype(np.float16))


def test_float16_weights_that_lose_nothing(checked):
    exact = W.astype(np.float16).astype(np.float32)
    assert checked(model(node("Conv", "x w", "y"), w=exact), halved(exact))[0] is EQUIVALENT


@pytest.mark.parametrize("whole", [False, True])
def test_a_float16_export(checked, whole):
    state, text = checked(model(node("Conv", "x w", "y"), w=W), halved(W, whole))
    assert state is DIFFERENT
    assert "float16" in text


def test_what_is_assumed_of_a_float16_input_is_told():
    half = model(node("Relu", "x", "y"), dtype=TensorProto.FLOAT16)
    found = check_equivalence({"first": half, "second": half}, runners=()).comparisons[0]
    told = "input x is float16: what the model computes in it is taken as exact"
    assert found.absorbed == (f"first: {told}", f"second: {told}")


SCALE = np.float32(np.abs(W).max() / 127)
WHOLE = np.round(W / SCALE).astype(np.int8)


def quantized():
    nodes = node("DequantizeLinear", "q s z", "v"), node("Conv", "x v", "y")
    return model(*nodes, q=WHOLE, s=SCALE, z=np.int8(0))


def test_weights_quantized_as_the_float_ones_are(checked):
    float_ones = WHOLE.astype(np.float32) * SCALE
    assert checked(model(node("Conv", "x w", "y"), w=float_ones), quantized())[0] is EQUIVALENT


def test_weights_quantized_anew(checked):
    state, text = checked(model(node("Conv", "x w", "y"), w=W), quantized())
    assert state is DIFFERENT
    assert "weight" in text
    assert "quanti" in text.lower() or "int8" in text or "8 bit" in text
