"""Rules of operators on images, which lie as NCHW: convolutions, poolings, normalisations over channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xframe.artifact import explicit_pads
from xframe.equivalence.graph import Node
from xframe.equivalence.kernels import Window
from xframe.normal.draft import Shape
from xframe.normal.form import Weight
from xframe.normal.trace import Operand, Rule, Trace

Args = list[Any]


def window_attrs(node: Node, spatial: Shape, kernel: Shape) -> dict[str, Any]:
    """Kernel, strides, dilations and pads of a window, all of them given, automatic padding as numbers."""
    ones = (1,) * len(kernel)
    if len(spatial) != len(kernel):
        raise node.refuse(f"a kernel of {kernel} does not fit an image of {spatial}")
    stride = tuple(node.attrs.get("strides") or ones)
    dilation = tuple(node.attrs.get("dilations") or ones)
    pads = explicit_pads(node.attrs.get("auto_pad", ""), node.attrs.get("pads"), spatial, kernel, stride, dilation)
    if min(*stride, *dilation) < 1 or len(pads) != 2 * len(kernel):
        raise node.refuse(f"strides {stride}, dilations {dilation}, pads {pads} make no window")
    return {"kernel_shape": tuple(kernel), "strides": stride, "dilations": dilation, "pads": tuple(pads)}


def window(attrs: Any) -> Window:
    """What :func:`window_attrs` gave, as the reference counts with it."""
    return Window(
        attrs["kernel_shape"], attrs["strides"], attrs["pads"], attrs["dilations"], bool(attrs.get("ceil_mode", 0))
    )


def outputs(node: Node, attrs: Any, spatial: Shape) -> Shape:
    found = window(attrs).outputs(spatial)
    if min(found) < 1:
        raise node.refuse(f"a kernel of {attrs['kernel_shape']} does not fit an image of {spatial}")
    return found


def zeros(count: int) -> Weight:
    """A bias that a file leaves out."""
    return Weight(np.zeros(count, np.float32))


def conv(t: Trace, node: Node, args: Args) -> Operand:
    x, w = args[0], args[1]
    bias = args[2] if len(args) > 2 and args[2] is not None else zeros(t.shape(w)[0])
    shape, filters = t.shape(x), t.shape(w)
    group = node.attrs.get("group", 1)
    if len(filters) != len(shape) or group < 1 or shape[1] != filters[1] * group or filters[0] % group:
        raise node.refuse(f"weights of {filters} in {group} groups do not fit an image of {shape}")
    attrs = window_attrs(node, shape[2:], filters[2:])
    size = outputs(node, attrs, shape[2:])
    inputs = [t.plain(x), *(v if isinstance(v, Weight) else t.plain(v) for v in (w, bias))]
    return t.emit("Conv", inputs, {**attrs, "group": group, "auto_pad": "NOTSET"}, (shape[0], filters[0], *size))


def conv_transpose(t: Trace, node: Node, args: Args) -> Operand:
    """Kept, all attributes given; an output shape or automatic padding becomes pads."""
    made = t.other(args)[0]
    known = t.draft.nodes[t.draft.makers[made.name]]
    filters, shape, size = (t.draft.shapes[n][2:] for n in (*known.inputs[1::-1], made.name))
    rank = len(filters)
    stride, dilation = (tuple(node.attrs.get(a) or (1,) * rank) for a in ("strides", "dilations"))
    extra = tuple(node.attrs.get("output_padding") or (0,) * rank)
    pads = tuple(node.attrs.get("pads") or (0,) * (2 * rank))
    auto = node.attrs.get("auto_pad", "NOTSET")
    if auto != "NOTSET" or node.attrs.get("output_shape"):
        rows = zip(shape, stride, extra, filters, dilation, size, strict=True)
        totals = [s * (n - 1) + e + (k - 1) * d + 1 - o for n, s, e, k, d, o in rows]
        extra = tuple(e + max(-n, 0) for e, n in zip(extra, totals, strict=True))
        small = [max(n, 0) // 2 for n in totals]
        large = [max(n, 0) - half for n, half in zip(totals, small, strict=True)]
        pads = (*small, *large) if auto == "SAME_UPPER" else (*large, *small)
    attrs = {
        "auto_pad": "NOTSET", "dilations": dilation, "group": node.attrs.get("group", 1), "kernel_shape": filters,
        "output_padding": extra, "pads": pads, "strides": stride,
    }  # fmt: skip
    bias = known.inputs[2] if len(known.inputs) > 2 and known.inputs[2] else zeros(t.draft.shapes[made.name][1])
    name = t.named("ConvTranspose", 2, bias)
    t.complete(made, attrs, (*known.inputs[:2], name))
    return made


def pool(t: Trace, node: Node, args: Args) -> Operand | Sequence[Operand]:
    """An average or maximum over windows; with automatic padding there is no ceil mode."""
    shape = t.shape(args[0])
    attrs = window_attrs(node, shape[2:], tuple(node.attrs["kernel_shape"]))
    explicit = node.attrs.get("auto_pad", "NOTSET") in ("", "NOTSET")
    attrs |= {"auto_pad": "NOTSET", "ceil_mode": int(node.attrs.get("ceil_mode", 0)) if explicit else 0}
    own = "count_include_pad" if node.op == "AveragePool" else "storage_order"
    attrs[own] = int(node.attrs.get(own, 0))
    size = outputs(node, attrs, shape[2:])
    if any(node.outputs[1:]):  # where the maxima lay
        made = t.other(args)
        t.complete(made[0], attrs)
        return made
    return t.emit(node.op, [t.plain(args[0])], attrs, (*shape[:2], *size))


def global_pool(t: Trace, node: Node, args: Args) -> Operand:
    shape = t.shape(args[0])
    return t.emit(node.op, [t.plain(args[0])], {}, (*shape[:2], *(1,) * (len(shape) - 2)))


def lrn(t: Trace, node: Node, args: Args) -> Operand:
    return t.emit("LRN", [t.plain(args[0])], node.attrs, t.shape(args[0]))


def batchnorm(t: Trace, node: Node, args: Args) -> Operand | Sequence[Operand]:
    training = bool(node.attrs.get("training_mode", 0)) or any(node.outputs[1:])
    if training or any(not isinstance(a, Weight) for a in args[1:]):
        return t.other(args)
    shape = t.shape(args[0])
    if any(a.array.shape != (shape[1],) for a in args[1:]):
        raise node.refuse(f"its parameters do not fit {shape[1]} channels")
    attrs = {"epsilon": node.attrs.get("epsilon", float(np.float32(1e-5))), "momentum": 0.9, "training_mode": 0}
    return t.emit("BatchNormalization", [t.plain(args[0]), *args[1:]], attrs, shape)


RULES: dict[str, Rule] = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "MaxPool": pool,
    "AveragePool": pool,
    "GlobalAveragePool": global_pool,
    "GlobalMaxPool": global_pool,
    "LRN": lrn,
    "BatchNormalization": batchnorm,
}
