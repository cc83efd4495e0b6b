"""Kinds of kernels by the names that backends give."""

import pytest

from xframe.backends import kinds
from xframe.types import KINDS


@pytest.mark.parametrize(
    ("operator", "kind"),
    [
        ("FusedConv", "conv"),
        ("Convolution", "conv"),
        ("Gemm", "fc"),
        ("FullyConnected", "fc"),
        ("MaxPool", "pool"),
        ("LRN", "norm"),
        ("Relu", "activation"),
        ("Add", "elementwise"),
        ("Softmax", "softmax"),
        ("ReorderOutput", "layout"),
        ("Transpose", "layout"),
        ("Concat", "copy"),
        ("MemcpyToHost", "copy"),
        ("Mystery", ""),
    ],
)
def test_operators(operator, kind):
    assert kinds.of_operator(operator) == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("fused_conv2d1_add_relu", "conv"),
        ("conv2d", "conv"),
        ("fc1_product", "fc"),
        ("fused_matmul2_add", "fc"),
        ("batch_matmul", "fc"),
        ("max_pool", "pool"),
        ("avg_pool2d", "pool"),
        ("mean", "pool"),
        ("max", "pool"),
        ("maximum", "elementwise"),
        ("lrn_lrn", "norm"),
        ("layer_norm", "norm"),
        ("fused_add_relu", "elementwise"),
        ("exp", "elementwise"),
        ("expand_dims", "layout"),
        ("relu3", "activation"),
        ("fast_tanh", "activation"),
        ("log_softmax", "softmax"),
        ("concat_channels", "copy"),
        ("transpose", "layout"),
        ("pad", "layout"),
        ("mystery", ""),
    ],
)
def test_kernel_names(name, kind):
    assert kinds.of_name(name) == kind


def test_they_are_the_kinds_that_there_are():
    assert set(kinds._BY_OPERATOR.values()) == set(KINDS)
    assert {kind for kind, _ in kinds._WORDS} == set(KINDS)
