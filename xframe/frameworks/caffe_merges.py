"""What several of Caffe's layers do together and ONNX has one operator for."""

from collections import Counter
from typing import Dict, Sequence, Set

import numpy as np

from xframe.frameworks.caffe_context import Growing
from xframe.neutral import Node

#: Of an operand that is no constant: of more than one number, as such a one would be.
_NONE = np.zeros(1)


def clip(graph: Growing, kept: Sequence[str]) -> None:
    """-max(-relu(x), -c) becomes a clip of x to [0, c]: Caffe 1.0 has no layer for that.

    Parameters
    ----------
    kept
        Tensors that something beside the nodes needs: the outputs.
    """
    makers = {name: node for node in graph.nodes for name in node.outputs}
    reads = Counter(name for node in graph.nodes for name in node.inputs)
    reads.update(kept)
    made: Dict[str, Node] = {}  # by its output
    gone: Set[str] = set()
    for last in graph.nodes:
        chain = [last]
        while len(chain) < 4 and chain[-1].inputs[0] in makers and reads[chain[-1].inputs[0]] == 1:
            chain.append(makers[chain[-1].inputs[0]])
        if [node.op for node in chain] != ["Mul", "Max", "Mul", "Relu"]:
            continue
        values = [graph.weights.get(node.inputs[-1], _NONE) for node in chain[:3]]
        if any(value.shape for value in values) or (values[0], values[2]) != (-1, -1) or values[1] > 0:
            continue
        low, high = (graph.unique("%s.%s" % (last.name, part)) for part in ("min", "max"))
        graph.weights[low], graph.weights[high] = np.zeros((), np.float32), -values[1]
        made[last.outputs[0]] = last._replace(op="Clip", inputs=[chain[-1].inputs[0], low, high], attributes={})
        gone.update(node.outputs[0] for node in chain[1:])
        for node in chain[:3]:
            del graph.weights[node.inputs[-1]]
    graph.nodes = [made.get(node.outputs[0], node) for node in graph.nodes if node.outputs[0] not in gone]
