"""A network as a list of neutral nodes, from a ``ModelSpec`` or from ONNX, and the one evaluator of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from xframe import artifact
from xframe.equivalence.bounds import Quantity
from xframe.errors import ModelError
from xframe.types import Artifact, ConvSite, Layer, ModelSpec, Rounding

Roundings = Mapping[ConvSite, Rounding]


@dataclass(frozen=True)
class Node:
    """One operation, named and described as in ONNX; an absent optional input is ``""``."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 13

    def refuse(self, why: str) -> ModelError:
        """An error about this node, to raise."""
        return ModelError(f"node {self.name} ({self.op}): {why}")


#: What computes a node: (node, inputs with None for an absent one, roundings) -> its outputs.
Operator = Callable[[Node, Sequence[Any], Roundings], "Quantity | tuple[Quantity, ...]"]


@dataclass(frozen=True)
class Graph:
    """Nodes in topological order. ``shapes`` of the inputs may start with None: any batch."""

    nodes: tuple[Node, ...]
    constants: Mapping[str, np.ndarray]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: tuple[tuple[int | None, ...], ...]

    def needed(self) -> list[Node]:
        """The nodes that the outputs depend on."""
        wanted, kept = set(self.outputs), []
        for node in reversed(self.nodes):
            if wanted.intersection(node.outputs):
                wanted.update(node.inputs)
                kept.append(node)
        return kept[::-1]


def run(
    graph: Graph, feeds: Mapping[str, np.ndarray], operators: Mapping[str, Operator], roundings: Roundings
) -> list[Quantity]:
    """The graph's outputs. A tensor is freed as soon as no later node needs it.

    Raises
    ------
    ModelError
        An operator that is not in ``operators``, or a tensor that no node gives.
    """
    nodes = graph.needed()
    unknown = sorted({n.op for n in nodes} - set(operators))
    if unknown:
        raise ModelError(
            f"the float64 reference does not know the operator{'s' * (len(unknown) > 1)} {', '.join(unknown)}: "
            "export the network with plain ONNX operators"
        )
    last = {name: i for i, node in enumerate(nodes) for name in node.inputs}
    last.update(dict.fromkeys(graph.outputs, len(nodes)))
    tensors = {name: Quantity(value) for name, value in graph.constants.items() if name in last}
    tensors.update({name: Quantity(value) for name, value in feeds.items()})
    with np.errstate(all="ignore"):  # what is not finite is found, and named, when outputs are judged
        for i, node in enumerate(nodes):
            missing = [name for name in node.inputs if name and name not in tensors]
            if missing:
                raise node.refuse(f"its input {missing[0]} is an output that the float64 reference does not compute")
            results = operators[node.op](node, [tensors[n] if n else None for n in node.inputs], roundings)
            for name, result in zip(node.outputs, results if isinstance(results, tuple) else (results,), strict=False):
                if name in last:
                    tensors[name] = result
            for name in set(node.inputs):
                if last.get(name) == i:
                    tensors.pop(name, None)
    lost = [name for name in graph.outputs if name not in tensors]
    if lost:
        raise ModelError(f"no node gives {lost[0]}")
    return [tensors[name] for name in graph.outputs]


def from_spec(spec: ModelSpec, weights: Mapping[str, np.ndarray], outputs: Sequence[str] = ()) -> Graph:
    """The graph of a network; ``outputs`` names layers, by default the last.

    Raises
    ------
    ModelError
        A weight is missing.
    """
    sources = spec.sources()
    nodes = tuple(_from_layer(item, sources[item.name]) for item in spec.layers)
    names = [name for node in nodes for name in node.inputs[len(sources[node.name]) :]]
    missing = [name for name in names if name not in weights]
    if missing:
        raise ModelError(f"{spec.name}: no weights named {', '.join(missing)}")
    constants = {name: np.asarray(weights[name]) for name in names}
    ends = tuple(outputs) or (spec.layers[-1].name,)
    return Graph(nodes, constants, ("input",), ends, ((None, *spec.input),))


def _from_layer(item: Layer, inputs: tuple[str, ...]) -> Node:
    attrs = dict(item.attrs)
    shape = {"kernel_shape": attrs.get("kernel"), "strides": attrs.get("stride"), "pads": attrs.get("pads")}
    weights: tuple[str, ...] = ()
    if item.op == "conv":
        op, weights = "Conv", ("weight", "bias")
        attrs = shape | {"dilations": attrs["dilation"], "group": attrs["groups"]}
    elif item.op == "fc":
        op, weights, attrs = "Gemm", ("weight", "bias"), {"transB": 1}
    elif item.op == "batchnorm":
        op, weights = "BatchNormalization", ("scale", "shift", "mean", "var")
    elif item.op in ("maxpool", "avgpool"):
        op, attrs = {"maxpool": "MaxPool", "avgpool": "AveragePool"}[item.op], shape
    elif item.op == "relu6":
        op, attrs = "Clip", {"min": 0.0, "max": 6.0}
    else:
        op = {
            "relu": "Relu",
            "lrn": "LRN",
            "dropout": "Identity",
            "flatten": "Flatten",
            "add": "Sum",
            "concat": "Concat",
            "softmax": "Softmax",
        }[item.op]
        attrs = attrs | ({"axis": 1} if item.op in ("concat", "softmax", "flatten") else {})
    names = tuple(f"{item.name}.{w}" for w in weights)
    return Node(item.name, op, (*inputs, *names), (item.name,), attrs)


def from_onnx(model: Artifact, outputs: Sequence[str] = ()) -> Graph:
    """The graph of a checked ONNX file; ``outputs`` names tensors, by default the model's outputs.

    Raises
    ------
    ModelError
        The file changed for the worse since it was checked, or holds sparse weights.
    """
    path = Path(model.path)
    proto = artifact.read(path)
    onnx.load_external_data_for_model(proto, str(path.parent))
    if proto.graph.sparse_initializer:
        raise ModelError(f"{path} holds sparse weights, which the float64 reference does not read: export them dense")
    return from_proto(proto, outputs)


def from_proto(proto: onnx.ModelProto, outputs: Sequence[str] = ()) -> Graph:
    """The graph of a valid model without local functions, its weights inside."""
    version = artifact.opset(proto)
    nodes = tuple(
        Node(
            artifact.title(n),
            n.op_type if n.domain in ("", "ai.onnx") else f"{n.domain}.{n.op_type}",
            tuple(n.input),
            tuple(n.output),
            artifact.attributes(n),
            version,
        )
        for n in proto.graph.node
    )
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    inputs = artifact.graph_inputs(proto)
    shapes = tuple(tuple(d.dim_value or None for d in v.type.tensor_type.shape.dim) for v in inputs)
    ends = tuple(outputs) or tuple(v.name for v in proto.graph.output)
    return Graph(nodes, constants, tuple(v.name for v in inputs), ends, shapes)
