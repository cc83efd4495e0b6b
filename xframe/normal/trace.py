"""The first pass: a file's nodes in their order, each tensor known as a tensor of the draft under a pending transpose.

A transpose costs nothing until an operator needs its result in place. Element-wise operators carry it along, others
name its axes differently, and the next transpose mostly undoes it: this is how a channels-last export becomes NCHW.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

from xframe.equivalence.graph import Node
from xframe.normal import constants
from xframe.normal.draft import OPSET, Axes, Draft, Shape, complete, composed, identity, inverse, moves_nothing
from xframe.normal.form import Weight

FLOAT = np.dtype(np.float32)
REFUSALS = (onnx.defs.SchemaError, onnx.shape_inference.InferenceError, onnx.checker.ValidationError)
#: Operators of the shape of their operand, for which the standard has no inference.
ALIKE = ("GroupNormalization", "MeanVarianceNormalization")


@dataclass(frozen=True)
class Order:
    """A row that is an image, flattened in another order: the file flattened it transposed by ``axes``."""

    shape: Shape
    axes: Axes

    @property
    def words(self) -> str:
        letters = "CHW" if len(self.shape) == 3 else "".join(chr(ord("A") + i) for i in range(len(self.shape)))
        return f"reordered from {''.join(letters[a] for a in self.axes)} to {letters}"

    def canonical(self, array: np.ndarray, axis: int) -> np.ndarray:
        """``array``, whose ``axis`` lies in the file's order, in the draft's."""
        axis %= array.ndim
        if array.ndim == 2 and not array.flags.c_contiguous and array.T.flags.c_contiguous:
            return self.canonical(array.T, 1 - axis).T  # whole rows are moved, not elements
        file = tuple(self.shape[a] for a in self.axes)
        split = array.reshape(*array.shape[:axis], *file, *array.shape[axis + 1 :])
        back = [axis + a for a in inverse(self.axes)]
        perm = (*range(axis), *back, *range(axis + len(file), split.ndim))
        return split.transpose(perm).reshape(array.shape)


@dataclass(frozen=True)
class Value:
    """A tensor of the file: the draft's tensor ``name`` transposed by ``axes``, its rows then put in ``order``."""

    name: str
    axes: Axes
    order: Order | None = None


Operand = Value | Weight
#: (trace, node, operands with None for an absent one) -> its outputs.
Rule = Callable[["Trace", Node, list[Any]], "Operand | Sequence[Operand]"]


