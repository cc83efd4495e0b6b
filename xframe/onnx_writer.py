"""ONNX models of what frameworks without ``onnx`` export: a neutral graph, or a file of an older day."""

from collections.abc import Sequence
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

from xframe import neutral
from xframe.errors import ModelError, Unsupported

#: Of the files written here.
_IR_VERSION = 8


def model(form: str, path: str, batch: int) -> onnx.ModelProto:
    """The model of an export as a worker left it.

    Parameters
    ----------
    form
        ``graph``: the file holds a :class:`xframe.neutral.Graph`; ``bytes``: an ONNX file of the framework's own.
    batch
        What the graph is to be fixed at.

    Raises
    ------
    ModelError
        It is not valid, or over the 2 GB that one protobuf file can hold.
    Unsupported
        The framework's file is fixed at another batch, which can't be changed.
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


def modern(data: bytes, batch: int) -> onnx.ModelProto:
    """An old file as a model of today: weights are no inputs, operators are those of the same set as elsewhere, the one
    input is ``input`` and the one output ``output``, fixed at ``batch``.

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
    try:
        new = onnx.version_converter.convert_version(old, neutral.OPSET)
    except (RuntimeError, ValueError) as e:
        raise ModelError(
            f"{old.graph.name} can't be raised to opset {neutral.OPSET}: {' '.join(str(e).split())}"
        ) from e
    new.ir_version = _IR_VERSION
    _rename(new.graph)
    _fix_batch(new, batch)
    return new


def _keep(field: Sequence, values: list) -> None:
    kept = [type(v).FromString(v.SerializeToString()) for v in values]
    del field[:]  # type: ignore[attr-defined]
    field.extend(kept)  # type: ignore[attr-defined]


def _rename(graph: onnx.GraphProto) -> None:
    """Its only input and its only output get the names that they have in every export."""
    names = {}
    if len(graph.input) == 1:
        names[graph.input[0].name] = "input"
    if len(graph.output) == 1:
        names[graph.output[0].name] = "output"
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        node.input[:] = [names.get(n, n) for n in node.input]
        node.output[:] = [names.get(n, n) for n in node.output]


def _fix_batch(new: onnx.ModelProto, batch: int) -> None:
    """Put ``batch`` in the place of the one that the file is fixed at."""
    sizes = {v.type.tensor_type.shape.dim[0].dim_value for v in new.graph.input}
    if sizes != {batch}:
        own = ", ".join(map(str, sorted(sizes)))
        raise Unsupported(f"{new.graph.name}: the exporter fixes the batch at {own}, and {batch} was asked for")
