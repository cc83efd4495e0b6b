"""Where the time of a module that TVM compiled goes: its virtual machine calls back before and after each call.

Of a GPU, whose kernels run after their calls have returned, see ``tvm_events``.

The callback is in Python, and many calls of a pass are the machine's own (memory, checks of shapes): what all that adds
is calibrated by calling back with arguments like theirs.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import tvm_ffi

from xframe.backends import kinds, profiler_cost
from xframe.errors import NotHonoured
from xframe.types import CONVERSIONS, ConvSite, Kernel, Profile, SiteRecord, Span

_BUILTIN, _MEMORY = "vm.", "vm.builtin.alloc"
#: Kinds of which an ONNX node becomes one kernel, in the order of the graph.
_ONE_TO_ONE = ("fc", "pool", "norm", "softmax")

if TYPE_CHECKING:
    from xframe.backends.nodes import Nodes

Shapes = list[tuple[int, ...]]


class Owner(NamedTuple):
    """What a kernel belongs to: the ONNX node of its convolution, the problem, the stage, the algorithm in words."""

    layer: str = ""
    site: ConvSite | None = None
    role: str = ""
    algorithm: str = ""


Join = Callable[[Sequence[str]], Sequence[Owner]]


class Call(NamedTuple):
    """Of a kernel, or of the virtual machine's own functions; seconds from the pass's start."""

    name: str
    start: float
    end: float


def is_kernel(call: Call) -> bool:
    """Whether it is none of the virtual machine's own."""
    return not call.name.startswith(_BUILTIN)


class Instrument:
    """The callback; ``seen`` has (name, begins, time in ``perf_counter`` seconds) of each one.

    ``mark`` is called before each kernel, on top.
    """

    def __init__(self, mark: Callable[[], None] | None = None) -> None:
        self.seen: list[tuple[str, bool, float]] = []
        add, clock = self.seen.append, time.perf_counter

        def watch(_: Any, name: str, begins: bool, *__: Any) -> None:
            if mark and begins and not name.startswith(_BUILTIN):
                mark()
            add((name, begins, clock()))

        self.function = tvm_ffi.convert_func(watch)

    def rewind(self) -> None:
        """Forget what was seen: another pass begins."""
        self.seen.clear()

    def calls(self, start: float) -> list[Call]:
        """Those of a pass that began at ``start``, in the order in which they ended."""
        out, open_ = [], []
        for name, begins, when in self.seen:
            if begins:
                open_.append(when)
            else:
                out.append(Call(str(name), open_.pop() - start, when - start))
        return out


class Watched:
    """A virtual machine with the one function that is a pass. ``tensor``: any, to stand for those of its calls.

    A pass is looked at on its own, before any that is profiled, because that takes time: ``shapes`` has its kernels
    with the shapes of their arguments, in the order in which they ran.
    """

    def __init__(self, machine: Any, step: Callable[[], None], sync: Callable[[], None], tensor: Any) -> None:
        self._machine, self._step, self._sync = machine, step, sync
        self.shapes: list[tuple[str, Shapes]] = []
        self._callbacks: list[tuple[Any, ...]] = []

        def stand_in(x: Any) -> Any:  # nothing that would hold the pass's memory
            return tensor if isinstance(x, tvm_ffi.Tensor) else x if isinstance(x, (int, str, tvm_ffi.Shape)) else None

        def look(function: Any, name: str, begins: bool, result: Any, *arguments: Any) -> None:
            self._callbacks.append((function, str(name), begins, *map(stand_in, (result, *arguments))))
            if begins and not name.startswith(_BUILTIN):
                shapes = [tuple(a.shape) for a in arguments if isinstance(a, tvm_ffi.Tensor)]
                self.shapes.append((str(name), shapes))

        with self._watching(tvm_ffi.convert_func(look)):
            step()
            sync()

    def profiles(self, passes: int, join: Join, nodes: "Nodes") -> list[Profile]:
        """So many profiled passes, each after one that is not. ``join``: names of the kernels of a pass -> owners."""
        return [self._profiled(join, nodes, self._cost) for _ in range(passes)]

    def _instrument(self) -> Instrument:
        """The callback of another pass."""
        return Instrument()

    @cached_property
    def _cost(self) -> float:
        """Seconds of the callbacks of a pass, beyond those of a native function called with the same arguments."""
        native, instrument = tvm_ffi.get_global_func("ffi.Array"), self._instrument()

        def run(called: Any) -> None:
            for arguments in self._callbacks:
                called(*arguments)
            instrument.rewind()

        return profiler_cost.added(lambda: run(native), lambda: run(instrument.function))

    def _profiled(self, join: Join, nodes: "Nodes", cost: float) -> Profile:
        self._step()
        instrument = self._instrument()
        with self._watching(instrument.function):
            start = time.perf_counter()
            self._step()
            wall = time.perf_counter() - start
        calls = instrument.calls(start)
        kernels = kernels_of(filter(is_kernel, calls), join, nodes)
        return Profile(wall, tuple(kernels), spans_of(c for c in calls if not is_kernel(c)), cost)

    @contextlib.contextmanager
    def _watching(self, callback: Any) -> Iterator[None]:
        """The machine calls back within the block."""
        self._machine["set_instrument"](callback)
        try:
            yield
        finally:
            self._machine["set_instrument"](None)


