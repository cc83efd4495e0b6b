"""What the layers of a network can't do without, and the least time that leaves them on a machine.

A floor is the roofline's: the larger of FLOP over the peak and bytes over the bandwidth of where they come from
(``xframe.analysis.roofline``). FLOP are those of convolutions (of the direct algorithm) and fully connected layers; all
others move more than they compute. A fast algorithm, which multiplies less, may run below the floor of a convolution.

A layer that can be done where its input is made has no floor: bias, activation, batch normalisation after a
convolution, and of an addition the image that is at hand. Nor has one that need not move anything: dropout and flatten
(which are not listed), concatenation (its inputs can be written where they belong), a change of layout (another layout
does without). Kernels that fuse more than that, say a convolution with its pooling, may be below the sum of floors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from xframe import zoo
from xframe.analysis.roofline import Work, attainable
from xframe.results import LayerWork, Machine
from xframe.types import Artifact, ConvSite, ModelSpec

if TYPE_CHECKING:
    import onnx

Shape = tuple[int, ...]

#: Bytes of a float32.
SIZE = 4
#: What the ops of a spec compute; those that are missing compute nothing.
KIND = {
    "conv": "conv", "fc": "fc", "maxpool": "pool", "avgpool": "pool", "lrn": "norm", "batchnorm": "norm",
    "relu": "activation", "relu6": "activation", "add": "elementwise", "concat": "copy", "softmax": "softmax",
}  # fmt: skip
#: The same for ONNX operators.
ONNX_KIND = {
    "Conv": "conv", "Gemm": "fc", "MatMul": "fc", "MaxPool": "pool", "AveragePool": "pool", "GlobalAveragePool": "pool",
    "GlobalMaxPool": "pool", "LRN": "norm", "BatchNormalization": "norm", "InstanceNormalization": "norm",
    "LayerNormalization": "norm", "Relu": "activation", "Clip": "activation", "LeakyRelu": "activation",
    "PRelu": "activation", "Elu": "activation", "Sigmoid": "activation", "HardSigmoid": "activation",
    "HardSwish": "activation", "Tanh": "activation", "Add": "elementwise", "Sub": "elementwise", "Mul": "elementwise",
    "Div": "elementwise", "Sum": "elementwise", "Softmax": "softmax", "LogSoftmax": "softmax", "Concat": "copy",
    "Transpose": "layout",
}  # fmt: skip


def layers(spec: ModelSpec, batch: int) -> tuple[LayerWork, ...]:
    """The work of each layer of a registered model, in order."""
    return tuple(_spec_layers(spec, batch))


def _spec_layers(spec: ModelSpec, batch: int) -> Iterator[LayerWork]:
    shapes, sites = zoo.shapes(spec, batch), zoo.sites(spec, batch)
    sources, tensors = spec.sources(), zoo.tensors(spec)
    ops = {item.name: item.op for item in spec.layers}
    for item in (x for x in spec.layers if x.op in KIND):
        ins, out = [shapes[s] for s in sources[item.name]], shapes[item.name]
        weights = sum(math.prod(s) for name, s in tensors.items() if name.rpartition(".")[0] == item.name)
        window = (item["kernel"], item["stride"]) if item.op in ("conv", "maxpool", "avgpool") else None
        after_conv = ops.get(sources[item.name][0]) == "conv"
        yield _work(item.name, KIND[item.op], sites.get(item.name), ins, out, weights, window, after_conv)


def file_layers(found: Artifact) -> tuple[LayerWork, ...]:
    """The same for each node of an ONNX file whose operator is known (:data:`ONNX_KIND`).

    A convolution that is not two-dimensional, a product without constant weights and a node whose shapes can't be
    inferred are left out.

    Raises
    ------
    ModelError
        The file is not there any more.
    """
    import onnx

    from xframe import artifact

    proto = artifact.read(Path(found.path))
    shapes = artifact.known_shapes(onnx.shape_inference.infer_shapes(proto, data_prop=True))
    return tuple(_node_layers(proto, shapes, dict(found.conv_sites)))


def _node_layers(proto: onnx.ModelProto, shapes: dict[str, Shape], sites: dict[str, ConvSite]) -> Iterator[LayerWork]:
    from xframe import artifact

    constants = {t.name for t in proto.graph.initializer}
    maker = {name: node.op_type for node in proto.graph.node for name in node.output}
    constants |= {name for name, op in maker.items() if op == "Constant"}
    for node in (n for n in proto.graph.node if n.op_type in ONNX_KIND and not n.domain):
        kind, title, names = ONNX_KIND[node.op_type], artifact.title(node), [n for n in node.input if n]
        if not all(name in shapes for name in (*names, node.output[0])):
            continue
        ins, out = [shapes[n] for n in names if n not in constants], shapes[node.output[0]]
        weights = sum(math.prod(shapes[n]) for n in names if n in constants)
        if not ins or (kind == "conv" and title not in sites) or (kind == "fc" and not weights):
            continue
        attrs = artifact.attributes(node)
        kernel = attrs.get("kernel_shape") or (shapes[names[1]][2:] if kind == "conv" else None)
        window = (kernel, attrs.get("strides") or (1,) * len(kernel)) if kernel else None
        yield _work(title, kind, sites.get(title), ins, out, weights, window, maker.get(names[0]) == "Conv")


def _work(
    name: str,
    kind: str,
    site: ConvSite | None,
    ins: Sequence[Shape],
    out: Shape,
    weights: int,
    window: tuple[Sequence[int], Sequence[int]] | None,
    after_conv: bool,
) -> LayerWork:
    """``weights``: their number. ``window``: kernel and stride over the last dimensions, where the layer has one."""
    if kind in ("activation", "copy", "layout") or (kind == "norm" and after_conv):
        return LayerWork(name, kind, site, 0.0, 0)
    if kind == "elementwise":
        return LayerWork(name, kind, site, 0.0, SIZE * sum(map(math.prod, ins[1:])))
    read = sum(math.prod(_read(shape, out, window)) for shape in ins)
    flop = 0.0
    if site is not None:
        flop = float(site.flop)
    elif kind == "fc":
        flop = 2.0 * math.prod(out) * ins[0][-1]
    return LayerWork(name, kind, site, flop, SIZE * (read + math.prod(out)), SIZE * weights)


def _read(shape: Shape, out: Shape, window: tuple[Sequence[int], Sequence[int]] | None) -> Shape:
    """What is read of an image: a stride that is larger than the kernel leaves pixels out."""
    if window is None:
        return shape
    kernel, stride = window
    first = len(shape) - len(kernel)
    sizes = zip(shape[first:], out[first:], kernel, stride, strict=True)
    return (*shape[:first], *(min(n, o * k) if s > k else n for n, o, k, s in sizes))


def floors(work: Sequence[LayerWork], machine: Machine) -> list[tuple[float, str]]:
    """For each layer the least seconds on ``machine``, and what they are for: ``compute`` or a level of the memory."""
    weights = sum(w.weight_bytes for w in work)
    return [attainable(Work(w.flop, w.image_bytes, w.weight_bytes), weights, machine) for w in work]
