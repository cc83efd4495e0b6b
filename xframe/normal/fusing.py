"""The second pass: a draft rebuilt node by node, each looking back at what gave its operands.

By now images are NCHW, attributes complete and constants folded, so that a pattern has few spellings left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from xframe.equivalence.graph import Node
from xframe.normal.draft import OPSET, Draft, Shape, complete
from xframe.normal.form import Weight

#: Takes a node whose operands are in the draft already; True when it added what stands for it.
Fusion = Callable[["Fuser", Node], bool]


class Fuser:
    """The draft that is being rebuilt; ``fusions`` are tried in order on each node of their operator."""

    def __init__(self, old: Draft, outputs: Sequence[str], fusions: Mapping[str, Sequence[Fusion]]):
        self._old = old
        self._fusions = fusions
        self._alias: dict[str, str] = {}
        self.draft = Draft(weights=old.weights, taken=old.taken, notes=old.notes)
        self.draft.shapes.update(old.shapes)
        self.draft.dtypes.update(old.dtypes)
        self.outputs = tuple(outputs)
        nodes = old.needed(outputs)
        self.reads = self.draft.reads
        for node in nodes:
            self.reads.update(node.inputs)
        self.reads.update(outputs)
        for node in nodes:
            self.titles = old.sources[node.name]
            self.process(replace(node, inputs=tuple(self._alias.get(n, n) for n in node.inputs)))
        self.outputs = tuple(self._alias.get(n, n) for n in outputs)

    def process(self, node: Node) -> None:
        """Add a node, or what it makes together with those before it."""
        if any(fusion(self, node) for fusion in self._fusions.get(node.op, ())):
            return
        d = self.draft
        d.add(node, [d.shapes[o] for o in node.outputs], [d.dtypes[o] for o in node.outputs], self.titles)

    # What fusions ask

    def alone(self, tensor: str) -> bool:
        """Whether the node at hand is the only reader of ``tensor``."""
        return self.reads[tensor] == 1

    def before(self, tensor: str, *ops: str) -> Node | None:
        """The node that gives ``tensor``, if it is one of ``ops`` and nobody else reads it."""
        node = self.draft.maker(tensor)
        return node if node is not None and node.op in ops and self.alone(tensor) else None

    def array(self, tensor: str) -> np.ndarray | None:
        weight = self.draft.weights.get(tensor)
        return None if weight is None else weight.array

    def shape(self, tensor: str) -> Shape:
        return self.draft.shapes[tensor]

    # What fusions do

    def drop(self, node: Node) -> bool:
        """``node`` changes nothing: its readers take its first operand."""
        source, output = node.inputs[0], node.outputs[0]
        self._alias[output] = source
        for name in node.inputs:
            self.reads[name] -= 1
        self.reads[source] += self.reads[output]
        self.draft.notes[f"{node.op} dropped"] += 1
        return True

    def swap(self, gone: Sequence[Node], node: Node, inputs: Sequence[str | Weight], **changes: Any) -> bool:
        """Replace ``gone`` and ``node``, which comes last and gives the output, by one node, and look at that again.

        ``changes`` are fields of :class:`Node`; by default it is ``node`` with other inputs. A node of ``gone`` that
        somebody else reads stays.
        """
        sources = [s for n in gone for s in self.draft.sources[n.name]]
        for name in node.inputs:
            self.reads[name] -= 1
        for old in reversed(gone):
            if not any(self.reads[o] for o in old.outputs):
                self._remove(old)
        names = [i if isinstance(i, str) else self.draft.constant(i) for i in inputs]
        made = replace(node, **{"opset": OPSET, **changes}, inputs=tuple(names))
        self.reads.update(names)
        self.titles = tuple(dict.fromkeys((*sources, *self.titles)))
        self.process(made)
        return True

    def made(self, op: str, inputs: Sequence[str | Weight], attrs: Mapping[str, Any], shape: Shape, hint: str) -> str:
        """An additional node, before the one at hand; gives its output."""
        names = [
            i if isinstance(i, str) else self.draft.constant(i, "" if i.source else f"{hint}:{op}") for i in inputs
        ]
        name = self.draft.fresh(hint)
        attrs = attrs if op == "Reshape" else complete(op, attrs)
        node = Node(name, op, tuple(names), (name,), attrs, OPSET)
        self.reads.update(names)
        self.draft.add(node, [shape], [self.draft.dtypes[names[0]]], self.titles)
        return name

    def _remove(self, node: Node) -> None:
        del self.draft.nodes[node.name], self.draft.sources[node.name]
        for name in node.outputs:
            self.draft.makers.pop(name, None)
        for name in node.inputs:
            self.reads[name] -= 1
