"""An ONNX file as the raw graph of a check: any precision, any operator set from 7 on, symbolic dimensions bound.

Unlike :func:`xframe.artifact.load`, which admits what can be measured, this admits what can be reasoned about. Large
weights in external files are views of the mapped files, so that a model is never held twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto
from onnx.inliner import inline_local_functions

from xframe import artifact
from xframe.equivalence.graph import Graph, Node
from xframe.errors import ModelError, UsageError

RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
#: Operators whose course depends on data, or whose values are no tensors.
CONTROL = ("If", "Loop", "Scan", "SequenceMap")
ADVICE = "the check reasons about plain ONNX graphs; export the model without it"


@dataclass(frozen=True)
class Raw(Graph):
    """A graph as its file has it.

    Attributes
    ----------
    dtypes
        NumPy's name of each input's element type, in the order of ``inputs``.
    metadata
        The file's own stamps, ``xframe.layout`` among them.
    notes
        What was assumed to read it, in sentences.
    """

    dtypes: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def load(path: str | Path, sizes: Mapping[str, int] | None = None) -> Raw:
    """The graph in an ONNX file.

    Parameters
    ----------
    path
        The file. External weights must lie in its folder; they are mapped, not read.
    sizes
        Symbolic dimension -> the size it takes; those that are not in it take 1, which the notes tell.

    Raises
    ------
    ModelError
        The file can't be read, is not valid ONNX, or holds what has no fixed function of its inputs: random operators,
        control flow, sequences, sparse weights, operators of unknown domains.
    UsageError
        A size below 1.
    """
    path = Path(path)
    return _graph(artifact.read(path), _Arrays(path.parent, str(path), release=True), sizes or {})


def from_proto(
    proto: onnx.ModelProto, folder: Path | None = None, sizes: Mapping[str, int] | None = None, name: str = "the model"
) -> Raw:
    """The graph of a valid model in memory; ``folder`` holds its external data, ``name`` stands in messages.

    Raises
    ------
    ModelError, UsageError
        As :func:`load`.
    """
    return _graph(proto, _Arrays(folder, name), sizes or {})


def _graph(proto: onnx.ModelProto, arrays: _Arrays, sizes: Mapping[str, int]) -> Raw:
    name = arrays.name
    if proto.functions:
        proto = inline_local_functions(proto)
    version = artifact.opset(proto)
    if version < artifact.OLDEST_OPSET:
        raise ModelError(
            f"{name} uses opset {version}, the oldest that works here is {artifact.OLDEST_OPSET}: "
            "convert it with onnx.version_converter, or export again"
        )
    for n in proto.graph.node:
        _admit(n, name)
    if proto.graph.sparse_initializer:
        raise ModelError(f"{name} holds sparse weights: export them dense")
    inputs = artifact.graph_inputs(proto)
    kinds = tuple(_kind(v, name) for v in inputs)
    notes: dict[str, None] = {}
    shapes = tuple(_shape(v, sizes, name, notes) for v in inputs)
    constants = {t.name: arrays(t) for t in proto.graph.initializer}
    constants.update({n.output[0]: _constant(n, arrays) for n in proto.graph.node if n.op_type == "Constant"})
    nodes = tuple(
        Node(artifact.title(n), n.op_type, tuple(n.input), tuple(n.output), artifact.attributes(n), version)
        for n in proto.graph.node
        if n.op_type != "Constant"
    )
    return Raw(
        nodes,
        constants,
        tuple(v.name for v in inputs),
        tuple(v.name for v in proto.graph.output),
        shapes,
        kinds,
        {p.key: p.value for p in proto.metadata_props},
        tuple(notes),
    )


def _admit(node: onnx.NodeProto, name: str) -> None:
    where = f"{name}: node {artifact.title(node)}"
    if node.domain not in ("", "ai.onnx"):
        raise ModelError(f"{where} is a {node.op_type} of the domain {node.domain}, which is not known here: {ADVICE}")
    if node.op_type in RANDOM:
        raise ModelError(
            f"{where} is a {node.op_type}: its result is random, so that no two runs of the model agree; "
            "export the model for inference, or make the noise an input"
        )
    subgraphs = any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute)
    if node.op_type in CONTROL or subgraphs:
        raise ModelError(f"{where} is a {node.op_type}, whose course depends on data: {ADVICE}")
    if "Sequence" in node.op_type or node.op_type.startswith("Optional"):
        raise ModelError(f"{where} is a {node.op_type}, which works on sequences: {ADVICE}")
    if any(a.HasField("sparse_tensor") for a in node.attribute):
        raise ModelError(f"{where} holds sparse weights: export them dense")


def _kind(value: onnx.ValueInfoProto, name: str) -> str:
    if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
        raise ModelError(f"{name}: input {value.name} is not a tensor of known rank; export with an input shape")
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)).name


def _shape(
    value: onnx.ValueInfoProto, sizes: Mapping[str, int], name: str, notes: dict[str, None]
) -> tuple[int | None, ...]:
    found = []
    for i, d in enumerate(value.type.tensor_type.shape.dim):
        if d.HasField("dim_value") and d.dim_value > 0:
            found.append(d.dim_value)
            continue
        size = sizes.get(d.dim_param, 1) if d.dim_param else 1
        if not isinstance(size, int) or size < 1:
            raise UsageError(f"{name}: the dimension {d.dim_param} can't be {size!r}: give a whole number from 1 on")
        called = d.dim_param or f"{i} of input {value.name}"
        notes[f"dimension {called} is taken as {size}"] = None
        found.append(size)
    return tuple(found)


def _constant(node: onnx.NodeProto, arrays: _Arrays) -> np.ndarray:
    """What a ``Constant`` node gives: it is an initializer, written otherwise."""
    for key, value in artifact.attributes(node).items():
        if key == "value":
            return arrays(value)
        if key.startswith(("value_float", "value_int")):
            return np.array(value, np.float32 if "float" in key else np.int64)
    raise ModelError(f"{arrays.name}: the constant {artifact.title(node)} is no dense tensor of numbers: {ADVICE}")


class _Arrays:
    """Tensors of one model as arrays; each external file is mapped once.

    ``release``: the model is nobody else's, and what was read is dropped from it, so that it is not held twice.
    """

    def __init__(self, folder: Path | None, name: str, release: bool = False):
        self._folder = None if folder is None else folder.resolve()
        self.name = name
        self._release = release
        self._files: dict[str, np.ndarray] = {}

    def __call__(self, tensor: TensorProto) -> np.ndarray:
        try:
            if tensor.data_location == TensorProto.EXTERNAL:
                return self._external(tensor)
            array = onnx.numpy_helper.to_array(tensor)
        except (ValueError, TypeError, KeyError) as e:
            raise ModelError(f"{self.name}: tensor {tensor.name} can't be read: {e}") from e
        if self._release:
            tensor.ClearField("raw_data")
        return array

    def _external(self, tensor: TensorProto) -> np.ndarray:
        where = {e.key: e.value for e in tensor.external_data}
        data = self._file(where.get("location", ""), tensor.name)
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
        packed = tensor.data_type in (TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1)
        count = int(np.prod(tensor.dims, dtype=np.int64))
        size = (count + 1) // 2 if packed else count * dtype.itemsize
        start = int(where.get("offset", 0))
        part = data[start : start + size]
        if start < 0 or size < 0 or len(part) < size:
            raise ModelError(
                f"{self.name}: tensor {tensor.name} of shape {tuple(tensor.dims)} takes {size} bytes, but its data "
                f"end after {len(part)}; copy {where.get('location')} again"
            )
        if packed:
            inside = TensorProto(dims=tensor.dims, data_type=tensor.data_type, raw_data=part.tobytes())
            return onnx.numpy_helper.to_array(inside)
        return part.view(dtype).reshape(tuple(tensor.dims))

    def _file(self, location: str, tensor: str) -> np.ndarray:
        if location not in self._files:
            target = None if self._folder is None else (self._folder / location).resolve()
            if target is None or not location or not target.is_relative_to(self._folder or target):
                raise ModelError(
                    f"{self.name}: tensor {tensor} keeps its data at {location!r}, outside the model's folder; "
                    "save the model again with its data beside it"
                )
            try:
                empty = not target.stat().st_size  # an empty file can't be mapped
                mapped = np.empty(0, np.uint8) if empty else np.memmap(target, np.uint8, "r")
            except OSError as e:
                raise ModelError(f"{self.name}: {location} can't be read: {e.strerror or e}") from e
            self._files[location] = mapped.view(np.ndarray)
        return self._files[location]
