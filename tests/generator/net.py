"""A small ONNX network that is easy to edit."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Rng = np.random.Generator
#: The IR version that came with each operator set in use; before 4, initializers are inputs too.
IR = {9: 4, 10: 5, 11: 6, 12: 7, 13: 7, 14: 7, 15: 8, 17: 8, 18: 8, 19: 9, 20: 9, 21: 10}


@dataclass
class Net:
    """Nodes in topological order, constants by name, float32 inputs of static shape.

    ``noded``: constants that are written as Constant nodes. ``listed``: initializers stand among the inputs.
    ``batch``: a name for the first dimension of every input, which is symbolic then. ``external``: weights in a file of
    their own. ``axes``: each input is that of the network this one was made from, transposed by them.
    """

    nodes: list[onnx.NodeProto]
    constants: dict[str, np.ndarray]
    inputs: dict[str, tuple[int, ...]]
    outputs: list[str]
    opset: int = 17
    noded: set[str] = field(default_factory=set)
    listed: bool = False
    batch: str = ""
    external: bool = False
    axes: tuple[int, ...] = ()
    _count: int = field(default=0, repr=False)

    @classmethod
    def of(cls, proto: onnx.ModelProto) -> Net:
        graph = proto.graph
        constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        inputs = {
            v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim)
            for v in graph.input
            if v.name not in constants
        }
        version = next(o.version for o in proto.opset_import if not o.domain)
        return cls(list(graph.node), constants, inputs, [v.name for v in graph.output], version)

    def copy(self) -> Net:
        return copy.deepcopy(self)

    # -- looking ------------------------------------------------------------------------------------------------------

    def all(self, *ops: str) -> list[onnx.NodeProto]:
        return [n for n in self.nodes if n.op_type in ops]

    def maker(self, tensor: str) -> onnx.NodeProto | None:
        return next((n for n in self.nodes if tensor in n.output), None)

    def fixed(self, *ops: str) -> list[onnx.NodeProto]:
        """Nodes of which all inputs but the first are constants."""
        return [n for n in self.all(*ops) if {*n.input[1:]} <= {*self.constants}]

    def readers(self, tensor: str) -> list[onnx.NodeProto]:
        return [n for n in self.nodes if tensor in n.input]

    def sole_reader(self, tensor: str) -> onnx.NodeProto | None:
        """The one node that reads a tensor, when nothing else does."""
        found = self.readers(tensor)
        return found[0] if len(found) == 1 and tensor not in self.outputs else None

    def sole_constant(self, node: onnx.NodeProto, position: int) -> str:
        """The name of a node's constant input that no other node reads, or ``""``."""
        name = node.input[position] if len(node.input) > position else ""
        return name if name in self.constants and len(self.readers(name)) == 1 else ""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        proto = self.proto()
        for t in proto.graph.initializer:  # inference needs no floats
            if t.data_type == TensorProto.FLOAT and np.prod(t.dims) > 16:
                t.ClearField("raw_data")
        inferred = onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)
        found = {name: value.shape for name, value in self.constants.items()}
        for v in (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output):
            found[v.name] = tuple(d.dim_value for d in v.type.tensor_type.shape.dim)
        return found

    # -- editing ------------------------------------------------------------------------------------------------------

    def fresh(self, base: str) -> str:
        self._count += 1
        return f"{base}_{self._count}"

    def constant(self, value: Any, base: str = "c", dtype: Any = np.float32) -> str:
        name = self.fresh(base)
        self.constants[name] = np.array(value, dtype)
        return name

    def node(self, op: str, inputs: Sequence[str], output: str = "", **attrs: Any) -> onnx.NodeProto:
        """A new node, not yet in the list."""
        output = output or self.fresh(op.lower())
        return helper.make_node(op, inputs, [output], self.fresh(f"n_{op.lower()}"), **attrs)

    def replace(self, old: onnx.NodeProto, new: Iterable[onnx.NodeProto]) -> None:
        at = next(i for i, n in enumerate(self.nodes) if n is old)
        self.nodes[at : at + 1] = list(new)

    def remove(self, node: onnx.NodeProto) -> None:
        """Take a node out; who read its output reads its first input."""
        source, gone = node.input[0], node.output[0]
        if gone in self.outputs:
            self.replace(node, [self.node("Identity", [source], gone)])
            return
        self.nodes = [n for n in self.nodes if n is not node]
        self.read_instead(gone, source)

    def read_instead(self, old: str, new: str, only: Iterable[onnx.NodeProto] | None = None) -> None:
        for n in self.nodes if only is None else only:
            for i, name in enumerate(n.input):
                if name == old:
                    n.input[i] = new

    def rename(self, names: dict[str, str]) -> None:
        """Tensors and node names; graph inputs and outputs too where they are named."""
        for n in self.nodes:
            n.input[:] = [names.get(x, x) for x in n.input]
            n.output[:] = [names.get(x, x) for x in n.output]
        self.constants = {names.get(k, k): v for k, v in self.constants.items()}
        self.inputs = {names.get(k, k): v for k, v in self.inputs.items()}
        self.outputs = [names.get(k, k) for k in self.outputs]
        self.noded = {names.get(k, k) for k in self.noded}

    # -- writing ------------------------------------------------------------------------------------------------------

    def proto(self) -> onnx.ModelProto:
        def value(name: str, shape: Sequence[int | str], dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, dtype, shape)

        every = [numpy_helper.from_array(np.array(v, order="C"), k) for k, v in self.constants.items()]
        tensors = [t for t in every if t.name not in self.noded]
        noded = [helper.make_node("Constant", [], [t.name], value=t) for t in every if t.name in self.noded]
        inputs = [value(k, (self.batch or s[0], *s[1:])) for k, s in self.inputs.items()]
        if self.listed:
            inputs += [value(t.name, t.dims, t.data_type) for t in tensors]
        outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in self.outputs]
        graph = helper.make_graph([*noded, *self.nodes], "net", inputs, outputs, tensors)
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=3 if self.listed else IR[self.opset])

    def checked(self) -> onnx.ModelProto:
        """The model, valid, the shapes of its outputs declared."""
        inferred = onnx.shape_inference.infer_shapes(self.proto(), strict_mode=True, data_prop=True)
        proto = self.proto()
        for declared, found in zip(proto.graph.output, inferred.graph.output, strict=True):
            declared.CopyFrom(found)
        onnx.checker.check_model(proto)
        return proto

    def save(self, path: Path) -> Path:
        proto = self.checked()
        if self.external:
            onnx.save(proto, path, save_as_external_data=True, location=f"{path.stem}.data", size_threshold=64)
        else:
            onnx.save(proto, path)
        return path


def attr(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    for a in node.attribute:
        if a.name == name:
            value = helper.get_attribute_value(a)
            return value.decode() if isinstance(value, bytes) else value
    return default


def set_attr(node: onnx.NodeProto, name: str, value: Any) -> None:
    """None takes the attribute away."""
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
    if value is not None:
        node.attribute.append(helper.make_attribute(name, value))
