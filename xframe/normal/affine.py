"""Fusions of scales and shifts of channels: biases, batch normalisation, and convolutions written group by group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from xframe.equivalence.graph import Node
from xframe.normal import constants
from xframe.normal.form import Weight
from xframe.normal.fusing import Fuser, Fusion

Array = np.ndarray

#: Attributes of a batch normalisation that is a scale and a shift: its mean is 0, its variance 1.
CANONICAL = {"epsilon": 0.0, "momentum": 0.9, "training_mode": 0}


def per_channel(f: Fuser, tensor: str, like: str) -> Array | None:
    """A float constant as one value for each channel of the tensor ``like``, if that is what it is."""
    array, shape = f.array(tensor), f.shape(like)
    if array is None or array.dtype.kind != "f" or len(shape) < 2 or array.ndim > len(shape):
        return None
    full = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
    if full.shape[1] not in (1, shape[1]) or full.size != full.shape[1]:
        return None
    return np.ascontiguousarray(np.broadcast_to(full.reshape(-1), (shape[1],)))


def linear(f: Fuser, tensor: str, *ops: str) -> Node | None:
    """The convolution or product by constants that gives ``tensor``, if nobody else reads it."""
    node = f.before(tensor, *(ops or ("Conv", "Gemm")))
    if node is None or len(node.inputs) < 3 or any(n not in f.draft.weights for n in node.inputs[1:3]):
        return None
    return (
        node if node.op != "Gemm" or (node.attrs["transB"] and node.attrs["alpha"] == node.attrs["beta"] == 1) else None
    )


def add(f: Fuser, node: Node) -> bool:
    """A constant for each channel becomes the bias, or a part of it."""
    shift = per_channel(f, node.inputs[1], node.inputs[0])
    before = None if shift is None else linear(f, node.inputs[0], "Conv", "Gemm", "ConvTranspose")
    if before is None or shift is None:
        return False
    x, w, bias = before.inputs
    old, new = f.draft.weights[bias], f.draft.weights[node.inputs[1]]
    if old.array.any():
        return False
    made = replace(new, array=shift)
    return f.swap([before], node, [x, w, made], name=before.name, op=before.op, attrs=before.attrs)


def added(f: Fuser, node: Node) -> bool:
    """A second constant for each channel, after a bias, a scale or a batch normalisation."""
    shift = per_channel(f, node.inputs[1], node.inputs[0])
    return shift is not None and _into(f, node, np.ones(len(shift)), shift, [f.draft.weights[node.inputs[1]]])


def multiply(f: Fuser, node: Node) -> bool:
    scale = per_channel(f, node.inputs[1], node.inputs[0])
    if scale is None:
        return False
    return _into(f, node, scale, np.zeros(len(scale)), [f.draft.weights[node.inputs[1]]])


def divide(f: Fuser, node: Node) -> bool:
    scale = per_channel(f, node.inputs[1], node.inputs[0])
    if scale is None or not scale.all():
        return False
    scale = 1 / scale.astype(np.float64)
    return _into(f, node, scale, np.zeros(len(scale)), [f.draft.weights[node.inputs[1]]])


def batchnorm(f: Fuser, node: Node) -> bool:
    """Into the convolution before it, else in the form with mean 0, variance 1 and no epsilon."""
    if node.attrs.get("training_mode", 0) or any(n not in f.draft.weights for n in node.inputs[1:]):
        return False
    parts = [f.draft.weights[n] for n in node.inputs[1:]]
    scale, shift, mean, var = (w.array.astype(np.float64) for w in parts)
    epsilon = node.attrs["epsilon"]
    settled = node.attrs == CANONICAL and not mean.any() and (var == 1).all()
    if settled and shift.any() and (scale != 1).any():
        return _into(f, node, scale, shift, parts[:2])
    factor = scale / np.sqrt(var + epsilon)
    shift = shift - mean * factor
    return _into(f, node, factor, shift, parts) or _alone(f, [], node, node.inputs[0], factor, shift, parts)


def _alone(f: Fuser, gone: list[Node], node: Node, x: str, scale: Array, shift: Array, parts: Sequence[Weight]) -> bool:
    """One node that stands for itself: a product or a sum where that is all, else a batch normalisation."""
    count = len(scale)
    also, words = [s for p in parts[1:] for s in p.source], f"folded with {f.titles[0]}"
    a, b = (constants.changed(parts[0], v.astype(np.float32), words, also=also) for v in (scale, shift))
    shape = (1, count, *(1,) * (len(f.shape(x)) - 2))
    if not shift.any():
        return f.swap(gone, node, [x, replace(a, array=a.array.reshape(shape))], op="Mul", attrs={})
    if (scale == 1).all():
        return f.swap(gone, node, [x, replace(b, array=b.array.reshape(shape))], op="Add", attrs={})
    rest = [Weight(np.zeros(count, np.float32)), Weight(np.ones(count, np.float32))]
    return f.swap(gone, node, [x, a, b, *rest], op="BatchNormalization", attrs=CANONICAL)


def _standing(f: Fuser, tensor: str) -> tuple[Node, Array, Array, list[Weight]] | None:
    """The node that scales and shifts the channels of its operand to ``tensor``, for no other reader, and by what."""
    node = f.before(tensor, "Mul", "Add", "BatchNormalization")
    if node is None or any(n not in f.draft.weights for n in node.inputs[1:]):
        return None
    parts = [f.draft.weights[n] for n in node.inputs[1:]]
    if node.op == "BatchNormalization":
        return (node, parts[0].array, parts[1].array, parts[:2]) if node.attrs == CANONICAL else None
    by = per_channel(f, node.inputs[1], node.inputs[0])
    if by is None or parts[0].array.size == 1:
        return None
    return (node, by, np.zeros(len(by)), parts) if node.op == "Mul" else (node, np.ones(len(by)), by, parts)


def _into(f: Fuser, node: Node, scale: Array, shift: Array, parts: list[Weight]) -> bool:
    """``scale`` and ``shift`` into what gives the operand: computed in float64, rounded to float32 once."""
    title = f.titles[0]
    also = [s for p in parts for s in p.source]
    before = linear(f, node.inputs[0])
    unscaled = bool((scale == 1).all())
    if before is not None:
        x, name, bias = before.inputs
        w, b = f.draft.weights[name], f.draft.weights[bias]
        if not unscaled:
            array = np.empty(w.array.shape, np.float32)
            by = scale.reshape(-1, *(1,) * (w.array.ndim - 1))
            np.multiply(w.array, by, out=array, dtype=np.float64, casting="same_kind")
            w = constants.changed(w, array, f"scaled by {title}", also=also)
        moved = (b.array * scale.astype(np.float64) + shift).astype(np.float32)
        b = constants.changed(b, moved, f"folded with {title}", also=also)
        return f.swap([before], node, [x, w, b], name=before.name, op=before.op, attrs=before.attrs)
    standing = _standing(f, node.inputs[0])
    if standing is None:
        return False
    before, a0, b0, old = standing
    factor = scale.astype(np.float64)
    return _alone(f, [before], node, before.inputs[0], a0 * factor, b0 * factor + shift, [*old, *parts])


def grouped(f: Fuser, node: Node) -> bool:
    """Channels cut apart, each part convolved, and joined again: one convolution in groups."""
    convs = [linear(f, n, "Conv") for n in node.inputs]
    if node.attrs["axis"] != 1 or len(convs) < 2 or any(c is None for c in convs):
        return False
    made: list[Node] = [c for c in convs if c is not None]
    slices = [f.draft.source(c.inputs[0], "Slice") for c in made]
    cuts = [s for s in slices if s is not None and s.attrs["axes"] == (1,) and s.attrs["steps"] == (1,)]
    if len(cuts) < len(made) or len({s.inputs[0] for s in cuts}) > 1:
        return False
    source = cuts[0].inputs[0]
    ends = [0, *(s.attrs["ends"][0] for s in cuts)]
    starts = [*(s.attrs["starts"][0] for s in cuts), f.shape(source)[1]]
    groups = [c.attrs["group"] for c in made]
    shapes = {(f.shape(c.inputs[1])[0] // g, *f.shape(c.inputs[1])[1:]) for c, g in zip(made, groups, strict=True)}
    alike = {tuple(sorted((k, v) for k, v in c.attrs.items() if k != "group")) for c in made}
    if starts != ends or len(shapes) > 1 or len(alike) > 1:
        return False
    w, b = (_joined(f, [c.inputs[i] for c in made]) for i in (1, 2))
    attrs = {**made[0].attrs, "group": sum(groups)}
    f.draft.notes["convolutions in parts joined as groups"] += 1
    return f.swap([*cuts, *made], node, [source, w, b], name=made[0].name, op="Conv", attrs=attrs)


def _joined(f: Fuser, names: list[str]) -> Weight:
    parts = [f.draft.weights[n] for n in names]
    source = tuple(dict.fromkeys(s for p in parts for s in p.source))
    how = tuple(dict.fromkeys(h for p in parts for h in p.how))
    return Weight(np.concatenate([p.array for p in parts]), source, (*how, f"joined of {len(parts)} groups"))


#: Exact whatever is asked for.
ALWAYS: dict[str, list[Fusion]] = {"Add": [add], "Concat": [grouped]}
#: What rounds weights anew.
FOLDING: dict[str, list[Fusion]] = {
    "Add": [added],
    "Mul": [multiply],
    "Div": [divide],
    "BatchNormalization": [batchnorm],
}