def kernels_of(calls: Iterable[Call], join: Join, nodes: "Nodes") -> list[Kernel]:
    """The kernels of a pass with what they belong to. ``join`` as in :meth:`Watched.profiles`."""
    ran, kernels = list(calls), []
    for call, owner in zip(ran, join([c.name for c in ran]), strict=True):
        kind = ("layout" if owner.role in CONVERSIONS else "conv") if owner.site else kinds.of_name(call.name)
        words = owner.algorithm if kind == "conv" else ""
        kernels.append(Kernel(*call, owner.site, owner.role, kind, owner.layer, words))
    return layered(kernels, nodes)


def spans_of(calls: Iterable[Call]) -> tuple[Span, ...]:
    """What the host does in calls."""
    return tuple(Span(*call, "allocation" if call.name.startswith(_MEMORY) else "dispatch") for call in calls)


def layered(kernels: Sequence[Kernel], nodes: "Nodes") -> list[Kernel]:
    """``kernels`` with the ONNX nodes of those that are no convolutions, for the kinds that have as many of each."""
    out = list(kernels)
    for kind in _ONE_TO_ONE:
        mine = [i for i, k in enumerate(kernels) if k.kind == kind]
        theirs = [name for name in nodes if kinds.of_operator(nodes.operator(name)) == kind]
        if len(mine) == len(theirs):
            for i, name in zip(mine, theirs, strict=True):
                out[i] = replace(out[i], layer=name)
    return out


def forced(sites: Sequence[SiteRecord], layers: Sequence[str]) -> Callable[[Sequence[str]], list[Owner]]:
    """The join of a forced plan, whose kernels are called ``<site>_<lowering>_<role>``.

    Equal convolutions share their kernels, under the first one's name; they run in the order of ``sites``, and so do
    ``layers``, their ONNX nodes. It raises NotHonoured when fewer kernels of its lowering ran at a planned site than
    there are convolutions.
    """
    named = {s.name: s for s in sites}

    def join(names: Sequence[str]) -> list[Owner]:
        owners, ran = [], Counter[ConvSite]()
        at, roles = -1, set[str]()
        for name in names:
            first, _, rest = name.partition("_")
            record = named.get(first)
            if record is None:
                owners.append(Owner())
                continue
            role = rest.removeprefix(f"{record.requested}_")
            if role != rest:
                ran[record.site] += 1
            if at < 0 or sites[at].site != record.site or role in roles:
                later = (i for i in range(at + 1, len(sites)) if sites[i].site == record.site)
                at, roles = next(later, at), set()
            roles.add(role)
            layer = layers[at] if layers and sites[at].site == record.site else ""
            owners.append(Owner(layer, record.site, role, f"{record.selected} {record.detail}".strip()))
        planned = Counter(s.site for s in sites if s.requested)
        missing = [s.name for s in sites if s.requested and ran[s.site] < planned[s.site]]
        if missing:
            raise NotHonoured(f"no kernel of the forced lowering ran at {', '.join(missing)}")
        return owners

    return join


def stock(
    seen: Sequence[tuple[str, Shapes]], conv_sites: Sequence[tuple[str, ConvSite]]
) -> Callable[[Sequence[str]], list[Owner]]:
    """The join of TVM's own plan: convolutions by the shapes of their arguments, equal ones in the order of the graph.

    Its convolutions are direct ones, whatever the shape.
    """
    left, owners = list(conv_sites), []
    for name, shapes in seen:
        fits = kinds.of_name(name) == "conv" and next((c for c in left if _fits(shapes, c[1])), None)
        if fits:
            left.remove(fits)
        owners.append(Owner(*fits, "", "direct:topi") if fits else Owner())

    def join(names: Sequence[str]) -> list[Owner]:
        return owners if len(names) == len(owners) else [Owner()] * len(names)

    return join


def _fits(shapes: Shapes, site: ConvSite) -> bool:
    image = (site.batch, site.in_channels, *site.in_hw)
    weight = (site.out_channels, site.in_channels // site.groups, *site.kernel)
    return shapes[:2] == [image, weight] and shapes[-1] == (site.batch, site.out_channels, *site.out_hw)
