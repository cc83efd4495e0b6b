"""A graph under construction: its nodes in topological order, what is known of each tensor, and who reads it."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx

from xframe.equivalence.graph import Node
from xframe.normal.form import Weight

Shape = tuple[int, ...]
Axes = tuple[int, ...]

#: Operator set of every node whose rule is known; others keep their file's.
OPSET = 20


def identity(rank: int) -> Axes:
    return tuple(range(rank))


def inverse(axes: Axes) -> Axes:
    return tuple(axes.index(i) for i in range(len(axes)))


def composed(first: Axes, then: Axes) -> Axes:
    """``a.transpose(first).transpose(then)`` is ``a.transpose(composed(first, then))``."""
    return tuple(first[i] for i in then)


def moves_nothing(axes: Axes, shape: Shape) -> bool:
    """Whether transposing an array of ``shape`` by ``axes`` leaves its elements in their order."""
    wide = [a for a in axes if shape[a] != 1]
    return wide == sorted(wide)


def complete(op: str, attrs: Mapping[str, Any], opset: int = OPSET) -> dict[str, Any]:
    """``attrs`` with the defaults of the standard filled in, sorted by name; sequences are tuples."""
    try:
        known = onnx.defs.get_schema(op, opset).attributes
    except onnx.defs.SchemaError:
        known = {}
    defaults = {
        name: onnx.helper.get_attribute_value(a.default_value) for name, a in known.items() if a.default_value.type
    }
    values = {**{k: v.decode() if isinstance(v, bytes) else v for k, v in defaults.items()}, **attrs}
    return {k: tuple(v) if isinstance(v, list) else v for k, v in sorted(values.items())}


@dataclass
class Draft:
    """Nodes by name, tensors by name; ``taken`` are the names that new tensors and nodes must not have."""

    nodes: dict[str, Node] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    dtypes: dict[str, np.dtype] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict)
    makers: dict[str, str] = field(default_factory=dict)
    reads: Counter[str] = field(default_factory=Counter)
    taken: set[str] = field(default_factory=set)
    notes: Counter[str] = field(default_factory=Counter)

    def fresh(self, hint: str) -> str:
        name, i = hint, 1
        while name in self.taken:
            name, i = f"{hint}_{i}", i + 1
        self.taken.add(name)
        return name

    def constant(self, weight: Weight, hint: str = "") -> str:
        """The name of a constant, the same for the same one; by default that of the tensor it was made of."""
        hint = hint or (weight.source[0] if weight.source else "constant")
        for name in itertools.chain([hint], (f"{hint}_{i}" for i in itertools.count(1))):
            known = self.weights.get(name)
            if known is not None and (known is weight or _same(known, weight)):
                return name
            if known is None and (name not in self.taken or name in weight.source):
                self.taken.add(name)
                self.weights[name] = weight
                self.shapes[name], self.dtypes[name] = weight.array.shape, weight.array.dtype
                return name
        raise AssertionError("no name is free")

    def add(self, node: Node, shapes: Sequence[Shape], dtypes: Sequence[np.dtype], sources: Iterable[str] = ()) -> None:
        if node.name in self.nodes:
            node = replace(node, name=self.fresh(node.name))
        self.taken.add(node.name)
        self.nodes[node.name] = node
        self.sources[node.name] = tuple(dict.fromkeys(sources))
        for name, shape, dtype in zip(node.outputs, shapes, dtypes, strict=False):
            self.makers[name] = node.name
            self.shapes[name], self.dtypes[name] = tuple(shape), np.dtype(dtype)

    def maker(self, tensor: str) -> Node | None:
        """The node that gives a tensor; None for inputs and constants."""
        return self.nodes.get(self.makers.get(tensor, ""))

    def source(self, tensor: str, op: str) -> Node | None:
        """The node that gives ``tensor`` when it is an ``op``."""
        node = self.maker(tensor)
        return node if node is not None and node.op == op else None

    def scalar(self, tensor: str) -> float | None:
        """The value of a constant of one float element."""
        weight = self.weights.get(tensor)
        if weight is None or weight.array.size != 1 or weight.array.dtype.kind not in "fiu":
            return None
        return float(weight.array.reshape(()))

    def needed(self, outputs: Iterable[str]) -> list[Node]:
        """The nodes that ``outputs`` depend on, in topological order."""
        wanted, found = list(outputs), set()
        while wanted:
            node = self.maker(wanted.pop())
            if node is not None and node.name not in found:
                found.add(node.name)
                wanted += node.inputs
        return [n for n in self.nodes.values() if n.name in found]


def _same(a: Weight, b: Weight) -> bool:
    small = max(a.array.size, b.array.size) <= 64
    return (
        small
        and (a.source, a.how) == (b.source, b.how)
        and a.array.dtype == b.array.dtype
        and a.array.shape == b.array.shape
        and bool(np.array_equal(a.array, b.array, equal_nan=a.array.dtype.kind == "f"))
    )


def size(shape: Shape) -> int:
    return math.prod(shape)
