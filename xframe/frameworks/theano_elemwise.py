"""Theano's elementwise operators as ONNX nodes: scalar operators by name, and composites of them."""

from typing import Any, Callable, Dict, Sequence

import numpy as np

from xframe.errors import Unsupported
from xframe.frameworks.theano_draft import Draft, Known, Tensor, Value

#: Class of a scalar operator -> the ONNX operator that computes the same.
SAME = {
    "Abs": "Abs", "Ceil": "Ceil", "Cos": "Cos", "Cosh": "Cosh", "Erf": "Erf", "Exp": "Exp", "Floor": "Floor",
    "Inv": "Reciprocal", "Log": "Log", "Maximum": "Max", "Minimum": "Min", "Neg": "Neg", "Pow": "Pow",
    "RoundHalfToEven": "Round", "ScalarSigmoid": "Sigmoid", "ScalarSoftplus": "Softplus", "Sgn": "Sign", "Sin": "Sin",
    "Sinh": "Sinh", "Sqrt": "Sqrt", "Sub": "Sub", "Tan": "Tan", "Tanh": "Tanh", "TrueDiv": "Div",
}  # fmt: skip
#: The same for those of any number of inputs: one node for each two.
SUMS = {"Add": "Add", "Mul": "Mul"}
COMPARISONS = {"LT": "Less", "GT": "Greater", "LE": "LessOrEqual", "GE": "GreaterOrEqual", "EQ": "Equal"}
_FLOAT = 1  # of ONNX's data types


def elemwise(draft: Draft, op: Any, args: Sequence[Value]) -> Value:
    """What a scalar operator makes of values that are broadcast against each other.

    Raises
    ------
    Unsupported
        One that is not known here, by name.
    """
    kind = type(op).__name__
    if hasattr(op, "fgraph"):
        return _composite(draft, op, args)
    if all(isinstance(x, Known) for x in args):
        return Known(np.vectorize(op.impl, otypes=[np.float32])(*(x.array for x in args if isinstance(x, Known))))
    if kind in RULES:
        return RULES[kind](draft, op, args)
    operands = [x.floats() if isinstance(x, Known) else x for x in args]
    if kind in SAME:
        return draft.add(SAME[kind], operands, broadcast(operands))
    if kind in COMPARISONS:
        return draft.add(COMPARISONS[kind], operands, broadcast(operands)).of("bool")
    if kind in SUMS:
        total = operands[0]
        for x in operands[1:]:
            total = draft.add(SUMS[kind], [total, x], broadcast([total, x]))
        return total
    raise Unsupported(f"Theano's elementwise operator {kind} has no ONNX form here: write it with others")


def broadcast(values: Sequence[Value]) -> Sequence[int]:
    """The shape of values that are broadcast against each other."""
    return np.broadcast(*(np.broadcast_to(np.empty((), np.int8), x.shape) for x in values)).shape


def _composite(draft: Draft, op: Any, args: Sequence[Value]) -> Value:
    values: Dict[Any, Value] = dict(zip(op.fgraph.inputs, args))
    for node in op.fgraph.toposort():
        inner = [values[v] if v in values else Known(v.data) for v in node.inputs]
        values[node.outputs[0]] = elemwise(draft, node.op, inner)
    (output,) = op.fgraph.outputs
    return values[output]


def _square(draft: Draft, op: Any, args: Sequence[Value]) -> Value:
    return draft.add("Mul", [args[0], args[0]], args[0].shape)


def _clip(draft: Draft, op: Any, args: Sequence[Value]) -> Value:
    x, low, high = (a.floats() if isinstance(a, Known) else a for a in args)
    shape = broadcast([x, low, high])
    if low.shape == high.shape == () and isinstance(x, Tensor):
        return draft.add("Clip", [x, low, high], shape)
    return draft.add("Min", [draft.add("Max", [x, low], broadcast([x, low])), high], shape)


def _cast(draft: Draft, op: Any, args: Sequence[Value]) -> Value:
    (x,) = args
    if op.o_type.dtype != "float32" or not isinstance(x, Tensor):
        raise Unsupported(f"Theano's cast to {op.o_type.dtype} can't be exported: only float32 networks can")
    return x if x.dtype == "float32" else draft.add("Cast", [x], x.shape, to=_FLOAT)


def _second(draft: Draft, op: Any, args: Sequence[Value]) -> Value:
    """The second, in the shape of both."""
    shape = tuple(broadcast(args))
    value = args[1].floats() if isinstance(args[1], Known) else args[1]
    if value.shape == shape:
        return value
    if isinstance(value, Known):
        return Known(np.broadcast_to(value.array, shape), value.name)
    return draft.add("Expand", [value, Known(np.array(shape, np.int64), "shape")], shape)


def _switch(draft: Draft, op: Any, args: Sequence[Value]) -> Value:
    condition, *rest = args
    if isinstance(condition, Known) or condition.dtype != "bool":
        raise Unsupported("Theano's switch on what is no comparison can't be exported: compare with zero")
    branches = [x.floats() if isinstance(x, Known) else x for x in rest]
    return draft.add("Where", [condition, *branches], broadcast([condition, *branches]))


RULES: Dict[str, Callable[[Draft, Any, Sequence[Value]], Value]] = {
    "Sqr": _square,
    "Clip": _clip,
    "Cast": _cast,
    "Second": _second,
    "Switch": _switch,
    "Identity": lambda draft, op, args: args[0],
}
