"""Reverse mode of a graph in float64: the gradient of a scalar loss with respect to each input and each weight.

The loss is the sum of cotangent times output. Each gradient comes with the error that a correct float32 implementation
may have (see ``xframe.equivalence.adjoints``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xframe.equivalence import adjoints_linear, adjoints_normalisations, adjoints_pointwise
from xframe.equivalence.adjoints import Adjoint, added
from xframe.equivalence.bounds import FLOOR, UNIT, Quantity
from xframe.equivalence.graph import Graph, Node, run
from xframe.equivalence.reference import OPERATORS
from xframe.errors import UsageError

Args = Sequence[Any]

#: How many of a moving operator's inputs carry gradients: the first, or all of them.
_ALL = ("Concat",)


def moving(node: Node, args: Args, outs: Args, gs: Args) -> list[Quantity | None]:
    """Any operator that only moves elements: it is run on their positions, and each gradient goes back to its own."""
    resized = node.op in ("Resize", "Upsample")
    if resized and (node.attrs.get("mode", "nearest") != "nearest" or "extrapolation_value" in node.attrs):
        raise node.refuse("the gradient of an interpolation is not known here")
    count = len(args) if node.op in _ALL else 1
    sizes = [q.value.size for q in args[:count]]
    starts = np.concatenate(([0], np.cumsum(sizes)))
    places = [
        Quantity(np.arange(start, start + q.value.size).reshape(q.value.shape))
        for q, start in zip(args[:count], starts, strict=False)
    ]
    rest = list(args[count:])
    if node.op == "Pad":
        rest = [rest[0] if rest else None, Quantity(np.array(-1.0)), *rest[2:]]  # what was padded comes from nowhere
    found = OPERATORS[node.op](node, [*places, *rest], {})
    value, variance = np.zeros(starts[-1]), np.zeros(starts[-1])
    reads = np.zeros(starts[-1])
    for place, g in zip(found if isinstance(found, tuple) else (found,), gs, strict=False):
        if g is None:
            continue
        index = np.ravel(place.value).astype(np.int64)
        there = index >= 0
        index, taken = index[there], g.real.ravel()[there]
        value += np.bincount(index, taken, minlength=len(value))
        # Copies of one element may carry the same error: deviations are added.
        deviation = np.broadcast_to(g.deviation, g.value.shape).ravel()[there]
        variance += np.bincount(index, deviation, minlength=len(value))
        reads += np.bincount(index, np.abs(taken), minlength=len(value)) * (len(index) > len(value))
    variance = np.square(variance) + np.square(reads) * UNIT + FLOOR
    cut = [slice(start, start + n) for start, n in zip(starts, sizes, strict=False)]
    parts: list[Quantity | None] = [
        Quantity(value[c].reshape(q.value.shape), variance[c].reshape(q.value.shape))
        for q, c in zip(args, cut, strict=False)
    ]
    return parts + [None] * len(rest)


def through(node: Node, args: Args, outs: Args, gs: Args) -> list[Quantity | None]:
    """``Identity``, ``Dropout`` in inference and ``Cast``: the gradient as it is."""
    return [gs[0]]


MOVING = (
    "Reshape",
    "Flatten",
    "Transpose",
    "Squeeze",
    "Unsqueeze",
    "Concat",
    "Split",
    "Slice",
    "Gather",
    "Expand",
    "Tile",
    "Pad",
    "DepthToSpace",
    "SpaceToDepth",
    "Resize",
    "Upsample",
)
ADJOINTS: dict[str, Adjoint] = {
    **adjoints_linear.ADJOINTS,
    **adjoints_pointwise.ADJOINTS,
    **adjoints_normalisations.ADJOINTS,
    **dict.fromkeys(MOVING, moving),
    **dict.fromkeys(("Identity", "Dropout", "Cast"), through),
}
#: Their outputs do not change with the values of their inputs.
STILL = ("Constant", "ConstantOfShape", "Shape")


def gradients(graph: Graph, feeds: Mapping[str, np.ndarray], cotangents: Sequence[np.ndarray]) -> dict[str, Quantity]:
    """The gradients of the sum of ``cotangents`` times outputs, by the names of the graph's inputs and constants.

    Parameters
    ----------
    feeds
        Inputs by name, taken as exact.
    cotangents
        One for each output, of its shape; taken as exact.

    Returns
    -------
    dict
        For each input and each constant of floating point that the loss depends on: the gradient, of its shape, and the
        variance of the error that a float32 implementation may have. What the loss does not depend on is left out.

    Raises
    ------
    ModelError
        An operator whose gradient is not known here, by name, or one that the float64 reference does not know.
    UsageError
        A cotangent that does not fit its output.
    """
    nodes = graph.needed()
    tensors = _forward(graph, nodes, feeds)
    arriving: dict[str, list[Quantity]] = {}
    for name, cotangent in zip(graph.outputs, cotangents, strict=True):
        if cotangent.shape != tensors[name].value.shape:
            raise UsageError(f"output {name} has shape {tensors[name].value.shape}, its cotangent {cotangent.shape}")
        if tensors[name].value.dtype.kind == "f":
            arriving.setdefault(name, []).append(Quantity(np.asarray(cotangent, np.float64)))
    with np.errstate(all="ignore"):
        for node in reversed(nodes):
            gs = [added(arriving.pop(name)) if name in arriving else None for name in node.outputs]
            outs = [tensors.pop(name, None) for name in node.outputs]
            if node.op in STILL or all(g is None for g in gs):
                continue
            if node.op not in ADJOINTS:
                raise node.refuse("the gradient of this operator is not known here")
            args = [tensors[name] if name else None for name in node.inputs]
            for name, q, g in zip(node.inputs, args, ADJOINTS[node.op](node, args, outs, gs), strict=False):
                if g is not None and q is not None and q.value.dtype.kind == "f":
                    arriving.setdefault(name, []).append(g)
        return {name: added(arriving.pop(name)) for name in list(arriving)}


def _forward(graph: Graph, nodes: Sequence[Node], feeds: Mapping[str, np.ndarray]) -> dict[str, Quantity]:
    """Every tensor that a node reads or the graph gives."""
    made = {name for node in nodes for name in node.outputs if name}
    read = {name for node in nodes for name in node.inputs} & made
    names = tuple(dict.fromkeys((*graph.outputs, *sorted(read))))
    results = run(dataclasses.replace(graph, outputs=names), feeds, OPERATORS, {})
    tensors = {name: Quantity(value) for name, value in (*graph.constants.items(), *feeds.items())}
    return tensors | dict(zip(names, results, strict=True))
