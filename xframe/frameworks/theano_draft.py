"""A neutral graph in the making, for the walk over a Theano expression: known arrays, tensors, nodes with merges.

Numpy alone.
"""

from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union

import numpy as np

from xframe import neutral

Shape = Tuple[int, ...]


class Known:
    """An array that is known when the graph is made; ``name`` is what its initializer should be called."""

    def __init__(self, array: Any, name: str = "constant") -> None:
        self.array, self.name = np.asarray(array), name

    @property
    def shape(self) -> Shape:
        return self.array.shape

    def scalar(self) -> Optional[float]:
        """Its value when all elements are one value, else None."""
        flat = self.array.reshape(-1)[:1] if self.array.size else None
        return float(flat[0]) if flat is not None and (self.array == flat[0]).all() else None

    def floats(self) -> "Known":
        """As an operand of float32 arithmetic; a single element has no axes."""
        array = self.array.astype(np.float32, copy=False)
        return Known(array.reshape(()) if array.size == 1 else array, self.name)


class Tensor:
    """A computed array."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape, self.dtype = tuple(int(n) for n in shape), "float32"

    def of(self, dtype: str) -> "Tensor":
        """Itself, of another element type than float32."""
        self.dtype = dtype
        return self


Value = Union[Known, Tensor]


class Node:
    """An ONNX operator; ``name`` is what it should be called, empty where nobody has said."""

    def __init__(self, op: str, inputs: Sequence[Value], output: Tensor, attributes: Mapping[str, Any], name: str):
        self.op, self.inputs, self.output, self.attributes, self.name = op, list(inputs), output, attributes, name

    def become(self, op: str, inputs: Sequence[Value], **attributes: Any) -> None:
        """Compute the same output in another way."""
        self.op, self.inputs, self.attributes = op, list(inputs), attributes


class Draft:
    """Nodes in topological order."""

    def __init__(self) -> None:
        self.nodes: List[Node] = []
        self.inputs: Dict[str, Tensor] = {}

    def input(self, name: str, shape: Shape) -> Tensor:
        self.inputs[name] = Tensor(shape)
        return self.inputs[name]

    def add(self, op: str, inputs: Sequence[Value], shape: Sequence[int], name: str = "", **attributes: Any) -> Tensor:
        """Append a node, and return its output."""
        output = Tensor(shape)
        self.nodes.append(Node(op, inputs, output, attributes, name))
        return output

    def makers(self) -> Dict[int, Node]:
        """The node that makes each tensor, by the tensor's ``id``."""
        return {id(node.output): node for node in self.nodes}

    def reads(self, wanted: Sequence[Value]) -> Dict[int, int]:
        """How often each value is read, by its ``id``, being an output of the graph included."""
        count: Dict[int, int] = {}
        for value in [*wanted, *(x for node in self.nodes for x in node.inputs)]:
            count[id(value)] = count.get(id(value), 0) + 1
        return count

    def prune(self, wanted: Sequence[Value]) -> None:
        """Drop the nodes that nothing reads."""
        needed, kept = {id(value) for value in wanted}, []
        for node in reversed(self.nodes):
            if id(node.output) in needed:
                kept.append(node)
                needed.update(id(value) for value in node.inputs)
        self.nodes = kept[::-1]

    def finish(self, name: str, outputs: Mapping[str, Value]) -> neutral.Graph:
        """The graph. ``outputs``: the name of each output, and its value."""
        names = _Names([*self.inputs, *outputs])
        own = {id(tensor): title for title, tensor in self.inputs.items()}
        makers = self.makers()
        for title, value in outputs.items():
            if id(value) in own or id(value) not in makers:  # an input, a constant, or the same as another output
                made = self.add("Identity", [value], value.shape)
                own[id(made)] = title
            else:
                own[id(value)] = title
        weights: Dict[str, np.ndarray] = {}
        nodes = []
        for node in self.nodes:
            for value in node.inputs:
                if id(value) not in own:
                    assert isinstance(value, Known), "a tensor is read before it is made"
                    own[id(value)] = names.fresh(value.name)
                    weights[own[id(value)]] = np.ascontiguousarray(value.array)
            title = names.fresh(node.name or node.op)
            output = own.setdefault(id(node.output), title)
            nodes.append(neutral.Node(node.op, title, [own[id(x)] for x in node.inputs], [output], node.attributes))
        shapes = [(title, value.shape) for title, value in outputs.items()]
        return neutral.Graph(
            name, [(title, tensor.shape) for title, tensor in self.inputs.items()], shapes, nodes, weights
        )


class _Names:
    def __init__(self, taken: Sequence[str]) -> None:
        self._taken: Set[str] = set(taken)

    def fresh(self, wanted: str) -> str:
        """``wanted``, or that with a number behind it."""
        name, number = wanted, 0
        while name in self._taken:
            number += 1
            name = f"{wanted}_{number}"
        self._taken.add(name)
        return name
