"""What Theano writes in parts, as the ONNX operators that compute the same: products with their bias, ReLU, LRN.

Compilers need a bias in its node, and the comparison of exports finds a layer by its operator.
"""

from typing import List, Optional, Sequence, Tuple

import numpy as np

from xframe.frameworks.theano_draft import Draft, Known, Node, Tensor, Value


def merge(draft: Draft, wanted: Sequence[Value]) -> None:
    """Rewrite nodes, each in place, and drop those that are not read any more. ``wanted``: the graph's outputs."""
    draft.prune(wanted)
    rules = _Rules(draft, wanted)
    for node in draft.nodes:
        for rule in (rules.bias, rules.relu, rules.lrn):
            if rule(node):
                break
    draft.prune(wanted)


class _Rules:
    """Each looks at a node, and says whether it was its case. Nodes before it are rewritten already."""

    def __init__(self, draft: Draft, wanted: Sequence[Value]) -> None:
        self._makers, self._reads = draft.makers(), draft.reads(wanted)

    def bias(self, node: Node) -> bool:
        """A product that only an addition of one number for each output channel reads."""
        if node.op != "Add":
            return False
        for value, other in (node.inputs, node.inputs[::-1]):
            product = self._made(value, "Conv") or self._made(value, "MatMul")
            if product is None or len(product.inputs) != 2 or self._reads[id(value)] != 1:
                continue
            data, weight = product.inputs
            if not isinstance(weight, Known) or not isinstance(other, Known):
                continue
            if product.op == "Conv" and other.shape == (1, weight.shape[0], 1, 1):
                node.become("Conv", [data, weight, _vector(other)], **product.attributes)
                return True
            if product.op == "MatMul" and other.shape in ((weight.shape[1],), (1, weight.shape[1])):
                turned = Known(weight.array.T, weight.name)
                node.become("Gemm", [data, turned, _vector(other)], transB=1)
                return True
        return False

    def relu(self, node: Node) -> bool:
        """0.5 * (x + abs(x)), as Theano has it, or max(x, 0)."""
        value, number = _with_number(node)
        if value is None:
            return False
        if node.op == "Max" and number == 0:
            node.become("Relu", [value])
            return True
        total = self._made(value, "Add") if node.op == "Mul" and number == 0.5 else None
        for x, size in (total.inputs, total.inputs[::-1]) if total is not None else ():
            absolute = self._made(size, "Abs")
            if absolute is not None and absolute.inputs[0] is x:
                node.become("Relu", [x])
                return True
        return False

    def lrn(self, node: Node) -> bool:
        """x / (bias + factor * (sum of x * x over neighbouring channels)) ** beta."""
        power = self._made(node.inputs[1], "Pow") if node.op == "Div" else None
        base, beta = _with_number(power)
        scaled, bias = _with_number(self._made(base, "Add"))
        total, factor = _with_number(self._made(scaled, "Mul"))
        if power is None or power.inputs[0] is not base or total is None or beta is None or bias is None:
            return False
        squares, size = self._band(total) or self._shifts(total) or (None, 0)
        square = self._made(squares, "Mul")
        x = node.inputs[0]
        if square is None or any(value is not x for value in square.inputs) or factor is None:
            return False
        alpha = float(np.float32(np.float32(factor) * np.float32(size)))
        node.become("LRN", [x], size=size, alpha=alpha, beta=beta, bias=bias)
        return True

    def _made(self, value: Optional[Value], op: str) -> Optional[Node]:
        node = self._makers.get(id(value))
        return node if node is not None and node.op == op else None

    def _band(self, total: Value) -> Optional[Tuple[Value, int]]:
        """What is summed over how many channels by a 1x1 convolution with a matrix of ones around its diagonal."""
        product = self._made(total, "Conv")
        if product is None or len(product.inputs) != 2 or not isinstance(product.inputs[1], Known):
            return None
        weight = product.inputs[1].array
        if weight.shape[2:] != (1, 1) or product.attributes["group"] != 1 or len(weight) != weight.shape[1]:
            return None
        if any(product.attributes["pads"]) or any(s != 1 for s in product.attributes["strides"]):
            return None
        half = int(np.count_nonzero(weight[0])) - 1
        place = np.arange(len(weight))
        band = np.abs(place[:, None] - place) <= half
        return (product.inputs[0], 2 * half + 1) if np.array_equal(weight[:, :, 0, 0], band) else None

    def _shifts(self, total: Value) -> Optional[Tuple[Value, int]]:
        """What is summed over how many channels by slices of it, padded, each one channel further than the last."""
        slices = [self._made(leaf, "Slice") for leaf in self._summands(total)]
        starts: List[int] = []
        for node in slices:
            if node is None or node.inputs[0] is not slices[0].inputs[0]:  # type: ignore[union-attr]
                return None
            first, _, axes, steps = (x.array.tolist() for x in node.inputs[1:] if isinstance(x, Known))
            if axes != [1] or steps != [1]:
                return None
            starts += first
        pad = self._made(slices[0].inputs[0], "Pad") if slices and slices[0] is not None else None
        size, half = len(starts), len(starts) // 2
        if pad is None or sorted(starts) != list(range(size)) or size % 2 == 0 or pad.inputs[0].shape != total.shape:
            return None
        pads, fill = (x.array.tolist() for x in pad.inputs[1:] if isinstance(x, Known))
        return (pad.inputs[0], size) if pads == [0, half, 0, 0] * 2 and fill == 0 else None

    def _summands(self, value: Value) -> List[Value]:
        node = self._made(value, "Add")
        return [leaf for x in node.inputs for leaf in self._summands(x)] if node is not None else [value]


def _vector(bias: Known) -> Known:
    return Known(bias.array.reshape(-1), bias.name)


def _with_number(node: Optional[Node]) -> Tuple[Optional[Value], Optional[float]]:
    """A tensor and a number that a node of two inputs reads, in whatever order; (None, None) where it does not."""
    if node is None or len(node.inputs) != 2:
        return None, None
    for value, other in (node.inputs, node.inputs[::-1]):
        if isinstance(value, Tensor) and isinstance(other, Known) and other.scalar() is not None:
            return value, other.scalar()
    return None, None
