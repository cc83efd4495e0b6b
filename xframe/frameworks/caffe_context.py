"""What the rules for Caffe's layers work with: a layer, its bottoms and blobs, and the neutral graph that grows.

Numpy only: layers are messages of Caffe's own format, of which nothing but the fields is used. Python 3.6 upwards.
"""

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union

import numpy as np

from xframe.errors import ModelError, Unsupported
from xframe.neutral import Node

Shape = Tuple[int, ...]


class Tensor(NamedTuple):
    """A value in the graph. ``fill``: the one number that all of a constant's elements are."""

    name: str
    shape: Shape
    fill: Optional[float] = None


#: What a node reads: a tensor, or a weight by its name.
Operand = Union[Tensor, str]


def free(name: str, taken: Set[str]) -> str:
    """``name``, with a number behind it when it is ``taken``; taken it is afterwards."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = "%s#%d" % (name, number)
    taken.add(found)
    return found


class Growing:
    """Nodes and weights so far. Every name is taken once."""

    def __init__(self) -> None:
        self.nodes: List[Node] = []
        self.weights: Dict[str, np.ndarray] = {}
        self._taken: Set[str] = set()

    def unique(self, name: str) -> str:
        """``name``, with a number behind it when it is taken."""
        return free(name, self._taken)

    def maker(self, tensor: Tensor) -> Optional[int]:
        """The index of the node that made a tensor; None of an input."""
        return next((i for i in reversed(range(len(self.nodes))) if tensor.name in self.nodes[i].outputs), None)


class Context:
    """One layer, as its rule sees it.

    Attributes
    ----------
    layer, name
        Caffe's ``LayerParameter``, and its name.
    ins
        The tensors at its bottoms.
    tops
        How many tops it has.
    sole
        Whether it is the only one that reads its first bottom.
    graph
        What has grown so far.
    """

    def __init__(self, layer: Any, ins: Sequence[Tensor], sole: bool, blobs: Sequence[np.ndarray], graph: Growing):
        self.layer, self.name, self.ins, self.tops, self.sole = layer, layer.name, list(ins), len(layer.top), sole
        self.graph = graph
        self._blobs = blobs

    @property
    def x(self) -> Tensor:
        """The one bottom of a layer that has one. Raises ModelError when it has another number."""
        self.bottoms(1)
        return self.ins[0]

    def bottoms(self, *counts: int) -> None:
        """Raises ModelError unless the layer has one of these numbers of bottoms."""
        if len(self.ins) not in counts:
            wanted = " or ".join(str(n) for n in counts)
            raise self.wrong("it takes %s bottoms and has %d" % (wanted, len(self.ins)))

    def image(self, tensor: Tensor) -> Tensor:
        """The tensor, which must have four axes. Raises Unsupported."""
        if len(tensor.shape) != 4:
            raise self.refused("only images are exported, of four axes; its bottom has the shape %s" % (tensor.shape,))
        return tensor

    def axis(self, tensor: Tensor, axis: int) -> int:
        """An axis counted from the front. Raises ModelError when there is no such axis."""
        rank = len(tensor.shape)
        if not -rank <= axis < rank:
            raise self.wrong("there is no axis %d in the shape %s" % (axis, tensor.shape))
        return axis % rank

    def blob(self, number: int, shape: Shape) -> np.ndarray:
        """A blob of weights. Old files pad shapes with ones in front, up to four axes.

        Raises
        ------
        ModelError
            It is not there, or has another shape than the layer needs.
        """
        if number >= len(self._blobs):
            raise self.wrong(
                "it needs %d blobs of weights, and the file of weights has %d for it: it is not that of this network"
                % (number + 1, len(self._blobs))
            )
        found = self._blobs[number]
        if found.shape != shape and found.shape != (1,) * (4 - len(shape)) + shape:
            raise self.wrong("its blob %d has the shape %s, and it needs %s" % (number, found.shape, shape))
        return found.reshape(shape)

    def weight(self, part: str, value: Any) -> str:
        """Keep a constant as ``<layer>.<part>``; the name that it got. Integers become int64, all else float32."""
        value = np.asarray(value)
        name = self.graph.unique("%s.%s" % (self.name, part))
        self.graph.weights[name] = value.astype(np.int64 if value.dtype.kind == "i" else np.float32, copy=False)
        return name

    def node(self, op: str, inputs: Sequence[Operand], shape: Shape, **attributes: Any) -> Tensor:
        """Add a node with one output of this shape."""
        return self.split(op, inputs, [shape], **attributes)[0]

    def split(self, op: str, inputs: Sequence[Operand], shapes: Sequence[Shape], **attributes: Any) -> List[Tensor]:
        """Add a node with several outputs."""
        made = [Tensor(self.graph.unique("%s/%s" % (self.name, op.lower())), shape) for shape in shapes]
        names = [x.name if isinstance(x, Tensor) else x for x in inputs]
        self.graph.nodes.append(Node(op, made[0].name, names, [t.name for t in made], attributes))
        return made

    def wrong(self, what: str) -> ModelError:
        """The error of files that fit neither Caffe nor each other."""
        return ModelError("layer %s (%s): %s" % (self.name, self.layer.type, what))

    def refused(self, what: str) -> Unsupported:
        """The error of what Caffe can do, and an export can't."""
        return Unsupported("layer %s (%s): %s" % (self.name, self.layer.type, what))


def pair(context: Context, param: Any, field: str, single: str, default: int) -> Tuple[int, int]:
    """A (height, width) of a layer's parameters: ``field``, a number or a list of up to two, or ``single`` + _h, _w."""
    if param.HasField(single + "_h") or param.HasField(single + "_w"):
        return getattr(param, single + "_h"), getattr(param, single + "_w")
    given = getattr(param, field)
    if isinstance(given, int):
        return given, given
    values = [int(n) for n in given] or [default]
    if len(values) > 2:
        raise context.wrong("%s has %d numbers; an image has a height and a width" % (field, len(values)))
    return values[0], values[-1]


#: Layer type -> its rule, which gives a tensor for each of its tops, in order.
Rules = Mapping[str, Callable[[Context], List[Tensor]]]
