"""The first level of a check: do two models take and give the same, and which tensor is whose counterpart?"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from xframe.check.interface import Interface, Port
from xframe.equivalence.result import Difference, Level, LevelVerdict, State
from xframe.errors import UsageError
from xframe.subject import canonical_shape

LAYOUTS = ("NCHW", "NHWC")
#: An NHWC tensor is the NCHW one transposed by these axes.
LAST = (0, 2, 3, 1)


@dataclass(frozen=True)
class Binding:
    """An input or output of both. ``a``'s tensor is the canonical (NCHW) one transposed by ``axes_a``, ``b``'s by
    ``axes_b``; an empty one leaves it as it is."""

    a: str
    b: str
    axes_a: tuple[int, ...] = ()
    axes_b: tuple[int, ...] = ()


@dataclass(frozen=True)
class Signature:
    """How two models correspond.

    Attributes
    ----------
    verdict
        Of the level; its differences hold also what is harmless (another layout, a free batch, an unread input).
    inputs, outputs
        The bindings, in the first model's order. An input that is not read may have none.
    aligned
        Whether every output, and every input that is read, is bound to one of the same shape: numbers can be compared.
        A DIFFERENT signature can still be aligned (outputs swapped, another precision).
    comparable
        Whether at least the inputs are, and each output has its counterpart: the graphs can be laid side by side.
    first, second
        What was aligned.
    """

    verdict: LevelVerdict
    inputs: tuple[Binding, ...]
    outputs: tuple[Binding, ...]
    aligned: bool
    comparable: bool
    first: Interface
    second: Interface

    def feed(self, feed: Sequence[np.ndarray]) -> list[np.ndarray]:
        """A feed of the first model in the second's order and layout; zeros where it has an input of its own that
        nothing reads."""
        given = dict(zip((p.name for p in self.first.inputs), feed, strict=True))
        bound = {b.b: relaid(given[b.a], b.axes_a, b.axes_b) for b in self.inputs}
        return [bound[p.name] if p.name in bound else np.zeros(p.shape or (), np.float32) for p in self.second.inputs]


def relaid(x: np.ndarray, axes: Sequence[int], to: Sequence[int]) -> np.ndarray:
    """A tensor that is the canonical one transposed by ``axes``, as the canonical one transposed by ``to``."""
    if tuple(axes) == tuple(to):
        return x
    canonical = x.transpose(np.argsort(axes)) if axes else x
    return np.ascontiguousarray(canonical.transpose(to) if to else canonical)


def align(
    a: Interface,
    b: Interface,
    names: Mapping[str, str] | None = None,
    layouts: tuple[str | None, str | None] = (None, None),
) -> Signature:
    """Bind the inputs and outputs of two models.

    Parameters
    ----------
    a, b
        What they take and give.
    names
        Input or output of ``a`` -> its counterpart in ``b``. The others are bound by name where both have the same
        names, else by position.
    layouts
        Declared layouts of the image inputs, ``"NCHW"`` or ``"NHWC"``. Without, the files' own stamps hold, and what
        the shapes leave no doubt about.

    Raises
    ------
    UsageError
        A name that neither model has, or a layout that is none.
    """
    start = time.perf_counter()
    names = dict(names or {})
    _check(a, b, names, layouts)
    found: list[Difference] = []
    fitting: dict[str, bool] = {}
    paired = True
    bindings: dict[str, list[Binding]] = {}
    for what in ("input", "output"):
        ports = (a.inputs, b.inputs) if what == "input" else (a.outputs, b.outputs)
        pairs = _pairs(what, a.name, b.name, *ports, names, found)
        bound = [_bind(what, a.name, b.name, p, q, layouts, found) for p, q in pairs or []]
        paired &= pairs is not None
        fitting[what] = pairs is not None and all(fits for _, fits in bound)
        bindings[what] = [x for x, _ in bound]
    parted = [d.text for d in found if not d.harmless]
    more = f", and {len(parted) - 2} more" if len(parted) > 2 else ""
    verdict = LevelVerdict(
        Level.SIGNATURE,
        State.DIFFERENT if parted else State.EQUIVALENT,
        "; ".join(parted[:2]) + more,
        tuple(found),
        time.perf_counter() - start,
    )
    ends = tuple(bindings["input"]), tuple(bindings["output"])
    return Signature(verdict, *ends, all(fitting.values()), paired and fitting["input"], a, b)


def _check(a: Interface, b: Interface, names: Mapping[str, str], layouts: Sequence[str | None]) -> None:
    for one, given in ((a, names.keys()), (b, names.values())):
        has = [p.name for p in (*one.inputs, *one.outputs)]
        for name in given:
            if name not in has:
                raise UsageError(f"{one.name} has no input or output {name!r}; it has {', '.join(has)}")
    for key, value in names.items():
        if (key in {p.name for p in a.inputs}) != (value in {p.name for p in b.inputs}):
            raise UsageError(f"{key!r} of {a.name} can't be {value!r} of {b.name}: one is an input, one an output")
    if len(set(names.values())) < len(names):
        raise UsageError(f"two names of {a.name} are mapped to the same of {b.name}: {names}")
    for layout in layouts:
        if layout is not None and layout not in LAYOUTS:
            raise UsageError(f"unknown layout {layout!r}: there are {' and '.join(LAYOUTS)}")


def _pairs(
    what: str,
    a: str,
    b: str,
    of_a: Sequence[Port],
    of_b: Sequence[Port],
    names: Mapping[str, str],
    found: list[Difference],
) -> list[tuple[Port, Port]] | None:
    """Counterparts in the order of ``of_a``; None where the numbers differ."""
    known = {p.name: p for p in of_b}
    given = {p.name: known[names[p.name]] for p in of_a if p.name in names}
    left = [p for p in of_a if p.name not in given]
    right = [p for p in of_b if p.name not in {q.name for q in given.values()}]
    mute = [(side, p) for side, ports in ((a, left), (b, right)) for p in ports if not p.read]
    for side, p in mute:
        text = f"the input {p.name} of {side} is read by nothing"
        found.append(Difference("unused input", p.name, text, harmless=True))
    if len(left) != len(right):
        left, right = ([p for p in ports if p.read] for ports in (left, right))
    if len(left) != len(right):
        verb = {"input": "takes", "output": "gives"}[what]
        text = f"{b} {verb} {_counted(right, what)}, {a} {verb} {_counted(left, what)}"
        found.append(Difference(f"{what}s", "", text))
        return None
    by_name = {p.name: p for p in right}
    if {p.name for p in left} == set(by_name):
        moved = [(i, p.name, right.index(by_name[p.name])) for i, p in enumerate(left) if right[i].name != p.name]
        if moved:
            places = ", ".join(f"{name} is {what} {i} of {a} and {j} of {b}" for i, name, j in moved)
            text = f"{what}s swapped: {places}; by position, one is taken for another"
            found.append(Difference(f"{what}s swapped", moved[0][1], text))
        given |= by_name
    else:
        given |= {p.name: q for p, q in zip(left, right, strict=True)}
    return [(p, given[p.name]) for p in of_a if p.name in given]


def _counted(ports: Sequence[Port], what: str) -> str:
    names = f" ({', '.join(p.name for p in ports[:6])}{', ...' if len(ports) > 6 else ''})" if ports else ""
    return f"{len(ports)} {what}{'s' * (len(ports) != 1)}{names}"


def _bind(
    what: str, a: str, b: str, p: Port, q: Port, layouts: Sequence[str | None], found: list[Difference]
) -> tuple[Binding, bool]:
    """The binding of two ports, and whether their shapes and kinds of values are the same."""
    title = f"{what} {p.name}"
    told = f"{title} ({q.name} in {b})" if p.name != q.name else title
    fits = True
    if p.dtype != q.dtype and p.dtype and q.dtype:
        fits = "float" in p.dtype and "float" in q.dtype
        kind = "precision" if fits else "values"
        found.append(Difference(kind, p.name, f"{told} is {q.dtype} in {b} and {p.dtype} in {a}"))
    first, second, doubt = _layouts(p, q, *(x if what == "input" else None for x in layouts))
    if first != second:
        text = f"{told} is {first} in {a} and {second} in {b}"
        found.append(Difference("layout", p.name, text, harmless=True))
    elif doubt:
        text = f"{told} is taken as {first} in both: one says so, and the shapes do not tell; declare the layouts"
        found.append(Difference("layout", p.name, text, harmless=True))
    axes = [LAST if layout == "NHWC" else () for layout in (first, second)]
    shapes = [x.shape and canonical_shape(x.shape, layout) for x, layout in ((p, first), (q, second))]
    if None not in shapes and shapes[0] != shapes[1]:
        text = f"{told} is {_words(p)} in {a} and {_words(q)} in {b}"
        found.append(Difference("shape", p.name, text))
        fits = False
    elif bool(p.free) != bool(q.free):
        free, where, at = (p, a, b) if p.free else (q, b, a)
        called = ", ".join(f"axis {i}{f' ({name})' if name else ''}" for i, name in free.free.items())
        text = f"{told}: {called} is free in {where} and fixed in {at}; compared at {_words(free)}"
        found.append(Difference("free size", p.name, text, harmless=True))
    return Binding(p.name, q.name, *axes), fits


def _layouts(p: Port, q: Port, declared_p: str | None, declared_q: str | None) -> tuple[str, str, bool]:
    """The layouts of both, ``""`` where there is none to speak of, and whether a second one is a guess."""
    if p.shape is None or q.shape is None or len(p.shape) != 4 or len(q.shape) != 4:
        return "", "", False
    first, second = declared_p or p.layout, declared_q or q.layout
    ways = [(x, y) for x in LAYOUTS for y in LAYOUTS if canonical_shape(p.shape, x) == canonical_shape(q.shape, y)]
    if first and second:
        stamps_fail = (first, second) not in ways and p.shape == q.shape and not (declared_p and declared_q)
        return first, first if stamps_fail else second, stamps_fail
    if not first and not second:
        if p.shape == q.shape or len(ways) != 1:
            return "", "", False
        return *ways[0], False
    ways = [(x, y) for x, y in ways if first in ("", x) and second in ("", y)]
    if len(ways) == 1:
        return *ways[0], False
    return first or second, first or second, len(ways) > 1


def _words(port: Port) -> str:
    sizes = [f"{port.free[i]}={n}" if port.free.get(i) else str(n) for i, n in enumerate(port.shape or ())]
    return f"[{', '.join(sizes)}]"
