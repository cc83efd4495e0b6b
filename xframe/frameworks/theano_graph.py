"""From a Theano expression to a neutral graph: a walk over its nodes as they were written, before any optimisation.

What depends on shapes and constants alone is computed on the way. Nothing of Theano is compiled.
"""

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
import theano
from theano.compile import SharedVariable
from theano.gof import Constant
from theano.gof.graph import io_toposort
from theano.scalar import Scalar
from theano.tensor.subtensor import get_idx_list

from xframe import neutral
from xframe.errors import Unsupported
from xframe.frameworks import theano_merges, theano_windows
from xframe.frameworks.theano_draft import Draft, Known, Shape, Value
from xframe.frameworks.theano_elemwise import elemwise

#: Operators that hand on their first input as it is.
_THROUGH = ("Rebroadcast", "SpecifyShape", "Assert", "ViewOp", "DeepCopyOp", "ConsiderConstant", "DisconnectedGrad",
            "ZeroGrad", "GradClip", "OutputGuard")  # fmt: skip


def graph(name: str, inputs: Sequence[Tuple[str, Any, Shape]], outputs: Sequence[Tuple[str, Any]]) -> neutral.Graph:
    """The graph of an expression.

    Parameters
    ----------
    inputs
        Name, variable and shape of each input.
    outputs
        Name and variable of each output.

    Returns
    -------
    neutral.Graph
        Shared variables and constants are its weights, called as they are; products hold their bias, and ReLU and LRN,
        which Theano writes in parts, are one node each.

    Raises
    ------
    Unsupported
        An operator without a form in ONNX that is known here, by name; values that are not float32.
    """
    walk = _Walk()
    for title, variable, shape in inputs:
        walk.values[variable] = walk.draft.input(title, shape)
    for node in io_toposort([variable for _, variable, _ in inputs], [variable for _, variable in outputs]):
        walk.convert(node)
    found = {title: walk.value(variable) for title, variable in outputs}
    theano_merges.merge(walk.draft, list(found.values()))
    return walk.draft.finish(name, found)


class _Walk:
    def __init__(self) -> None:
        self.draft = Draft()
        self.values: Dict[Any, Value] = {}

    def value(self, variable: Any) -> Value:
        """What is known of a variable: what was made of it, a constant's array, a shared variable's value."""
        if variable not in self.values:
            if isinstance(variable, Constant) and np.asarray(variable.data).dtype != object:
                self.values[variable] = Known(variable.data, variable.name or "constant")
            elif isinstance(variable, SharedVariable):
                self.values[variable] = Known(variable.get_value(borrow=True), variable.name or "constant")
            elif variable.owner is None:
                raise Unsupported(f"{variable} is none of the inputs that the expression is exported with: name it")
            else:
                raise Unsupported(f"only the first output of Theano's operator {variable.owner.op} can be exported")
        return self.values[variable]

    def convert(self, node: Any) -> None:
        kind = type(node.op).__name__
        args = [self.value(v) for v in node.inputs if not isinstance(v.type, theano.gof.type.Generic)]
        if kind in SHAPES:
            made = SHAPES[kind](self, node, args)
        elif kind != "AbstractConv2d" and all(isinstance(x, Known) for x in args):  # which has no working Python code
            self._compute(node, args)
            return
        elif kind in _THROUGH:
            made = args[0]
        elif kind in OPERATORS:
            dtype = getattr(node.outputs[0], "dtype", "")
            if dtype not in ("float32", "bool"):
                raise Unsupported(f"{node.op} gives {dtype}: only float32 expressions can be exported")
            made = OPERATORS[kind](self, node, args)
        else:
            raise Unsupported(f"Theano's operator {node.op} has no ONNX form here: write it with others")
        if node.outputs[0].name and self.draft.nodes and self.draft.nodes[-1].output is made:
            self.draft.nodes[-1].name = node.outputs[0].name
        self.values[node.outputs[0]] = made

    def _compute(self, node: Any, args: Sequence[Value]) -> None:
        """Run a node on arrays that are known, in Python."""
        storage: Dict[Any, List[Any]] = {}
        for variable, value in zip(node.inputs, args):
            assert isinstance(value, Known)
            storage[variable] = [value.array[()] if isinstance(variable.type, Scalar) else value.array]
        storage.update((out, [None]) for out in node.outputs)
        done = {variable: [variable not in node.outputs] for variable in storage}
        node.op.make_thunk(node, storage, done, no_recycling=[], impl="py")()
        names = [x.name for x in args if isinstance(x, Known) and x.name != "constant"]
        for out in node.outputs:
            self.values[out] = Known(storage[out][0], names[0] if names else "constant")

    def numbers(self, values: Sequence[Value]) -> List[int]:
        """Integers that must be known. Raises Unsupported where they depend on data."""
        if not all(isinstance(x, Known) for x in values):
            raise Unsupported("the expression has shapes or indices that depend on data: fix them to export it")
        return [int(n) for x in values if isinstance(x, Known) for n in np.ravel(x.array)]

    def ints(self, name: str, values: Sequence[int]) -> Known:
        return Known(np.array(values, np.int64), name)


