"""What a model takes and gives: names, shapes, element types and layouts of its inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx

from xframe import artifact
from xframe.normal.loading import Raw

#: Elements of a weight that shape inference may look into; larger ones are no shapes.
_SMALL = 256


@dataclass(frozen=True)
class Port:
    """One input or output.

    ``shape``: every size fixed, None where it can't be inferred. ``free``: axis -> the name of a size that the file
    leaves open, and that ``shape`` has as it was taken. ``layout``: ``"NCHW"`` or ``"NHWC"`` where the file says so.
    ``read``: whether the outputs depend on it (an input), always true for an output.
    """

    name: str
    shape: tuple[int, ...] | None
    dtype: str = "float32"
    layout: str = ""
    free: Mapping[int, str] = field(default_factory=dict)
    read: bool = True


@dataclass(frozen=True)
class Interface:
    """The inputs and outputs of a subject ``name``, in their order."""

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def interface(name: str, path: Path, graph: Raw) -> Interface:
    """The interface of the model in ``path``, which has been loaded as ``graph``."""
    header = _header(path, graph)
    layout = graph.metadata.get("xframe.layout", "")
    layout = layout if layout in ("NCHW", "NHWC") else ""
    read = {tensor for node in graph.needed() for tensor in node.inputs} | set(graph.outputs)
    free = {
        v.name: {i: d.dim_param for i, d in enumerate(v.type.tensor_type.shape.dim) if d.dim_value <= 0}
        for v in artifact.graph_inputs(header)
    }
    inputs = tuple(
        Port(x, tuple(n or 1 for n in shape), dtype, layout if len(shape) == 4 else "", free.get(x, {}), x in read)
        for x, shape, dtype in zip(graph.inputs, graph.shapes, graph.dtypes, strict=True)
    )
    shapes, kinds = _inferred(header, {port.name: port.shape for port in inputs if port.shape is not None})
    outputs = tuple(
        Port(y, shapes.get(y), kinds.get(y, ""), layout if len(shapes.get(y, ())) == 4 else "") for y in graph.outputs
    )
    return Interface(name, inputs, outputs)


def _header(path: Path, graph: Raw) -> onnx.ModelProto:
    """The model without its large weights."""
    proto = onnx.load(str(path), load_external_data=False)
    for t in proto.graph.initializer:
        if np.prod(t.dims, dtype=np.int64) > _SMALL:
            for content in ("raw_data", "float_data", "double_data", "int32_data", "int64_data"):
                t.ClearField(content)
        elif t.data_location == onnx.TensorProto.EXTERNAL:  # a shape, perhaps
            t.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(graph.constants[t.name]), t.name))
    return onnx.inliner.inline_local_functions(proto) if proto.functions else proto


def _inferred(
    header: onnx.ModelProto, sizes: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Shapes and element types of the outputs for inputs of ``sizes``, as far as they can be told."""
    model = onnx.ModelProto()
    model.CopyFrom(header)
    for v in artifact.graph_inputs(model):
        for d, size in zip(v.type.tensor_type.shape.dim, sizes[v.name], strict=True):
            d.dim_value = size
    declared = {v.name: v.type.tensor_type.elem_type for v in model.graph.output}
    for v in model.graph.output:
        v.type.tensor_type.ClearField("shape")  # an open size there would hide the one that follows
    del model.graph.value_info[:]
    try:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        shapes = artifact.known_shapes(model)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        shapes = artifact.known_shapes(header)  # what the file says, where that is complete
    elements = declared | {v.name: v.type.tensor_type.elem_type for v in model.graph.output}
    kinds = {y: np.dtype(onnx.helper.tensor_dtype_to_np_dtype(e)).name for y, e in elements.items() if e}
    return shapes, kinds
