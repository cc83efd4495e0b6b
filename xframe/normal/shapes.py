"""Rules of operators that move, cut or join data."""

from __future__ import annotations

from typing import Any

import numpy as np

from xframe.equivalence.graph import Node
from xframe.normal import constants
from xframe.normal.draft import Axes, Shape, composed, identity, inverse, moves_nothing, size
from xframe.normal.form import Weight
from xframe.normal.trace import Operand, Order, Rule, Trace, Value

Args = list[Any]


def given(node: Node, args: Args, index: int, name: str) -> list[int] | None:
    """A list of integers that newer operator sets take as an input, older ones as an attribute."""
    if len(args) > index and args[index] is not None:
        if not isinstance(args[index], Weight):
            raise node.refuse(f"its {name} depend on data: export the model with fixed shapes throughout")
        return constants.integers(args[index])
    values = node.attrs.get(name)
    return None if values is None else [int(v) for v in values]


def same(t: Trace, node: Node, args: Args) -> Operand:
    t.note(f"{node.op} dropped")
    return args[0]


def transpose(t: Trace, node: Node, args: Args) -> Operand:
    v = t.settled(args[0])
    move = tuple(node.attrs.get("perm") or identity(len(v.axes))[::-1])
    t.note("Transpose absorbed")
    return Value(v.name, composed(v.axes, move))


# Reshapes


def blocks(old: Shape, new: Shape) -> list[tuple[list[int], list[int]]]:
    """The finest cut of both shapes into runs of axes with equal products, in order. No extent is 0."""
    found: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) and j < len(new):
        a, b, start = old[i], new[j], (i, j)
        i, j = i + 1, j + 1
        while a != b:
            if a < b:
                a, i = a * old[i], i + 1
            else:
                b, j = b * new[j], j + 1
        found.append((list(range(start[0], i)), list(range(start[1], j))))
    rest = list(range(i, len(old))), list(range(j, len(new)))  # ones
    if not found:
        return [rest]
    found[-1] = (found[-1][0] + rest[0], found[-1][1] + rest[1])
    return found


def reshaped(t: Trace, v: Operand, shape: Shape) -> Operand:
    """``v`` in another shape of the same size.

    Under a pending transpose, axes that are split or merged where they lie together in the draft too stay there. An
    image in another order that becomes a row is a row in that order. For others the draft is transposed.
    """
    if isinstance(v, Weight):
        return constants.changed(v, v.array.reshape(shape))
    old = t.shape(v)
    if old == shape:
        t.note(f"{t.node.op} dropped")
        return v
    v = t.settled(v)
    mine = t.draft.shapes[v.name]
    if 0 in old or moves_nothing(v.axes, mine):
        return Value(t.reshape(v.name, shape, final=True), identity(len(shape)))
    cut = blocks(old, shape)
    if not all(_together(v.axes, mine, olds) for olds, _ in cut):
        if len(shape) == 2 and v.axes[0] == 0 and shape[0] == old[0]:
            row = Order(mine[1:], tuple(a - 1 for a in v.axes[1:]))
            return Value(t.reshape(v.name, shape, final=True), (0, 1), row)
        move = tuple(v.axes[i] for olds, _ in _by_place(v.axes, mine, cut) for i in olds)
        v = Value(t.aligned(v, _under(v.axes, move)), _under(v.axes, move))
        mine = t.draft.shapes[v.name]
    order = [new for _, news in _by_place(v.axes, mine, cut) for new in news]
    name = t.reshape(v.name, tuple(shape[i] for i in order), final=True)
    return Value(name, inverse(tuple(order)))


def _under(axes: Axes, move: Axes) -> Axes:
    """What is pending on a draft's tensor once it was transposed by ``move``."""
    return composed(inverse(move), axes)


def _together(axes: Axes, mine: Shape, olds: list[int]) -> bool:
    wide = [axes[i] for i in olds if mine[axes[i]] != 1]
    between = [a for a in range(min(wide, default=0), max(wide, default=-1) + 1) if mine[a] != 1]
    return wide == between


def _by_place(axes: Axes, mine: Shape, cut: list) -> list:
    """Blocks in the order in which their first wide axis comes in the draft."""

    def place(block: tuple[list[int], list[int]]) -> int:
        wide = [axes[i] for i in block[0] if mine[axes[i]] != 1]
        return min(wide or [axes[i] for i in block[0]], default=len(axes))

    return sorted(cut, key=place)


