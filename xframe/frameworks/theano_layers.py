"""Which layer each node of a compiled Theano graph is from.

What each variable of an expression is from is noted where Theano keeps where a variable was made (``tag.trace``): its
optimisations copy that to what they put in a variable's place. Some do not, and the fusion of elementwise nodes never
does: what such a node reads and what reads it tell which layers it holds.
"""

from typing import Any, Dict, Iterator, Sequence, Set

from xframe.types import ModelSpec

#: Of several layers in one node the first of these is the main one; products are nodes of their own.
_MAIN = ("lrn", "maxpool", "avgpool", "softmax", "batchnorm", "add", "relu6", "relu", "concat", "conv", "fc", "flatten",
         "dropout")  # fmt: skip


def mark(y: Any, layer: str, before: Sequence[Any]) -> None:
    """Note that all between the variables ``before`` and ``y`` is from ``layer``, and call ``y`` so."""
    todo, done = [y], set(before)
    if y not in done:
        y.name = layer
    while todo:
        variable = todo.pop()
        if variable not in done:
            done.add(variable)
            variable.tag.trace = [[(layer, 0, "", "")]]
            todo += variable.owner.inputs if variable.owner is not None else ()


class Layers:
    """The layers of the nodes of ``fgraph``, an optimised graph of the network ``spec``."""

    def __init__(self, spec: ModelSpec, fgraph: Any) -> None:
        self._spec, self._sources = spec, spec.sources()
        self._ops = {item.name: item.op for item in spec.layers}
        self._above: Dict[str, Set[str]] = {"input": {"input"}}  # a layer, and all that it depends on
        for item in spec.layers:
            self._above[item.name] = {item.name}.union(*(self._above[s] for s in self._sources[item.name]))
        self._found: Dict[Any, str] = {}
        self._data = {v for v in fgraph.inputs if v.name == "input"}  # what depends on the network's input
        self._ended: Set[str] = set()  # layers whose output an earlier node gives
        nodes = fgraph.toposort()
        for node in nodes:
            if self._data.intersection(node.inputs):
                self._data.update(node.outputs)
            self._found[node] = self._noted(node) or self._of_weights(node)
        for node in nodes:
            self._found[node] = self._found[node] or self._of_fused(node)

    def of(self, node: Any) -> str:
        """The layer of a node; empty where nobody can tell."""
        return self._found.get(node, "")

    def _noted(self, node: Any) -> str:
        stacks = [stack for out in node.outputs for stack in getattr(out.tag, "trace", None) or ()]
        names = [frame[0] for stack in stacks for frame in stack[-1:]]
        return next((name for name in reversed(names) if name in self._ops), "")

    def _before(self, variable: Any) -> str:
        """The layer that a variable is from: of a weight, the one that it is named after."""
        name = variable.name or ""
        layer = self._found[variable.owner] if variable.owner is not None else name.rpartition(".")[0] or name
        return layer if layer in self._above else ""

    def _of_weights(self, node: Any) -> str:
        """The layer of a node that reads weights alone, or is a product with them."""
        layers = {layer for layer in (self._before(v) for v in node.inputs if v not in self._data) if layer}
        alone = not self._data.intersection(node.inputs)
        found = layers if alone or type(node.op).__name__ != "Elemwise" else ()
        return max(found, key=list(self._ops).index, default="")

    def _of_fused(self, node: Any) -> str:
        begins = {layer for layer in map(self._before, node.inputs) if layer}
        end = self._end(node, begins)
        inside = [x for x in self._ops if x in self._above.get(end, ()) and self._above[x].intersection(begins)]
        new = [x for x in inside if x not in self._ended] or [end]
        self._ended.add(end)
        return min(reversed(new), key=lambda x: _MAIN.index(self._ops[x]), default="") if end else ""

    def _end(self, node: Any, begins: Set[str]) -> str:
        """The last layer in a node: what it gives is the output of that layer, or something on the way to it."""
        for layer in self._readers(node):
            if layer in begins:
                return layer
            for source in self._sources[layer] if layer else (self._spec.layers[-1].name,):
                if self._above[source].intersection(begins):
                    return source
        return max(begins - {"input"}, key=list(self._ops).index, default="")

    def _readers(self, node: Any) -> Iterator[str]:
        """The layers of what reads a node; ``""`` for the output of the graph. Changes of shape hand on."""
        for reader in [reader for out in node.outputs for reader, _ in out.clients]:
            if reader == "output":
                yield ""
            elif self._found[reader]:
                yield self._found[reader]
            elif type(reader.op).__name__ != "Elemwise":
                yield from self._readers(reader)
