"""Profiled passes of PyTorch, eager and compiled: kernels with their layers and algorithms, and what the host does.

A kernel is the own time of an operator that computes: its interval less those of the operators it calls. What oneDNN
says it ran inside a convolution splits that time in proportion: its reorders are layout changes. On a GPU the kernels
are the device's, and all operators are the host's.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xframe import zoo
from xframe.frameworks import cupti, onednn, pytorch_inductor, pytorch_layers, pytorch_trace
from xframe.frameworks.pytorch_trace import Event, Node, Pass
from xframe.types import ConvSite, Kernel, ModelSpec, Profile, Span

#: What a layer's kernels compute.
KIND = {
    "conv": "conv", "fc": "fc", "maxpool": "pool", "avgpool": "pool", "lrn": "norm", "batchnorm": "norm",
    "relu": "activation", "relu6": "activation", "add": "elementwise", "softmax": "softmax", "concat": "copy",
    "dropout": "copy", "flatten": "layout",
}  # fmt: skip
#: The same told from a name, where the layer is not known; the first that is found decides.
_WORDS = (
    ("layout", r"clone|contiguous|reorder|transpose|permute|nchwto|nhwcto"),
    ("copy", r"copy|memcpy|memset|cat\b|fill|zero"),
    ("conv", r"conv|winograd|fprop"),
    ("fc", r"linear|addmm|\bmm|matmul|gemm|gemv"),
    ("pool", r"pool"),
    ("softmax", r"softmax"),
    ("norm", r"norm|lrn"),
    ("activation", r"relu|hardtanh|clamp"),
    ("elementwise", r"add|mul|div|pow"),
)
#: Kernels that Inductor fused for a GPU, named after all that they came from: of a product what follows it, as the
#: product itself is a library's or a template's.
_FUSED, _PRODUCTS = re.compile(r"triton_(poi|red|per)_"), re.compile(r"convolution|addmm|bmm|mm")
#: Calls of CUDA itself, which an operator launches by.
_DRIVER = re.compile(r"cu(da)?[A-Z]\w*$")
#: Operators that put values into another order; what they call does it.
_RELAYOUT = ("aten::contiguous", "aten::clone", "aten::to", "aten::_to_copy", "aten::reshape")
#: How the convolutions of torch itself work: the operator that does it -> words.
_ALGORITHMS = {
    "aten::_slow_conv2d_forward": "im2col+gemm", "aten::slow_conv_dilated2d": "im2col+gemm",
    "aten::_nnpack_spatial_convolution": "nnpack:auto",
}  # fmt: skip


@dataclass(frozen=True)
class _Network:
    """What is known of a network beforehand."""

    ops: Mapping[str, str]
    sites: Mapping[str, ConvSite]
    primitives: Mapping[str, Sequence[onednn.Primitive]]

    def kernel(self, name: str, start: float, end: float, kind: str, layer: str, **more: Any) -> Kernel:
        site = self.sites.get(layer) if kind == "conv" else None
        return Kernel(name, start, end, site, more.get("role", ""), kind, layer, more.get("algorithm", ""))


def profiles(
    spec: ModelSpec,
    batch: int,
    module: Any,
    step: Callable[[], None],
    passes: int,
    cuda: bool = False,
    calls: Sequence[pytorch_inductor.Call] | None = None,
) -> list[Profile]:
    """``passes`` profiled steps, each after one that is not kept, and a few extra steps before them.

    Parameters
    ----------
    module
        What ``step`` runs; its children are the layers of ``spec``.
    step
        One step, and the wait until it is done.
    calls
        Of a compiled network: what its generated code calls; None: it is eager.

    Raises
    ------
    XframeError
        The steps do not run the same operators.
    """
    cost = pytorch_trace.seconds_per_event()
    step()
    if calls is None:
        marks = pytorch_layers.marked(module, step, cuda)
        primitives: Mapping[str, Sequence[onednn.Primitive]] = marks.primitives
    else:
        primitives = pytorch_inductor.by_order(calls, spec, batch, step)
    network = _Network({x.name: x.op for x in spec.layers}, zoo.sites(spec, batch), primitives)
    out = []
    for seen in pytorch_trace.record(step, passes, cuda, warm=step):
        roots = pytorch_trace.trees(seen.events)
        if calls is None:
            marks.place(roots)
        else:
            pytorch_inductor.place(calls, spec, roots)
        out.append(_profile(network, seen, roots, cost))
    return out


def _profile(network: _Network, seen: Pass, roots: Sequence[Node], cost: float) -> Profile:
    nodes = [node for root in roots for node in root.walk()]
    devices = [e for e in seen.events if e.device]
    if devices:
        kernels = list(_on_device(network, nodes, devices))
    else:
        kernels = [k for node in nodes if node.computes for k in _kernels(network, node)]
    host = [_span(node) for node in nodes if devices or not node.computes]
    whole = Span("step", 0.0, seen.wall, "python")  # what is in no operator, the interpreter does
    kernels.sort(key=lambda k: k.start)
    return Profile(seen.wall, tuple(kernels), (whole, *host), len(seen.events) * cost)


def _span(node: Node) -> Span:
    if node.name in pytorch_trace.ALLOCATIONS:
        kind = "allocation"
    elif pytorch_trace.operator(node.name) or "Cache Lookup" in node.name or _launches(node.name):
        kind = "dispatch"
    else:
        kind = "python"
    return Span(node.name, node.event.start, node.event.end, kind)


def _launches(name: str) -> bool:
    return _DRIVER.match(name) is not None and "Synchronize" not in name


def _kind(network: _Network, node: Node) -> str:
    if node.kind or any(x.name in _RELAYOUT for x in node.above()):
        return node.kind or "layout"
    if node.name == "aten::copy_" and not any(pytorch_trace.operator(x.name) for x in node.above()):
        return "copy"  # the module's own, whatever else it computes
    return KIND[network.ops[node.layer]] if node.layer else _by_name(node.name)


def _by_name(name: str) -> str:
    name = _PRODUCTS.sub("", name) if _FUSED.match(name) else name
    return next((kind for kind, words in _WORDS if re.search(words, name, re.IGNORECASE)), "")


def _kernels(network: _Network, node: Node) -> Iterator[Kernel]:
    kind, own = _kind(network, node), node.own()
    if kind != "conv":
        yield from (network.kernel(node.name, *piece, kind, node.layer) for piece in own)
        return
    role = "pad" if any(x.name == "aten::constant_pad_nd" for x in node.above()) else ""
    ran = network.primitives.get(node.layer, ()) if "mkldnn" in node.name else ()
    if not ran:
        words = next((_ALGORITHMS[x.name] for x in (node, *node.above()) if x.name in _ALGORITHMS), "")
        yield from (network.kernel(node.name, *p, kind, node.layer, role=role, algorithm=words) for p in own)
        return
    for primitive, pieces in zip(ran, _split(own, [p.seconds for p in ran]), strict=True):
        if primitive.kind == "reorder":
            tags = " to ".join(tag for _, _, tag in primitive.memory[:2])
            yield from (network.kernel(f"{node.name} reorder {tags}", *p, "layout", node.layer) for p in pieces)
        else:
            words = primitive.implementation if primitive.kind == "convolution" else ""
            yield from (network.kernel(node.name, *p, kind, node.layer, algorithm=words) for p in pieces)


def _split(pieces: Sequence[tuple[float, float]], weights: Sequence[float]) -> Iterator[list[tuple[float, float]]]:
    """Intervals cut, from first to last, into one list for each weight, in proportion."""
    whole, total = sum(end - start for start, end in pieces), sum(weights)
    rest, (start, last) = list(pieces[1:]), pieces[0]
    for i, weight in enumerate(weights):
        need, out = whole * weight / total, []
        while rest and (i == len(weights) - 1 or last - start <= need):
            out.append((start, last))
            need -= last - start
            start, last = rest.pop(0)
        cut = last if i == len(weights) - 1 else min(last, start + need)
        out.append((start, cut))
        start = cut
        yield [(a, b) for a, b in out if b > a]


def _on_device(network: _Network, nodes: Sequence[Node], devices: Sequence[Event]) -> Iterator[Kernel]:
    # Of operators alone: calls of CUDA are counted by CUPTI, from 1 as they are, and have a caller themselves.
    callers = {node.event.id: node for node in nodes if node.event.id and not node.event.caller}
    for event in devices:
        node = callers.get(event.caller)
        layer = node.layer if node else ""
        kind = cupti.kind(event.name, _kind(network, node) if node else "") or _by_name(event.name)
        words = event.name if kind == "conv" else ""
        yield network.kernel(event.name, event.start, event.end, kind, layer, algorithm=words)
