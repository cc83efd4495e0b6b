"""From Caffe's ``NetParameter`` and its blobs to a neutral graph.

A blob of Caffe is a place that several layers may write, one after another; in the graph each value has a name of its
own. What only training needs is left out: losses, accuracies, and inputs that then nobody reads.
"""

from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np

from xframe.errors import ModelError, Unsupported
from xframe.frameworks import caffe_channels, caffe_merges, caffe_pointwise, caffe_shaping, caffe_windows
from xframe.frameworks.caffe_context import Context, Growing, Tensor, free
from xframe.frameworks.caffe_flow import Flow, Step, Value
from xframe.neutral import Graph, Node

RULES = dict(caffe_windows.RULES)
for _module in (caffe_channels, caffe_pointwise, caffe_shaping):
    RULES.update(_module.RULES)

#: Types whose tops are the same values as their bottom.
_SAME = ("Dropout", "Split")
#: Types that may write over their bottom; others would lose what they still have to read.
_IN_PLACE = (*(set(caffe_pointwise.RULES) - {"Eltwise"}), "BatchNorm", "Bias", "Dropout", "PReLU", "Scale")
#: Types that can be given what a DummyData makes.
_TAKING_CONSTANTS = ("Concat", "Eltwise")


def walk(
    net: Any,
    blobs: Mapping[str, Sequence[np.ndarray]],
    batch: Optional[int] = None,
    outputs: Optional[Mapping[str, str]] = None,
) -> Graph:
    """The graph of a network as it runs in inference.

    Parameters
    ----------
    net
        Caffe's message ``NetParameter``, in the form of Caffe 1.0, with the layers of one phase.
    blobs
        Layer -> its weights, in Caffe's order and layouts.
    batch
        Becomes the first dimension of each input; None leaves them as they are.
    outputs
        Blob -> the name of that output in the graph; None takes those that nobody reads, by their names.

    Raises
    ------
    ModelError
        Layers do not fit together, or the weights not to them.
    Unsupported
        A layer of a type, or with a parameter, that can't be exported; by name.
    """
    flow, walking = Flow(net), _Walk(batch)
    for step in flow.steps:
        walking.step(step, flow, blobs.get(step.layer.name, ()))
    ends = flow.outputs() if outputs is None else [(flow.last(blob), name) for blob, name in outputs.items()]
    return walking.finished(net.name or "caffe", ends)


