"""An ONNX graph in the making, for the walk over a jaxpr: lazily transposed tensors, constants, and the merges at its
end that turn elementwise pairs into the nodes other exporters write. Numpy and onnx only."""

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

OPSET = 18


@dataclass(eq=False)
class Const:
    """A known array; ``name`` is what its initializer should be called."""

    array: np.ndarray
    name: str = "constant"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def scalar(self) -> Any:
        """Its value when all elements are one value, else None."""
        flat = self.array.ravel()
        return flat[0].item() if flat.size and (flat == flat[0]).all() else None


@dataclass(eq=False)
class Tensor:
    """A computed array of ``shape``. In the ONNX graph it is called ``name``, and its axis ``i`` is our axis
    ``perm[i]``: layouts change lazily, so that a channels-last network becomes NCHW nodes with a transpose only where
    the order of elements matters."""

    name: str
    shape: tuple[int, ...]
    dtype: Any
    perm: tuple[int, ...]


@dataclass(eq=False)
class Node:
    op: str
    inputs: list[Any]  # Const or the name of a tensor
    output: str
    attrs: dict[str, Any] = field(default_factory=dict)


def identity(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(range(len(shape)))


def _takes_bias(node: Node, bias: Any) -> bool:
    """Whether ``node`` is a product with no bias yet, and ``bias`` one constant for each of its output channels."""
    if node.op not in ("Conv", "MatMul") or len(node.inputs) != 2 or not isinstance(bias, Const):
        return False
    weight = node.inputs[1]
    if not isinstance(weight, Const):
        return False
    if node.op == "Conv":
        return bias.shape == (1, weight.shape[0], 1, 1)
    return bias.shape in ((weight.shape[1],), (1, weight.shape[1]))


class Graph:
    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.inputs: list[Tensor] = []
        self._count: Counter[str] = Counter()

    def input(self, name: str, shape: tuple[int, ...], dtype: Any) -> Tensor:
        self.inputs.append(Tensor(name, shape, dtype, identity(shape)))
        return self.inputs[-1]

    def add(self, op: str, *inputs: "Const | str", **attrs: Any) -> str:
        """Append a node and return the name of its output."""
        self._count[op] += 1
        self.nodes.append(Node(op, list(inputs), f"{op}_{self._count[op]}", attrs))
        return self.nodes[-1].output

    def ordered(self, value: "Const | Tensor", perm: tuple[int, ...]) -> "Const | str":
        """``value`` with its axes in the order ``perm``, by a Transpose node if need be."""
        if isinstance(value, Const):
            return value if perm == identity(perm) else Const(np.transpose(value.array, perm), value.name)
        if value.perm == perm:
            return value.name
        return self.add("Transpose", value.name, perm=[value.perm.index(axis) for axis in perm])

    def plain(self, value: "Const | Tensor") -> "Const | str":
        """``value`` with its axes in their own order."""
        return self.ordered(value, identity(value.shape))

    def _prune(self, wanted: set[Any]) -> None:
        """Drop the nodes that nothing reads."""
        kept = []
        for node in reversed(self.nodes):
            if node.output in wanted:
                kept.append(node)
                wanted |= {x for x in node.inputs if isinstance(x, str)}
        self.nodes = kept[::-1]

    def _merge(self, wanted: set[Any]) -> None:
        """Bias additions into Conv and Gemm, where nothing else reads the product."""
        reads = Counter([*wanted, *(x for node in self.nodes for x in node.inputs if isinstance(x, str))])
        makers = {node.output: node for node in self.nodes}
        for node in [n for n in self.nodes if n.op == "Add"]:
            for product, bias in (node.inputs, node.inputs[::-1]):
                maker = makers.get(product) if isinstance(product, str) else None
                if maker is not None and reads[product] == 1 and _takes_bias(maker, bias):
                    maker.op = "Conv" if maker.op == "Conv" else "Gemm"
                    maker.inputs.append(Const(bias.array.reshape(-1), bias.name))
                    maker.output, makers[node.output] = node.output, maker
                    self.nodes.remove(node)
                    break

    def finish(self, outputs: dict[str, Tensor]) -> onnx.ModelProto:
        """The checked model. ``outputs`` maps the name of each output to its tensor."""
        final = {name: self.plain(value) for name, value in outputs.items()}
        wanted = {x for x in final.values() if isinstance(x, str)}
        self._prune(set(wanted))
        self._merge(wanted)
        renamed: dict[str, str] = {}
        for name, made in final.items():
            if made in renamed or isinstance(made, Const) or made in {i.name for i in self.inputs}:
                self.nodes.append(Node("Identity", [made], name))
            else:
                renamed[made] = name
        taken = {*outputs, *(i.name for i in self.inputs), *(node.output for node in self.nodes)}
        initializers: dict[str, Const] = {}
        names: dict[int, str] = {}

        def name_of(value: "Const | str") -> str:
            if isinstance(value, str):
                return renamed.get(value, value)
            if id(value) not in names:
                tries = itertools.chain([value.name], (f"{value.name}_{i}" for i in itertools.count(1)))
                names[id(value)] = next(n for n in tries if n not in initializers and n not in taken)
                initializers[names[id(value)]] = value
            return names[id(value)]

        nodes = [
            helper.make_node(n.op, [name_of(x) for x in n.inputs], [name_of(n.output)], name=n.output, **n.attrs)
            for n in self.nodes
        ]
        graph = helper.make_graph(
            nodes,
            "jax",
            [_info(i.name, i) for i in self.inputs],
            [_info(name, value) for name, value in outputs.items()],
            [numpy_helper.from_array(np.ascontiguousarray(c.array), n) for n, c in initializers.items()],
        )
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(
            graph, opset_imports=[opset], ir_version=helper.find_min_ir_version_for([opset]), producer_name="jax"
        )
        onnx.checker.check_model(model)
        return model


def _info(name: str, value: Tensor) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype)), value.shape)
