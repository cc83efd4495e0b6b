"""An ONNX file as something to measure: checked, hashed, its shapes inferred, its convolution sites listed.

``onnx.checker`` accepts graphs that no backend runs (a bias of the wrong length, data outside the model's folder), so
what the rest of xframe relies on is checked here, before any backend with poorer messages sees the file. Nothing in a
model is executed or unpickled, and weights in external files are never read whole.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto
from onnx.inliner import inline_local_functions

from xframe import files
from xframe.errors import ModelError
from xframe.types import Artifact, ConvSite, TensorInfo

#: Older operator sets broadcast by an ``axis`` attribute; nothing here implements that.
OLDEST_OPSET = 7
#: Below this size an external tensor is read, because it may be a shape that inference needs.
SMALL_BYTES = 1024

Shapes = Mapping[str, tuple[int, ...]]


def load(path: str | Path, model: str | None = None) -> Artifact:
    """Check an ONNX file and describe it.

    Parameters
    ----------
    path
        The file. External weights must lie in its folder.
    model
        Name to report it under; default: the name stamped by :func:`save`, else the file's stem.

    Returns
    -------
    Artifact
        ``conv_sites`` holds every 2-D ``Conv`` in topological order, automatic padding made explicit.

    Raises
    ------
    ModelError
        The file can't be read, is not valid ONNX, is not float32, or has an input without a fixed size.
    """
    path = Path(path)
    proto = _parsed(path)
    _check_opset(path, proto)
    _check_dtypes(path, proto)
    stamps = {p.key: p.value for p in proto.metadata_props}
    layout = stamps.get("xframe.layout", "")
    inputs = tuple(_input(path, v, layout) for v in graph_inputs(proto))
    inferred = _infer(path, _without_weights(_valid(path, proto)))
    shapes = known_shapes(inferred)
    outputs = tuple(_output(path, v, shapes, layout) for v in inferred.graph.output)
    return Artifact(
        path=str(path),
        sha256=files.sha256(path),
        model=model or stamps.get("xframe.model") or path.stem,
        framework=stamps.get("xframe.framework"),
        framework_version=stamps.get("xframe.framework_version"),
        opset=opset(proto),
        inputs=inputs,
        outputs=outputs,
        conv_sites=tuple(_conv_sites(path, inferred, shapes)),
    )


def save(
    proto: onnx.ModelProto, path: str | Path, model: str, framework: str, framework_version: str, layout: str
) -> None:
    """Write a model, whole or not at all, stamped with where it came from (``metadata_props`` under ``xframe.*``).

    Raises
    ------
    ModelError
        Over the 2 GB that one protobuf file can hold.
    XframeError
        The folder can't be written.
    """
    stamps = {"model": model, "framework": framework, "framework_version": framework_version, "layout": layout}
    onnx.helper.set_model_props(
        proto,
        {p.key: p.value for p in proto.metadata_props if not p.key.startswith("xframe.")}
        | {f"xframe.{key}": value for key, value in stamps.items()},
    )
    try:
        data = proto.SerializeToString()
    except (ValueError, DecodeError) as e:  # protobuf's own limit
        raise ModelError(f"{path}: {model} is over the 2 GB of one ONNX file; export with external data") from e
    with files.atomic(Path(path)) as part:
        part.write_bytes(data)


def read(path: str | Path) -> onnx.ModelProto:
    """The model in a file: parsed, valid, local functions inlined; large external weights stay in their files.

    Raises
    ------
    ModelError
        Missing, not ONNX, invalid, or external data missing, truncated or outside the model's folder.
    """
    path = Path(path)
    return _valid(path, _parsed(path))


def conv_edges(found: Artifact) -> list[tuple[int, int]]:
    """Which convolutions read what which others made: (producer, consumer), positions in ``found.conv_sites``.

    What lies between is passed through (activations, pooling, concatenation, additions, transposes), but not products
    with weights (Gemm, MatMul), whose output is no image.
    """
    names = [name for name, _ in found.conv_sites]
    makers: dict[str, set[int]] = {}
    edges: list[tuple[int, int]] = []
    number = 0
    for node in read(found.path).graph.node:
        before: set[int] = set().union(*(makers.get(name, ()) for name in node.input))
        if node.op_type == "Conv" and names[number : number + 1] == [title(node)]:
            edges += [(i, number) for i in sorted(before)]
            before, number = {number}, number + 1
        elif node.op_type in ("Gemm", "MatMul"):
            before = set()
        makers.update(dict.fromkeys(node.output, before))
    return edges


def opset(proto: onnx.ModelProto) -> int:
    """Version of the standard operator set, 0 when the model does not import it."""
    return max((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), default=0)


def graph_inputs(proto: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Inputs that a caller feeds; old files list their initializers among the inputs."""
    constants = {t.name for t in proto.graph.initializer} | {t.values.name for t in proto.graph.sparse_initializer}
    return [v for v in proto.graph.input if v.name not in constants]