class _Walk:
    def __init__(self, batch: Optional[int]) -> None:
        self._batch = batch
        self._graph = Growing()
        self._known: Dict[Value, Tensor] = {}
        self._inputs: List[Tensor] = []
        self._nodes: Set[str] = set()  # names of nodes
        self._titles: Dict[str, str] = {}  # of tensors, by their names so far

    def step(self, step: Step, flow: Flow, blobs: Sequence[np.ndarray]) -> None:
        layer, before = step.layer, len(self._graph.nodes)
        if layer.type == "Input":
            made = self._input(layer)
        elif layer.type == "DummyData":
            made = _constants(layer)
        else:
            made = self._computed(step, flow, blobs)
        if len(made) != len(step.tops):
            counts = (layer.name, layer.type, len(step.tops), len(made))
            raise ModelError("layer %s (%s) has %d tops, and makes %d" % counts)
        for value, tensor in zip(step.tops, made):
            self._known[value] = tensor
            plain = layer.type in _SAME or flow.final(value)
            self._titles.setdefault(tensor.name, value[0] if plain else "%s/%s" % (value[0], layer.name))
        for i in range(before, len(self._graph.nodes)):
            node = self._graph.nodes[i]
            if any(t.name in node.outputs for t in made):
                self._graph.nodes[i] = node._replace(name=free(layer.name, self._nodes))
            else:
                self._nodes.add(node.name)

    def _computed(self, step: Step, flow: Flow, blobs: Sequence[np.ndarray]) -> List[Tensor]:
        layer, ins = step.layer, [self._known[value] for value in step.bottoms]
        if layer.type not in RULES:
            raise Unsupported(_refusal(layer))
        over = sorted(set(layer.top) & set(layer.bottom))
        if over and layer.type not in _IN_PLACE:
            words = (layer.name, layer.type, over[0])
            raise ModelError("layer %s (%s) writes over its bottom %s, which it would still have to read" % words)
        if layer.type not in _TAKING_CONSTANTS and any(x.fill is not None for x in ins):
            words = (layer.name, layer.type, " and ".join(_TAKING_CONSTANTS))
            raise Unsupported("layer %s (%s) reads a constant; only %s can" % words)
        return RULES[layer.type](Context(layer, ins, self._sole(step.bottoms[:1], flow), blobs, self._graph))

    def _sole(self, bottom: Sequence[Value], flow: Flow) -> bool:
        """Whether one layer alone reads a tensor, which may be at several blobs."""
        holders = [v for v, t in self._known.items() if bottom and t is self._known[bottom[0]]]
        return len(holders) == 1 and flow.reads[bottom[0]] == 1

    def _input(self, layer: Any) -> List[Tensor]:
        shapes = [tuple(int(n) for n in s.dim) for s in layer.input_param.shape]
        shapes = shapes * len(layer.top) if len(shapes) == 1 else shapes
        if len(shapes) != len(layer.top) or min((n for s in shapes for n in s), default=0) < 1:
            raise ModelError("layer %s (Input) has %d tops, and the shapes %s" % (layer.name, len(layer.top), shapes))
        if self._batch is not None:
            shapes = [(self._batch, *s[1:]) for s in shapes]
        made = [Tensor(self._graph.unique(top), shape) for top, shape in zip(layer.top, shapes)]
        self._inputs += made
        return made

    def finished(self, name: str, ends: Sequence[Tuple[Value, str]]) -> Graph:
        caffe_merges.clip(self._graph, [self._known[value].name for value, _ in ends])
        nodes, weights = list(self._graph.nodes), self._graph.weights
        inputs = [t for t in self._inputs if any(t.name in node.inputs for node in nodes)]
        if not nodes or not inputs:
            raise ModelError("the network %s has no layer that computes something of an input" % name)
        final = {t.name: t.name for t in self._inputs}
        taken = set(weights) | set(final)
        outputs = []
        for value, title in ends:
            tensor = self._known[value]
            # The name of an input, say, that is written over.
            title = free(title + "/output" if title in taken else title, taken)
            outputs.append((title, tensor.shape))
            if final.setdefault(tensor.name, title) != title:
                nodes.append(Node("Identity", title, [tensor.name], [title], {}))
                final[title] = title
        for old in (o for node in nodes for o in node.outputs):
            if old not in final:
                final[old] = free(self._titles.get(old, old), taken)
        renamed = []
        for node in nodes:
            ins, outs = ([final.get(n, n) for n in names] for names in (node.inputs, node.outputs))
            renamed.append(node._replace(inputs=ins, outputs=outs))
        return Graph(name, [t[:2] for t in inputs], outputs, renamed, weights)


def _refusal(layer: Any) -> str:
    if layer.type.endswith("Data"):
        why = "reads data for training: give the network as it is deployed, with an Input layer"
    elif layer.type == "Python":
        why = "is code of its author's, which is never run"
    else:
        why = "can't be exported; these can: " + ", ".join(sorted(RULES))
    return "layer %s: the type %s %s" % (layer.name, layer.type, why)


def _constants(layer: Any) -> List[Tensor]:
    param = layer.dummy_data_param
    shapes = [tuple(int(n) for n in s.dim) for s in param.shape]
    fillers = list(param.data_filler) * (len(shapes) if len(param.data_filler) == 1 else 1)
    if len(shapes) != len(layer.top) or len(fillers) != len(shapes) or any(f.type != "constant" for f in fillers):
        raise Unsupported("layer %s (DummyData): only constants of a shape each can be exported" % layer.name)
    return [Tensor(top, shape, f.value) for top, shape, f in zip(layer.top, shapes, fillers)]
