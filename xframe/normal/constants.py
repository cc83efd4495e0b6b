"""Constants made of constants: what a file computes before any input arrives, in float32 and with its history."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from xframe.equivalence.bounds import Quantity
from xframe.equivalence.graph import Node
from xframe.equivalence.reference import OPERATORS
from xframe.errors import ModelError
from xframe.normal.form import Weight

Array = np.ndarray

#: They rearrange, which :class:`Weight` can tell by its shape.
SILENT = ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Shape", "Size", "Dropout")


def initial(name: str, array: Array) -> Weight:
    """A weight of the file; narrow floats become float32, which holds them exactly."""
    narrow = array.dtype.kind == "V" or (array.dtype.kind == "f" and array.dtype.itemsize < 4)
    if not narrow:
        return Weight(array, (name,))
    return Weight(array.astype(np.float32), (name,), (f"{array.dtype.name} to float32",))


def changed(weight: Weight, array: Array, *how: str, also: Sequence[str] = ()) -> Weight:
    """``weight`` with other elements; ``also`` names tensors that took part."""
    return Weight(array, tuple(dict.fromkeys((*weight.source, *also))), (*weight.how, *how))


def transposed(weight: Weight, axes: Sequence[int]) -> Weight:
    """A view."""
    if tuple(axes) == tuple(range(len(axes))):
        return weight
    words = f"transposed by {tuple(int(a) for a in axes)}"
    return changed(weight, weight.array.transpose(axes), *(() if weight.array.size in (0, 1) else (words,)))


def integers(weight: Weight | None) -> list[int] | None:
    return None if weight is None else [int(v) for v in np.ravel(weight.array)]


def fold(node: Node, args: Sequence[Weight | None]) -> list[Weight]:
    """The outputs of a node that has only constants for inputs.

    Raises
    ------
    ModelError
        The operator is unknown, or its operands do not fit.
    """
    source = tuple(dict.fromkeys(s for a in args if a is not None for s in a.source))
    before = tuple(dict.fromkeys(h for a in args if a is not None for h in a.how))
    try:
        with np.errstate(all="ignore"):
            arrays = _fold(node, [None if a is None else a.array for a in args])
    except ModelError:
        raise
    except Exception as e:  # numpy's and the onnx package's own errors have many classes
        reason = " ".join(str(e).split())[:200] or type(e).__name__
        raise node.refuse(f"its constant operands make no result: {reason}") from e
    return [Weight(array, source, before + _how(node, args)) for array in arrays]


def _how(node: Node, args: Sequence[Weight | None]) -> tuple[str, ...]:
    first = args[0].array if args and args[0] is not None else np.empty(0)
    if node.op in SILENT or not args:
        return ()
    if node.op == "Transpose":
        return (f"transposed by {tuple(node.attrs.get('perm', range(first.ndim)[::-1]))}",)
    if node.op == "Cast":
        to = _dtype(node.attrs["to"])
        return () if to == first.dtype else (f"{first.dtype.name} to {to.name}",)
    if node.op == "DequantizeLinear":
        return (f"dequantized from {first.dtype.name}",)
    return (f"computed by {node.op}",)


def _dtype(code: int) -> np.dtype:
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(code))


def _fold(node: Node, args: list[Array | None]) -> list[Array]:
    if node.op == "Cast":
        array = np.asarray(args[0]).astype(_dtype(node.attrs["to"]))
        return [array if array.dtype.kind in "iubf" and array.dtype != np.float16 else array.astype(np.float32)]
    if node.op == "DequantizeLinear":
        return [_dequantized(node, args)]
    if node.op not in OPERATORS or _stranger(node, args):
        return _other(node, args)
    made = OPERATORS[node.op](node, [None if a is None else Quantity(a) for a in args], {})
    arrays = [q.value for q in (made if isinstance(made, tuple) else (made,))]
    floats = [a.dtype for a in args if a is not None and a.dtype.kind == "f"]
    return [a.astype(floats[0]) if a.dtype == np.float64 and floats else a for a in arrays]


def _stranger(node: Node, args: list[Array | None]) -> bool:
    """Integers whose arithmetic the reference, which thinks in reals, has no need to know."""
    whole = all(a is None or a.dtype.kind in "iub" for a in args)
    return whole and node.op in ("Div", "Pow", "Mean", "ReduceMean", "ReduceMin", "ReduceProd", "Clip", "Max", "Min")


def _dequantized(node: Node, args: list[Array | None]) -> Array:
    x, scale = np.asarray(args[0]), np.asarray(args[1])
    zero = np.zeros((), np.int32) if len(args) < 3 or args[2] is None else args[2]
    if node.attrs.get("block_size", 0):
        raise node.refuse("blocked scales are not known here; export with a scale for each channel")
    if scale.ndim:
        shape = [1] * x.ndim
        shape[node.attrs.get("axis", 1) % x.ndim] = -1
        scale, zero = scale.reshape(shape), np.reshape(zero, shape)
    wide = x.astype(np.float32) - np.asarray(zero).astype(np.float32)
    return wide * scale.astype(np.float32)


def _other(node: Node, args: list[Array | None]) -> list[Array]:
    """The onnx package's own evaluator: for what is computed from shapes, not for speed."""
    names = [f"i{i}" if a is not None else "" for i, a in enumerate(args)]
    outputs = [f"o{i}" for i, _ in enumerate(node.outputs)]
    proto = onnx.helper.make_node(node.op, names, outputs, **{k: v for k, v in node.attrs.items() if v is not None})
    inputs = [
        onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, args, strict=True)
        if a is not None
    ]
    graph = onnx.helper.make_graph([proto], "one", inputs, [onnx.ValueInfoProto(name=o) for o in outputs])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", node.opset)])
    feeds = {n: a for n, a in zip(names, args, strict=True) if a is not None}
    return [np.asarray(a) for a in ReferenceEvaluator(model).run(None, feeds)]
