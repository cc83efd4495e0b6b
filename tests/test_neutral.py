"""A neutral graph survives its file, and nothing but one is taken for one."""

import numpy as np
import pytest

from xframe import neutral
from xframe.errors import ModelError

GRAPH = neutral.Graph(
    "net",
    (("input", (2, 3, 8, 7)),),
    (("output", (2, 5)),),
    (
        neutral.Node("Conv", "c/1", ("input", "w", "file"), ("c",), {"pads": (1, 0, 0, 1), "group": np.int64(3)}),
        neutral.Node("LRN", "n", ("c",), ("n",), {"size": 5, "alpha": np.float32(0.5), "beta": 1.0}),
        neutral.Node("Pad", "p", ("n", "pads"), ("output",), {"mode": "constant", "scales": [1, 0.5]}),
    ),
    {"w": np.ones((6, 1, 3, 3), np.float32), "file": np.zeros(6, np.float32), "pads": np.array([0, 1], np.int64)},
)


def test_what_is_saved_is_loaded(tmp_path):
    path = str(tmp_path / "graph")
    neutral.save(GRAPH, path)
    found = neutral.load(path)
    assert found[:3] == GRAPH[:3]
    assert [n[:4] for n in found.nodes] == [n[:4] for n in GRAPH.nodes]
    assert [n.attributes for n in found.nodes] == [
        {"pads": [1, 0, 0, 1], "group": 3},
        {"size": 5, "alpha": 0.5, "beta": 1.0},
        {"mode": "constant", "scales": [1.0, 0.5]},
    ]
    assert isinstance(found.nodes[1].attributes["beta"], float)
    assert list(found.weights) == ["w", "file", "pads"]
    for name, value in GRAPH.weights.items():
        assert found.weights[name].dtype == value.dtype
        np.testing.assert_array_equal(found.weights[name], value)


@pytest.mark.parametrize("value", [None, {}, [], [1, "a"], object(), b"bytes"])
def test_an_attribute_that_onnx_has_not_is_refused(tmp_path, value):
    node = neutral.Node("Conv", "c", (), (), {"kernel": value})
    with pytest.raises(ModelError, match=r"node c \(Conv\): attribute kernel"):
        neutral.save(GRAPH._replace(nodes=(node,)), str(tmp_path / "graph"))


@pytest.mark.parametrize("dtype", ["float64", "int32", "object"])
def test_weights_are_float32_or_int64(tmp_path, dtype):
    with pytest.raises(ModelError, match=f"the weight w is {dtype}"):
        neutral.save(GRAPH._replace(weights={"w": np.ones(3, dtype)}), str(tmp_path / "graph"))


def test_nothing_else_is_loaded(tmp_path):
    path = tmp_path / "graph"
    with pytest.raises(ModelError, match="is no neutral graph"):
        neutral.load(str(path))
    neutral.save(GRAPH, str(path))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ModelError, match="cut short"):
        neutral.load(str(path))
    with open(path, "wb") as f:
        np.savez(f, structure=np.array([GRAPH], dtype=object))  # a pickle, which is not read
    with pytest.raises(ModelError, match="is no neutral graph"):
        neutral.load(str(path))
    with open(path, "wb") as f:
        np.savez(f, other=np.ones(3))
    with pytest.raises(ModelError, match="structure"):
        neutral.load(str(path))
