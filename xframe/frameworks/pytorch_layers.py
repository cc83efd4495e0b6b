"""Which layer each operator of an eager step belongs to, told without touching the steps that are profiled.

An eager network runs the same operators in the same order each time. So one extra step, in which every call of a module
is marked, tells the layers of all others by position; hooks in the profiled steps themselves would add to the time of
the interpreter, which is what is to be measured. In a few more such steps oneDNN says what it runs.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from xframe.errors import XframeError
from xframe.frameworks import onednn
from xframe.frameworks.pytorch_trace import MARK, Mark, Node, operator, record, trees

#: Steps in which oneDNN tells what it runs, and for how long.
_STEPS = 5


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
        texts = verbose(step)
        with onednn.captured():  # the marks
            (seen,) = record(step, 1, cuda)
    steps = [onednn.parse_marked(text) for text in texts]
    primitives = {layer: onednn.typical([ran.get(layer, []) for ran in steps]) for layer in steps[0]}
    return Marked(list(_by_mark(trees(seen.events), "")), primitives)


def verbose(step: Callable[[], None]) -> list[str]:
    """What oneDNN says in some steps."""
    texts = []
    for _ in range(_STEPS):
        with onednn.captured() as printed, torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
            step()
        texts.append(printed.text)
    return texts


def _by_mark(nodes: Iterable[Node], layer: str) -> Iterator[tuple[str, str]]:
    for node in nodes:
        inside = node.name.removeprefix(MARK) if node.name.startswith(MARK) else layer
        if operator(node.name):
            yield node.name, inside
        yield from _by_mark(node.children, inside)
