"""Cases of fully connected layers: what they flatten and how their weights lie."""

import numpy as np
import pytest
from small_models import DIFFERENT, EQUIVALENT, model, node, weights

C, H, W = 4, 5, 6
FILTERS, DENSE, BIAS = weights(C, 3, 3, 3), weights(7, C * H * W), weights(7, scale=0.3)
HWC = np.arange(C * H * W).reshape(C, H, W).transpose(1, 2, 0).ravel()
CONV, SIZE = node("Conv", "x f", "c"), (1, 3, H + 2, W + 2)


def first():
    nodes = CONV, node("Flatten", "c", "v"), node("Gemm", "v w b", "y", transB=1)
    return model(*nodes, x=SIZE, f=FILTERS, w=DENSE, b=BIAS)


def last(reordered, shaped=False):
    """Channels-last before it is flattened, as TensorFlow and JAX do."""
    flat = node("Reshape", "t n", "v") if shaped else node("Flatten", "t", "v")
    nodes = CONV, node("Transpose", "c", "t", perm=[0, 2, 3, 1]), flat
    w = (DENSE[:, HWC] if reordered else DENSE).T
    more = {"n": np.array([-1, C * H * W])} if shaped else {}
    product = node("MatMul", "v w", "m"), node("Add", "m b", "y")
    return model(*nodes, *product, x=SIZE, f=FILTERS, w=w, b=BIAS, **more)


@pytest.mark.parametrize("shaped", [False, True])
def test_flattened_as_hwc_with_the_weights_reordered(checked, shaped):
    state, text = checked(first(), last(True, shaped))
    assert state is EQUIVALENT, text


def test_flattened_as_hwc_without(checked):
    state, text = checked(first(), last(False))
    assert state is DIFFERENT
    assert "HWC" in text or "permut" in text


def test_an_nhwc_model_from_end_to_end(checked):
    """NHWC input, transposed for the convolution, flattened as HWC: the layouts are found by the shapes."""
    nodes = (
        node("Transpose", "x", "n", perm=[0, 3, 1, 2]),
        node("Conv", "n f", "c"),
        node("Transpose", "c", "t", perm=[0, 2, 3, 1]),
        node("Flatten", "t", "v"),
        node("Gemm", "v w b", "y"),
    )
    size = (1, H + 2, W + 2, 3)
    assert checked(first(), model(*nodes, x=size, f=FILTERS, w=DENSE[:, HWC].T, b=BIAS))[0] is EQUIVALENT
    assert checked(first(), model(*nodes, x=size, f=FILTERS, w=DENSE.T, b=BIAS))[0] is DIFFERENT


def test_square_images_need_declared_layouts_or_are_told(checked):
    """[1, 5, 5, 5] may be either: with the layouts declared, the two are the same."""
    filters = weights(4, 5, 3, 3)
    a = model(node("Conv", "x f", "y"), x=(1, 5, 5, 5), f=filters)
    nodes = node("Transpose", "x", "n", perm=[0, 3, 1, 2]), node("Conv", "n f", "y")
    b = model(*nodes, x=(1, 5, 5, 5), f=filters)
    assert checked(a, b, layouts={"first": "NCHW", "second": "NHWC"})[0] is EQUIVALENT
    assert checked(a, b)[0] is not EQUIVALENT


SQUARE = weights(6, 6)


def product(w, **attrs):
    return model(node("Gemm", "x w b", "y", **attrs), x=(2, 6), w=w, b=weights(6, scale=0.3))


def test_trans_b_and_a_transposed_weight(checked):
    assert checked(product(SQUARE, transB=1), product(SQUARE.T))[0] is EQUIVALENT


def test_trans_b_alone(checked):
    state, text = checked(product(SQUARE, transB=1), product(SQUARE))
    assert state is DIFFERENT
    assert "transpos" in text or "transB" in text


def test_matmul_and_add(checked):
    nodes = node("MatMul", "x w", "m"), node("Add", "m b", "y")
    apart = model(*nodes, x=(2, 6), w=SQUARE.T, b=weights(6, scale=0.3))
    assert checked(product(SQUARE, transB=1), apart)[0] is EQUIVALENT
    bare = model(node("MatMul", "x w", "y"), x=(2, 6), w=SQUARE.T)
    state, text = checked(product(SQUARE, transB=1), bare)
    assert state is DIFFERENT
    assert "bias" in text