def known_shapes(inferred: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Tensor name -> shape, for each tensor whose shape is fully known."""
    shapes: dict[str, tuple[int, ...]] = {t.name: tuple(t.dims) for t in inferred.graph.initializer}
    for v in (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output):
        dims = v.type.tensor_type.shape.dim
        if v.type.tensor_type.HasField("shape") and all(d.HasField("dim_value") for d in dims):
            shapes.setdefault(v.name, tuple(d.dim_value for d in dims))
    return shapes


def explicit_pads(
    auto_pad: str,
    pads: Sequence[int] | None,
    size: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, ...]:
    """ONNX padding of a convolution or pooling as numbers: all begins, then all ends (top, left, bottom, right).

    ``SAME_UPPER`` puts the odd pixel at the end, ``SAME_LOWER`` at the begin; both make ceil(size / stride) outputs.
    """
    if auto_pad in ("", "NOTSET"):
        return tuple(pads) if pads else (0,) * (2 * len(kernel))
    if auto_pad == "VALID":
        return (0,) * (2 * len(kernel))
    totals = [
        max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0)
        for n, k, s, d in zip(size, kernel, stride, dilation, strict=True)
    ]
    small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return tuple(small + large) if auto_pad == "SAME_UPPER" else tuple(large + small)


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """A node's attributes as Python values; strings decoded."""
    values = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return {k: v.decode() if isinstance(v, bytes) else v for k, v in values.items()}


def title(node: onnx.NodeProto) -> str:
    """The node's name, or its first output's: names are optional in ONNX."""
    return node.name or node.output[0]


def _parsed(path: Path) -> onnx.ModelProto:
    if path.is_dir():
        raise ModelError(f"{path} is a folder: give the .onnx file inside it")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file; export it first, or check the path") from None
    except OSError as e:
        raise ModelError(f"{path} can't be read: {e.strerror or e}") from e
    if not data:
        raise ModelError(f"{path} is empty: export it again")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as e:
        raise ModelError(f"{path} is not an ONNX file, or it is cut short ({e}): export or download it again") from e
    if not proto.ir_version or not proto.graph.node:
        raise ModelError(f"{path} is not an ONNX model: it parses, but holds no IR version or no nodes")
    return proto


def _valid(path: Path, proto: onnx.ModelProto) -> onnx.ModelProto:
    _check_external(path, proto)
    try:
        onnx.checker.check_model(str(path))
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as e:
        raise ModelError(f"{path} is not valid ONNX: {_first_line(e)}") from e
    return inline_local_functions(proto) if proto.functions else proto


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _tensors(proto: onnx.ModelProto) -> Iterator[TensorProto]:
    yield from proto.graph.initializer
    for node in proto.graph.node:
        for a in node.attribute:
            if a.HasField("t"):
                yield a.t


def _check_external(path: Path, proto: onnx.ModelProto) -> None:
    folder = path.parent.resolve()
    for t in _tensors(proto):
        if t.data_location != TensorProto.EXTERNAL:
            continue
        where = {e.key: e.value for e in t.external_data}
        location = where.get("location", "")
        target = (folder / location).resolve()
        if not location or not target.is_relative_to(folder):
            raise ModelError(
                f"{path}: tensor {t.name} keeps its data at {location!r}, outside the model's folder; "
                "save the model again with its data beside it"
            )
        if not target.is_file():
            raise ModelError(f"{path}: tensor {t.name} keeps its data in {location}, which is not there; copy it too")
        try:
            end = int(where.get("offset", 0)) + int(where.get("length", 0))
        except ValueError:
            raise ModelError(f"{path}: tensor {t.name} has an unreadable external data offset or length") from None
        if end > target.stat().st_size:
            raise ModelError(f"{path}: {location} is cut short: tensor {t.name} ends at byte {end}; copy it again")


def _check_opset(path: Path, proto: onnx.ModelProto) -> None:
    if opset(proto) < OLDEST_OPSET:
        raise ModelError(
            f"{path} uses opset {opset(proto)}, the oldest that works here is {OLDEST_OPSET}: "
            "convert it with onnx.version_converter, or export again"
        )


_REFUSED = ("FLOAT16", "BFLOAT16", "FLOAT8", "FLOAT4", "INT8", "UINT8", "INT4", "UINT4", "INT2", "UINT2")
_QUANTIZED = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul")


def _check_dtypes(path: Path, proto: onnx.ModelProto) -> None:
    advice = "xframe compares float32 networks; export the model in float32"
    for node in proto.graph.node:
        if node.op_type in _QUANTIZED or node.op_type in ("ConvInteger", "MatMulInteger"):
            raise ModelError(f"{path} is quantized (node {title(node)} is a {node.op_type}): {advice}")
    for t in _tensors(proto):
        dtype = TensorProto.DataType.Name(t.data_type)
        if dtype.startswith(_REFUSED):
            raise ModelError(f"{path}: tensor {t.name or '(constant)'} has dtype {dtype.lower()}: {advice}")


def _dtype(elem_type: int) -> str:
    return "float32" if elem_type == TensorProto.FLOAT else TensorProto.DataType.Name(elem_type).lower()


def _input(path: Path, value: onnx.ValueInfoProto, layout: str) -> TensorInfo:
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
        raise ModelError(f"{path}: input {value.name} is not a tensor of known rank; export with a fixed input shape")
    dtype = _dtype(kind.elem_type)
    if dtype != "float32":
        raise ModelError(f"{path}: input {value.name} has dtype {dtype}; export the model with a float32 input")
    for i, d in enumerate(kind.shape.dim):
        if not d.HasField("dim_value"):
            name = d.dim_param or "unnamed"
            raise ModelError(
                f"{path}: dimension {i} of input {value.name} is not fixed ({name}): "
                "export again with a fixed batch and image size"
            )
        if d.dim_value <= 0:
            raise ModelError(f"{path}: dimension {i} of input {value.name} is {d.dim_value}; it must be at least 1")
    shape = tuple(d.dim_value for d in kind.shape.dim)
    return TensorInfo(value.name, shape, dtype, layout if len(shape) == 4 else "")


def _output(path: Path, value: onnx.ValueInfoProto, shapes: Shapes, layout: str) -> TensorInfo:
    shape = shapes.get(value.name)
    if shape is None:
        raise ModelError(
            f"{path}: the shape of output {value.name} depends on data; export with fixed shapes throughout"
        )
    return TensorInfo(value.name, shape, _dtype(value.type.tensor_type.elem_type), layout if len(shape) == 4 else "")


def _without_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """``proto`` itself, its large float initializers emptied: inference needs their shapes, and would copy them twice.

    No shape is computed from floats.
    """
    for t in proto.graph.initializer:
        if t.data_type == TensorProto.FLOAT and t.ByteSize() > SMALL_BYTES:
            t.ClearField("raw_data")
            t.ClearField("float_data")
    return proto


def _infer(path: Path, proto: onnx.ModelProto) -> onnx.ModelProto:
    """``proto`` with every shape that can be inferred, its small external tensors loaded."""
    for t in _tensors(proto):
        if t.data_location == TensorProto.EXTERNAL:
            length = {e.key: e.value for e in t.external_data}.get("length")
            if length and int(length) <= SMALL_BYTES:
                onnx.external_data_helper.load_external_data_for_tensor(t, str(path.parent))
                t.data_location = TensorProto.DEFAULT
                del t.external_data[:]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError) as e:
        raise ModelError(f"{path}: its shapes do not fit together: {str(e).strip().splitlines()[-1]}") from e


