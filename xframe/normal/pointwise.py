"""Rules of operators that work element by element, and of reductions and softmax over named axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from xframe.equivalence.graph import Node
from xframe.normal import constants
from xframe.normal.draft import Axes, Shape, identity, size
from xframe.normal.form import Weight
from xframe.normal.shapes import common, given, reshaped, same
from xframe.normal.trace import Operand, Order, Rule, Trace, Value

Args = list[Any]


def unary(t: Trace, node: Node, args: Args) -> Operand:
    v = args[0]
    return t.emit(node.op, [v.name], node.attrs, t.draft.shapes[v.name], v.axes, order=v.order)


# Several operands


def together(t: Trace, args: Args) -> tuple[list[str | Weight], Axes, Order | None, Shape]:
    """Operands in one order of axes: their names, that order, and the draft's shape of the broadcast result.

    Operands of fewer axes than the result get leading ones, constants of one element have none.
    """
    shapes = [t.shape(a) for a in args]
    try:
        result = np.broadcast_shapes(*shapes)
    except ValueError:
        raise t.node.refuse(f"shapes {', '.join(map(str, shapes))} do not fit each other") from None
    rank = len(result)
    orders = {a.order for a, s in zip(args, shapes, strict=True) if isinstance(a, Value) and (a.order or s == result)}
    order = orders.pop() if len(orders) == 1 else None
    if order is None:
        args = [t.settled(a) if isinstance(a, Value) else a for a in args]
    full = [a for a, s in zip(args, shapes, strict=True) if isinstance(a, Value) and len(s) == rank]
    axes = common(full) if full else identity(rank)
    shape = [0] * rank
    for i, a in enumerate(axes):
        shape[a] = result[i]
    names = [_operand(t, a, s, result, axes, order) for a, s in zip(args, shapes, strict=True)]
    return names, axes, order, tuple(shape)


def _operand(t: Trace, a: Any, shape: Shape, result: Shape, axes: Axes, order: Order | None) -> str | Weight:
    rank = len(result)
    if isinstance(a, Weight):
        if size(shape) == 1:
            return constants.changed(a, a.array.reshape(()))
        array = a.array.reshape((1,) * (rank - len(shape)) + shape)
        thin = [s == 0 and n > 1 for s, n in zip(array.strides, array.shape, strict=True)]
        array = array[tuple(slice(0, 1 if one else None) for one in thin)]
        if order is not None and array.shape[-1] != 1:
            a, array = constants.changed(a, array, order.words), order.canonical(array, -1)
        return constants.transposed(constants.changed(a, array), axes if axes == identity(rank) else _back(axes))
    if order is not None and a.order is not None:
        return a.name
    if len(shape) < rank:
        name = t.reshape(t.plain(a), (1,) * (rank - len(shape)) + shape)
        return t.aligned(Value(name, identity(rank)), axes)
    return t.aligned(a, axes)


def _back(axes: Axes) -> Axes:
    return tuple(axes.index(i) for i in range(len(axes)))


def elementwise(t: Trace, node: Node, args: Args) -> Operand:
    names, axes, order, shape = together(t, args)
    dtype = np.dtype(np.bool_) if node.op in COMPARISONS else None
    if node.op == "Where":
        dtype = t.dtype(args[1])
    elif node.op == "PRelu" and isinstance(names[1], Weight) and names[1].array.ndim == 0:
        slope = float(names[1].array)
        return t.emit("LeakyRelu", [names[0]], {"alpha": slope}, shape, axes, order=order)
    return t.emit(node.op, names, node.attrs, shape, axes, order=order, dtype=dtype)


def commutative(t: Trace, node: Node, args: Args) -> Operand:
    """``Add`` and ``Mul``, a constant second; dropped where the constant changes nothing."""
    if isinstance(args[0], Weight):
        args = args[::-1]
    neutral = {"Add": 0.0, "Mul": 1.0}[node.op]
    if _neutral(t, args, neutral):
        return same(t, node, args)
    return elementwise(t, replace(node, attrs={}), args)


def _neutral(t: Trace, args: Args, value: float) -> bool:
    """Whether the second operand is a constant that is ``value`` throughout, and enlarges nothing."""
    v, c = args
    if not isinstance(c, Weight) or not isinstance(v, Value):
        return False
    fits = np.broadcast_shapes(t.shape(v), t.shape(c)) == t.shape(v)
    return fits and c.array.size <= 1 << 16 and bool((c.array == value).all())


def subtract(t: Trace, node: Node, args: Args) -> Operand:
    if not isinstance(args[1], Weight) or args[1].array.dtype.kind != "f":
        return elementwise(t, node, args)
    minus = constants.changed(args[1], -args[1].array, "negated")
    return commutative(t, replace(node, op="Add"), [args[0], minus])


def power(t: Trace, node: Node, args: Args) -> Operand:
    """A square is a product with itself."""
    x, p = args
    if isinstance(x, Value) and isinstance(p, Weight) and p.array.shape in ((), (1,)) and (p.array == 2).all():
        return elementwise(t, replace(node, op="Mul", attrs={}), [x, x])
    return elementwise(t, node, args)


def divide(t: Trace, node: Node, args: Args) -> Operand:
    """By a constant of powers of two: a product with their inverses, exactly. One by something: its reciprocal."""
    one, c = args
    if isinstance(one, Weight) and one.array.shape == () and one.array == 1 and t.dtype(c).kind == "f":
        return unary(t, replace(node, op="Reciprocal", attrs={}), [c])
    if isinstance(args[0], Value) and isinstance(c, Weight) and c.array.dtype.kind == "f" and c.array.size:
        exact = np.abs(np.frexp(c.array)[0]) == 0.5
        if exact.all() and np.isfinite(c.array).all():
            inverse = (1 / c.array).astype(c.array.dtype)
            how = () if (c.array == 1).all() else ("inverted",)
            return commutative(t, replace(node, op="Mul"), [args[0], constants.changed(c, inverse, *how)])
    return elementwise(t, replace(node, attrs={}), args)


def add_all(t: Trace, node: Node, args: Args) -> Operand:
    """``Sum``: one ``Add`` after another."""
    total = args[0]
    for i, a in enumerate(args[1:]):
        if i == len(args) - 2:
            return commutative(t, replace(node, op="Add", attrs={}), [total, a])
        names, axes, order, shape = together(t, [total, a])
        total = t.emit("Add", names, {}, shape, axes, order=order, final=False)
    return same(t, node, args)


def extreme(t: Trace, node: Node, args: Args) -> Operand:
    """``Max`` and ``Min`` with a number are limits."""
    if len(args) == 1:
        return same(t, node, args)
    if len(args) == 2 and isinstance(args[0], Weight):
        args = args[::-1]
    v, c = args[0], args[1]
    number = isinstance(c, Weight) and c.array.size == 1 and len(c.array.shape) <= len(t.shape(v))
    if len(args) == 2 and number and t.dtype(v).kind == "f":
        return limited(t, v, **{"low" if node.op == "Max" else "high": float(c.array.reshape(()))})
    return elementwise(t, replace(node, attrs={}), args)


def limited(t: Trace, v: Value, low: float = -np.inf, high: float = np.inf) -> Operand:
    if low == -np.inf and high == np.inf:
        return same(t, t.node, [v])
    op, attrs = ("Relu", {}) if (low, high) == (0, np.inf) else ("Clip", {"min": low, "max": high})
    return t.emit(op, [v.name], attrs, t.draft.shapes[v.name], v.axes, order=v.order)


#: What ``Clip`` had for its limits while they were attributes: the ends of float32.
LOWEST, HIGHEST = float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)


def clip(t: Trace, node: Node, args: Args) -> Operand:
    limits = []
    for i, name, default, end in ((1, "min", -np.inf, LOWEST), (2, "max", np.inf, HIGHEST)):
        v = args[i] if len(args) > i else None
        if v is not None and not isinstance(v, Weight):
            return t.other(args)[0]
        limit = node.attrs.get(name, default) if v is None else float(v.array.reshape(()))
        limits.append(default if limit == end else float(limit))
    return limited(t, args[0], *limits)


def cast(t: Trace, node: Node, args: Args) -> Operand:
    """Wider floats hold the same numbers. A cast to narrow ones rounds, and stays; what follows counts as exact."""
    v, to = args[0], np.dtype(onnx.helper.tensor_dtype_to_np_dtype(node.attrs["to"]))
    floats = to.kind not in "iub" and t.dtype(v).kind not in "iub"
    if to == t.dtype(v) or (floats and to.itemsize >= 4):
        return same(t, node, args)
    dtype = to if to.kind in "iub" else np.float32
    if to.kind not in "iub" and to.itemsize < 4:
        t.note(f"what the model computes in {to.name} is taken as exact")
    return t.emit("Cast", [v.name], node.attrs, t.draft.shapes[v.name], v.axes, dtype=dtype, order=v.order)


def dropout(t: Trace, node: Node, args: Args) -> Operand | Sequence[Operand]:
    """Dropped at inference; one that was left in training mode stays, for the check to name."""
    mode = args[2] if len(args) > 2 else None
    if mode is None or (isinstance(mode, Weight) and not mode.array.any()):
        return [same(t, node, args), Weight(np.broadcast_to(np.True_, t.shape(args[0])))][: len(node.outputs)]
    shape = t.shape(args[0])
    ratio = Weight(np.array(0.5, np.float32)) if args[1] is None else t.plain(args[1])
    kept = t.emit("Dropout", [t.plain(args[0]), ratio, t.plain(mode)], node.attrs, shape)
    return [kept, kept][: len(node.outputs)]


# Over axes


def softmax(t: Trace, node: Node, args: Args) -> Operand:
    """Over one axis. Before opset 13 all axes from ``axis`` on were one: the same where only one of them is wide."""
    v = args[0]
    shape = t.shape(v)
    axis = node.attrs.get("axis", -1 if node.opset >= 13 else 1) % max(len(shape), 1)
    if node.opset < 13:
        wide = [i for i in range(axis, len(shape)) if shape[i] != 1]
        if len(wide) > 1:
            flat = t.reshape(t.plain(v), (size(shape[:axis]), size(shape[axis:])))
            made = t.emit(node.op, [flat], {"axis": 1}, t.draft.shapes[flat], final=False)
            return Value(t.reshape(made.name, shape, final=True), identity(len(shape)))
        axis = wide[0] if wide else axis
    if v.order is not None and axis == 0:
        v = t.settled(v)
    return t.emit(node.op, [v.name], {"axis": v.axes[axis]}, t.draft.shapes[v.name], v.axes, order=v.order)


GLOBAL = {"ReduceMean": "GlobalAveragePool", "ReduceMax": "GlobalMaxPool"}


def reduce(t: Trace, node: Node, args: Args) -> Operand:
    """The axes are kept, as extents of one, and removed afterwards; over all of an image it is a global pooling."""
    v = t.settled(args[0])
    shape = t.shape(v)
    axes = given(node, args, 1, "axes")
    if not axes and node.attrs.get("noop_with_empty_axes", 0):
        return same(t, node, args)
    over = tuple(sorted(v.axes[a % len(shape)] for a in axes or range(len(shape))))
    mine = t.draft.shapes[v.name]
    made = tuple(1 if i in over else n for i, n in enumerate(mine))
    keep = bool(node.attrs.get("keepdims", 1))
    if size(mine) == size(made) and node.op in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"):
        kept: Operand = v
    elif node.op in GLOBAL and len(mine) > 2 and over == tuple(range(2, len(mine))):
        kept = t.emit(GLOBAL[node.op], [v.name], {}, made, v.axes, final=keep)
    else:
        kept = t.emit(node.op, [v.name], {"axes": over, "keepdims": 1}, made, v.axes, final=keep)
    if keep:
        return kept
    return reshaped(t, kept, tuple(n for i, n in enumerate(shape) if v.axes[i] not in over))


COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Xor")
UNARY = (
    "Abs", "Ceil", "Celu", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log",
    "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign",
    "Sqrt", "Tanh", "ThresholdedRelu",
)  # fmt: skip

RULES: dict[str, Rule] = {
    **dict.fromkeys(UNARY, unary),
    **dict.fromkeys(("Mean", "Mod", "PRelu", "Where", *COMPARISONS), elementwise),
    **dict.fromkeys(("Add", "Mul"), commutative),
    **dict.fromkeys(("Max", "Min"), extreme),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), softmax),
    **{f"Reduce{what}": reduce for what in ("Mean", "Sum", "Max", "Min", "Prod", "L1", "L2", "SumSquare")},
    "Sub": subtract,
    "Pow": power,
    "Div": divide,
    "Sum": add_all,
    "Clip": clip,
    "Cast": cast,
    "Dropout": dropout,
}
