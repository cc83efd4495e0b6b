"""A network as a plain graph of ONNX operators, for exporters that have no ``onnx``: the host makes the model of it.

Numpy only, and written for Python 3.6 upwards: the worker process of an old framework imports it.
"""

import json
import zipfile
from typing import Any, Dict, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

from xframe.errors import ModelError

#: The operator set that names and attributes are those of.
OPSET = 17

Named = Tuple[str, Tuple[int, ...]]  # a tensor's name and shape


class Node(NamedTuple):
    """One operator. ``attributes``: ints, floats, strings, or lists of one of them."""

    op: str
    name: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    attributes: Mapping[str, Any]


class Graph(NamedTuple):
    """Nodes in topological order. ``inputs`` and ``outputs``: (name, shape) of float32 tensors, the batch fixed.

    ``weights``: float32 arrays, or int64 ones where an operator takes numbers (the shape of a Reshape), by name.
    """

    name: str
    inputs: Sequence[Named]
    outputs: Sequence[Named]
    nodes: Sequence[Node]
    weights: Mapping[str, Any]


def save(graph: Graph, path: str) -> None:
    """Write a graph to an npz file: its structure as JSON, and its weights; nothing is pickled.

    Raises
    ------
    ModelError
        A weight is neither float32 nor int64, or an attribute is nothing that ONNX has.
    """
    arrays: Dict[str, np.ndarray] = {}
    for number, (name, value) in enumerate(graph.weights.items()):
        value = np.asarray(value)
        if value.dtype not in (np.float32, np.int64):
            raise ModelError("%s: the weight %s is %s, not float32 or int64" % (graph.name, name, value.dtype))
        arrays["w%d" % number] = value
    structure = {
        "name": graph.name,
        "inputs": [[name, _ints(shape)] for name, shape in graph.inputs],
        "outputs": [[name, _ints(shape)] for name, shape in graph.outputs],
        "nodes": [
            [n.op, n.name, list(n.inputs), list(n.outputs), {k: _plain(n, k, v) for k, v in n.attributes.items()}]
            for n in graph.nodes
        ],
        "weights": list(graph.weights),
    }
    text = np.frombuffer(json.dumps(structure).encode(), np.uint8)
    with open(path, "wb") as f:
        np.savez(f, structure=text, **arrays)  # type: ignore[arg-type]


def load(path: str) -> Graph:
    """Read what :func:`save` wrote. Raises ModelError on anything else."""
    try:
        with open(path, "rb") as f, np.load(f, allow_pickle=False) as data:
            structure = json.loads(data["structure"].tobytes().decode())
            weights = {name: data["w%d" % number] for number, name in enumerate(structure["weights"])}
        return Graph(
            structure["name"],
            tuple((name, tuple(shape)) for name, shape in structure["inputs"]),
            tuple((name, tuple(shape)) for name, shape in structure["outputs"]),
            tuple(Node(op, name, tuple(ins), tuple(outs), attrs) for op, name, ins, outs, attrs in structure["nodes"]),
            weights,
        )
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as e:
        raise ModelError("%s is no neutral graph, or it is cut short (%s): export it again" % (path, e)) from e


def _ints(shape: Sequence[int]) -> Any:
    return [int(n) for n in shape]


def _plain(node: Node, name: str, value: Any) -> Any:
    """An attribute as JSON has it; numpy's numbers become Python's, and floats stay floats."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (list, tuple, np.ndarray)):
        items = [_plain(node, name, v) for v in value]
        kinds = {type(v) for v in items}
        if kinds == {int, float}:
            items, kinds = [float(v) for v in items], {float}
        if items and len(kinds) == 1 and kinds <= {int, float, str}:
            return items
    elif isinstance(value, (int, float, str)):
        return int(value) if isinstance(value, bool) else value
    raise ModelError("node %s (%s): attribute %s can't be %r" % (node.name, node.op, name, value))
