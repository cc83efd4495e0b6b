"""The judge's own arithmetic against PyTorch in float64, an independent second judge."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from xframe.equivalence import kernels
from xframe.equivalence.kernels import Window

torch = pytest.importorskip("torch")
F = torch.nn.functional

quick = settings(max_examples=60, deadline=None)
small = st.integers(1, 3)
sides = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def close(ours, theirs):
    assert ours.shape == tuple(theirs.shape)
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-12, atol=1e-13)


@quick
@given(
    batch=small,
    groups=small,
    per_group=small,
    filters=small,
    size=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(small, small),
    dilation=st.tuples(small, small),
    pads=sides,
    block=st.sampled_from([1, 500, kernels.BLOCK]),
)
def test_conv(batch, groups, per_group, filters, size, kernel, stride, dilation, pads, block):
    window = Window(kernel, stride, pads, dilation)
    assume(min(window.outputs(size)) >= 1)
    x, w = normal(batch, groups * per_group, *size), normal(groups * filters, per_group, *kernel, seed=1)
    t, left, b, r = pads
    theirs = F.conv2d(
        F.pad(torch.from_numpy(x), (left, r, t, b)), torch.from_numpy(w), None, stride, 0, dilation, groups
    )
    whole, kernels.BLOCK = kernels.BLOCK, block
    try:
        close(kernels.conv(x, w, window, groups), theirs)
    finally:
        kernels.BLOCK = whole


@pytest.mark.parametrize("rank", [1, 3])
def test_conv_of_other_ranks(rank):
    x, w = normal(2, 4, *(7, 6, 5)[:rank]), normal(6, 2, *(3, 2, 2)[:rank], seed=1)
    theirs = (F.conv1d if rank == 1 else F.conv3d)(torch.from_numpy(x), torch.from_numpy(w), None, 2, 1, 1, 2)
    close(kernels.conv(x, w, Window(w.shape[2:], (2,) * rank, (1,) * 2 * rank, (1,) * rank), 2), theirs)


pools = given(
    size=st.tuples(st.integers(1, 14), st.integers(1, 14)),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    stride=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    pads=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    ceil=st.booleans(),
    flag=st.booleans(),
)


@quick
@pools
def test_max_pool(size, kernel, stride, pads, ceil, flag):
    dilation = (2, 1) if flag else (1, 1)
    assume(all(2 * p <= k for p, k in zip(pads, kernel, strict=True)))
    window = Window(kernel, stride, pads * 2, dilation, ceil)
    assume(min(n + 2 * p - d * (k - 1) for n, p, d, k in zip(size, pads, dilation, kernel, strict=True)) >= 1)
    x = normal(2, 3, *size)
    close(kernels.pool_max(x, window), F.max_pool2d(torch.from_numpy(x), kernel, stride, pads, dilation, ceil))


@quick
@pools
def test_average_pool(size, kernel, stride, pads, ceil, flag):
    assume(all(2 * p <= k for p, k in zip(pads, kernel, strict=True)))
    window = Window(kernel, stride, pads * 2, (1, 1), ceil)
    assume(min(n + 2 * p - k for n, p, k in zip(size, pads, kernel, strict=True)) >= 0)
    x = normal(2, 3, *size)
    ours = kernels.pool_sum(x, window) / kernels.pool_count(size, window, flag)
    close(ours, F.avg_pool2d(torch.from_numpy(x), kernel, stride, pads, ceil, flag))


@quick
@given(
    rows=small, terms=st.integers(1, 40), columns=st.integers(1, 40), block=st.sampled_from([1, 64, kernels.WEIGHTS])
)
def test_dense(rows, terms, columns, block):
    x, y, w = normal(rows, terms), normal(terms, seed=2), normal(terms, columns, seed=1).astype(np.float32)
    whole, kernels.WEIGHTS = kernels.WEIGHTS, block
    try:
        (first, second), (third,) = kernels.dense(w, [x, y], [x])
    finally:
        kernels.WEIGHTS = whole
    np.testing.assert_allclose(first, x @ w.astype(float), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(second, y @ w.astype(float), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(third, x @ w.astype(float) ** 2, rtol=1e-12, atol=1e-12)


@quick
@given(channels=st.integers(1, 9), size=st.integers(1, 12))
def test_channel_sum_is_the_window_of_onnx(channels, size):
    x = normal(2, channels, 3, 2)
    ours = kernels.channel_sum(x, size)
    for c in range(channels):
        low, high = max(0, c - (size - 1) // 2), min(channels - 1, c + size // 2)
        np.testing.assert_allclose(ours[:, c], x[:, low : high + 1].sum(1), atol=1e-13)


@quick
@given(h=st.integers(1, 9), w=st.integers(1, 9), reach=st.tuples(st.integers(0, 12), st.integers(0, 12)))
def test_spread_max(h, w, reach):
    x = normal(1, 2, h, w)
    ours = kernels.spread_max(x, reach)
    for i, j in np.ndindex(h, w):
        part = x[:, :, max(0, i - reach[0]) : i + reach[0] + 1, max(0, j - reach[1]) : j + reach[1] + 1]
        assert (ours[:, :, i, j] == part.max((2, 3))).all()
