"""Fusions of functions that exporters write in parts: local response normalisation, GELU, hard swish."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from xframe.equivalence.graph import Node
from xframe.normal.draft import Axes, composed, inverse, size
from xframe.normal.fusing import Fuser, Fusion
from xframe.normal.patterns import limits

Array = np.ndarray


# Local response normalisation


def lrn(f: Fuser, node: Node) -> bool:
    """x / (bias + alpha / size * sum x^2 over neighbouring channels) ^ beta, written out."""
    x = node.inputs[0]
    scale, turns = _unturned(f, node.inputs[1], ())
    power = f.draft.source(scale, "Pow")
    beta = f.draft.scalar(power.inputs[1]) if power is not None else None
    total = f.draft.source(power.inputs[0], "Add") if power is not None else None
    bias = f.draft.scalar(total.inputs[1]) if total is not None else None
    if beta is None or total is None or bias is None:
        return False
    beta = beta if node.op == "Div" else -beta
    tensor, alpha, turns = _scaled(f, total.inputs[0], turns)
    found = _neighbours(f, tensor, turns)
    if found is None or beta <= 0 or f.shape(x) != f.shape(found[0]) or not _square(f, found[0], x):
        return False
    attrs = {"alpha": float(np.float32(alpha)), "beta": beta, "bias": bias, "size": found[1]}
    f.draft.notes["LRN recognised in its parts"] += 1
    return f.swap([], node, [x], op="LRN", attrs=attrs)


def _unturned(f: Fuser, tensor: str, turns: Axes) -> tuple[str, Axes]:
    """What ``tensor`` is a transpose of, and by which axes all in all; ``turns`` come after."""
    node = f.draft.source(tensor, "Transpose")
    if node is None:
        return tensor, turns
    return node.inputs[0], composed(node.attrs["perm"], turns) if turns else node.attrs["perm"]


def _scaled(f: Fuser, tensor: str, turns: Axes) -> tuple[str, float, Axes]:
    """Of what ``tensor`` is a multiple, by what number, and transposed by which axes."""
    factor = 1.0
    while True:
        tensor, turns = _unturned(f, tensor, turns)
        node = f.draft.maker(tensor)
        number = f.draft.scalar(node.inputs[1]) if node is not None and node.op in ("Mul", "Div") else None
        if node is None or not number:
            return tensor, factor, turns
        factor = factor * number if node.op == "Mul" else factor / number
        tensor = node.inputs[0]


def _square(f: Fuser, tensor: str, x: str) -> bool:
    node = f.draft.maker(tensor)
    if node is None:
        return False
    if node.op == "Mul":
        return node.inputs == (x, x)
    return node.op == "Pow" and node.inputs[0] == x and f.draft.scalar(node.inputs[1]) == 2


def _neighbours(f: Fuser, tensor: str, turns: Axes) -> tuple[str, int] | None:
    """(what was averaged, over how many channels) when ``tensor`` by ``turns`` is a moving average over channels."""
    back = f.draft.source(tensor, "Reshape")
    pool = f.draft.source(back.inputs[0] if back is not None else tensor, "AveragePool")
    before = f.draft.source(pool.inputs[0], "Transpose" if back is None else "Reshape") if pool is not None else None
    if pool is None or before is None:
        return None
    source = before.inputs[0]
    shape, inner = f.shape(source), f.shape(pool.inputs[0])
    kernel, pads = pool.attrs["kernel_shape"], pool.attrs["pads"]
    over = [i for i, k in enumerate(kernel) if k > 1]
    if len(over) != 1 or size(pool.attrs["strides"]) != 1 or size(pool.attrs["dilations"]) != 1 or len(shape) < 2:
        return None
    (axis,), rank = over, len(kernel)
    count = kernel[axis]
    wanted = [0] * (2 * rank)
    wanted[axis], wanted[rank + axis] = (count - 1) // 2, count // 2
    if list(pads) != wanted or not pool.attrs["count_include_pad"]:
        return None
    if back is None:
        perm = before.attrs["perm"]
        fits = perm[2 + axis] == 1 and turns == inverse(perm)
    else:
        fits = axis == 0 and inner[:3] == (shape[0], 1, shape[1]) and f.shape(tensor) == shape and not turns
    return (source, count) if fits else None


# Functions of one variable


def _gelu(x: Array) -> Array:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def _gelu_tanh(x: Array) -> Array:
    return x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _hard_swish(x: Array) -> Array:
    return x * np.clip(x / 6 + 0.5, 0, 1)


#: Where functions are compared: densely where they bend, and far out.
PROBES = np.concatenate([np.linspace(-12, 12, 481), *(s * np.geomspace(13, 1e6, 24) for s in (-1.0, 1.0))])
KNOWN: list[tuple[str, dict[str, Any], Array]] = [
    ("Gelu", {"approximate": "none"}, _gelu(PROBES)),
    ("Gelu", {"approximate": "tanh"}, _gelu_tanh(PROBES)),
    ("HardSwish", {}, _hard_swish(PROBES)),
]
#: Share of the argument by which a function may part from a known one: what constants in float32 make of it.
NEAR = 3e-7
#: Nodes of one such function at most.
PARTS = 16

_STEPS: dict[str, Callable[..., Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
    "Neg": np.negative,
    "Tanh": np.tanh,
    "Erf": np.vectorize(math.erf),
    "Relu": lambda x: np.maximum(x, 0),
}


def function(f: Fuser, node: Node) -> bool:
    """A function of one tensor that is a known one at every probe, however it was written."""
    parts = _parts(f, node)
    if not any(n.op in ("Erf", "Tanh", "Clip", "HardSigmoid") for n in parts):
        return False
    ends = dict.fromkeys(n for p in parts for n in p.inputs if n not in f.draft.weights)
    for x in ends:
        if f.shape(x) != f.shape(node.outputs[0]):
            continue
        y = _evaluated(f, node, x, {x: PROBES}, PARTS)
        for op, attrs, known in KNOWN if y is not None else []:
            if y.shape == PROBES.shape and (np.abs(y - known) <= NEAR * np.abs(PROBES)).all():  # type: ignore[union-attr]
                f.draft.notes[f"{op} recognised in its parts"] += 1
                return f.swap([], node, [x], op=op, attrs=attrs)
    return False


def _parts(f: Fuser, node: Node) -> list[Node]:
    found, at = [node], 0
    while at < len(found) and len(found) < PARTS:
        for name in found[at].inputs:
            maker = f.draft.maker(name)
            if maker is not None and maker not in found and maker.op in (*_STEPS, "Clip", "HardSigmoid"):
                found.append(maker)
        at += 1
    return found


def _evaluated(f: Fuser, node: Node, x: str, known: dict[str, Array], depth: int) -> Array | None:
    """The node's output at the probes, if it depends on ``x`` and numbers alone."""
    args: list[Array] = []
    for name in node.inputs:
        if name not in known:
            number, maker = f.draft.scalar(name), f.draft.maker(name)
            made = np.array(number) if number is not None else None
            if made is None and maker is not None and depth:
                made = _evaluated(f, maker, x, known, depth - 1)
            if made is None:
                return None
            known[name] = made
        args.append(known[name])
    with np.errstate(all="ignore"):
        if node.op == "Clip":
            return np.clip(args[0], *limits(node))
        if node.op == "HardSigmoid":
            return np.clip(node.attrs["alpha"] * args[0] + node.attrs["beta"], 0, 1)
        return _STEPS[node.op](*args) if node.op in _STEPS else None


FUSIONS: dict[str, list[Fusion]] = {"Mul": [lrn, function], "Div": [lrn, function]}
