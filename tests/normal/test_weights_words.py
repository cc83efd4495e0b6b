"""What is said about two weights: each relation planted, and what it must not be taken for."""

import numpy as np
import pytest
from hand_made import NAMES, chain, match, told

from xframe.normal.form import Weight
from xframe.normal.weights_words import diagnose, renamed

RNG = np.random.default_rng(0)


def array(*shape, scale=0.1):
    return (scale * RNG.standard_normal(shape)).astype(np.float32)


CONV, STEM, FC, BIAS = array(16, 12, 3, 3), array(8, 3, 5, 5), array(32, 12 * 4 * 5), array(32)
SCALE = np.linspace(0.9, 1.1, 16).astype(np.float32)[:, None, None, None]


def bfloat16(values):
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def quantised(values, step):
    return (np.round(values / step) * step).astype(np.float32)


def some(values, *places):
    changed = values.copy()
    for place in places:
        changed[place] += 0.5
    return changed


def by_channel(values):
    step = np.abs(values).max(axis=1, keepdims=True) / 127
    return (np.round(values / step) * step).astype(np.float32)


#: (second, how it is diagnosed, kind, words).
FOUND = [
    (CONV, CONV[:, :, ::-1, ::-1], {}, "", "kernels turned by 180 degrees: a convolution in the one"),
    (CONV, CONV[:, :, :, ::-1], {}, "", "kernels mirrored along their width"),
    (CONV, CONV.swapaxes(2, 3), {}, "", "equal up to a transposition of height and width"),
    (CONV, CONV.transpose(1, 0, 2, 3), {}, "", "equal up to a transposition of inputs and outputs"),
    (
        CONV,
        CONV.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1],
        {},
        "",
        "inputs and outputs, and kernels turned by 180 degrees",
    ),
    (CONV, CONV.transpose(2, 3, 1, 0), {}, "", "the order of their axes, OIHW in caffe against HWIO in pytorch"),
    (STEM, STEM[:, ::-1], {}, "", "the order of their input channels, which is reversed: RGB against BGR"),
    (
        STEM,
        STEM[:, ::-1].astype(np.float16).astype(np.float32),
        {},
        "",
        "RGB against BGR; beyond that they differ by float16",
    ),
    (FC, FC.T, {"spatial": False}, "", "equal up to a transposition of inputs and outputs"),
    (
        FC,
        FC.reshape(32, 12, 4, 5).transpose(0, 2, 3, 1).reshape(32, -1),
        {"spatial": False, "image": (12, 4, 5)},
        "flatten order",
        "the order of their inputs, CHW in caffe against HWC in pytorch: the image was flattened in another layout",
    ),
    (
        FC.reshape(32, 12, 4, 5).transpose(0, 3, 2, 1).reshape(32, -1),
        FC,
        {"spatial": False, "image": (12, 4, 5)},
        "flatten order",
        "WHC in caffe against CHW in pytorch",
    ),
    (
        FC,
        FC[np.r_[0:8, 16:24, 8:16, 24:32]],
        {"spatial": False},
        "",
        "the 4 blocks of 8 of caffe are blocks 0, 2, 1, 3",
    ),
    (BIAS, BIAS[np.r_[8:32, 0:8]], {}, "", "the 4 blocks of 8 of caffe are blocks"),
    (CONV, CONV[:, np.arange(12).reshape(3, 4).T.ravel()], {}, "", "the order of their inputs: "),
    (CONV, CONV[RNG.permutation(16)], {}, "", "of 16 are elsewhere, the first is output"),
    (CONV, CONV / 255, {}, "", "those of caffe are 255 times those of pytorch"),
    (CONV / 255, CONV, {}, "", "those of caffe are 0.00392157 (1/255) times those of pytorch"),
    (CONV, -CONV, {}, "", "those of pytorch are negated"),
    (BIAS, BIAS + 0.25, {}, "", "those of caffe are those of pytorch plus -0.25"),
    (CONV, CONV.astype(np.float16).astype(np.float32), {}, "precision", "in pytorch every one is the float16 nearest"),
    (CONV.astype(np.float16), CONV, {}, "precision", "in caffe every one is the float16 nearest to that of pytorch"),
    (CONV, bfloat16(CONV), {}, "precision", "in pytorch every one is the bfloat16 nearest to that of caffe"),
    (FC, quantised(FC, 0.0123), {}, "precision", "quantised in pytorch: there are only"),
    (FC, by_channel(FC), {}, "precision", "different values in each row, in steps of up to"),
    (CONV, CONV * SCALE, {}, "", "a factor for each of the 16 filters, from 0.909"),
    (
        CONV,
        some(CONV, 7, 9, 11),
        {},
        "",
        "differ in 3 of 16 filters: the first is filter 7, the largest difference 0.5",
    ),
    (BIAS, some(BIAS, 3), {}, "", "differ in 1 of 32 elements: the first is element 3"),
    (FC, some(FC, *((i, i) for i in range(32))), {}, "", "differ in 32 of 7680 elements, by up to 0.5"),
    (CONV, CONV[:8], {}, "", "are of shape (16, 12, 3, 3) in caffe, and (8, 12, 3, 3) in pytorch"),
    (CONV, array(16, 12, 3, 3), {}, "", "differ: root mean square 1.4 of their size, cosine"),
    (CONV, some(CONV, slice(None)) * np.nan, {}, "", "are not finite in pytorch: 1728 of 1728"),
]


