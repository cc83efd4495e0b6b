"""Resize and Upsample channels-last, against float64 on odd sizes. ONNX's own cases are in ``test_graph``."""

import numpy as np
import pytest
from onnx import helper

from tests.lowering.networks import HOST, network
from tests.lowering.test_graph import check, kernels, planned, weights
from xframe.errors import Unsupported
from xframe.lowering import pipeline
from xframe.lowering.resizing import PLACES, ROUNDINGS


def resized(how, each, size=(), scales=(), opset=19):
    """A network with a Resize for each of the attributes ``each``, of one channels-last image: (2, 5, 7, 9)."""
    last = [int(np.floor(np.float32(s) * n)) for s, n in zip(scales, (7, 9), strict=True)] if scales else size
    constants = {"w": weights(5, 3, 1, 1), "roi": np.array([0, 0, 0.1, -0.2, 1, 1, 0.9, 1.3], np.float32)}
    if scales:
        constants["how"] = np.array([1, 1, *scales], np.float32)
    else:
        constants["how"] = np.array([2, 5, *size], np.int64)
    inputs = ["c", "roi", "how"] if scales else ["c", "roi", "", "how"]
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[1, 1])]
    nodes += [helper.make_node("Resize", inputs, [f"y{i}"], mode=how, **attrs) for i, attrs in enumerate(each)]
    outputs = {f"y{i}": (2, 5, *last) for i in range(len(each))}
    return network(nodes, {"x": (2, 3, 7, 9)}, outputs, constants, opset)


@pytest.mark.parametrize(
    "to", [{"size": s} for s in ((11, 13), (4, 5), (1, 9))] + [{"scales": s} for s in ((2.5, 1.5), (0.6, 0.5))], ids=str
)
@pytest.mark.parametrize("how", ["nearest", "linear", "cubic"])
def test_resize(how, to, tmp_path):
    """Every coordinate transformation; nearest with every rounding, too."""
    roundings = ROUNDINGS if how == "nearest" else ["floor"]
    each = [{"coordinate_transformation_mode": c, "nearest_mode": r} for c in PLACES for r in roundings]
    check(tmp_path, resized(how, [a | {"extrapolation_value": 3.5} for a in each], **to))


@pytest.mark.parametrize("how", ["linear", "cubic"])
def test_resize_with_a_filter_of_its_own(how, tmp_path):
    each = [{"antialias": 1}, {"exclude_outside": 1}, {"antialias": 1, "exclude_outside": 1}, {"cubic_coeff_a": -0.5}]
    check(tmp_path, resized(how, each, scales=(0.3, 1.7)))


@pytest.mark.parametrize(("op", "opset"), [("Upsample", 9), ("Resize", 10)])
@pytest.mark.parametrize("how", ["nearest", "linear"])
def test_the_old_forms_of_resize(op, opset, how, tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[1, 1]),
        helper.make_node(op, ["c", "s"], ["y"], mode=how),
    ]
    constants = {"w": weights(5, 3, 1, 1), "s": np.array([1, 1, 2, 3], np.float32)}
    check(tmp_path, network(nodes, {"x": (2, 3, 7, 9)}, {"y": (2, 5, 14, 27)}, constants, opset))


def test_channels_and_rows_are_resized_too(tmp_path):
    """Any axis, of an image in either layout and of what is no image."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[1, 1]),
        helper.make_node("Resize", ["c", "", "two"], ["deep"], mode="linear", axes=[1]),
        helper.make_node("Resize", ["x", "", "two"], ["first"], mode="linear", axes=[1]),
        helper.make_node("Flatten", ["c"], ["f"]),
        helper.make_node("Resize", ["f", "", "two"], ["flat"], mode="linear", axes=[1]),
    ]
    outputs = {"deep": (2, 10, 7, 9), "first": (2, 6, 7, 9), "flat": (2, 630)}
    constants = {"w": weights(5, 3, 1, 1), "two": np.array([2], np.float32)}
    check(tmp_path, network(nodes, {"x": (2, 3, 7, 9)}, outputs, constants, 18))


def test_a_resized_image_stays_channels_last():
    model = resized("nearest", [{"coordinate_transformation_mode": "asymmetric"}], scales=(2, 3))
    mod, _, _ = pipeline.forced(model, planned(model), HOST)
    assert [name for name in kernels(mod) if "transpose" in name] == ["transpose"]  # the output is NCHW


def test_a_size_that_is_computed_is_refused():
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[1, 1]),
        helper.make_node("Resize", ["c", "", "s"], ["y"], name="up"),
    ]
    model = network(nodes, {"x": (2, 3, 7, 9), "s": (4,)}, {"y": (2, 5, 7, 9)}, {"w": weights(5, 3, 1, 1)})
    with pytest.raises(Unsupported, match="Resize 'up': its sizes must be constants"):
        planned(model)


@pytest.mark.parametrize("scales", [[1, 1, 2], [1, 1, 2, 0.1], [1, 1, 2, -1]], ids=str)
def test_scales_that_do_not_fit_are_refused(scales):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[1, 1]),
        helper.make_node("Resize", ["c", "", "s"], ["y"], name="up"),
    ]
    constants = {"w": weights(5, 3, 1, 1), "s": np.array(scales, np.float32)}
    model = network(nodes, {"x": (2, 3, 7, 9)}, {"y": (2, 5, 14, 9)}, constants)
    with pytest.raises(Unsupported, match=r"Resize 'up': scales .* do not fit \(2, 5, 7, 9\)"):
        planned(model)
