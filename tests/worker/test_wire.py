"""Records and arrays survive the way through JSON and npz."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from xframe.types import Artifact, ConvSite, Kernel, Outcome, Plan, Profile, Rounding, SiteRecord, Span, TensorInfo
from xframe.worker import wire

SITE = ConvSite(1, 64, (27, 27), 192, (5, 5), pads=(2, 2, 2, 2))


def through_json(value):
    return json.loads(json.dumps(wire.plain(value)))


def test_records_come_back_equal():
    tensor = TensorInfo("x", (1, 3, 8, 8), "float32", "NHWC")
    artifact = Artifact("/a.onnx", "ab", "m", None, None, 17, (tensor,), (tensor,), (("conv", SITE),))
    assert wire.artifact_of(through_json(artifact)) == artifact
    assert wire.artifact_of(None) is None
    records = (
        SiteRecord(SITE, "conv2", "winograd", "winograd", "F(4,5)", Rounding(64, 3.5, (4, 4))),
        SiteRecord(SITE, "conv3", None, None),
    )
    assert wire.sites_of(through_json(records)) == records
    kernels = (Kernel("a", 0.0, 1.5, SITE, "pad"), Kernel("b", 1.5, 2.0))
    assert wire.kernels_of(through_json(kernels)) == kernels
    profiles = (Profile(2.5, kernels, (Span("call", 0.0, 2.5, "python"),), 1e-6), Profile(1.0, (), note="no gate"))
    assert wire.profiles_of(through_json(profiles)) == profiles
    plan = Plan("winograd", ((SITE, "winograd"),), ((ConvSite(1, 3, (8, 8), 4, (1, 1)), "1x1"),))
    assert Plan.from_json(through_json(plan)) == plan


def test_plain_takes_numpy_paths_and_enums():
    value = {"a": np.float32(1.5), "b": np.arange(2), "c": Path("/x"), "d": Outcome.OK, SITE: (True, None)}
    assert through_json(value) == {"a": 1.5, "b": [0, 1], "c": "/x", "d": "OK", SITE.key: [True, None]}


def test_arrays_keep_order_and_type(tmp_path):
    path = str(tmp_path / "a.npz")
    arrays = [np.full((2, i), i, "float32") for i in range(12)] + [np.array(3, "int64")]
    wire.save_arrays(path, arrays)
    back = wire.load_arrays(path)
    assert [a.dtype for a in back] == [a.dtype for a in arrays]
    assert all(np.array_equal(a, b) for a, b in zip(arrays, back, strict=True))


def test_pickled_arrays_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        wire.load_arrays(str(tmp_path / "a.npz"))


@given(
    hnp.arrays("float32", hnp.array_shapes(min_dims=1, max_dims=5, max_side=4)), st.sampled_from(["NCHW", "NHWC", ""])
)
def test_layouts_are_inverse(array, layout):
    there = wire.to_layout(array, layout)
    assert np.array_equal(wire.from_layout(there, layout), array, equal_nan=True)
    if layout == "NHWC" and array.ndim == 4:
        n, c, h, w = array.shape
        assert there.shape == (n, h, w, c)
        assert there.flags.c_contiguous
    else:
        assert there is array
