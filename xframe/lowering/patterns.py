"""Operators that an exporter took apart, put together again before lowering."""

from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper, numpy_helper

from xframe.artifact import attributes


def merged(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model`` with local response normalisation as one node wherever it stands as PyTorch exports it.

    That is x / (k + a * mean)^b with the mean of x^2 taken by pooling over the channels of an image with one more
    dimension. The nodes that nobody reads any more are left out.
    """
    graph = model.graph
    made = {name: node for node in graph.node for name in node.output}
    constants = {i.name: i for i in graph.initializer}
    constants.update({n.output[0]: attributes(n)["value"] for n in graph.node if n.op_type == "Constant"})
    replaced = {}
    for node in graph.node:
        found = node.op_type == "Div" and _lrn(node, made.get, lambda name: _array(constants.get(name)))
        if found:
            x, numbers = found
            replaced[node.output[0]] = helper.make_node("LRN", [x], list(node.output), node.name, **numbers)
    if not replaced:
        return model
    out = onnx.ModelProto()
    out.CopyFrom(model)
    nodes = [replaced.get(n.output[0], n) for n in model.graph.node]
    needed, kept = {o.name for o in graph.output}, []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            needed.update(node.input)
            kept.append(node)
    del out.graph.node[:]
    out.graph.node.extend(reversed(kept))
    return out


def _array(tensor) -> np.ndarray | None:
    return None if tensor is None else numpy_helper.to_array(tensor)


def _lrn(div: onnx.NodeProto, made: Callable, constant: Callable) -> tuple[str, dict] | None:
    """(x, attributes of LRN) when ``div`` is the end of such a chain."""

    def step(name: str, *ops: str):
        """The node that made ``name`` if it is one of ``ops``, its data input, and its scalar constant if any."""
        node = made(name)
        if node is None or node.op_type not in ops:
            return None, "", None
        values = [constant(i) for i in node.input]
        data = next((i for i, v in zip(node.input, values, strict=True) if v is None), "")
        return node, data, next((v for v in values if v is not None), None)

    x = div.input[0]
    power, name, beta = step(div.input[1], "Pow")
    add, name, bias = step(name, "Add")
    scale, name, alpha = step(name, "Mul")
    flat, name, _ = step(name, "Squeeze", "Reshape")
    pool, name, _ = step(name, "AveragePool")
    pad, name, pads = step(name, "Pad")
    wide, name, _ = step(name, "Unsqueeze", "Reshape")
    square = made(name)
    chain = (power, add, scale, flat, pool, pad, wide, square)
    if any(n is None for n in chain) or square.op_type != "Mul" or list(square.input) != [x, x]:
        return None
    if any(v is None or v.size != 1 for v in (beta, bias, alpha)) or pads is None:
        return None
    size, *others = attributes(pool)["kernel_shape"]
    width = len(pads) // 2
    expected = [0] * (2 * width)
    expected[2], expected[width + 2] = size // 2, (size - 1) // 2
    if others != [1, 1] or size % 2 == 0 or pads.tolist() != expected or any(attributes(pool).get("pads", ())):
        return None
    return x, {"size": size, "alpha": float(alpha.item()), "beta": float(beta.item()), "bias": float(bias.item())}
