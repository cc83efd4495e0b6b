"""What Kineto, the recorder of ``torch.profiler``, sees in a step: operators in a tree, and what recording costs.

The interval of an operator holds those of the operators that it calls. What computes is told from the tables of the
dispatcher: an operator with a kernel of its own for a CPU does, and so does one that calls no other that would; one
that only gives tensors new shapes, makes them, or is written in terms of others does not.
"""

import functools
import os
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch._C._profiler import _RecordFunctionFast as Mark
from torch.autograd.profiler import profile
from torch.autograd.profiler_util import DeviceType

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it would tell of each start and stop

#: Begins the names of intervals that are ours.
MARK = "xframe "
#: Operators that make memory, and those that only change a tensor's shape; views are told by their schemas.
ALLOCATIONS = frozenset(
    f"aten::{x}" for x in ("empty", "empty_strided", "empty_like", "empty_permuted", "new_empty", "resize_")
)
_SHAPES = frozenset(
    f"aten::{x}" for x in ("as_strided_", "set_", "squeeze_", "t_", "transpose_", "unsqueeze_", "_unsafe_view")
)
#: How the calls begin that Inductor's code makes where it is C++ throughout: of functions of C, before operators.
_SHIM = re.compile(r"aoti_torch_(?:cpu_)?(.+?)(?:_out)?$")
#: Of the chain that tells what an event costs: operators, and how often it is run with and without the profiler.
_LENGTH, _ROUNDS = 400, 7


class Event(NamedTuple):
    """An interval, seconds from the start of its pass. ``id``: of an operator; ``caller``: of a kernel on a ``device``,
    the ``id`` of the operator that launched it."""

    name: str
    start: float
    end: float
    thread: int = 0
    device: bool = False
    id: int = 0
    caller: int = 0


class Pass(NamedTuple):
    """A recorded step: seconds from before it until it was done, and what was seen in it."""

    wall: float
    events: list[Event]


@dataclass
class Node:
    """An interval of the host with those inside it. ``layer`` and ``kind`` (as of a ``xframe.types.Kernel``) are filled
    in by whoever can tell."""

    event: Event
    parent: "Node | None" = None
    children: "list[Node]" = field(default_factory=list)
    layer: str = ""
    kind: str = ""

    @property
    def name(self) -> str:
        return self.event.name

    def walk(self) -> "Iterator[Node]":
        """This one and all inside it, in the order of their beginnings."""
        yield self
        for child in self.children:
            yield from child.walk()

    def above(self) -> "Iterator[Node]":
        """Those that this one is in, from the inside out."""
        if self.parent is not None:
            yield self.parent
            yield from self.parent.above()

    def own(self) -> list[tuple[float, float]]:
        """Its interval less those of its children."""
        edges = [self.event.start, *(t for c in self.children for t in (c.event.start, c.event.end)), self.event.end]
        return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a]

    @property
    def computes(self) -> bool:
        """Whether its own time is a kernel's."""
        if generated(self.name):
            return True
        traits = _traits(self.name)
        return traits.native or (traits.leaf and not any(c.computes for x in self.children for c in x.walk()))


def operator(name: str) -> bool:
    """Whether an event of that name is an operator, or C's form of one, and no annotation or call of a driver."""
    return ("::" in name and " " not in name) or _SHIM.match(name) is not None


def generated(name: str) -> bool:
    """Whether it is a kernel that Inductor wrote (``graph_0_cpp_fused_relu_3``)."""
    return "cpp_fused" in name or "cpp_template" in name


class _Traits(NamedTuple):
    native: bool
    leaf: bool  # it computes unless what it calls does


@functools.cache
def _traits(name: str) -> _Traits:
    namespace, _, base = _of_shim(name).partition("::")
    if not operator(name) or name in ALLOCATIONS | _SHAPES:
        return _Traits(False, False)
    packet = getattr(getattr(torch.ops, namespace), base, None)
    overloads = [getattr(packet, o) for o in packet.overloads()] if packet is not None else []
    if any(r.alias_info and not r.alias_info.is_write for o in overloads for r in o._schema.returns):
        return _Traits(False, False)  # a view
    # oneDNN's and MKL's are registered as if written in terms of others.
    if namespace in ("mkl", "mkldnn") or "mkldnn" in base or _has(overloads, "CPU"):
        return _Traits(True, True)
    return _Traits(False, not _has(overloads, "CompositeImplicitAutograd"))


def _of_shim(name: str) -> str:
    """``aoti_torch_cpu_addmm_out`` -> ``aten::addmm``; the name of an operator passes through."""
    found = _SHIM.match(name)
    if found is None:
        return name
    return f"mkldnn::{found[1][7:]}" if found[1].startswith("mkldnn_") else f"aten::{found[1]}"


def _has(overloads: Sequence[Any], key: str) -> bool:
    known = (o.name() for o in overloads if torch._C._dispatch_has_kernel(o.name()))  # not those of TorchScript alone
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for name in known)


def record(step: Callable[[], None], count: int, cuda: bool, warm: Callable[[], None] = lambda: None) -> list[Pass]:
    """``count`` steps under one profiler, each after a ``warm``, of which nothing is kept."""
    with _profiler(cuda) as session:
        for _ in range(count):
            warm()
            with Mark(MARK):
                step()
    seen = session.kineto_results.events()
    marks = sorted((e.start_ns(), e.end_ns()) for e in seen if e.name() == MARK)
    return [Pass((end - start) * 1e-9, list(_within(seen, start, end))) for start, end in marks]


def _profiler(cuda: bool) -> Any:
    return profile(use_kineto=True, use_device="cuda" if cuda else None)


def _within(seen: Sequence[Any], start: int, end: int) -> Iterator[Event]:
    for e in seen:
        if start <= e.start_ns() and e.end_ns() <= end and e.name() not in (MARK, "[memory]"):
            yield Event(
                e.name(), (e.start_ns() - start) * 1e-9, (e.end_ns() - start) * 1e-9, e.start_thread_id(),
                e.device_type() != DeviceType.CPU, e.correlation_id(), e.linked_correlation_id(),
            )  # fmt: skip


def trees(events: Sequence[Event]) -> list[Node]:
    """The host's events, each below the one that it is in; the outermost ones in the order of their beginnings."""
    roots: list[Node] = []
    inside: dict[int, list[Node]] = {}
    for event in sorted((e for e in events if not e.device), key=lambda e: (e.start, -e.end)):
        stack = inside.setdefault(event.thread, [])
        while stack and (stack[-1].event.end <= event.start or stack[-1].event.end < event.end):
            stack.pop()
        node = Node(event, stack[-1] if stack else None)
        (stack[-1].children if stack else roots).append(node)
        stack.append(node)
    return roots


@functools.cache
def seconds_per_event() -> float:
    """What recording one event adds to a step: a chain of the smallest operators, with the profiler and without, in
    turn; the median of the differences."""
    x = torch.zeros(8)

    def chain() -> int:
        before = time.perf_counter_ns()
        for _ in range(_LENGTH):
            x.relu_()  # calls one that computes, as many do
        return time.perf_counter_ns() - before

    found = []
    with torch.inference_mode():
        chain()
        for _ in range(_ROUNDS):
            without = chain()
            with _profiler(False) as session:
                chain()
                recorded = chain()
            events = len(session.kineto_results.events()) / 2
            found.append((recorded - without) * 1e-9 / events)
    return statistics.median(found)