@pytest.mark.parametrize(("a", "b", "given", "kind", "words"), FOUND, ids=[f[4][:50] for f in FOUND])
def test_each_relation_has_its_words(a, b, given, kind, words):
    found = renamed(diagnose(a, b, **{"spatial": a.ndim == 4, "rows": "filters", **given}), NAMES)
    assert words in found.words
    assert (found.kind, found.harmless) == (kind, False)
    assert "{" not in found.words


def test_last_places_are_harmless_and_more_is_not():
    near = np.nextafter(CONV, np.float32(1))
    found = diagnose(CONV, near, spatial=True)
    assert found.harmless
    assert "at most 1 units in the last place" in found.words
    assert not diagnose(CONV, CONV * np.float32(1 + 1e-5), spatial=True).harmless
    noisy = (BIAS + 1e-7 * RNG.standard_normal(32) * np.abs(BIAS).max()).astype(np.float32)
    assert diagnose(BIAS, noisy, folded=True).harmless
    assert not diagnose(BIAS, noisy).harmless
    assert not diagnose(BIAS, BIAS + 1e-3, folded=True).harmless


def test_another_epsilon_folded_is_not_harmless():
    variance = np.abs(array(16, scale=1.0)) + 0.1
    folded = [CONV / np.sqrt(variance + e)[:, None, None, None].astype(np.float32) for e in (1e-3, 1e-5)]
    found = diagnose(*folded, spatial=True, rows="filters", folded=True)
    assert not found.harmless
    assert "another epsilon" in found.words


def test_few_levels_in_both_are_no_quantisation():
    assert "quantised" not in diagnose(quantised(FC, 0.01), quantised(array(*FC.shape), 0.01)).words
    assert "quantised" not in diagnose(FC, array(*FC.shape)).words


@pytest.mark.parametrize("shape", [(1,), (2,), (1, 1), (1, 1, 1, 1), (3, 1), (0,), (0, 3)])
def test_small_and_empty_weights(shape):
    a = np.ones(shape, np.float32)
    for b in (2 * a, np.zeros_like(a), a * np.nan, a[..., None]):
        assert diagnose(a, b).words
        assert not diagnose(a, b).harmless


def test_weights_of_other_types():
    assert diagnose(CONV.astype(np.float64), CONV).kind == "precision"
    whole = np.arange(40)
    assert "differ in 1 of 40 elements" in diagnose(whole, np.where(whole == 7, 3, whole)).words


def test_a_view_of_a_file_is_read_in_blocks(tmp_path):
    a = np.memmap(tmp_path / "w", np.float32, "w+", shape=(300, 8000))
    a[:] = np.arange(300, dtype=np.float32)[:, None] + np.linspace(0, 1, 8000, dtype=np.float32)
    b = np.array(a)
    b[299, 7999] = 7
    assert "differ in 1 of 300 outputs: the first is output 299" in diagnose(a, b, rows="outputs").words


def test_the_layer_is_named_and_what_was_flattened_is_known():
    w = chain().weights["fc6.0"].array
    hwc = w.reshape(32, 16, 4, 4).transpose(0, 2, 3, 1).reshape(32, -1)
    ((kind, text),) = told(chain(), chain({"fc6": {0: hwc}}))
    assert kind == "flatten order"
    assert text == (
        "fc6: weights are equal up to the order of their inputs, CHW in caffe against HWC in pytorch: "
        "the image was flattened in another layout"
    )
    ((kind, text),) = told(chain(), chain({"fc7": {1: -chain().weights["fc7.1"].array}}))
    assert (kind, text) == ("bias", "fc7: biases are equal up to their sign: those of pytorch are negated")


def test_a_kernel_of_another_size_is_one_difference():
    ((kind, text),) = told(chain(), chain({"conv2": {0: array(16, 8, 5, 5), "pads": [1, 1, 1, 1]}}))
    assert (kind, text) == ("kernel", "conv2 has a kernel of 3x3 in caffe, and of 5x5 in pytorch")


def test_how_a_weight_was_made_is_told():
    w = chain().weights["conv1.0"].array
    folded = Weight(w * 1.01, ("w", "bn1"), ("scaled by bn1",))
    ((kind, text),) = told(chain(), chain({"conv1": {0: folded}}))
    assert kind == "weights"
    assert text.endswith("(those of pytorch: scaled by bn1)")
    rounded = Weight(np.nextafter(w, np.float32(9)), ("w", "bn1"), ("scaled by bn1",))
    found = match(chain(), chain({"conv1": {0: rounded}}), NAMES)
    assert found.equal
    assert [d.harmless for d in found.differences] == [True]
