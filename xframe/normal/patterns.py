"""Fusions of what stands in a row: padding and windows, reshapes, joins, limits, numbers."""

from __future__ import annotations

import math

import numpy as np

from xframe.equivalence.graph import Node
from xframe.normal.draft import size
from xframe.normal.fusing import Fuser, Fusion
from xframe.normal.pointwise import LOWEST
from xframe.normal.windows import window

# Windows


def padded(f: Fuser, node: Node) -> bool:
    """A Pad of what the window pads with anyway becomes its pads."""
    pad = f.draft.source(node.inputs[0], "Pad")
    if pad is None or pad.attrs["mode"] != "constant" or min(pad.attrs["pads"]) < 0:
        return False
    rank = len(f.shape(node.inputs[0]))
    begins, ends = pad.attrs["pads"][:rank], pad.attrs["pads"][rank:]
    fill, attrs = pad.attrs["value"], dict(node.attrs)
    reach = [d * (k - 1) + 1 for d, k in zip(attrs["dilations"], attrs["kernel_shape"], strict=True)]
    if any((*begins[:2], *ends[:2])):
        return False
    if node.op == "MaxPool":
        fits = fill in (-np.inf, LOWEST) and all(max(p) < r for *p, r in zip(begins[2:], ends[2:], reach, strict=True))
    elif node.op == "AveragePool":
        fits = fill == 0 and (not any(attrs["pads"]) or bool(attrs["count_include_pad"]))
        attrs["count_include_pad"] = 1
    else:
        fits = fill == 0
    if not fits:
        return False
    attrs["pads"] = tuple(a + b for a, b in zip(attrs["pads"], (*begins[2:], *ends[2:]), strict=True))
    f.draft.notes["Pad merged into the window after it"] += 1
    return f.swap([pad], node, [pad.inputs[0], *node.inputs[1:]], attrs=attrs)


def settled(f: Fuser, node: Node) -> bool:
    """Of all attributes that make the same windows, one choice.

    The padding at an end is that at its begin where this makes no difference, else as much as the last window reads.
    Ceil mode is padding, unless that would be counted. A single window has stride 1, a single tap dilation 1.
    """
    attrs, spatial = dict(node.attrs), f.shape(node.inputs[0])[2:]
    rank = len(spatial)
    if min(attrs["pads"]) < 0:
        return False
    sizes = window(attrs).outputs(spatial)
    ends, strides, dilations, read = [], [], [], []
    for i, (n, count, k) in enumerate(zip(spatial, sizes, attrs["kernel_shape"], strict=True)):
        begin, end, s = attrs["pads"][i], attrs["pads"][rank + i], attrs["strides"][i]
        d = attrs["dilations"][i] if k > 1 else 1
        need = (count - 1) * s + d * (k - 1) + 1 - n - begin
        if attrs.get("count_include_pad", 0) and need > end:
            return False
        single = count == 1 and need >= 0
        alike = begin >= need and (n + 2 * begin - d * (k - 1) - 1) // s + 1 == count and not single
        ends.append(begin if alike else max(need, 0))
        strides.append(1 if single else s)
        dilations.append(d)
        read.append(max(begin, need) > 0)
    attrs |= {"pads": (*attrs["pads"][:rank], *ends), "strides": tuple(strides), "dilations": tuple(dilations)}
    if "ceil_mode" in attrs:
        attrs["ceil_mode"] = 0
    if node.op == "AveragePool" and not any(read):
        attrs["count_include_pad"] = 0
    return attrs != node.attrs and f.swap([], node, node.inputs, attrs=attrs)


def whole(f: Fuser, node: Node) -> bool:
    """A pooling of the whole image is a global one, of single pixels none."""
    if any(node.outputs[1:]):
        return False
    spatial, attrs = f.shape(node.inputs[0])[2:], node.attrs
    taps = size(attrs["kernel_shape"])
    if taps == 1 and size(attrs["strides"]) == 1 and not any(attrs["pads"]):
        return f.drop(node)
    covered = all(
        k - begin >= n and d == 1
        for n, k, d, begin in zip(spatial, attrs["kernel_shape"], attrs["dilations"], attrs["pads"], strict=False)
    )
    if size(f.shape(node.outputs[0])[2:]) != 1 or not covered or attrs.get("count_include_pad", 0):
        return False
    op = {"AveragePool": "GlobalAveragePool", "MaxPool": "GlobalMaxPool"}[node.op]
    return f.swap([], node, node.inputs, op=op, attrs={})


def of_one_pixel(f: Fuser, node: Node) -> bool:
    return size(f.shape(node.inputs[0])[2:]) == 1 and f.drop(node)


# Shapes, limits, numbers


def reshape(f: Fuser, node: Node) -> bool:
    before = f.draft.source(node.inputs[0], "Reshape")
    if f.shape(node.inputs[0]) == f.shape(node.outputs[0]):
        return f.drop(node)
    return before is not None and f.swap([before], node, [before.inputs[0], node.inputs[1]])


def joined(f: Fuser, node: Node) -> bool:
    """Concat of Concats along the same axis."""
    inner = [f.before(n, "Concat") for n in node.inputs]
    flat = [n is not None and n.attrs == node.attrs for n in inner]
    if not any(flat):
        return False
    names = [m for n, i, one in zip(node.inputs, inner, flat, strict=True) for m in (i.inputs if one and i else (n,))]
    return f.swap([n for n, one in zip(inner, flat, strict=True) if one and n], node, names)


def limits(node: Node) -> tuple[float, float]:
    return (0.0, np.inf) if node.op == "Relu" else (node.attrs["min"], node.attrs["max"])


def clipped(f: Fuser, node: Node) -> bool:
    """Limits of limits."""
    before = f.draft.maker(node.inputs[0])
    if before is None or before.op not in ("Relu", "Clip"):
        return False
    low, high = (float(min(max(v, limits(node)[0]), limits(node)[1])) for v in limits(before))
    if (low, high) == limits(before):
        return f.drop(node)
    op, attrs = ("Relu", {}) if (low, high) == (0, np.inf) else ("Clip", {"min": low, "max": high})
    return f.swap([before], node, [before.inputs[0]], op=op, attrs=attrs)


def numbers(f: Fuser, node: Node) -> bool:
    """A product by one number after another, where float32 holds their product exactly."""
    second = f.draft.scalar(node.inputs[1])
    before = f.before(node.inputs[0], "Mul")
    first = f.draft.scalar(before.inputs[1]) if before is not None else None
    if before is None or first is None or not second:
        return False
    product = first * second if node.op == "Mul" else first / second
    if not math.isfinite(product) or float(np.float32(product)) != product:
        return False
    if product == 1:
        f.reads[before.inputs[0]] += 1  # the node reads what the first product read
        f.reads[before.outputs[0]] -= 1
        return f.drop(Node(node.name, node.op, (before.inputs[0], node.inputs[1]), node.outputs))
    weight = f.draft.weights[before.inputs[1]]
    made = type(weight)(np.array(product, np.float32), weight.source, (*weight.how, "multiplied"))
    return f.swap([before], node, [before.inputs[0], made], op="Mul", attrs={})


FUSIONS: dict[str, list[Fusion]] = {
    "Conv": [padded, settled],
    "MaxPool": [padded, settled, whole],
    "AveragePool": [padded, settled, whole],
    "GlobalAveragePool": [of_one_pixel],
    "GlobalMaxPool": [of_one_pixel],
    "Reshape": [reshape],
    "Concat": [joined],
    "Relu": [clipped],
    "Clip": [clipped],
    "Mul": [numbers],
    "Div": [numbers],
}
