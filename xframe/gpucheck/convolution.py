"""One convolution of a network as an ONNX file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from xframe import zoo
from xframe.types import ModelSpec


def write(spec: ModelSpec, name: str, batch: int, path: Path) -> Path:
    """The layer ``name`` of ``spec``, with weights of N(0, 1/terms) and a bias: outputs are about 1."""
    layer = next(x for x in spec.layers if x.name == name)
    shapes, source = zoo.shapes(spec, batch), spec.sources()[name][0]
    image, out = shapes[source], shapes[name]
    rng = np.random.default_rng(0)
    share = image[1] // layer["groups"], *layer["kernel"]
    weight = rng.standard_normal((layer["out"], *share)) / np.sqrt(np.prod(share))
    arrays = {"w": weight, "b": rng.standard_normal(layer["out"])}
    top, left, bottom, right = layer["pads"]
    node = helper.make_node(
        "Conv", ["x", "w", "b"], ["y"], name, kernel_shape=layer["kernel"], strides=layer["stride"],
        pads=[top, left, bottom, right], dilations=layer["dilation"], group=layer["groups"],
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, image)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path
