"""Cases of padding, pooling, groups and resizing: the equal and the unequal side, end to end."""

import numpy as np
import pytest
from small_models import DIFFERENT, EQUIVALENT, UNCHECKED, model, node, weights

from xframe import check_equivalence

W = weights(6, 3, 3, 3)


def strided(x=(1, 3, 8, 8), **attrs):
    return model(node("Conv", "x w", "y", strides=[2, 2], **attrs), x=x, w=W)


def test_same_with_stride_2_pads_at_the_end(checked):
    state, _ = checked(strided(pads=[0, 0, 1, 1]), strided(auto_pad="SAME_UPPER"))
    assert state is EQUIVALENT


def test_same_with_stride_2_is_not_symmetric(checked):
    state, text = checked(strided(pads=[1, 1, 1, 1]), strided(auto_pad="SAME_UPPER"))
    assert state is DIFFERENT
    assert "pads top 1, left 1, bottom 1, right 1 in first, and 0, 0, 1, 1 in second" in text
    assert "SAME" in text


def test_same_upper_is_not_same_lower(checked):
    state, text = checked(strided(auto_pad="SAME_UPPER"), strided(auto_pad="SAME_LOWER"))
    assert state is DIFFERENT
    assert "pad" in text


def test_same_on_an_odd_image_is_symmetric(checked):
    size = (1, 3, 9, 9)
    assert checked(strided(size, pads=[1, 1, 1, 1]), strided(size, auto_pad="SAME_LOWER"))[0] is EQUIVALENT


def pooled(op="MaxPool", size=8, after=True, **attrs):
    """A pooling of 3 by 3 at stride 2; what comes after it does not depend on its size."""
    pool = node(op, "x", "p" if after else "y", kernel_shape=[3, 3], strides=[2, 2], **attrs)
    more = [node("GlobalAveragePool", "p", "y")] if after else []
    return model(pool, *more, x=(1, 3, size, size), opset=19)


def test_ceil_mode_is_a_pad_at_the_end(checked):
    assert checked(pooled(ceil_mode=1), pooled(pads=[0, 0, 1, 1]))[0] is EQUIVALENT


def test_ceil_mode_where_windows_fit_is_nothing(checked):
    assert checked(pooled(ceil_mode=1, size=9), pooled(size=9))[0] is EQUIVALENT


def test_ceil_mode_makes_one_window_more(checked):
    state, text = checked(pooled(ceil_mode=1, after=False), pooled(after=False))
    assert state is DIFFERENT
    assert "[1, 3, 4, 4] in first and [1, 3, 3, 3] in second" in text
    assert "ceil_mode" in text  # the graphs are laid side by side although no numbers can be compared


def test_a_window_more_is_the_first_layer_that_differs():
    """Not the layer after it, whose output has the same shape in both."""
    a, b = pooled(ceil_mode=1), pooled()
    found = check_equivalence({"first": a, "second": b}, runners=()).comparisons[0].first_divergence
    assert found is not None
    assert found.op == "MaxPool"
    assert "shape" in found.reason


def test_ceil_mode_is_named(checked):
    state, text = checked(pooled(ceil_mode=1), pooled())
    assert state is DIFFERENT
    assert "ceil" in text


@pytest.mark.parametrize("size", [8, 9])
def test_an_average_that_counts_its_padding(checked, size):
    pads = {"pads": [1, 1, 1, 1]}
    state, text = checked(pooled("AveragePool", size, count_include_pad=1, **pads), pooled("AveragePool", size, **pads))
    assert state is DIFFERENT
    assert "count_include_pad" in text or "padding" in text


def test_an_average_without_padding_counts_none(checked):
    assert checked(pooled("AveragePool", 9, count_include_pad=1), pooled("AveragePool", 9))[0] is EQUIVALENT


def test_an_average_is_no_maximum(checked):
    state, text = checked(pooled("AveragePool"), pooled("MaxPool"))
    assert state is DIFFERENT
    assert "average" in text
    assert "maximum" in text


GROUPED, BIAS = weights(6, 2, 3, 3), weights(6, scale=0.3)


def grouped():
    return model(node("Conv", "x w b", "y", group=2, pads=[1] * 4), x=(1, 4, 7, 7), w=GROUPED, b=BIAS)


def split(swapped=False, opset=17):
    parts = {"w1": GROUPED[:3], "w2": GROUPED[3:], "b1": BIAS[:3], "b2": BIAS[3:]}
    sizes = {"sizes": np.array([2, 2])} if opset >= 13 else {}
    cut = node("Split", "x sizes", "x1 x2", axis=1) if sizes else node("Split", "x", "x1 x2", axis=1, split=[2, 2])
    convs = [node("Conv", f"x{i} w{i} b{i}", f"y{i}", pads=[1] * 4) for i in (1, 2)]
    joined = node("Concat", "y2 y1" if swapped else "y1 y2", "y", axis=1)
    return model(cut, *convs, joined, x=(1, 4, 7, 7), opset=opset, **parts, **sizes)


@pytest.mark.parametrize("opset", [11, 17])
def test_groups_as_split_and_concat(checked, opset):
    assert checked(grouped(), split(opset=opset))[0] is EQUIVALENT


def test_groups_in_another_order(checked):
    state, text = checked(grouped(), split(swapped=True))
    assert state is DIFFERENT
    assert "conv" in text


def resized(scale=2.0, mode="asymmetric", nearest="floor", **attrs):
    return model(
        node("Conv", "x w", "c", pads=[1] * 4),
        node(
            "Resize", "c - s", "y", mode="nearest", coordinate_transformation_mode=mode, nearest_mode=nearest, **attrs
        ),
        w=W,
        s=np.array([1, 1, scale, scale], np.float32),
    )


def test_nearest_by_upsample_and_by_resize(checked):
    upsampled = model(
        node("Conv", "x w", "c", pads=[1] * 4),
        node("Upsample", "c s", "y", mode="nearest"),
        opset=9,
        w=W,
        s=np.array([1, 1, 2, 2], np.float32),
    )
    assert checked(resized(), upsampled)[0] is EQUIVALENT


def test_resize_by_sizes_and_by_scales(checked):
    sized = model(
        node("Conv", "x w", "c", pads=[1] * 4),
        node(
            "Resize", "c - - n", "y", mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
        ),
        w=W,
        n=np.array([1, 6, 18, 18]),
    )
    assert checked(resized(), sized)[0] is EQUIVALENT


def test_coordinates_that_pick_the_same_pixels_are_not_called_different(checked):
    state, _ = checked(resized(), resized(mode="half_pixel", nearest="round_prefer_floor"))
    assert state in (EQUIVALENT, UNCHECKED)


def test_aligned_corners_by_sizes_and_by_scales(checked):
    """The length in x (n - 1) / (length - 1) is that of the resized tensor, a whole number."""
    sized = model(
        node("Conv", "x w", "c", pads=[1] * 4),
        node("Resize", "c - - n", "y", mode="nearest", coordinate_transformation_mode="align_corners"),
        w=W,
        n=np.array([1, 6, 13, 13]),
    )
    assert checked(resized(1.5, "align_corners", "round_prefer_floor"), sized)[0] is EQUIVALENT


MODES = [("half_pixel", "floor"), ("asymmetric", "ceil")]


@pytest.mark.parametrize(("mode", "nearest"), MODES)
def test_coordinates_and_rounding_that_pick_others(checked, mode, nearest):
    state, text = checked(resized(1.5), resized(1.5, mode, nearest))
    assert state is DIFFERENT
    assert (mode if mode != "asymmetric" else nearest) in text
