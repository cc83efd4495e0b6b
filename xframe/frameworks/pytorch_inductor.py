"""Which layer each call of a compiled network belongs to.

A compiled network has no modules any more. What its generated code calls, and from which layers each call came, is
noted while Inductor writes the code (:func:`watched`); a profiled step is held against that list.
"""

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from xframe import zoo
from xframe.frameworks import onednn
from xframe.frameworks.pytorch_layers import verbose
from xframe.frameworks.pytorch_trace import Node, generated, operator
from xframe.types import ConvSite, ModelSpec

#: Operators that are called, never generated: what else a generated kernel comes from is what it computes.
_CALLED = ("conv", "fc")
#: Of several layers, the first of these that is among them is the main one. What only passes data on comes last.
_MAIN = (*_CALLED, "lrn", "maxpool", "avgpool", "softmax", "batchnorm", "add", "relu6", "relu", "concat", "flatten",
         "dropout")  # fmt: skip


class Call(NamedTuple):
    """A call in generated code: the generated kernel's name, empty for an operator; the layers that it came from, in
    order, among them some that were computed before."""

    kernel: str
    layers: tuple[str, ...]


class Job(NamedTuple):
    """What a call is for: its main layer, empty where it came from none, and whether it only brings that layer's
    operands or results into form."""

    layer: str
    moves: bool


@contextlib.contextmanager
def watched(spec: ModelSpec) -> Iterator[list[Call]]:
    """Within the block, every call that Inductor writes is noted, in order. Nothing is where it has changed inside."""
    calls: list[Call] = []
    layers = _Layers(spec)
    with contextlib.ExitStack() as undo:
        with contextlib.suppress(ImportError, AttributeError):
            from torch._inductor import ir
            from torch._inductor.codegen import cpp
            from torch._inductor.utils import aggregate_origins

            def note(owner: Any, kernel: Callable[..., str], nodes: Callable[..., Any]) -> None:
                original = owner.codegen_comment

                def codegen_comment(self: Any, *args: Any, **kwargs: Any) -> Any:
                    with contextlib.suppress(Exception):  # it must never keep the code from being written
                        calls.append(Call(kernel(*args), layers.of(aggregate_origins(nodes(self, *args)))))
                    return original(self, *args, **kwargs)

                undo.callback(setattr, owner, "codegen_comment", original)
                owner.codegen_comment = codegen_comment

            note(cpp.CppScheduling, lambda nodes, kernel=None: kernel or "", lambda self, nodes, *_: nodes)
            note(ir.ExternKernel, lambda *_: "", lambda self, *_: self)
        yield calls


class _Layers:
    """From the nodes of Inductor's graph to layers."""

    def __init__(self, spec: ModelSpec):
        self.ops, self.sources = {x.name: x.op for x in spec.layers}, spec.sources()
        self.fused: dict[str, str] = {}

    def of(self, origins: Iterable[Any]) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for node in sorted((n for n in origins if n.op == "call_function"), key=_position):
            stack = " ".join(str(entry[0]) for entry in node.meta.get("nn_module_stack", {}).values())
            words = [*re.findall(r"\w+", stack), *(made.name for made in node.meta.get("from_node", ())[:1])]
            layer = next((w for w in words if w in self.ops), None)
            if layer is not None and isinstance(node.target, functools.partial):
                # A convolution with what follows it, which is all that the node knows of.
                if node.name not in self.fused:
                    self.fused[node.name] = self._product(layer) or layer
                layer = self.fused[node.name]
            if layer is not None:
                found[layer] = None
        return tuple(found)

    def _product(self, layer: str) -> str | None:
        """The nearest convolution or fc, from ``layer`` upwards, that no other node is for."""
        if layer not in self.ops:
            return None
        if self.ops[layer] in _CALLED:
            return None if layer in self.fused.values() else layer
        return next((up for source in self.sources[layer] if (up := self._product(source))), None)


def _position(node: Any) -> int:
    return list(node.graph.nodes).index(node)


def jobs(calls: Sequence[Call], spec: ModelSpec) -> list[Job]:
    """What each call is for. An operator is for the layer that ends it, a generated kernel for the one with the most to
    compute, of those that no earlier call came from."""
    ops = {item.name: item.op for item in spec.layers}
    done: set[str] = set()
    found = []
    for kernel, layers in calls:
        new = [x for x in layers if x not in done and not (kernel and ops[x] in _CALLED)]
        moves = bool(kernel) and all(ops[x] in ("flatten", "dropout") for x in new)
        found.append(Job(_main(new or (layers[-1:] if kernel else layers), ops), moves))
        done.update(new)
    return found


def _main(layers: Sequence[str], ops: Mapping[str, str]) -> str:
    return min(reversed(layers), key=lambda layer: _MAIN.index(ops[layer]), default="")


def place(calls: Sequence[Call], spec: ModelSpec, roots: Sequence[Node]) -> bool:
    """Give each node of a compiled step its layer, and its kind where the layer's does not tell; whether it could be
    done: not if other calls are seen than were written."""
    seen = list(_outermost(roots))
    if len(seen) != len(calls) or any(
        generated(n.name) != bool(c.kernel) or not n.name.endswith(c.kernel) for n, c in zip(seen, calls, strict=True)
    ):
        return False
    for node, job in zip(seen, jobs(calls, spec), strict=True):
        for inner in node.walk():
            inner.layer, inner.kind = job.layer, "layout" if job.moves else ""
    return True


def _outermost(nodes: Iterable[Node]) -> Iterator[Node]:
    """The calls of generated code: operators and kernels that compute, or hold one that does, and are in no other."""
    for node in nodes:
        if not (operator(node.name) or generated(node.name)):
            yield from _outermost(node.children)
        elif any(inner.computes for inner in node.walk()):
            yield node


def by_order(
    calls: Sequence[Call], spec: ModelSpec, batch: int, step: Callable[[], None]
) -> dict[str, list[onednn.Primitive]]:
    """What oneDNN runs for each convolution of a compiled network: it and the reorders before it, from more steps.

    Convolutions are told by their shapes, in order; one that is not oneDNN's is missing.
    """
    groups: list[list[onednn.Primitive]] = [[]]
    for primitive in onednn.typical([onednn.parse(text) for text in verbose(step)]):
        if primitive.kind in ("convolution", "reorder"):
            groups[-1].append(primitive)
        if primitive.kind == "convolution":
            groups.append([])
    left = iter(groups[:-1])
    sites = zoo.sites(spec, batch)
    found, group = {}, next(left, None)
    for call, job in zip(calls, jobs(calls, spec), strict=True):
        site = None if call.kernel else sites.get(job.layer)
        if group and site and any(group[-1].computes(s) for s in _as_run(site)):
            found[job.layer], group = group, next(left, None)
    return found


def _as_run(site: ConvSite) -> tuple[ConvSite, ConvSite]:
    """The site, and the same with its padding in the image, as asymmetric padding is done."""
    (height, width), (top, left, bottom, right) = site.in_hw, site.pads
    return site, replace(site, in_hw=(height + top + bottom, width + left + right), pads=(0, 0, 0, 0))