def reshape(t: Trace, node: Node, args: Args) -> Operand:
    old, wanted = t.shape(args[0]), given(node, args, 1, "shape") or []
    if not node.attrs.get("allowzero", 0):
        wanted = [old[i] if n == 0 and i < len(old) else n for i, n in enumerate(wanted)]
    if -1 in wanted:
        known = -int(np.prod(wanted, dtype=np.int64))
        wanted = [size(old) // known if n == -1 and known > 0 else n for n in wanted]
    if size(tuple(wanted)) != size(old):
        raise node.refuse(f"a tensor of {old} can't have the shape {tuple(wanted)}")
    return reshaped(t, args[0], tuple(wanted))


def flatten(t: Trace, node: Node, args: Args) -> Operand:
    old = t.shape(args[0])
    axis = node.attrs.get("axis", 1)
    axis += len(old) if axis < 0 else 0
    return reshaped(t, args[0], (size(old[:axis]), size(old[axis:])))


def squeeze(t: Trace, node: Node, args: Args) -> Operand:
    old, axes = t.shape(args[0]), given(node, args, 1, "axes")
    gone = [i for i, n in enumerate(old) if n == 1] if axes is None else [a % len(old) for a in axes]
    return reshaped(t, args[0], tuple(n for i, n in enumerate(old) if i not in gone))


def unsqueeze(t: Trace, node: Node, args: Args) -> Operand:
    shape, axes = list(t.shape(args[0])), given(node, args, 1, "axes") or []
    for a in sorted(a % (len(shape) + len(axes)) for a in axes):
        shape.insert(a, 1)
    return reshaped(t, args[0], tuple(shape))


# Cuts and joins


def cut(t: Trace, v: Operand, axes: list[int], starts: list[int], ends: list[int], steps: list[int], output: int = 0):
    """``v[..., start:end:step, ...]`` as a Slice along the draft's axes; all numbers as Python has them, in range."""
    v = t.settled(v)  # type: ignore[arg-type]
    old = t.shape(v)
    kept = [(v.axes[a], *c) for a, *c in zip(axes, starts, ends, steps, strict=True) if tuple(c) != (0, old[a], 1)]
    if not kept:
        t.note(f"{t.node.op} dropped")
        return v
    shape = list(t.draft.shapes[v.name])
    for a, start, end, step in kept:
        shape[a] = len(range(start, end, step))
    columns = list(zip(*sorted(kept), strict=True))
    attrs = dict(zip(("axes", "starts", "ends", "steps"), columns, strict=True))
    # An end before the first element is written as one that no shape reaches.
    attrs["ends"] = tuple(e if e >= 0 else -(1 << 31) for e in attrs["ends"])
    return t.emit("Slice", [v.name], attrs, tuple(shape), v.axes, output=output)


def slice_(t: Trace, node: Node, args: Args) -> Operand:
    shape = t.shape(args[0])
    starts, ends = given(node, args, 1, "starts") or [], given(node, args, 2, "ends") or []
    axes = given(node, args, 3, "axes") or list(range(len(starts)))
    steps = given(node, args, 4, "steps") or [1] * len(starts)
    axes = [a % len(shape) for a in axes]
    ranges = [
        slice(s, None if step < 0 and e < -shape[a] else e, step).indices(shape[a])
        for a, s, e, step in zip(axes, starts, ends, steps, strict=True)
    ]
    return cut(t, args[0], axes, *map(list, zip(*ranges, strict=True)))  # type: ignore[arg-type]


def split(t: Trace, node: Node, args: Args) -> list[Operand]:
    """One Slice for each part, as others write it."""
    axis = node.attrs.get("axis", 0) % len(t.shape(args[0]))
    length, count = t.shape(args[0])[axis], len(node.outputs)
    each = -(-length // count)
    parts = given(node, args, 1, "split") or [min(each, length - i * each) for i in range(count)]
    ends = np.cumsum(parts).tolist()
    if ends[-1] != length or min(parts) < 0:
        raise node.refuse(f"parts of {parts} do not make an axis of {length}")
    return [
        cut(t, args[0], [axis], [end - n], [end], [1], i) for i, (n, end) in enumerate(zip(parts, ends, strict=True))
    ]


def concat(t: Trace, node: Node, args: Args) -> Operand:
    if len(args) == 1:
        return same(t, node, args)
    values = [t.settled(a) if isinstance(a, Value) else a for a in args]
    shapes = [t.shape(v) for v in values]
    axis = node.attrs["axis"] % len(shapes[0])
    values = [v for v, s in zip(values, shapes, strict=True) if s[axis]]
    axes = common(values)
    names = [t.aligned(v, axes) for v in values]
    shape = [t.draft.shapes[names[0]][i] for i in range(len(axes))]
    shape[axes[axis]] = sum(s[axis] for s in shapes)
    return t.emit("Concat", names, {"axis": axes[axis]}, tuple(shape), axes)


def common(values: list[Any]) -> Axes:
    """The pending transpose that tensors of one rank are brought to: that of the first."""
    return next(v.axes for v in values if isinstance(v, Value))


def pad(t: Trace, node: Node, args: Args) -> Operand:
    v = t.settled(args[0])
    shape = t.shape(v)
    pads = given(node, args, 1, "pads") or []
    axes = [a % len(shape) for a in given(node, args, 3, "axes") or range(len(shape))]
    fill = args[2] if len(args) > 2 else None
    if fill is not None and not isinstance(fill, Weight):
        return t.other(args)[0]
    value = float(node.attrs.get("value", 0.0) if fill is None else fill.array.reshape(()))
    mode = node.attrs.get("mode", "constant")
    if not any(pads):
        return same(t, node, args)
    rank = len(shape)
    widths = [0] * (2 * rank)
    for i, a in enumerate(axes):
        widths[v.axes[a]], widths[rank + v.axes[a]] = pads[i], pads[len(axes) + i]
    grown = tuple(n + widths[i] + widths[rank + i] for i, n in enumerate(t.draft.shapes[v.name]))
    attrs = {"pads": tuple(widths), "mode": mode} | ({"value": value} if mode == "constant" else {})
    return t.emit("Pad", [v.name], attrs, grown, v.axes)


def gather(t: Trace, node: Node, args: Args) -> Operand:
    """Constant indices of consecutive elements are a Slice; a single index is one, squeezed."""
    v, index = args
    if isinstance(v, Weight) or not isinstance(index, Weight) or index.array.ndim > 1 or not index.array.size:
        return t.other(args)[0]
    shape = t.shape(v)
    axis = node.attrs.get("axis", 0) % len(shape)
    at = [int(i) % shape[axis] for i in np.ravel(index.array)]
    if at != list(range(at[0], at[0] + len(at))):
        return t.other(args)[0]
    if index.array.ndim:
        return cut(t, v, [axis], [at[0]], [at[0] + len(at)], [1])
    if shape[axis] == 1:
        part = v
    else:
        v = t.settled(v)
        part = _inner_slice(t, v, axis, at[0])
    return reshaped(t, part, shape[:axis] + shape[axis + 1 :])


def _inner_slice(t: Trace, v: Value, axis: int, at: int) -> Value:
    shape = list(t.draft.shapes[v.name])
    shape[v.axes[axis]] = 1
    attrs = {"axes": (v.axes[axis],), "starts": (at,), "ends": (at + 1,), "steps": (1,)}
    return t.emit("Slice", [v.name], attrs, tuple(shape), v.axes, final=False)


def expand(t: Trace, node: Node, args: Args) -> Operand:
    wanted = given(node, args, 1, "shape") or []
    shape = np.broadcast_shapes(t.shape(args[0]), tuple(wanted))
    if shape == t.shape(args[0]):
        return same(t, node, args)
    target = Weight(np.array(shape, np.int64))
    return t.emit("Expand", [t.plain(args[0]), target], {}, shape)


def shape_of(t: Trace, node: Node, args: Args) -> Operand:
    shape = t.shape(args[0])
    if node.op == "Size":
        return Weight(np.array(size(shape), np.int64))
    return Weight(np.array(shape[node.attrs.get("start", 0) : node.attrs.get("end")], np.int64))


RULES: dict[str, Rule] = {
    "Identity": same,
    "Transpose": transpose,
    "Reshape": reshape,
    "Flatten": flatten,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Slice": slice_,
    "Split": split,
    "Concat": concat,
    "Pad": pad,
    "Gather": gather,
    "Expand": expand,
    "Shape": shape_of,
    "Size": shape_of,
}
