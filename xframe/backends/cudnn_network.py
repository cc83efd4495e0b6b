"""A network in normal form as calls of cuDNN and cuBLAS, one after another on one stream.

One small rule an operator; what has none is refused by name. Images are dense NCHW. A tensor of another rank is an
image with extents of one. Everything that is not a convolution runs through the library function that does it alone, so
a forced algorithm changes the convolutions and nothing else.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from xframe.backends.cudnn_convolution import Choice, Convolution, Problem
from xframe.backends.cudnn_device import ONE, ZERO, Dims, Gpu, contiguous
from xframe.backends.cudnn_library import (
    ACTIVATIONS,
    BATCHNORM_SPATIAL,
    BINARY,
    FLOAT,
    LRN_CROSS_CHANNEL,
    OP_N,
    OP_T,
    POOLING,
    PROPAGATE_NAN,
    SOFTMAX_ACCURATE,
    SOFTMAX_CHANNEL,
)
from xframe.equivalence.graph import Node
from xframe.errors import Unsupported
from xframe.normal.form import Normal
from xframe.normal.windows import window

#: Operators that give their operand another shape, or none at all.
VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout")
LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Call:
    """One call of a library: ``kind`` as in ``xframe.types.KINDS``; ``node``: the node it belongs to."""

    run: Callable[[], None]
    name: str
    kind: str
    node: str
    role: str = ""


@dataclass
class Site:
    """A convolution of the network with what it is called with. ``run`` is set once its algorithm is chosen.

    ``convolution``: in cuDNN's legacy interface, which has computed its extents.
    """

    node: str
    problem: Problem
    convolution: Convolution
    x: int
    w: int
    y: int
    choice: Choice | None = None
    run: Callable[[], None] | None = None

    def __call__(self) -> None:
        assert self.run is not None
        self.run()


@dataclass
class Network:
    """The calls of ``normal`` in their order, its tensors placed on ``gpu``.

    ``place`` has the address of each tensor. Raises Unsupported by name for what has no rule.
    """

    gpu: Gpu
    normal: Normal
    calls: list[Call] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)
    place: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph = self.normal.graph
        missing = sorted({n.op for n in graph.nodes} - set(RULES) - set(VIEWS))
        if missing:
            raise Unsupported(
                f"cuDNN's functions have no {', '.join(missing)}: use --backend ort or tvm for this network"
            )
        self._readers = Counter(name for node in graph.nodes for name in set(node.inputs))
        self._readers.update((*graph.inputs, *graph.outputs))  # never overwritten
        for name in graph.inputs:
            self.place[name] = self.gpu.room(4 * math.prod(self.shape(name)))
        for node in graph.nodes:
            if node.op in VIEWS:
                self.place[node.outputs[0]] = self.at(node.inputs[0])
                self._readers[node.outputs[0]] += self._readers[node.inputs[0]] - 1  # one place, read by all of both
            else:
                RULES[node.op](self, node)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.normal.shapes[name])

    def at(self, name: str) -> int:
        """The address of a tensor; a constant is copied to the device when it is first asked for."""
        if name not in self.place:
            self.place[name] = self.gpu.upload(self.normal.weights[name].array)
        return self.place[name]

    def image(self, node: Node, name: str) -> Dims:
        """A tensor's shape as one of four extents."""
        shape = self.shape(name)
        if len(shape) > 4:
            raise self.refused(node, f"a tensor of shape {shape}: cuDNN's images have four extents")
        n, c, h, w = (*shape, *(1,) * (4 - len(shape)))
        return n, c, h, w

    def new(self, node: Node) -> int:
        """A place for a node's output."""
        name = node.outputs[0]
        self.place[name] = self.gpu.room(4 * math.prod(self.shape(name)))
        return self.place[name]

    def reused(self, node: Node) -> int:
        """The place of a node's first operand if nobody else reads that, else a new one."""
        name = node.inputs[0]
        if self._readers[name] > 1 or name in self.normal.weights:
            return self.new(node)
        self.place[node.outputs[0]] = self.at(name)
        return self.place[name]

    def add(self, node: Node, function: str, kind: str, *args: object, role: str = "") -> None:
        """A call of ``function``, whose first argument is the handle of its library."""
        handle = self.gpu.cublas if function.startswith("cublas") else self.gpu.cudnn
        run = partial(getattr(self.gpu.api, function), handle, *args)
        self.calls.append(Call(run, function, kind, node.name, role))

    def surround(self, site: Site, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Put changes of layout around the call of a convolution."""
        place = next(i for i, call in enumerate(self.calls) if call.run is site)
        calls = [Call(run, "cudnnTransformTensor", "layout", site.node, "channels") for run in (before, after)]
        self.calls[place : place + 1] = [calls[0], self.calls[place], calls[1]]

    def refused(self, node: Node, why: str) -> Unsupported:
        return Unsupported(f"node {node.name} ({node.op}): {why}, which the cudnn backend can't do")


def _padded(net: Network, node: Node, pads: Sequence[int], extra: tuple[int, int], fill: float) -> tuple[int, Dims]:
    """The operand with padding around it: a place that holds ``fill`` once and for all, its inside copied each time."""
    n, c, h, w = net.image(node, node.inputs[0])
    top, left, bottom, right = pads
    dims = n, c, h + top + max(bottom, extra[0]), w + left + max(right, extra[1])
    place = net.gpu.upload(np.full(dims, fill, np.float32))
    inside = place + 4 * (top * dims[3] + left)
    source = net.gpu.tensor((n, c, h, w))
    target = net.gpu.tensor((n, c, h, w), contiguous(dims))
    net.add(
        node, "cudnnTransformTensor", "layout", ONE, source, net.at(node.inputs[0]), ZERO, target, inside, role="pad"
    )
    return place, dims


def _conv(net: Network, node: Node) -> None:
    if len(net.shape(node.inputs[0])) != 4:
        raise net.refused(node, f"an image of shape {net.shape(node.inputs[0])}")
    if node.inputs[1] not in net.normal.weights:
        raise net.refused(node, "weights that are computed")
    x, image = net.at(node.inputs[0]), net.image(node, node.inputs[0])
    top, left, bottom, right = pads = tuple(node.attrs["pads"])
    if (top, left) != (bottom, right):
        x, image = _padded(net, node, pads, (0, 0), 0.0)
        top, left = 0, 0
    out, y = net.image(node, node.outputs[0]), net.new(node)
    problem = Problem(
        image, net.image(node, node.inputs[1]), out, (top, left), tuple(node.attrs["strides"]),
        tuple(node.attrs["dilations"]), node.attrs["group"],
    )  # fmt: skip
    site = Site(node.name, problem, Convolution(net.gpu, problem), x, net.at(node.inputs[1]), y)
    net.sites.append(site)
    net.calls.append(Call(site, "cudnnConvolutionForward", "conv", node.name, "convolution"))
    _bias(net, node, out, y)


def _bias(net: Network, node: Node, out: Dims, y: int) -> None:
    """The third operand on top of what was computed, unless it is all zero."""
    name = node.inputs[2] if len(node.inputs) > 2 else ""
    if not name or (name in net.normal.weights and not net.normal.weights[name].array.any()):
        return
    one = net.gpu.tensor((1, out[1], 1, 1))
    net.add(node, "cudnnAddTensor", "elementwise", ONE, one, net.at(name), ONE, net.gpu.tensor(out), y, role="bias")


def _gemm(net: Network, node: Node) -> None:
    """y = x w^T: of column-major matrices, as cuBLAS has them, y^T = w x^T."""
    x, w = node.inputs[:2]
    given = {k: node.attrs.get(k) for k in ("alpha", "beta", "transA", "transB")}
    if given != {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 1} or w not in net.normal.weights:
        raise net.refused(node, f"a product of {given}, or with weights that are computed")
    (rows, features), outputs, y = net.shape(x), net.shape(w)[0], net.new(node)
    net.add(
        node, "cublasSgemm_v2", "fc", OP_T, OP_N, outputs, rows, features, ONE, net.at(w), features, net.at(x),
        features, ZERO, y, outputs,
    )  # fmt: skip
    _bias(net, node, (rows, outputs, 1, 1), y)


def _activation(net: Network, node: Node) -> None:
    ceiling = 0.0
    if node.op == "Clip":
        ceiling = float(node.attrs.get("max", math.inf))
        if node.attrs.get("min") != 0 or not math.isfinite(ceiling):
            raise net.refused(node, f"limits {node.attrs}")
    made = net.gpu.described("Activation")
    net.gpu.api.cudnnSetActivationDescriptor(made, ACTIVATIONS[node.op], PROPAGATE_NAN, ceiling)
    x, dims = net.at(node.inputs[0]), net.gpu.tensor(_flat(net, node.inputs[0]))
    net.add(node, "cudnnActivationForward", "activation", made, ONE, dims, x, ZERO, dims, net.reused(node))


def _flat(net: Network, name: str) -> Dims:
    """A tensor of any rank, for what looks at single elements."""
    shape = net.shape(name)
    first = shape[0] if shape else 1
    return first, math.prod(shape[1:]), 1, 1


def _pool(net: Network, node: Node) -> None:
    found, image = window(node.attrs), net.image(node, node.inputs[0])
    if any(d != 1 for d in found.dilation) or len(found.kernel) != 2 or any(node.outputs[1:]):
        raise net.refused(node, f"a window {found}")
    mode = "max" if node.op == "MaxPool" else "average_with_padding" if node.attrs["count_include_pad"] else "average"
    top, left, *_ = found.pads
    out = net.image(node, node.outputs[0])
    # What the last windows read: more than the padding says in ceil mode, less where it does not come out even.
    reach = [(o - 1) * s + k for o, s, k in zip(out[2:], found.stride, found.kernel, strict=True)]
    over = (max(reach[0] - image[2] - top, 0), max(reach[1] - image[3] - left, 0))
    same = all((n + 2 * p - k) // s + 1 == o for n, p, k, s, o in zip(
        image[2:], (top, left), found.kernel, found.stride, out[2:], strict=True))  # fmt: skip
    x = net.at(node.inputs[0])
    if not same:
        if mode != "max":
            raise net.refused(node, f"an average over windows with the padding {found.pads}")
        x, image = _padded(net, node, found.pads, over, LOWEST)
        top, left = 0, 0
    _pooled(net, node, mode, (found.kernel, (top, left), found.stride), (image, x), out)


def _pooled(
    net: Network, node: Node, mode: str, shape: tuple[Sequence[int], ...], source: tuple[Dims, int], out: Dims
) -> None:
    made = net.gpu.described("Pooling")
    kernel, pads, stride = shape
    net.gpu.api.cudnnSetPooling2dDescriptor(made, POOLING[mode], PROPAGATE_NAN, *kernel, *pads, *stride)
    image, x = source
    net.add(
        node,
        "cudnnPoolingForward",
        "pool",
        made,
        ONE,
        net.gpu.tensor(image),
        x,
        ZERO,
        net.gpu.tensor(out),
        net.new(node),
    )


def _global_pool(net: Network, node: Node) -> None:
    image, mode = net.image(node, node.inputs[0]), "max" if node.op == "GlobalMaxPool" else "average"
    shape = image[2:], (0, 0), (1, 1)
    _pooled(net, node, mode, shape, (image, net.at(node.inputs[0])), (*image[:2], 1, 1))


def _lrn(net: Network, node: Node) -> None:
    """cuDNN divides alpha by the window too."""
    size, alpha, beta, bias = (node.attrs.get(k, d) for k, d in _LRN.items())
    if not 1 <= size <= 16 or bias < 1e-5 or beta < 0.01:
        raise net.refused(node, f"a size of {size}, a bias of {bias:g} and a beta of {beta:g}")
    made = net.gpu.described("LRN")
    net.gpu.api.cudnnSetLRNDescriptor(made, size, alpha, beta, bias)
    dims = net.gpu.tensor(net.image(node, node.inputs[0]))
    x, y = net.at(node.inputs[0]), net.new(node)
    net.add(node, "cudnnLRNCrossChannelForward", "norm", made, LRN_CROSS_CHANNEL, ONE, dims, x, ZERO, dims, y)


_LRN: dict[str, float] = {"size": 0, "alpha": 1e-4, "beta": 0.75, "bias": 1.0}


def _softmax(net: Network, node: Node) -> None:
    shape = net.shape(node.inputs[0])
    axis = node.attrs["axis"] % len(shape)
    dims = net.gpu.tensor((math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]), 1))
    x, y = net.at(node.inputs[0]), net.new(node)
    net.add(node, "cudnnSoftmaxForward", "softmax", SOFTMAX_ACCURATE, SOFTMAX_CHANNEL, ONE, dims, x, ZERO, dims, y)


def _batchnorm(net: Network, node: Node) -> None:
    image = net.image(node, node.inputs[0])
    x, y, dims = net.at(node.inputs[0]), net.new(node), net.gpu.tensor(image)
    values = [net.at(name) for name in node.inputs[1:5]]
    one = net.gpu.tensor((1, image[1], 1, 1))
    net.add(
        node, "cudnnBatchNormalizationForwardInference", "norm", BATCHNORM_SPATIAL, ONE, ZERO, dims, x, dims, y, one,
        *values, float(node.attrs["epsilon"]),
    )  # fmt: skip


def _binary(net: Network, node: Node) -> None:
    """Of two operands; the second may have extents of one where the first has more."""
    a, b = node.inputs
    if net.shape(a) != net.shape(node.outputs[0]):
        a, b = b, a
    out = net.shape(node.outputs[0])
    other = (1,) * (len(out) - len(net.shape(b))) + net.shape(b)
    if net.shape(a) != out or len(out) > 4:
        raise net.refused(node, f"operands of {net.shape(a)} and {net.shape(b)}")
    fill = (1,) * (4 - len(out))
    first, second = net.gpu.tensor((*out, *fill)), net.gpu.tensor((*other, *fill))  # type: ignore[arg-type]
    made = net.gpu.described("OpTensor")
    net.gpu.api.cudnnSetOpTensorDescriptor(made, BINARY[node.op], FLOAT, PROPAGATE_NAN)
    addresses = net.at(a), net.at(b)
    net.add(
        node, "cudnnOpTensor", "elementwise", made, ONE, first, addresses[0], ONE, second, addresses[1], ZERO, first,
        net.new(node),
    )  # fmt: skip


def _transpose(net: Network, node: Node) -> None:
    """A copy whose source is read along other axes."""
    shape, out = net.shape(node.inputs[0]), net.image(node, node.outputs[0])
    steps = [math.prod(shape[i + 1 :]) for i in node.attrs["perm"]]
    strides = (*steps, *(1,) * (4 - len(steps)))
    source, target = net.gpu.tensor(out, strides), net.gpu.tensor(out)  # type: ignore[arg-type]
    net.add(
        node, "cudnnTransformTensor", "layout", ONE, source, net.at(node.inputs[0]), ZERO, target, net.new(node)
    )  # fmt: skip


def _concat(net: Network, node: Node) -> None:
    """Each operand is copied to its part of the output."""
    shape, y = net.shape(node.outputs[0]), net.new(node)
    axis = node.attrs["axis"] % len(shape)
    before, after, start = math.prod(shape[:axis]), math.prod(shape[axis + 1 :]), 0
    for name in node.inputs:
        size = net.shape(name)[axis]
        dims = before, size, after, 1
        target = net.gpu.tensor(dims, (shape[axis] * after, after, 1, 1))
        there = y + 4 * start * after
        net.add(node, "cudnnTransformTensor", "copy", ONE, net.gpu.tensor(dims), net.at(name), ZERO, target, there)
        start += size


RULES: Mapping[str, Callable[[Network, Node], None]] = {
    "Conv": _conv,
    "Gemm": _gemm,
    **dict.fromkeys(ACTIVATIONS, _activation),
    "MaxPool": _pool,
    "AveragePool": _pool,
    "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": _global_pool,
    "LRN": _lrn,
    "Softmax": _softmax,
    "BatchNormalization": _batchnorm,
    **dict.fromkeys(BINARY, _binary),
    "Concat": _concat,
    "Transpose": _transpose,
}
