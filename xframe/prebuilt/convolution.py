"""One convolution of a network as an ONNX file."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper, numpy_helper

from xframe import zoo
from xframe.types import ModelSpec


def write(spec: ModelSpec, name: str, batch: int, path: Path) -> Path:
    """The layer ``name`` of ``spec``, with the weights and the bias that it has there.

    Its image lies as it does in the network, channels last behind other layers, and a ReLU follows where one does: so
    TVM's kernels are those of the network, and what is tuned for one is tuned for both.
    """
    layer = next(x for x in spec.layers if x.name == name)
    shapes, sources = zoo.shapes(spec, batch), spec.sources()
    source = sources[name][0]
    image, out = shapes[source], shapes[name]
    activated = any(x.op == "relu" and name in sources[x.name] for x in spec.layers)
    last = source in {x.name for x in spec.layers}  # else it is the network's own input
    arrays = {"w": zoo.tensor(spec, f"{name}.weight"), "b": zoo.tensor(spec, f"{name}.bias")}
    top, left, bottom, right = layer["pads"]
    conv = helper.make_node(
        "Conv", ["i" if last else "x", "w", "b"], ["c" if activated else "y"], name, kernel_shape=layer["kernel"],
        strides=layer["stride"], pads=[top, left, bottom, right], dilations=layer["dilation"], group=layer["groups"],
    )  # fmt: skip
    nodes = [helper.make_node("Transpose", ["x"], ["i"], perm=[0, 3, 1, 2]), conv] if last else [conv]
    nodes += [helper.make_node("Relu", ["c"], ["y"])] if activated else []
    n, c, h, w = image
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (n, h, w, c) if last else image)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)],
        [numpy_helper.from_array(a, k) for k, a in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path
