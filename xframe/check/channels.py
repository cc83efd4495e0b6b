"""Which channels of which tensors and weights belong together, so that all can be cut at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from xframe.equivalence.graph import Graph, Node

#: Operators that give each channel of their outputs from the same one of their inputs, or from its neighbours alone.
CHANNELWISE = frozenset({
    "Abs", "Add", "AveragePool", "BatchNormalization", "Clip", "Div", "Dropout", "Elu", "Erf", "Exp", "Gelu",
    "GlobalAveragePool", "GlobalMaxPool", "HardSigmoid", "HardSwish", "Identity", "InstanceNormalization",
    "LRN", "LeakyRelu", "Log", "LogSoftmax", "LpPool", "Max", "MaxPool", "Mean", "Min", "Mish", "Mul", "Neg",
    "PRelu", "Pow", "Reciprocal", "Relu", "Sigmoid", "Softmax", "Softplus", "Sqrt", "Sub", "Sum", "Tanh",
})  # fmt: skip
_PARAMETERS = frozenset(("BatchNormalization", "InstanceNormalization"))

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(eq=False)
class Channels:
    """Channels of one number, wherever they are. ``size``: how many; a window of them starts and ends at a multiple of
    ``step``. ``inputs`` and ``cuts`` have how many entries of theirs one channel is."""

    size: int
    step: int = 1
    frozen: bool = False
    inputs: dict[int, Fraction] = field(default_factory=dict)
    cuts: list[tuple[int, str, int, Fraction]] = field(default_factory=list)  # graph, constant, axis
    groups: list[tuple[int, str, Fraction]] = field(default_factory=list)  # graph, output of the convolution


Label = tuple[Channels, Fraction]


def found(graphs: Sequence[Graph], shapes: Sequence[Shapes]) -> list[Channels]:
    """The channels (axis 1) of graphs that take the same inputs and give the same outputs, that can be cut.

    Parameters
    ----------
    shapes
        Of every tensor, for each graph.
    """
    walks = [_Walk(i, graph, shape) for i, (graph, shape) in enumerate(zip(graphs, shapes, strict=True))]
    same = _Same()
    for position in range(len(graphs[0].inputs)):
        labels = [walk.started(position) for walk in walks]
        same.unite(labels)
    for walk in walks:
        for node in walk.graph.needed():
            walk.take(node, same)
    for names in zip(*(graph.outputs for graph in graphs), strict=False):
        same.unite([walk.labels.get(name) for walk, name in zip(walks, names, strict=True)])
    return [c for c in same.all([c for walk in walks for c in walk.made]) if not c.frozen and c.size > c.step]


def cut(
    graphs: Sequence[Graph], feeds: Sequence[np.ndarray], channels: Channels, start: int, stop: int
) -> tuple[list[Graph], list[np.ndarray]]:
    """Graphs and feeds with those of ``channels`` from ``start`` to ``stop`` alone."""

    def window(ratio: Fraction) -> slice:
        return slice(int(start * ratio), int(stop * ratio))

    inputs = [x[:, window(channels.inputs[i])] if i in channels.inputs else x for i, x in enumerate(feeds)]
    made = []
    for number, graph in enumerate(graphs):
        constants = dict(graph.constants)
        for which, name, axis, ratio in channels.cuts:
            if which == number:
                constants[name] = constants[name][(slice(None),) * axis + (window(ratio),)]
        sizes = {name: int((stop - start) * ratio) for which, name, ratio in channels.groups if which == number}
        nodes = tuple(
            replace(n, attrs={**n.attrs, "group": sizes[n.outputs[0]]}) if n.outputs[0] in sizes else n
            for n in graph.nodes
        )
        made.append(replace(graph, nodes=nodes, constants=constants, shapes=tuple(x.shape for x in inputs)))
    return made, inputs


class _Same:
    """Channels that turned out to be the same ones."""

    def __init__(self) -> None:
        self._now: dict[Channels, Channels] = {}

    def of(self, channels: Channels) -> Channels:
        while channels in self._now:
            channels = self._now[channels]
        return channels

    def unite(self, labels: Sequence[Label | None]) -> Label | None:
        """One label for tensors that have their channels in common; None, and none can be cut, where they do not."""
        known = [(self.of(label[0]), label[1]) for label in labels if label is not None]
        if not known:
            return None
        first, ratio = known[0]
        fits = len(known) == len(labels) and all((c.size, r) == (first.size, ratio) for c, r in known)
        for channels, _ in known[1:] if fits else ():
            if channels is first:
                continue
            first.step = int(np.lcm(first.step, channels.step))
            first.frozen |= channels.frozen
            first.inputs.update(channels.inputs)
            first.cuts += channels.cuts
            first.groups += channels.groups
            self._now[channels] = first
        if not fits:
            for channels, _ in known:
                channels.frozen = True
        return first, ratio

    def all(self, made: Sequence[Channels]) -> list[Channels]:
        return list(dict.fromkeys(map(self.of, made)))


class _Walk:
    """One graph, node by node; ``labels`` has the channels of each tensor that was met."""

    def __init__(self, number: int, graph: Graph, shapes: Shapes) -> None:
        self.number, self.graph, self.shapes = number, graph, shapes
        self.labels: dict[str, Label] = {}
        self.made: list[Channels] = []
        self._uses = Counter(name for node in graph.needed() for name in node.inputs)

    def started(self, position: int) -> Label | None:
        name = self.graph.inputs[position]
        label = self._new(name)
        if label:
            label[0].inputs[position] = Fraction(1)
        return label

    def take(self, node: Node, same: _Same) -> None:
        given = [name for name in node.inputs if name and name not in self.graph.constants]
        held = [(i, name) for i, name in enumerate(node.inputs) if name in self.graph.constants]
        out = node.outputs[0]
        before, known = [self.labels.get(name) for name in given], len(self.made)
        done = len(given) == 1 and len(self.shapes.get(out, ())) > 1 and self._mixed(node, given[0], held, same)
        if not done and self._keeps_channels(node, given):
            label = same.unite(before)
            if label:
                self.labels[out] = label
                done = all(self._broadcast(node, name, label) for _, name in held)
        if not done:
            self._new(out)
            for channels in (*self.made[known:], *(label[0] for label in before if label)):
                same.of(channels).frozen = True
        for name in node.outputs[1:]:
            label = self._new(name)
            if label:
                label[0].frozen = True

    def _new(self, name: str) -> Label | None:
        shape = self.shapes.get(name, ())
        if len(shape) < 2:
            return None
        self.made.append(Channels(shape[1]))
        self.labels[name] = (self.made[-1], Fraction(1))
        return self.labels[name]

    def _keeps_channels(self, node: Node, given: Sequence[str]) -> bool:
        out = self.shapes.get(node.outputs[0], ())
        if len(out) < 2 or any(self.shapes.get(n, ())[1:2] != out[1:2] for n in given):
            return False
        if node.op == "Pad":
            pads = self.graph.constants.get(node.inputs[1]) if len(node.inputs) > 1 else node.attrs.get("pads")
            return len(node.inputs) < 4 and pads is not None and not pads[1] and not pads[1 + len(pads) // 2]
        if node.op == "Concat":
            return int(node.attrs["axis"]) % len(out) != 1
        return node.op in CHANNELWISE

    def _broadcast(self, node: Node, name: str, label: Label) -> bool:
        """A constant beside the data of a channelwise node."""
        array, out = self.graph.constants[name], self.shapes[node.outputs[0]]
        if node.op == "Pad":
            return True
        axis = 0 if node.op in _PARAMETERS else 1 - (len(out) - array.ndim)
        if axis < 0 or array.ndim <= axis or array.shape[axis] == 1:
            return True
        return array.shape[axis] == out[1] and self._cut(label, name, axis, label[1])

    def _cut(self, label: Label, name: str, axis: int, ratio: Fraction) -> bool:
        label[0].cuts.append((self.number, name, axis, ratio))
        return self._uses[name] == 1

    def _mixed(self, node: Node, x: str, held: Sequence[tuple[int, str]], same: _Same) -> bool:
        """Convolutions and products, whose outputs have channels of their own, and flattening."""
        out, label = node.outputs[0], self.labels.get(x)
        if label is None:
            return False
        label = (same.of(label[0]), label[1])
        shape, size = self.shapes[x], self.shapes[out]
        if node.op in ("Flatten", "Reshape"):
            flat = len(size) == 2 and size[0] == shape[0] and node.attrs.get("axis", 1) == 1
            if flat:
                self.labels[out] = (label[0], label[1] * (size[1] // max(shape[1], 1)))
            return flat
        names = dict(held)
        weight = names.get(1)
        if weight is None or node.inputs[0] != x:
            return False
        bias, rank = names.get(2), self.graph.constants[weight].ndim
        if node.op == "Conv" and node.attrs.get("group", 1) > 1:
            return self._grouped(node, label, shape[1], size[1], weight, bias)
        if node.op == "Conv":
            inward, outward = 1, 0
        elif node.op in ("Gemm", "MatMul") and len(shape) == rank == 2 and not node.attrs.get("transA", 0):
            inward, outward = (1, 0) if node.attrs.get("transB", 0) else (0, 1)
        else:
            return False
        made = self._new(out)
        assert made is not None
        fits = self._cut(label, weight, inward, label[1]) and self._cut(made, weight, outward, Fraction(1))
        if bias is not None and self.graph.constants[bias].shape[-1:] == (size[1],):
            fits &= self._cut(made, bias, self.graph.constants[bias].ndim - 1, Fraction(1))
        return fits

    def _grouped(self, node: Node, label: Label, before: int, after: int, weight: str, bias: str | None) -> bool:
        """Whole groups are cut; the outputs are channels of the same number as the inputs."""
        channels, ratio = label
        group = node.attrs["group"]
        if ratio != 1 or before != channels.size:
            return False
        channels.step = int(np.lcm(channels.step, before // group))
        channels.groups.append((self.number, node.outputs[0], Fraction(group, before)))
        made = (channels, Fraction(after, before))
        self.labels[node.outputs[0]] = made
        return all(self._cut(made, name, 0, made[1]) for name in (weight, bias) if name is not None)