# What is known once shapes are


def _shape(walk: _Walk, node: Any, args: Sequence[Value]) -> Value:
    return Known(np.array(args[0].shape, np.int64))


def _shape_of_axis(walk: _Walk, node: Any, args: Sequence[Value]) -> Value:
    return Known(np.array(args[0].shape[node.op.i], np.int64))


def _alloc(walk: _Walk, node: Any, args: Sequence[Value]) -> Value:
    shape = walk.numbers(args[1:])
    if isinstance(args[0], Known):
        return Known(np.broadcast_to(args[0].array, shape), args[0].name)
    return walk.draft.add("Expand", [args[0], walk.ints("shape", shape)], shape)


# Operators on data


def _dimshuffle(walk: _Walk, node: Any, args: Sequence[Value]) -> Value:
    (x,), order = args, node.op.new_order
    kept = [axis for axis in order if axis != "x"]
    perm = kept + [axis for axis in range(len(x.shape)) if axis not in kept]  # those that are dropped have one element
    if perm != sorted(perm):
        x = walk.draft.add("Transpose", [x], [x.shape[axis] for axis in perm], perm=perm)
    sizes = iter(x.shape)
    return _reshaped(walk, x, [1 if axis == "x" else next(sizes) for axis in order])


def _reshape(walk: _Walk, node: Any, args: Sequence[Value]) -> Value:
    size, shape = int(np.prod(args[0].shape)), walk.numbers(args[1:])
    known = int(np.prod([n for n in shape if n >= 0]))
    return _reshaped(walk, args[0], [size // known if n < 0 else n for n in shape])


def _flatten(walk: _Walk, node: Any, args: Sequence[Value]) -> Value:
    (x,), rank = args, node.op.outdim
    return _reshaped(walk, x, [*x.shape[: rank - 1], int(np.prod(x.shape[rank - 1 :]))])


def _reshaped(walk: _Walk, x: Value, shape: Sequence[int]) -> Value:
    if tuple(shape) == x.shape:
        return x
    if len(shape) == 2 and len(x.shape) > 2 and shape[0] == x.shape[0]:
        return walk.draft.add("Flatten", [x], shape, axis=1)
    return walk.draft.add("Reshape", [x, walk.ints("shape", shape)], shape)


def _dot(walk: _Walk, node: Any, args: Sequence[Value]) -> Value:
    a, b = args
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise Unsupported("Theano's dot of other than two matrices can't be exported: reshape what it reads")
    return walk.draft.add("MatMul", [a, b], (a.shape[0], b.shape[1]))


def _softmax(walk: _Walk, node: Any, args: Sequence[Value]) -> Value:
    return walk.draft.add(type(node.op).__name__, args, args[0].shape, axis=len(args[0].shape) - 1)


def _join(walk: _Walk, node: Any, args: Sequence[Value]) -> Value:
    (axis,), parts = walk.numbers(args[:1]), [x.floats() if isinstance(x, Known) else x for x in args[1:]]
    axis %= len(parts[0].shape)
    shape = list(parts[0].shape)
    shape[axis] = sum(x.shape[axis] for x in parts)
    return walk.draft.add("Concat", parts, shape, axis=axis)


def _indices(walk: _Walk, node: Any, first: int) -> List[Any]:
    """The indices of a subtensor as Python's: integers and slices. ``first``: the number of its inputs before them."""

    def number(entry: Any) -> Optional[int]:
        return walk.numbers([walk.value(entry)])[0] if isinstance(entry, theano.Variable) else entry

    entries = get_idx_list((None, *node.inputs[first:]), node.op.idx_list)
    return [slice(*map(number, (e.start, e.stop, e.step))) if isinstance(e, slice) else number(e) for e in entries]


def _subtensor(walk: _Walk, node: Any, args: Sequence[Value]) -> Value:
    x, found = args[0], _indices(walk, node, 1)
    ranges: List[Tuple[int, range]] = []
    shape: List[int] = []
    for axis, n in enumerate(x.shape):
        entry = found[axis] if axis < len(found) else slice(None)
        if not isinstance(entry, slice):
            entry %= n
        taken = range(n)[entry] if isinstance(entry, slice) else range(entry, entry + 1)
        if taken != range(n):
            ranges.append((axis, taken))
        shape += [len(taken)] if isinstance(entry, slice) else []
    if any(r.step < 0 for _, r in ranges):
        raise Unsupported("Theano's subtensor with a negative step can't be exported")
    y = x
    if ranges:
        sliced = list(x.shape)
        for axis, taken in ranges:
            sliced[axis] = len(taken)
        parts = [[r.start for _, r in ranges], [r.stop for _, r in ranges], [a for a, _ in ranges]]
        parts.append([r.step for _, r in ranges])
        names = ("starts", "ends", "axes", "steps")
        y = walk.draft.add("Slice", [x, *map(walk.ints, names, parts)], sliced)
    return _reshaped(walk, y, shape)


def _set_subtensor(walk: _Walk, node: Any, args: Sequence[Value]) -> Value:
    """Data put into an array that is one number elsewhere: padding."""
    whole, x = args[:2]
    fill = whole.scalar() if isinstance(whole, Known) else None
    found = _indices(walk, node, 2)
    found += [slice(None)] * (len(whole.shape) - len(found))
    if fill is None or not node.op.set_instead_of_inc or not all(isinstance(e, slice) for e in found):
        raise Unsupported("Theano's set_subtensor can be exported as padding only: data in an array of one number")
    places = [range(n)[entry] for n, entry in zip(whole.shape, found)]
    if any(p.step != 1 for p in places) or tuple(map(len, places)) != x.shape:
        raise Unsupported("Theano's set_subtensor with steps, or of data that is broadcast, can't be exported")
    pads = [p.start for p in places] + [n - p.stop for n, p in zip(whole.shape, places)]
    return walk.draft.add("Pad", [x, walk.ints("pads", pads), Known(np.float32(fill), "fill")], whole.shape)


def _batchnorm(walk: _Walk, node: Any, args: Sequence[Value]) -> Value:
    x, *parts = args
    if 1 in node.op.axes or len(node.op.axes) != len(x.shape) - 1 or not all(isinstance(p, Known) for p in parts):
        raise Unsupported("Theano's batch normalisation can be exported by channel only, with known statistics")
    *vectors, epsilon = (p for p in parts if isinstance(p, Known))
    flat = [Known(v.array.reshape(-1), v.name) for v in vectors]
    return walk.draft.add("BatchNormalization", [x, *flat], x.shape, epsilon=float(epsilon.array))


def _reduce(walk: _Walk, node: Any, args: Sequence[Value]) -> Value:
    (x,), op = args, node.op
    kind = type(op.scalar_op).__name__ if hasattr(op, "scalar_op") else "Maximum"
    axes = list(range(len(x.shape))) if op.axis is None else sorted(int(a) % len(x.shape) for a in op.axis)
    shape = [n for axis, n in enumerate(x.shape) if axis not in axes]
    if kind == "Add":
        return walk.draft.add("ReduceSum", [x, walk.ints("axes", axes)], shape, keepdims=0)
    name = {"Maximum": "ReduceMax", "Minimum": "ReduceMin", "Mul": "ReduceProd"}.get(kind)
    if name is None:
        raise Unsupported(f"Theano's reduction {op} has no ONNX form here")
    return walk.draft.add(name, [x], shape, axes=axes, keepdims=0)


Convert = Callable[[_Walk, Any, Sequence[Value]], Value]

#: Class of an operator whose output is known once shapes are -> what it gives.
SHAPES: Dict[str, Convert] = {"Shape": _shape, "Shape_i": _shape_of_axis, "Alloc": _alloc}
#: Class of an operator on data -> the nodes that compute it.
OPERATORS: Dict[str, Convert] = {
    "AbstractBatchNormInference": _batchnorm,
    "AbstractConv2d": lambda walk, node, args: theano_windows.conv(walk.draft, node.op, args),
    "CAReduce": _reduce,
    "DimShuffle": _dimshuffle,
    "Dot": _dot,
    "Elemwise": lambda walk, node, args: elemwise(walk.draft, node.op.scalar_op, args),
    "Flatten": _flatten,
    "IncSubtensor": _set_subtensor,
    "Join": _join,
    "LogSoftmax": _softmax,
    "MaxAndArgmax": _reduce,
    "Pool": lambda walk, node, args: theano_windows.pool(walk.draft, node.op, args),
    "Prod": _reduce,
    "Reshape": _reshape,
    "Softmax": _softmax,
    "Subtensor": _subtensor,
    "Sum": _reduce,
}