class Trace:
    """What the rules work with. ``node`` is the one at hand."""

    def __init__(self, taken: set[str]):
        self.draft = Draft(taken=taken)
        self.values: dict[str, Operand] = {}
        self.tensors: dict[str, tuple[str, Axes]] = {}
        self._known: dict[tuple[str, Axes], str] = {}
        self._moved: dict[tuple[str, Axes], str] = {}
        self.node = Node("", "", (), ())

    # What is known

    def shape(self, v: Operand) -> Shape:
        """The shape that the file's tensor has."""
        if isinstance(v, Weight):
            return tuple(v.array.shape)
        return tuple(self.draft.shapes[v.name][a] for a in v.axes)

    def dtype(self, v: Operand) -> np.dtype:
        return v.array.dtype if isinstance(v, Weight) else self.draft.dtypes[v.name]

    def bind(self, tensor: str, v: Operand) -> None:
        """The file's ``tensor`` is ``v`` from now on."""
        self.values[tensor] = v
        if isinstance(v, Value) and v.order is None:
            self._known.setdefault((v.name, v.axes), tensor)
            self.tensors.setdefault(v.name, (tensor, () if v.axes == identity(len(v.axes)) else inverse(v.axes)))

    def note(self, text: str) -> None:
        """Count something that was absorbed."""
        self.draft.notes[text] += 1

    # Tensors in place

    def aligned(self, v: Operand, axes: Axes) -> str:
        """The name of a tensor of which ``v`` is the transpose by ``axes``; a node is added where need be."""
        if isinstance(v, Weight):
            return self.draft.constant(constants.transposed(v, inverse(axes)))
        v = self.settled(v)
        return self._transposed(v, composed(v.axes, inverse(axes)))

    def plain(self, v: Operand) -> str:
        """The name of a tensor that is ``v``."""
        return self.aligned(v, identity(len(self.shape(v))))

    def _transposed(self, v: Value, move: Axes) -> str:
        shape = self.draft.shapes[v.name]
        moved = tuple(shape[a] for a in move)
        if move == identity(len(move)):
            return v.name
        if moves_nothing(move, shape):
            return self.reshape(v.name, moved)
        if (v.name, move) not in self._moved:
            like = self._known.get((v.name, move), f"{v.name}:{','.join(map(str, move))}")
            made = self.emit("Transpose", [v.name], {"perm": move}, moved, hint=like)
            self._moved[v.name, move] = made.name
            if like in self.values:
                self.tensors.setdefault(made.name, (like, ()))
        return self._moved[v.name, move]

    def settled(self, v: Value) -> Value:
        """``v`` without a pending order of its rows."""
        if v.order is None:
            return v
        rows = self.draft.shapes[v.name][0]
        split = Value(self.reshape(v.name, (rows, *v.order.shape)), identity(1 + len(v.order.shape)))
        moved = self._transposed(split, (0, *(1 + a for a in v.order.axes)))
        return Value(self.reshape(moved, self.shape(v)), v.axes)

    def reshape(self, name: str, shape: Shape, final: bool = False) -> str:
        """The tensor ``name`` in another shape; a chain of reshapes is one."""
        before = self.draft.source(name, "Reshape")
        name = before.inputs[0] if before else name
        if self.draft.shapes[name] == shape:
            return name
        target = Weight(np.array(shape, np.int64))
        hint = "" if final else f"{name}:{'x'.join(map(str, shape))}"
        return self.emit("Reshape", [name, target], {}, shape, hint=hint, final=final).name

    # New tensors

    def emit(
        self,
        op: str,
        inputs: Sequence[str | Weight],
        attrs: Mapping[str, Any],
        shape: Shape,
        axes: Axes | None = None,
        *,
        dtype: Any = None,
        order: Order | None = None,
        final: bool = True,
        hint: str = "",
        output: int = 0,
    ) -> Value:
        """Add a node of one output and give the file's tensor: the output, transposed by ``axes``.

        ``final``: it is the node's own output number ``output`` and keeps its name; else ``hint`` names it.
        """
        names = [self.named(op, i, x) for i, x in enumerate(inputs)]
        final = final and not hint
        if final:
            name = self.node.outputs[output]
        elif hint in self.values and hint not in self.draft.shapes:
            name = hint  # the file's own tensor, so far only a view
        else:
            name = self.draft.fresh(hint or f"{self.node.outputs[0]}:{op}")
        known = {} if op in ("Reshape",) else complete(op, attrs)
        title = self.node.name if final and not output else name
        dtype = self.draft.dtypes[names[0]] if dtype is None else np.dtype(dtype)
        node = Node(title, op, tuple(names), (name,), known, OPSET)
        self.draft.add(node, [shape], [dtype], [self.node.name])
        return Value(name, identity(len(shape)) if axes is None else axes, order)

    def named(self, op: str, position: int, x: str | Weight) -> str:
        """The name of an operand, which a constant without a history gets from its place."""
        if isinstance(x, str):
            return x
        return self.draft.constant(x, "" if x.source else f"{self.node.outputs[0]}:{op} input {position}")

    def other(self, args: Sequence[Operand | None]) -> list[Value]:
        """A node whose operator has no rule: as it is in the file, its operands in place."""
        node = self.node
        names = [self.plain(a) if a is not None else "" for a in args]
        types = self._inferred(node, names)
        opset = OPSET if _unchanged(node) else node.opset
        copy = Node(node.name, node.op, tuple(names), node.outputs, complete(node.op, node.attrs, opset), opset)
        found = [types.get(o) for o in node.outputs]
        shapes = [_fixed(node, t, self.draft.shapes[names[0]]) for t in found]
        dtypes = [FLOAT if t is None else _element(t) for t in found]
        self.draft.add(copy, shapes, dtypes, [node.name])
        return [Value(o, identity(len(s))) for o, s in zip(node.outputs, shapes, strict=True)]

    def complete(self, v: Value, attrs: Mapping[str, Any], inputs: Sequence[str] | None = None) -> None:
        """Give the node of ``v``, from :meth:`other`, other attributes, and operands."""
        node = self.draft.nodes[self.draft.makers[v.name]]
        self.draft.nodes[node.name] = replace(node, attrs=dict(attrs), inputs=tuple(inputs or node.inputs))

    def _inferred(self, node: Node, names: list[str]) -> dict[str, onnx.TypeProto]:
        proto = onnx.helper.make_node(node.op, names, list(node.outputs), **_written(node.attrs))
        types, data = {}, {}
        for name in filter(None, names):
            code = onnx.helper.np_dtype_to_tensor_dtype(self.draft.dtypes[name])
            types[name] = onnx.helper.make_tensor_type_proto(code, self.draft.shapes[name])
            weight = self.draft.weights.get(name)
            if weight is not None and weight.array.size <= 64:
                data[name] = onnx.numpy_helper.from_array(np.ascontiguousarray(weight.array), name)
        try:
            schema = onnx.defs.get_schema(node.op, node.opset)
            versions = [onnx.helper.make_opsetid("", node.opset)]
            return onnx.shape_inference.infer_node_outputs(schema, proto, types, data, opset_imports=versions)
        except (*REFUSALS, RuntimeError, ValueError, TypeError) as e:
            reason = " ".join(str(e).split())[:200]
            raise node.refuse(f"the shape of its result can't be told: {reason}") from e


def _written(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in attrs.items() if v is not None}


def _unchanged(node: Node) -> bool:
    versions = {onnx.defs.get_schema(node.op, v).since_version for v in (node.opset, max(OPSET, node.opset))}
    return len(versions) == 1 and node.opset <= OPSET


def _element(kind: onnx.TypeProto) -> np.dtype:
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type))


def _fixed(node: Node, kind: onnx.TypeProto | None, like: Shape) -> Shape:
    if kind is None or node.op in ALIKE:
        return like
    dims = kind.tensor_type.shape.dim if kind.tensor_type.HasField("shape") else None
    if dims is None or not all(d.HasField("dim_value") for d in dims):
        raise node.refuse("the shape of its result depends on data: export the model with fixed shapes throughout")
    return tuple(d.dim_value for d in dims)


def run(trace: Trace, node: Node, rules: Mapping[str, Rule]) -> None:
    """Take one node of the file."""
    trace.node = node
    args = [trace.values[name] if name else None for name in node.inputs]
    rule = rules.get(node.op)
    if all(a is None or isinstance(a, Weight) for a in args) and node.op not in ("Dropout",):
        made: Any = constants.fold(node, args)  # type: ignore[arg-type]
    elif rule is not None:
        made = rule(trace, node, args)
    else:
        made = trace.other(args)
    for name, v in zip(node.outputs, [made] if isinstance(made, Value | Weight) else made, strict=False):
        if name:
            trace.bind(name, v)
