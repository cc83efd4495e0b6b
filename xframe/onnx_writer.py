"""ONNX models of what frameworks without ``onnx`` export: a neutral graph, or a file of an older day."""

from collections.abc import Sequence
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

from xframe import artifact, neutral, onnx_folding
from xframe.errors import ModelError, Unsupported

#: Of the files written here.
_IR_VERSION = 8


def model(form: str, path: str, batch: int | None) -> onnx.ModelProto:
    """The model of an export as a worker left it.

    Parameters
    ----------
    form
        ``graph``: the file holds a :class:`xframe.neutral.Graph`; ``bytes``: an ONNX file of the framework's own.
    batch
        What a framework's own file is to be fixed at; None: what it is.

    Raises
    ------
    ModelError
        It is not valid, or over the 2 GB that one protobuf file can hold.
    Unsupported
        The framework's own file is fixed at another batch, and something in it depends on that.
    """
    made = of_graph(neutral.load(path)) if form == "graph" else modern(Path(path).read_bytes(), batch)
    try:
        onnx.checker.check_model(made, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError, RuntimeError) as e:
        raise ModelError(f"the export of {made.graph.name} is not valid ONNX: {' '.join(str(e).split())[:600]}") from e
    return made


def of_graph(graph: neutral.Graph) -> onnx.ModelProto:
    """A neutral graph as a model."""
    nodes = [helper.make_node(n.op, n.inputs, n.outputs, n.name, **n.attributes) for n in graph.nodes]
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in values]
        for values in (graph.inputs, graph.outputs)
    )
    weights = [numpy_helper.from_array(value, name) for name, value in graph.weights.items()]
    made = helper.make_graph(nodes, graph.name, inputs, outputs, weights)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", neutral.OPSET)], ir_version=_IR_VERSION)


def modern(data: bytes, batch: int | None = None) -> onnx.ModelProto:
    """An old file as a model of today: weights are no inputs, operators are those of the same set as elsewhere, padding
    and biases belong to their products, the one input is ``input`` and the one output ``output``, and the batch is the
    one asked for.

    Raises
    ------
    ModelError
        It is no ONNX file, or its operators have no newer form.
    Unsupported
        It is fixed at another batch, and something in it depends on that.
    """
    old = onnx.ModelProto()
    try:
        old.ParseFromString(data)
    except DecodeError as e:
        raise ModelError(f"what the framework saved is no ONNX file ({e}): export it again") from e
    weights = {t.name for t in old.graph.initializer}
    _keep(old.graph.input, [v for v in old.graph.input if v.name not in weights])
    old.ir_version = max(old.ir_version, 4)  # the first in which weights need not be inputs
    new = _raised(old)
    new.ir_version = _IR_VERSION
    onnx_folding.fold(new)
    _rename(new.graph)
    own = {v.type.tensor_type.shape.dim[0].dim_value for v in new.graph.input}
    if batch is not None and own != {batch}:
        if own != {1}:
            raise Unsupported(f"the exporter fixes the batch at {sorted(own)}, and {batch} was asked for")
        _fix_batch(new, batch)
    return new


def _raised(old: onnx.ModelProto) -> onnx.ModelProto:
    """With the operators of the common set. Large weights are kept out of the converter, which would copy them often.

    Raises
    ------
    ModelError
        An operator has no newer form.
    """
    held = {t.name: TensorProto.FromString(t.SerializeToString()) for t in _large(old)}
    for t in _large(old):
        t.ClearField("raw_data")
        t.ClearField("float_data")
    try:
        new = onnx.version_converter.convert_version(old, neutral.OPSET)
    except (RuntimeError, ValueError) as e:
        raise ModelError(
            f"{old.graph.name} can't be raised to opset {neutral.OPSET}: {' '.join(str(e).split())}"
        ) from e
    for t in new.graph.initializer:
        if t.name in held:
            t.CopyFrom(held.pop(t.name))
    return new


def _large(model: onnx.ModelProto) -> list[TensorProto]:
    found = (t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT)
    return [t for t in found if t.ByteSize() > artifact.SMALL_BYTES]


def _keep(field: Sequence, values: list) -> None:
    kept = [type(v).FromString(v.SerializeToString()) for v in values]
    del field[:]  # type: ignore[attr-defined]
    field.extend(kept)  # type: ignore[attr-defined]


def _rename(graph: onnx.GraphProto) -> None:
    """Its only input and its only output get the names that they have in every export; what lies between is named after
    the nodes that make it, as an exporter may number tensors from one export to the next."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for number, node in enumerate(graph.node):
        if not node.name or node.name in taken:
            node.name = f"{node.name or node.op_type}_{number}"
        taken.add(node.name)
        for i, name in enumerate(node.output):
            names[name] = f"{node.name}:{i}"
    for values, name in ((graph.input, "input"), (graph.output, "output")):
        if len(values) == 1:
            names[values[0].name] = name
        else:
            names.update((v.name, v.name) for v in values)
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        node.input[:] = [names.get(n, n) for n in node.input]
        node.output[:] = [names[n] for n in node.output]


def _fix_batch(new: onnx.ModelProto, batch: int) -> None:
    """Put ``batch`` in the place of the 1 that the file is fixed at.

    It is the first axis of every tensor, which is made sure of: no node has an attribute of that axis, and all shapes
    that follow from the new input are the old ones but for it. A reshape says the batch in numbers, which are changed.

    Raises
    ------
    Unsupported
        Something depends on the batch.
    """
    old = _shapes(new)
    shapes = {t.name: t for t in new.graph.initializer}
    for node in new.graph.node:
        if _moves_batch(node, old):
            raise Unsupported(_refusal(batch, f"{artifact.title(node)} ({node.op_type}) works along it"))
        if node.op_type == "Reshape" and node.input[1] in shapes:
            target = shapes[node.input[1]]
            numbers = numpy_helper.to_array(target).copy()
            if numbers[:1] == 1:
                numbers[0] = batch
                target.CopyFrom(numpy_helper.from_array(numbers, target.name))
    for value in new.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = batch
    for value in new.graph.output:
        value.type.tensor_type.ClearField("shape")
    del new.graph.value_info[:]
    made = _shapes(new)
    constant = set(shapes) | {name for node in new.graph.node if node.op_type == "Constant" for name in node.output}
    for name in old.keys() - constant:
        if made.get(name) != (batch, *old[name][1:]):
            raise Unsupported(_refusal(batch, f"{name} has the shape {old[name]}, and would have {made.get(name)}"))
    for value in new.graph.output:
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, made[value.name]))
    told = new.metadata_props.add()
    told.key, told.value = "batch", f"{batch}, put in the place of 1, which the exporter fixes"


def _refusal(batch: int, why: str) -> str:
    return f"the exporter fixes the batch at 1, and {batch} can't be put in its place: {why}; export at batch 1"


def _shapes(proto: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    return artifact.known_shapes(onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True))


def _moves_batch(node: onnx.NodeProto, shapes: artifact.Shapes) -> bool:
    """Whether a node says something of the first axis of its tensors."""
    given = artifact.attributes(node)
    rank = len(shapes.get(node.input[0], ())) if node.input else 0
    axes = [
        axis + rank if axis < 0 else axis for axis in (given.get("axis"), *given.get("axes", ())) if axis is not None
    ]
    return 0 in axes or given.get("perm", (0,))[0] != 0
