"""A network as a list of neutral nodes, from a ``ModelSpec`` or from ONNX, and the one evaluator of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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


#: What computes a node: (node, inputs with None for an absent one, roundings) -> its outputs. Without roundings the
#: values alone are wanted.
Operator = Callable[[Node, Sequence[Any], "Roundings | None"], "Quantity | tuple[Quantity, ...]"]


#: What numpy raises where shapes, numbers or missing inputs make no sense: a model is not to be trusted.
MISFITS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


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


class Evaluation:
    """A graph evaluated node by node, in any order that gives a node its inputs first.

    A tensor is freed when the last node that reads it is done, unless it is an output or held.

    Parameters
    ----------
    graph, feeds
        What is evaluated, and its inputs by name.
    roundings
        How the implementation to be judged rounds. None: the exact values alone are wanted, which takes a third of the
        time; no result has a variance.
    held
        Names of tensors to keep until :meth:`release`.
    """

    def __init__(
        self,
        graph: Graph,
        feeds: Mapping[str, np.ndarray],
        operators: Mapping[str, Operator],
        roundings: Roundings | None,
        held: Collection[str] = (),
    ):
        self.nodes = graph.needed()
        self.tensors = {name: Quantity(value) for name, value in feeds.items()}
        self._graph, self._operators, self._roundings = graph, operators, roundings
        self._readers = Counter(name for node in self.nodes for name in set(node.inputs))
        self._readers.update((*graph.outputs, *held))
        self.tensors.update({name: Quantity(a) for name, a in graph.constants.items() if name in self._readers})

    def step(self, node: Node, results: Sequence[Quantity] | None = None) -> dict[str, Quantity]:
        """The outputs of a node, all of whose inputs are there; ``results`` where they are known already.

        Raises
        ------
        ModelError
            The operator is unknown, or can't be judged as it is used here.
        """
        if results is None:
            results = self._computed(node)
        given = {name: result for name, result in zip(node.outputs, results, strict=False) if name}
        self.tensors.update({name: result for name, result in given.items() if self._readers[name]})
        for name in set(node.inputs):
            self.release(name)
        return given

    def release(self, name: str) -> None:
        """One reader less: a held tensor is let go."""
        self._readers[name] -= 1
        if self._readers[name] <= 0:
            self.tensors.pop(name, None)

    def output(self, name: str) -> Quantity:
        """An output of the graph, all its nodes done.

        Raises
        ------
        ModelError
            No node gives it.
        """
        if name not in self.tensors:
            node = next((n for n in self.nodes if name in n.outputs), None)
            if node:
                raise node.refuse(f"the float64 reference does not compute its output {name}")
            raise ModelError(f"no node gives {name}")
        return self.tensors[name]

    def _computed(self, node: Node) -> Sequence[Quantity]:
        if node.op not in self._operators:
            raise _unknown([node.op])
        missing = [name for name in node.inputs if name and name not in self.tensors]
        if missing:
            raise node.refuse(f"its input {missing[0]} is an output that the float64 reference does not compute")
        inputs = [self.tensors[name] if name else None for name in node.inputs]
        try:
            with np.errstate(all="ignore"):  # what is not finite is found, and named, when outputs are judged
                results = self._operators[node.op](node, inputs, self._roundings)
        except MISFITS as error:
            raise node.refuse(f"its inputs and attributes do not fit: {error}") from error
        results = results if isinstance(results, tuple) else (results,)
        return results if self._roundings is not None else [Quantity(q.value) for q in results]


def steps(
    graph: Graph, feeds: Mapping[str, np.ndarray], operators: Mapping[str, Operator], roundings: Roundings | None
) -> Iterator[tuple[Node, dict[str, Quantity]]]:
    """Each node in turn, with the tensors that it gives; see :class:`Evaluation`."""
    evaluation = Evaluation(graph, feeds, operators, roundings)
    for node in evaluation.nodes:
        yield node, evaluation.step(node)


def run(
    graph: Graph,
    feeds: Mapping[str, np.ndarray],
    operators: Mapping[str, Operator],
    roundings: Roundings | None,
    observe: Callable[[str, Quantity], None] | None = None,
) -> list[Quantity]:
    """The graph's outputs. ``observe`` sees every tensor that is computed, before it may be freed.

    Raises
    ------
    ModelError
        An operator that is not in ``operators``, or a tensor that no node gives.
    """
    evaluation = Evaluation(graph, feeds, operators, roundings)
    unknown = sorted({node.op for node in evaluation.nodes} - set(operators))
    if unknown:
        raise _unknown(unknown)
    for node in evaluation.nodes:
        results = evaluation.step(node)
        if observe:
            for name, result in results.items():
                observe(name, result)
    return [evaluation.output(name) for name in graph.outputs]


def _unknown(operators: Sequence[str]) -> ModelError:
    return ModelError(
        f"the float64 reference does not know the operator{'s' * (len(operators) > 1)} {', '.join(operators)}: "
        "export the network with plain ONNX operators"
    )


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
