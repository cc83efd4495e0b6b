"""ONNX operators that move, cut or join data, images channels-last: what need not move does not."""

import math

import numpy as np
from tvm import relax

from xframe.errors import Unsupported
from xframe.lowering.graph import TO_NCHW, TO_NHWC, Handler, Value
from xframe.lowering.windows import channels_stage

AXIS = (0, 3, 1, 2)  # where an axis of NCHW is in NHWC


def concat(g, node, inputs, attrs):
    values = [g.value(x) for x in inputs]
    axis = attrs["axis"] % len(values[0].shape)
    if any(v.nhwc for v in values) and axis == 1:
        first, *others = map(g.nhwc, values)
        n, _, h, w = values[0].shape
        stage = channels_stage((n, h, w), [v.shape[1] for v in values], g.cpu)
        return [Value(g.stages(first, [stage], "concat", more=others), nhwc=True)]
    if any(v.nhwc for v in values):
        return [Value(g.emit(relax.op.concat([g.nhwc(v) for v in values], axis=AXIS[axis])), nhwc=True)]
    return [Value(g.emit(relax.op.concat([g.plain(v) for v in values], axis=axis)))]


def transpose(g, node, inputs, attrs):
    x = inputs[0]
    axes = tuple(attrs.get("perm", range(len(x.shape))[::-1]))
    if axes == TO_NHWC and x.nhwc:  # it already lies there as the graph now wants it
        return [Value(x.expr)]
    if axes == TO_NCHW and not x.nhwc and len(x.shape) == 4:
        return [Value(x.expr, nhwc=True)]
    return [Value(g.turn(g.plain(x), axes))]


def reshaped(g, x: Value, shape) -> list[Value]:
    shape = tuple(int(d) for d in shape)
    n = x.shape[0]
    if x.nhwc and shape == (n, math.prod(x.shape[1:])):
        _, c, h, w = x.shape
        return [Value(g.reshape(x.expr, shape), flat=(c, h, w))]
    return [Value(g.reshape(g.plain(x), shape))]


def reshape(g, node, inputs, attrs):
    x = inputs[0]
    wanted = [int(d) for d in (inputs[1] if len(inputs) > 1 else attrs["shape"])]
    shape = [x.shape[i] if d == 0 and not attrs.get("allowzero", 0) else d for i, d in enumerate(wanted)]
    if -1 in shape:
        known = math.prod(d for d in shape if d != -1)
        shape[shape.index(-1)] = math.prod(x.shape) // known
    return reshaped(g, x, shape)


def flatten(g, node, inputs, attrs):
    x = inputs[0]
    axis = attrs.get("axis", 1)
    axis += len(x.shape) if axis < 0 else 0
    return reshaped(g, x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def axes_of(inputs, attrs, position, rank):
    given = inputs[position] if len(inputs) > position and inputs[position] is not None else attrs.get("axes")
    return None if given is None else sorted(int(a) % rank for a in given)


def squeeze(g, node, inputs, attrs):
    x = inputs[0]
    axes = axes_of(inputs, attrs, 1, len(x.shape))
    return reshaped(g, x, [d for i, d in enumerate(x.shape) if (i not in axes if axes is not None else d != 1)])


def unsqueeze(g, node, inputs, attrs):
    x = inputs[0]
    given = inputs[1] if len(inputs) > 1 else attrs["axes"]
    shape = list(x.shape)
    for a in sorted(int(a) % (len(x.shape) + len(given)) for a in given):
        shape.insert(a, 1)
    return reshaped(g, x, shape)


def pad(g, node, inputs, attrs):
    x = inputs[0]
    pads = inputs[1] if len(inputs) > 1 else np.array(attrs["pads"])
    value = inputs[2] if len(inputs) > 2 and inputs[2] is not None else attrs.get("value", 0.0)
    if attrs.get("mode", b"constant") != b"constant" or len(inputs) > 3 or not isinstance(pads, np.ndarray):
        raise Unsupported(f"Pad {node.name!r}: only constant padding by constant amounts, over all axes")
    if (pads < 0).any():
        raise Unsupported(f"Pad {node.name!r}: negative padding")
    rank = len(x.shape)
    order = TO_NHWC if x.nhwc else range(rank)
    widths = [int(p) for a in order for p in (pads[a], pads[a + rank])]
    expr = x.expr if x.nhwc else g.plain(x)
    return [Value(g.emit(relax.op.nn.pad(expr, widths, "constant", float(value))), x.nhwc)]


def split(g, node, inputs, attrs):
    x = inputs[0]
    axis = attrs.get("axis", 0) % len(x.shape)
    sizes = inputs[1] if len(inputs) > 1 and inputs[1] is not None else attrs.get("split")
    if sizes is None:
        count = len(node.output)
        step = -(-x.shape[axis] // count)
        sizes = [min(step, x.shape[axis] - i * step) for i in range(count)]
    at = [int(i) for i in np.cumsum(sizes)[:-1]]
    held = AXIS[axis] if x.nhwc else axis
    parts = g.emit(relax.op.split(x.expr if x.nhwc else g.plain(x), at, held))
    return [Value(g.emit(relax.TupleGetItem(parts, i)), x.nhwc) for i in range(len(sizes))]


def slice_(g, node, inputs, attrs):
    x = inputs[0]
    if len(inputs) > 1:
        starts, ends, axes, steps = [*inputs[1:], None, None][:4]
    else:
        starts, ends, axes, steps = attrs["starts"], attrs["ends"], attrs.get("axes"), None
    axes = range(len(starts)) if axes is None else [int(a) % len(x.shape) for a in axes]
    steps = [1] * len(starts) if steps is None else [int(s) for s in steps]
    if any(s < 1 for s in steps):
        raise Unsupported(f"Slice {node.name!r}: backwards")
    bounds = [slice(int(a), int(b)).indices(x.shape[i]) for a, b, i in zip(starts, ends, axes, strict=True)]
    if any(b[0] >= b[1] for b in bounds):
        raise Unsupported(f"Slice {node.name!r}: nothing is left")
    held = [AXIS[a] if x.nhwc else a for a in axes]
    y = relax.op.strided_slice(
        x.expr if x.nhwc else g.plain(x), held, [b[0] for b in bounds], [b[1] for b in bounds], steps
    )
    return [Value(g.emit(y), x.nhwc)]


OPERATORS: dict[str, Handler] = {
    "Concat": concat,
    "Transpose": transpose,
    "Reshape": reshape,
    "Flatten": flatten,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Pad": pad,
    "Split": split,
    "Slice": slice_,
}
