"""Caffe's layers that move data and compute nothing, as nodes."""

from typing import List, Optional

import numpy as np

from xframe.frameworks.caffe_context import Context, Operand, Rules, Tensor
from xframe.frameworks.caffe_windows import padded


def _same(c: Context) -> List[Tensor]:
    """What passes its bottom on, to one top or several; in inference dropout does."""
    return [c.x] * c.tops


def _concat(c: Context) -> List[Tensor]:
    param, first = c.layer.concat_param, c.ins[0] if c.ins else c.x
    axis = c.axis(first, param.concat_dim if param.HasField("concat_dim") else param.axis)
    others = {x.shape[:axis] + x.shape[axis + 1 :] for x in c.ins}
    if len(others) > 1 or any(len(x.shape) != len(first.shape) for x in c.ins):
        raise c.wrong("its bottoms do not fit along axis %d: %s" % (axis, ", ".join(str(x.shape) for x in c.ins)))
    if len(c.ins) == 1:
        return [first]
    shape = (*first.shape[:axis], sum(x.shape[axis] for x in c.ins), *first.shape[axis + 1 :])
    return [_frame(c, axis, shape) or c.node("Concat", [_value(c, x) for x in c.ins], shape, axis=axis)]


def _frame(c: Context, axis: int, shape) -> Optional[Tensor]:
    """One tensor between constants of one value is padded by them."""
    inner = [i for i, x in enumerate(c.ins) if x.fill is None]
    fills = {x.fill for x in c.ins if x.fill is not None}
    if len(inner) != 1 or len(fills) != 1:
        return None
    pads = [0] * (2 * len(shape))
    pads[axis] = sum(x.shape[axis] for x in c.ins[: inner[0]])
    pads[axis + len(shape)] = sum(x.shape[axis] for x in c.ins[inner[0] + 1 :])
    return padded(c, c.ins[inner[0]], pads, shape, fills.pop())


def _value(c: Context, x: Tensor):
    return x if x.fill is None else c.weight("constant", np.full(x.shape, x.fill, np.float32))


def _slice(c: Context) -> List[Tensor]:
    param, x = c.layer.slice_param, c.x
    axis = c.axis(x, param.slice_dim if param.HasField("slice_dim") else param.axis)
    points = [int(n) for n in param.slice_point]
    if not points:
        if not c.tops or x.shape[axis] % c.tops:
            raise c.wrong("%d tops do not divide the %d of axis %d" % (c.tops, x.shape[axis], axis))
        points = [x.shape[axis] // c.tops * i for i in range(1, c.tops)]
    sizes = [b - a for a, b in zip([0, *points], [*points, x.shape[axis]])]
    if len(sizes) != c.tops or min(sizes) < 1:
        raise c.wrong("its slice points %s do not cut the %d of axis %d into %d tops"
                      % (points, x.shape[axis], axis, c.tops))  # fmt: skip
    if c.tops == 1:
        return [x]
    shapes = [(*x.shape[:axis], size, *x.shape[axis + 1 :]) for size in sizes]
    return c.split("Split", [x, c.weight("sizes", sizes)], shapes, axis=axis)


def _flatten(c: Context) -> List[Tensor]:
    param, x = c.layer.flatten_param, c.x
    start, end = c.axis(x, param.axis), c.axis(x, param.end_axis)
    if end < start:
        raise c.wrong("its axes from %d to %d are none" % (start, end))
    if start == 1 and end == len(x.shape) - 1:
        shape = (x.shape[0], int(np.prod(x.shape[1:])))
        return [c.node("Flatten", [x], shape, axis=1)]
    return [_reshaped(c, x, (*x.shape[:start], int(np.prod(x.shape[start : end + 1])), *x.shape[end + 1 :]))]


def _reshape(c: Context) -> List[Tensor]:
    param, x = c.layer.reshape_param, c.x
    rank = len(x.shape)
    start = param.axis if param.axis >= 0 else rank + param.axis + 1
    end = rank if param.num_axes == -1 else start + param.num_axes
    if not 0 <= start <= end <= rank:
        raise c.wrong("its axes from %d to %d are not in the shape %s" % (start, end, x.shape))
    middle = []
    for place, size in enumerate(int(n) for n in param.shape.dim):
        if size == 0 and start + place >= rank:
            raise c.wrong("there is no axis %d in the shape %s to keep" % (start + place, x.shape))
        middle.append(x.shape[start + place] if size == 0 else size)
    shape = list(x.shape[:start]) + middle + list(x.shape[end:])
    known = int(np.prod([n for n in shape if n != -1]))
    count = int(np.prod(x.shape))
    if shape.count(-1) == 1 and known and count % known == 0:
        shape[shape.index(-1)] = count // known
    if min(shape, default=1) < 1 or int(np.prod(shape)) != count:
        raise c.wrong("the shape %s can't become %s" % (x.shape, tuple(shape)))
    return [_reshaped(c, x, tuple(shape))]


def _reshaped(c: Context, x: Tensor, shape) -> Tensor:
    return x if shape == x.shape else c.node("Reshape", [x, c.weight("shape", list(shape))], shape)


def _crop(c: Context) -> List[Tensor]:
    """The first bottom, cut to the shape of the second from an axis on."""
    c.bottoms(2)
    param, (x, like) = c.layer.crop_param, c.ins
    start = c.axis(x, param.axis)
    axes = list(range(start, len(x.shape)))
    offsets = [int(n) for n in param.offset] or [0]
    offsets = offsets * len(axes) if len(offsets) == 1 else offsets
    if len(like.shape) != len(x.shape) or len(offsets) != len(axes):
        raise c.wrong("it has %d offsets to cut %s to %s from axis %d on" % (len(offsets), x.shape, like.shape, start))
    ends = [o + like.shape[a] for o, a in zip(offsets, axes)]
    if any(end > x.shape[a] for end, a in zip(ends, axes)):
        raise c.wrong("%s can't be cut from %s at the offsets %s" % (like.shape[start:], x.shape, offsets))
    shape = x.shape[:start] + like.shape[start:]
    if shape == x.shape:
        return [x]
    inputs: List[Operand] = [x, c.weight("starts", offsets), c.weight("ends", ends), c.weight("axes", axes)]
    return [c.node("Slice", inputs, shape)]


RULES: Rules = {
    "Concat": _concat,
    "Crop": _crop,
    "Dropout": _same,
    "Flatten": _flatten,
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _same,
}
