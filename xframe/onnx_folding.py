"""Models of old exporters in the form that exports have elsewhere: padding and biases are parts of the windows and
products that they belong to. CNTK pads and adds biases in nodes of their own.
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

#: Window -> what it may be padded with in a node before it: its own padding is no part of a maximum.
_PADDING = {"Conv": 0.0, "MaxPool": -np.inf}


class _Graph:
    """A graph under change. ``constants`` reads initializers and Constant nodes alike."""

    def __init__(self, graph: GraphProto):
        self.graph = graph
        self.makers = {name: node for node in graph.node for name in node.output}
        self.initializers = {t.name: t for t in graph.initializer}
        self.reads = Counter(name for node in graph.node for name in node.input)
        self.reads.update(v.name for v in graph.output)

    def constant(self, name: str) -> np.ndarray | None:
        if name in self.initializers:
            return numpy_helper.to_array(self.initializers[name])
        node = self.makers.get(name)
        if node is not None and node.op_type == "Constant":
            return numpy_helper.to_array(next(a.t for a in node.attribute if a.name == "value"))
        return None

    def before(self, name: str, op: str) -> NodeProto | None:
        """The node of an operator that made ``name``, if nothing else reads that."""
        node = self.makers.get(name)
        return node if node is not None and node.op_type == op and self.reads[name] == 1 else None

    def remove(self, node: NodeProto) -> None:
        self.graph.node.remove(node)

    def add_constant(self, name: str, value: np.ndarray) -> None:
        if name in self.initializers:
            self.initializers[name].CopyFrom(numpy_helper.from_array(value, name))
        else:
            self.graph.initializer.append(numpy_helper.from_array(value, name))
            self.initializers[name] = self.graph.initializer[-1]


def fold(model: ModelProto) -> None:
    """Fold padding into convolutions and maxima, and added constants into convolutions and matrix products.

    Changes ``model``; what it computes stays the same. Shapes as inferred anew are not in it.
    """
    ranks = _ranks(model)
    if not all(node.input[0] in ranks for node in model.graph.node if node.op_type in ("Conv", "MatMul")):
        ranks = _ranks(onnx.shape_inference.infer_shapes(model))  # not always: it copies the weights
    graph = _Graph(model.graph)
    for node in list(model.graph.node):
        if node.op_type in _PADDING:
            _take_padding(graph, node)
        elif node.op_type == "Add":
            _give_bias(graph, node, ranks)
    _drop_unused(graph)
    _order(model.graph)


def _ranks(model: ModelProto) -> dict[str, int]:
    values = (*model.graph.input, *model.graph.value_info, *model.graph.output)
    return {v.name: len(v.type.tensor_type.shape.dim) for v in values if v.type.tensor_type.HasField("shape")}


def _take_padding(graph: _Graph, window: NodeProto) -> None:
    pad = graph.before(window.input[0], "Pad")
    if pad is None or len(pad.input) > 3:
        return
    mode = next((a.s for a in pad.attribute if a.name == "mode"), b"constant")
    amounts = graph.constant(pad.input[1])
    given = graph.constant(pad.input[2]) if len(pad.input) > 2 and pad.input[2] else np.zeros(())
    if mode != b"constant" or amounts is None or given is None or given != _PADDING[window.op_type]:
        return
    attributes = {a.name: helper.get_attribute_value(a) for a in window.attribute}
    if attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", b""):
        return
    half = len(amounts) // 2
    outer, inner = [*amounts[:2], *amounts[half : half + 2]], [*amounts[2:half], *amounts[half + 2 :]]
    own = attributes.get("pads", [0] * len(inner))
    total = [int(a + b) for a, b in zip(own, inner, strict=True)]
    if any(outer) or min(inner) < 0 or (window.op_type == "MaxPool" and not _within(total, attributes["kernel_shape"])):
        return
    _set(window, "pads", total)
    window.input[0] = pad.input[0]
    graph.remove(pad)


def _within(pads: list[int], kernel: list[int]) -> bool:
    """Has every window a pixel?"""
    return all(p < k for p, k in zip(pads, [*kernel, *kernel], strict=True))


def _give_bias(graph: _Graph, add: NodeProto, ranks: dict[str, int]) -> None:
    for product, bias in (tuple(add.input), tuple(reversed(add.input))):
        value = graph.constant(bias)
        conv, matmul = graph.before(product, "Conv"), graph.before(product, "MatMul")
        if value is None or graph.reads[bias] != 1:
            continue
        if conv is not None and len(conv.input) == 2 and ranks.get(conv.input[0]) == 4:
            weight = graph.constant(conv.input[1])
            if weight is None or value.shape not in ((len(weight), 1, 1), (1, len(weight), 1, 1)):
                continue
            graph.add_constant(bias, value.reshape(-1))
            conv.input.append(bias)
            _end_at(graph, conv, add)
            return
        if matmul is not None and ranks.get(matmul.input[0]) == 2:
            weight = graph.constant(matmul.input[1])
            if weight is None or value.shape != weight.shape[1:]:
                continue
            matmul.op_type = "Gemm"
            matmul.input.append(bias)
            _end_at(graph, matmul, add)
            return


def _end_at(graph: _Graph, product: NodeProto, add: NodeProto) -> None:
    """The product makes what the addition made."""
    product.output[0] = add.output[0]
    graph.makers[add.output[0]] = product
    graph.remove(add)


def _set(node: NodeProto, name: str, value: list[int]) -> None:
    for a in [a for a in node.attribute if a.name == name]:
        node.attribute.remove(a)
    node.attribute.append(helper.make_attribute(name, value))


def _drop_unused(graph: _Graph) -> None:
    read = {name for node in graph.graph.node for name in node.input} | {v.name for v in graph.graph.output}
    for tensor in [t for t in graph.graph.initializer if t.name not in read]:
        graph.graph.initializer.remove(tensor)
    for node in [n for n in graph.graph.node if n.op_type == "Constant" and n.output[0] not in read]:
        graph.remove(node)
    made = {name for node in graph.graph.node for name in node.output}
    for value in [v for v in graph.graph.value_info if v.name not in made]:
        graph.graph.value_info.remove(value)


def _order(graph: GraphProto) -> None:
    """Constants in the order of their first use, shapes named after what they are for, and no account of an exporter's
    own numbers, which differ from one run to the next."""
    graph.ClearField("doc_string")
    names = {}
    place: dict[str, int] = {}
    for node in graph.node:
        for name in node.input:
            place.setdefault(name, len(place))
    graph.initializer.sort(key=lambda t: place[t.name])
    for tensor, node in _shapes(graph):
        names[tensor.name] = f"{node.name}.shape"
        tensor.name = names[tensor.name]
    for node in graph.node:
        node.input[:] = [names.get(n, n) for n in node.input]


def _shapes(graph: GraphProto) -> Iterator[tuple[onnx.TensorProto, NodeProto]]:
    readers: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    for tensor in graph.initializer:
        nodes = readers.get(tensor.name, [])
        if tensor.data_type == onnx.TensorProto.INT64 and len(nodes) == 1 and nodes[0].name:
            yield tensor, nodes[0]