def _conv_sites(path: Path, inferred: onnx.ModelProto, shapes: Shapes) -> Iterator[tuple[str, ConvSite]]:
    for node in inferred.graph.node:
        if node.op_type == "BatchNormalization":
            _check_batchnorm(path, node, shapes)
        if node.op_type == "Conv" and not node.domain:
            site = _conv_site(path, node, shapes)
            if site:
                yield title(node), site


def _check_batchnorm(path: Path, node: onnx.NodeProto, shapes: Shapes) -> None:
    x = shapes.get(node.input[0])
    for name in node.input[1:]:
        if x and name in shapes and shapes[name] != (x[1],):
            raise ModelError(f"{path}: node {title(node)} has {x[1]} channels, but {name} has shape {shapes[name]}")


def _conv_site(path: Path, node: onnx.NodeProto, shapes: Shapes) -> ConvSite | None:
    """The site of a ``Conv`` node; None for one that is not 2-D."""
    where = f"{path}: node {title(node)}"
    for name in node.input:
        if name and name not in shapes:
            raise ModelError(f"{where}: the shape of {name} can't be inferred; export with fixed shapes throughout")
    x, w = shapes[node.input[0]], shapes[node.input[1]]
    attrs = attributes(node)
    groups = attrs.get("group", 1)
    kernel = tuple(attrs.get("kernel_shape", w[2:]))
    if len(x) < 3 or len(w) != len(x) or kernel != w[2:]:
        raise ModelError(f"{where}: weights of shape {w} and kernel {kernel} do not fit an input of shape {x}")
    if groups < 1 or w[1] * groups != x[1] or w[0] % groups:
        raise ModelError(f"{where}: weights of shape {w} in {groups} groups do not fit {x[1]} input channels")
    if len(node.input) > 2 and node.input[2] and shapes[node.input[2]] != (w[0],):
        raise ModelError(f"{where}: the bias has shape {shapes[node.input[2]]}, the output {w[0]} channels")
    rank = len(kernel)
    stride, dilation = (tuple(attrs.get(a) or (1,) * rank) for a in ("strides", "dilations"))
    pads = explicit_pads(attrs.get("auto_pad", ""), attrs.get("pads"), x[2:], kernel, stride, dilation)
    if min(*stride, *dilation) < 1 or min(pads) < 0 or len(pads) != 2 * rank:
        raise ModelError(f"{where}: strides {stride}, dilations {dilation}, pads {pads} make no convolution")
    if rank != 2:
        return None
    site = ConvSite(x[0], x[1], x[2:], w[0], kernel, stride, pads, dilation, groups)  # type: ignore[arg-type]
    if min(site.out_hw) < 1:
        raise ModelError(f"{where}: a kernel of {kernel} does not fit the padded input {x[2:]} with pads {pads}")
    return site
