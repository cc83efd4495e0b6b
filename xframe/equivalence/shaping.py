"""Operators that only move elements, and those that compute with shapes."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import onnx

from xframe.equivalence.bounds import Quantity
from xframe.equivalence.graph import Node, Operator, Roundings

Args = Sequence[Quantity]


def _given(node: Node, args: Args, index: int, name: str, default=None):
    """A list of integers that newer operator sets take as an input, older ones as an attribute."""
    if len(args) > index and args[index] is not None:
        return [int(v) for v in np.ravel(args[index].value)]
    return node.attrs.get(name, default)


def identity(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    if node.op == "Dropout" and len(args) > 2 and args[2] is not None and bool(args[2].value):
        raise node.refuse("training mode; export the network for inference")
    return args[0]


def constant(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    for name, value in node.attrs.items():
        if name == "value":
            return Quantity(onnx.numpy_helper.to_array(value))
        if name.startswith(("value_float", "value_int")):
            return Quantity(np.array(value, np.float32 if "float" in name else np.int64))
    raise node.refuse("a constant that is neither numbers nor a dense tensor")


def constant_of_shape(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    """A broadcast view: large one-value weights take no memory."""
    tensor = node.attrs.get("value")
    fill = onnx.numpy_helper.to_array(tensor).reshape(()) if tensor is not None else np.float32(0)
    return Quantity(np.broadcast_to(fill, tuple(args[0].value.tolist())))


def shape(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    cut = slice(node.attrs.get("start", 0), node.attrs.get("end"))
    return Quantity(np.array(args[0].value.shape[cut], np.int64))


def reshape(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    old = args[0].value.shape
    new = [int(v) for v in args[1].value]
    if not node.attrs.get("allowzero", 0):
        new = [old[i] if n == 0 else n for i, n in enumerate(new)]
    return args[0].moved(lambda a: a.reshape(new))


def flatten(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    size = args[0].value.shape
    axis = node.attrs.get("axis", 1)
    axis = axis + len(size) if axis < 0 else axis
    rows = int(np.prod(size[:axis], dtype=np.int64))
    return args[0].moved(lambda a: a.reshape(rows, -1))


def transpose(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    return args[0].moved(lambda a: a.transpose(node.attrs.get("perm")))


def squeeze(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    axes = _given(node, args, 1, "axes")
    return args[0].moved(lambda a: a.squeeze(None if axes is None else tuple(axes)))


def unsqueeze(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    return args[0].moved(lambda a: np.expand_dims(a, tuple(_given(node, args, 1, "axes"))))


def concat(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    axis = node.attrs["axis"]
    value = np.concatenate([q.value for q in args], axis)
    if all(q.variance is None for q in args):
        return Quantity(value)
    variances = [np.zeros(q.value.shape) if q.variance is None else q.variance for q in args]
    return Quantity(value, np.concatenate(variances, axis), max(q.coherence for q in args))


def split(node: Node, args: Args, roundings: Roundings | None) -> tuple[Quantity, ...]:
    axis = node.attrs.get("axis", 0)
    length = args[0].value.shape[axis]
    parts = _given(node, args, 1, "split")
    if parts is None:
        each = -(-length // len(node.outputs))
        parts = [each] * (len(node.outputs) - 1) + [length - each * (len(node.outputs) - 1)]
    ends = np.cumsum(parts)
    cuts = [range(end - n, end) for n, end in zip(parts, ends, strict=True)]
    return tuple(args[0].moved(functools.partial(np.take, indices=cut, axis=axis)) for cut in cuts)


def slice_(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    starts, ends = _given(node, args, 1, "starts"), _given(node, args, 2, "ends")
    axes = _given(node, args, 3, "axes") or range(len(starts))
    steps = _given(node, args, 4, "steps") or [1] * len(starts)
    cuts: list[slice] = [slice(None)] * args[0].value.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        # With a negative step an end before the first element has no Python spelling but None.
        stop = None if step < 0 and end < -args[0].value.shape[axis] else end
        cuts[axis] = slice(start, stop, step)
    return args[0].moved(lambda a: a[tuple(cuts)])


def gather(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    return args[0].moved(lambda a: np.take(a, args[1].value, axis=node.attrs.get("axis", 0)))


def expand(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    size = np.broadcast_shapes(args[0].value.shape, tuple(args[1].value.tolist()))
    return args[0].moved(lambda a: np.broadcast_to(a, size))


def tile(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    return args[0].moved(lambda a: np.tile(a, args[1].value))


def pad(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    rank = args[0].value.ndim
    pads = _given(node, args, 1, "pads")
    axes = [a % rank for a in _given(node, args, 3, "axes") or range(rank)]
    fill = float(args[2].value) if len(args) > 2 and args[2] is not None else node.attrs.get("value", 0.0)
    mode = node.attrs.get("mode", "constant")
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise node.refuse(f"padding mode {mode!r}")
    widths = [(0, 0)] * rank
    for i, axis in enumerate(axes):
        widths[axis] = (pads[i], pads[i + len(axes)])
    grow = [(max(b, 0), max(e, 0)) for b, e in widths]
    crop = tuple(slice(max(-b, 0), -e if e < 0 else None) for b, e in widths)

    def padded(a: np.ndarray, value: float) -> np.ndarray:
        if mode == "constant":
            return np.pad(a[crop], grow, constant_values=value)
        return np.pad(a[crop], grow, mode=mode)

    x = args[0]
    variance = None if x.variance is None else padded(x.variance, 0.0)
    return Quantity(padded(x.value, fill), variance, x.coherence)


def depth_to_space(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    b = node.attrs["blocksize"]
    n, c, h, w = args[0].value.shape
    if node.op == "SpaceToDepth":
        order = (0, 3, 5, 1, 2, 4) if node.attrs.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
        split, size = (n, c, h // b, b, w // b, b), (n, c * b * b, h // b, w // b)
    elif node.attrs.get("mode", "DCR") == "DCR":
        split, order, size = (n, b, b, c // b**2, h, w), (0, 3, 4, 1, 5, 2), (n, c // b**2, h * b, w * b)
    else:
        split, order, size = (n, c // b**2, b, b, h, w), (0, 1, 4, 2, 5, 3), (n, c // b**2, h * b, w * b)
    return args[0].moved(lambda a: a.reshape(split).transpose(order).reshape(size))


def gather_elements(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    axis = node.attrs.get("axis", 0)
    at = args[1].value
    at = np.where(at < 0, at + args[0].value.shape[axis], at)
    return args[0].moved(lambda a: np.take_along_axis(a, at, axis))


def gather_nd(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    lead, at = node.attrs.get("batch_dims", 0), args[1].value
    batch = [np.arange(n).reshape((-1, *(1,) * (at.ndim - 2 - i))) for i, n in enumerate(args[0].value.shape[:lead])]
    return args[0].moved(lambda a: a[(*batch, *np.moveaxis(at, -1, 0))])


def trilu(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    k = int(args[1].value.reshape(())) if len(args) > 1 and args[1] is not None else 0
    return args[0].moved(lambda a: np.triu(a, k) if node.attrs.get("upper", 1) else np.tril(a, k))


def range_(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    if any(q.variance is not None for q in args):
        raise node.refuse("its limits are computed numbers: rounding decides how long it is")
    start, limit, delta = (q.value.reshape(()) for q in args)
    return Quantity((start + np.arange(max(math.ceil((limit - start) / delta), 0)) * delta).astype(start.dtype))


def size(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    return Quantity(np.array(args[0].value.size, np.int64))


OPERATORS: dict[str, Operator] = {
    "Identity": identity,
    "Dropout": identity,
    "Constant": constant,
    "ConstantOfShape": constant_of_shape,
    "Shape": shape,
    "Reshape": reshape,
    "Flatten": flatten,
    "Transpose": transpose,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Concat": concat,
    "Split": split,
    "Slice": slice_,
    "Gather": gather,
    "Expand": expand,
    "Tile": tile,
    "Pad": pad,
    "DepthToSpace": depth_to_space,
    "SpaceToDepth": depth_to_space,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "Trilu": trilu,
    "Range": range_,
    "Size": size,
}
