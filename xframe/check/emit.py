"""A graph, or what lies between some of its tensors, as a valid ONNX model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from xframe import files
from xframe.equivalence.graph import Graph, Node
from xframe.errors import ModelError

#: Constants up to this size, in bytes, are seen by shape inference: they may be shapes.
SMALL = 1024
#: What one protobuf file can hold, with room for everything else.
ONE_FILE = (1 << 31) - (1 << 24)
#: The older name of what later became an input.
_RENAMED = {"value": "constant_value"}
#: The types of inputs that are shapes, axes and the like.
_INTEGERS = ("tensor(int64)", "Tind")
_FLOATS = ("float16", "bfloat16", "float64")
_FLOAT_TYPES = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)

Shapes = Mapping[str, Sequence[int]]


def part(graph: Graph, inputs: Shapes, outputs: Sequence[str]) -> Graph:
    """What computes the tensors ``outputs`` from the tensors ``inputs``, wherever in the graph they lie.

    Parameters
    ----------
    inputs
        Tensor -> its shape. All of them are inputs of the part, in this order, also one that it does not read. A
        graph's own input that is needed, and not among them, is added.

    Raises
    ------
    ModelError
        There is no such tensor.
    """
    made = {name for node in graph.nodes for name in node.outputs} | set(graph.inputs)
    unknown = [name for name in (*inputs, *outputs) if name not in made]
    if unknown:
        raise ModelError(f"the graph has no tensor {unknown[0]!r} to cut at")
    wanted, nodes = set(outputs) - set(inputs), []
    for node in reversed(graph.nodes):
        if wanted.intersection(node.outputs):
            wanted.update(name for name in node.inputs if name not in inputs)
            nodes.append(node)
    own = {name: shape for name, shape in zip(graph.inputs, graph.shapes, strict=True) if name in wanted}
    constants = {name: array for name, array in graph.constants.items() if name in wanted}
    shapes = {**{name: tuple(shape) for name, shape in inputs.items()}, **own}
    return Graph(tuple(nodes[::-1]), constants, tuple(shapes), tuple(outputs), tuple(shapes.values()))


def model(graph: Graph, shapes: Shapes | None = None) -> onnx.ModelProto:
    """The graph as an ONNX model with its constants inside, checked, the shapes of its tensors told.

    Floating-point constants, and casts to such types, become float32: it is the float32 network of a graph that was
    stored in another precision. The operator set is that of the graph's nodes. What an older set has as an attribute
    and this one as an input becomes an input.

    Parameters
    ----------
    shapes
        Of tensors, where they are known; the others are inferred.

    Raises
    ------
    ModelError
        The nodes are no valid ONNX, or the whole is over the 2 GB of one file (:func:`save` has no such limit).
    """
    proto, constants = _skeleton(graph, shapes or {})
    if sum(a.nbytes for a in constants.values()) > ONE_FILE:
        raise ModelError("the graph's constants are over the 2 GB of one ONNX model in memory: save it to a file")
    proto.graph.initializer.extend(numpy_helper.from_array(_single(a), name) for name, a in constants.items())
    try:
        onnx.checker.check_model(proto)
    except (onnx.checker.ValidationError, ValueError) as e:
        raise ModelError(f"the graph is not valid ONNX: {_first_line(e)}") from e
    return proto


def save(graph: Graph, path: Path, shapes: Shapes | None = None) -> None:
    """Write the model of :func:`model`, whole or not at all; weights over 2 GB go into a file beside it.

    Raises
    ------
    ModelError
        The nodes are no valid ONNX.
    XframeError
        The folder can't be written.
    """
    path = Path(path)
    if sum(a.nbytes for a in graph.constants.values()) <= ONE_FILE:
        data = model(graph, shapes).SerializeToString()
        with files.atomic(path) as whole:
            whole.write_bytes(data)
        return
    proto, constants = _skeleton(graph, shapes or {})
    beside = path.with_name(path.name + ".data")
    with files.atomic(beside) as whole, open(whole, "wb") as f:
        proto.graph.initializer.extend(_stored(name, array, f, beside.name) for name, array in constants.items())
    with files.atomic(path) as whole:
        whole.write_bytes(proto.SerializeToString())
    try:
        onnx.checker.check_model(str(path))
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as e:
        raise ModelError(f"the graph is not valid ONNX: {_first_line(e)}") from e


def floating(graph: Graph) -> list[str]:
    """The float32 tensors that nodes give, in their order, without those that nobody needs.

    Raises
    ------
    ModelError
        The nodes are no valid ONNX.
    """
    given = [name for node in graph.needed() for name in node.outputs if name]
    proto, _ = _skeleton(exposed(graph, given), {})
    kinds = {v.name: v.type.tensor_type.elem_type for v in proto.graph.output}
    return [name for name in given if kinds[name] == TensorProto.FLOAT]


def exposed(graph: Graph, tensors: Iterable[str]) -> Graph:
    """The graph with ``tensors`` as outputs after its own."""
    return replace(graph, outputs=tuple(dict.fromkeys((*graph.outputs, *tensors))))


def _skeleton(graph: Graph, shapes: Shapes) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The model without its constants, and those. Large ones are inputs while shapes are inferred."""
    needed = graph.needed()
    version = max((node.opset for node in needed), default=helper.make_opsetid("", 20).version)
    constants = dict(graph.constants)
    nodes = [_node(node, version, constants) for node in needed]
    used = {name for node in needed for name in node.inputs} | {name for node in nodes for name in node.input}
    used |= set(graph.outputs)
    constants = {name: array for name, array in constants.items() if name in used and name not in graph.inputs}
    small = {name: array for name, array in constants.items() if array.nbytes <= SMALL}
    large = [
        helper.make_tensor_value_info(n, _type_of(a), a.shape) for n, a in constants.items() if n not in small
    ]  # fmt: skip
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes.get(name, shape))
        for name, shape in zip(graph.inputs, graph.shapes, strict=True)
    ]
    domains = sorted({node.domain for node in nodes} - {""})
    opsets = [helper.make_opsetid("", version), *(helper.make_opsetid(domain, 1) for domain in domains)]
    proto = helper.make_model(
        helper.make_graph(
            nodes,
            "xframe",
            [*inputs, *large],
            [_bare(name) for name in graph.outputs],
            [numpy_helper.from_array(_single(a), name) for name, a in small.items()],
        ),
        opset_imports=opsets,
        ir_version=max(8, helper.find_min_ir_version_for(opsets, ignore_unknown=True)),
        producer_name="xframe",
    )
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError) as e:
        raise ModelError(f"the graph is not valid ONNX: {_first_line(e)}") from e
    del inferred.graph.input[len(inputs) :]
    del inferred.graph.initializer[:]
    for info in (*inferred.graph.value_info, *inferred.graph.output):
        _tell(info, shapes.get(info.name))
    return inferred, constants


