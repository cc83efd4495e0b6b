"""Which layer each operator of a step belongs to, told without touching the steps that are profiled.

An eager network runs the same operators in the same order each time. So one extra step, in which every call of a module
is marked, tells the layers of all others by position; hooks in the profiled steps themselves would add to the time of
the interpreter, which is what is to be measured. In a few more such steps oneDNN says what it runs.

A compiled network has no modules any more. What its generated code calls, and from which layers each call came, is
noted while Inductor writes the code (:func:`watched`); a profiled step is held against that list.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import nn

from xframe import zoo
from xframe.errors import XframeError
from xframe.frameworks import onednn
from xframe.frameworks.pytorch_trace import MARK, Mark, Node, generated, operator, record, trees
from xframe.types import ConvSite, ModelSpec

#: Of a kernel that computes several layers the first of these that is among them is its main one. What only passes data
#: on comes last.
_MAIN = ("conv", "fc", "lrn", "maxpool", "avgpool", "softmax", "batchnorm", "add", "relu6", "relu", "concat", "flatten",
         "dropout")  # fmt: skip
#: Steps in which oneDNN tells what it runs, and for how long.
_STEPS = 5
#: Generated code does not hold these: where a kernel comes from nothing else, it brings their operands into form.
_CALLED = ("conv", "fc", "flatten", "dropout")


class Marked(NamedTuple):
    """The marked steps: (operator, its layer) in order, and what oneDNN ran by layer."""

    operators: list[tuple[str, str]]
    primitives: dict[str, list[onednn.Primitive]]

    def place(self, roots: Sequence[Node]) -> None:
        """Give each node of another step its layer. Raises XframeError when it ran other operators."""
        nodes = [node for root in roots for node in root.walk()]
        ran = [node.name for node in nodes if operator(node.name)]
        if ran != [name for name, _ in self.operators]:
            raise XframeError(
                f"a profiled step of pytorch ran {len(ran)} operators, and not the {len(self.operators)} of the step"
                " that told their layers"
            )
        layers = iter(self.operators)
        for node in nodes:
            node.layer = next(layers)[1] if operator(node.name) else node.parent.layer if node.parent else ""


def marked(module: nn.Module, step: Callable[[], None], cuda: bool) -> Marked:
    """Steps with every child of ``module`` marked by its name."""
    begun: list[Any] = []

    def enter(name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            onednn.mark(name)
            begun.append(Mark(MARK + name))
            begun[-1].__enter__()

        return hook

    def leave(*_: Any) -> None:
        begun.pop().__exit__(None, None, None)

    with contextlib.ExitStack() as hooks:
        for name, child in module.named_children():
            hooks.callback(child.register_forward_pre_hook(enter(name)).remove)
            hooks.callback(child.register_forward_hook(leave).remove)
        texts = _verbose(step)
        with onednn.captured():  # the marks
            (seen,) = record(step, 1, cuda)
    steps = [onednn.parse_marked(text) for text in texts]
    primitives = {layer: _typical([ran.get(layer, []) for ran in steps]) for layer in steps[0]}
    return Marked(list(_by_mark(trees(seen.events), "")), primitives)


def _verbose(step: Callable[[], None]) -> list[str]:
    """What oneDNN says in some steps."""
    texts = []
    for _ in range(_STEPS):
        with onednn.captured() as printed, torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
            step()
        texts.append(printed.text)
    return texts


def _typical(steps: Sequence[Sequence[onednn.Primitive]]) -> list[onednn.Primitive]:
    """The primitives of the first step, each with its median time over all; a step that ran others does not count."""
    alike = [ran for ran in steps if [p.problem for p in ran] == [p.problem for p in steps[0]]]
    return [same[0]._replace(seconds=median(p.seconds for p in same)) for same in zip(*alike, strict=True)]


def _by_mark(nodes: Iterable[Node], layer: str) -> Iterator[tuple[str, str]]:
    for node in nodes:
        inside = node.name.removeprefix(MARK) if node.name.startswith(MARK) else layer
        if operator(node.name):
            yield node.name, inside
        yield from _by_mark(node.children, inside)


class Call(NamedTuple):
    """A call in generated code: the generated kernel's name, empty for an operator; the layers that it came from, in
    order."""

    kernel: str
    layers: tuple[str, ...]


@contextlib.contextmanager
def watched(spec: ModelSpec) -> Iterator[list[Call]]:
    """Within the block, every call that Inductor writes is noted, in order. Nothing is where it has changed inside."""
    calls: list[Call] = []
    names = {item.name for item in spec.layers}
    with contextlib.ExitStack() as undo:
        with contextlib.suppress(ImportError, AttributeError):
            from torch._inductor import ir
            from torch._inductor.codegen import cpp
            from torch._inductor.utils import aggregate_origins

            def note(owner: Any, kernel: Callable[..., str], nodes: Callable[..., Any]) -> None:
                original = owner.codegen_comment

                def codegen_comment(self: Any, *args: Any, **kwargs: Any) -> Any:
                    with contextlib.suppress(Exception):  # it must never keep the code from being written
                        calls.append(Call(kernel(*args), _layers(aggregate_origins(nodes(self, *args)), names)))
                    return original(self, *args, **kwargs)

                undo.callback(setattr, owner, "codegen_comment", original)
                owner.codegen_comment = codegen_comment

            note(cpp.CppScheduling, lambda nodes, kernel=None: kernel or "", lambda self, nodes, *_: nodes)
            note(ir.ExternKernel, lambda *_: "", lambda self, *_: self)
        yield calls


def _layers(origins: Iterable[Any], names: set[str]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for node in sorted((n for n in origins if n.op == "call_function"), key=_position):
        words = re.findall(r"\w+", " ".join(str(entry[0]) for entry in node.meta.get("nn_module_stack", {}).values()))
        words += [made.name for made in node.meta.get("from_node", ())[:1]]
        found.update(dict.fromkeys([w for w in words if w in names][:1]))
    return tuple(found)


def _position(node: Any) -> int:
    return list(node.graph.nodes).index(node)


def place(calls: Sequence[Call], spec: ModelSpec, roots: Sequence[Node]) -> bool:
    """Give each node of a compiled step its layer, and its kind where the layer's does not tell; whether it could be
    done: not if other calls are seen than were written."""
    ops = {item.name: item.op for item in spec.layers}
    seen = list(_outermost(roots))
    if len(seen) != len(calls) or any(
        generated(n.name) != bool(c.kernel) or not n.name.endswith(c.kernel) for n, c in zip(seen, calls, strict=True)
    ):
        return False
    for node, call in zip(seen, calls, strict=True):
        layer = main(call, ops)
        moved = bool(call.kernel) and (not layer or ops[layer] in _CALLED)
        for inner in node.walk():
            inner.layer, inner.kind = layer, "layout" if moved else ""
    return True


def _outermost(nodes: Iterable[Node]) -> Iterator[Node]:
    """The calls of generated code: operators and kernels that compute, or hold one that does, and are in no other."""
    for node in nodes:
        if not (operator(node.name) or generated(node.name)):
            yield from _outermost(node.children)
        elif any(inner.computes for inner in node.walk()):
            yield node


def main(call: Call, ops: Mapping[str, str]) -> str:
    """The layer that a call is mainly for: of what an operator came from, the layer that ends it; of a generated
    kernel, the one with the most to compute. Empty when it came from none."""
    kinds = [k for k in _MAIN if k not in _CALLED] + list(_CALLED) if call.kernel else list(_MAIN)
    return min(reversed(call.layers), key=lambda layer: kinds.index(ops[layer]), default="")


def by_order(
    calls: Sequence[Call], spec: ModelSpec, batch: int, step: Callable[[], None]
) -> dict[str, list[onednn.Primitive]]:
    """What oneDNN runs for each convolution of a compiled network: it and the reorders before it, from more steps.

    Convolutions are told by their shapes, in order; one that is not oneDNN's is missing.
    """
    groups: list[list[onednn.Primitive]] = [[]]
    for primitive in _typical([onednn.parse(text) for text in _verbose(step)]):
        if primitive.kind in ("convolution", "reorder"):
            groups[-1].append(primitive)
        if primitive.kind == "convolution":
            groups.append([])
    left = iter(groups[:-1])
    ops, sites = {item.name: item.op for item in spec.layers}, zoo.sites(spec, batch)
    found, group = {}, next(left, None)
    for layer in (main(call, ops) for call in calls if not call.kernel):
        if group and ops.get(layer) == "conv" and any(group[-1].computes(s) for s in _as_run(sites[layer])):
            found[layer], group = group, next(left, None)
    return found


def _as_run(site: ConvSite) -> tuple[ConvSite, ConvSite]:
    """The site, and the same with its padding in the image, as asymmetric padding is done."""
    (height, width), (top, left, bottom, right) = site.in_hw, site.pads
    return site, replace(site, in_hw=(height + top + bottom, width + left + right), pads=(0, 0, 0, 0))