def _node(node: Node, version: int, constants: dict[str, np.ndarray]) -> onnx.NodeProto:
    """The node under operator set ``version``; constants that it needs for that are added to ``constants``."""
    domain, _, op = node.op.rpartition(".")
    try:
        schema = onnx.defs.get_schema(op, 1 if domain else version, domain)
    except onnx.defs.SchemaError:
        schema = None
    if node.opset < 13 <= version and op in ("Softmax", "LogSoftmax", "Hardmax"):
        raise node.refuse("it means something else before opset 13, and the graph has nodes of both: export it again")
    inputs, attributes = list(node.inputs), []
    for name, value in node.attrs.items():
        if value is None or op == "Identity":  # what it stands for had attributes, a dropout say
            continue
        if schema is None or name in schema.attributes:
            declared = None if schema is None else int(schema.attributes[name].type)  # type: ignore[call-overload]
            attributes.append(_attribute(node, name, value, declared))
            continue
        places = [i for i, given in enumerate(schema.inputs) if given.name == _RENAMED.get(name, name)]
        if not places:
            raise node.refuse(f"operator set {version} has no attribute {name} for it")
        inputs += [""] * (places[0] + 1 - len(inputs))
        if not inputs[places[0]]:
            kind = schema.inputs[places[0]].type_str
            inputs[places[0]] = f"{node.outputs[0]}.{name}"
            constants[inputs[places[0]]] = np.asarray(value, np.int64 if kind in _INTEGERS else np.float32)
    made = helper.make_node(op, inputs, list(node.outputs), node.name, domain=domain or None)
    made.attribute.extend(attributes)
    return made


def _attribute(node: Node, name: str, value: Any, kind: int | None) -> AttributeProto:
    """An attribute of its declared type: a list may be empty, an integer may stand for a float."""
    if isinstance(value, TensorProto) and value.data_type in _FLOAT_TYPES:
        value = numpy_helper.from_array(_single(numpy_helper.to_array(value)), value.name)
    if node.op == "Cast" and name == "to" and value in _FLOAT_TYPES:
        value = TensorProto.FLOAT
    number = int if kind in (AttributeProto.INT, AttributeProto.INTS) else float
    if kind in (AttributeProto.INT, AttributeProto.FLOAT):
        value = number(value)
    elif kind in (AttributeProto.INTS, AttributeProto.FLOATS):
        value = [number(v) for v in value]
    elif isinstance(value, tuple):
        value = list(value)
    try:
        return helper.make_attribute(name, value, attr_type=kind)
    except (TypeError, ValueError) as e:
        raise node.refuse(f"its attribute {name} can't be written: {_first_line(e)}") from e


def _single(array: np.ndarray) -> np.ndarray:
    """A floating-point array in float32, any other as it is."""
    with np.errstate(over="ignore"):
        return np.asarray(array.astype(np.float32) if array.dtype.name in _FLOATS else array)


def _type_of(array: np.ndarray) -> int:
    return TensorProto.FLOAT if array.dtype.name in _FLOATS else helper.np_dtype_to_tensor_dtype(array.dtype)


def _bare(name: str) -> onnx.ValueInfoProto:
    return onnx.ValueInfoProto(name=name)


def _tell(info: onnx.ValueInfoProto, shape: Sequence[int] | None) -> None:
    """Type and shape of a tensor that inference left open; it is taken as float32."""
    kind = info.type.tensor_type
    if not kind.elem_type:
        kind.elem_type = TensorProto.FLOAT
    if shape is not None:
        info.CopyFrom(helper.make_tensor_value_info(info.name, kind.elem_type, shape))


def _stored(name: str, array: np.ndarray, f: BinaryIO, location: str) -> TensorProto:
    """An initializer whose data lie in the open file ``f``, called ``location``; written in pieces."""
    f.seek(-f.tell() % 4096, 1)
    offset, rows = f.tell(), array.reshape(1) if not array.ndim else array
    step = max(1, (1 << 24) // max(rows[:1].nbytes, 1))
    for start in range(0, len(rows), step):
        f.write(np.ascontiguousarray(_single(rows[start : start + step])).tobytes())
    tensor = TensorProto(name=name, dims=array.shape, data_type=_type_of(array), data_location=TensorProto.EXTERNAL)
    where = {"location": location, "offset": offset, "length": f.tell() - offset}
    tensor.external_data.extend(onnx.StringStringEntryProto(key=k, value=str(v)) for k, v in where.items())
    return tensor


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
