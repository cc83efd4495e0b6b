"""Where two graphs part: the first aligned tensor that differs, and the part of both that gives it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from xframe.check import emit
from xframe.check.engine import Feed
from xframe.check.shrink import Problem
from xframe.equivalence.bounds import Quantity
from xframe.equivalence.graph import Graph, Node, Roundings, run
from xframe.equivalence.reference import OPERATORS, Judged

if TYPE_CHECKING:
    from xframe.normal.form import Normal
    from xframe.normal.match import Match

#: What has another shape because it was written in another way.
_ARRANGING = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Pad", "Expand", "Tile", "Concat")


def first_difference(a: Normal, b: Normal, match: Match, feed: Feed) -> tuple[Problem, Node] | None:
    """The smallest part of both around the first node of ``a`` whose result differs in ``b``; None: none does.

    Parameters
    ----------
    a, b
        Their inputs and outputs correspond by position.
    match
        Which nodes correspond. Results of other shapes are compared only where they are outputs; but where one lies on
        the way to a difference, it is the difference.

    Raises
    ------
    ModelError
        The float64 reference does not know an operator.
    """
    first, second, makers = a.graph, b.graph, {name: n for n in a.graph.nodes for name in n.outputs}
    other, odd = _aligned(a, b, match)
    exact: dict[str, Judged] = {}

    def keep(name: str, value: Quantity) -> None:
        if name in other:
            exact[name] = Judged(name, value.real, value.bound)

    run(first, _named(first, feed), OPERATORS, {}, keep)
    back: dict[str, list[str]] = {}
    for name in exact:
        back.setdefault(other[name], []).append(name)
    wrong: set[str] = set()

    def compare(name: str, value: Quantity) -> None:
        wrong.update(x for x in back.get(name, ()) if differs(exact[x], value.real))

    given = run(second, _named(second, feed), OPERATORS, None, compare)
    bad = next((name for name in exact if name in wrong), None)
    if bad is None:  # every layer agrees; the outputs may be others, or in another order
        ends = zip(first.outputs, second.outputs, given, strict=True)
        bad, end = next(((x, y) for x, y, q in ends if x in exact and differs(exact[x], q.real)), (None, ""))
        if bad is None:
            return None
        other[bad] = end
        wrong.add(bad)
    values = {**{name: judged.value for name, judged in exact.items()}, **_named(first, feed)}
    good = [name for name in values if name not in wrong and other[name] != other[bad]]
    whole = Problem.of((replace(first, outputs=(bad,)), replace(second, outputs=(other[bad],))), feed)
    found = next((p for p in _cuts(first, second, bad, other, good, values) if differ(p, strict=False)), whole)
    for name in (n for node in found.graphs[0].nodes for n in node.outputs if n in odd):
        earlier = next(_cuts(first, second, name, {**other, **odd}, good, values), None)
        if earlier is not None and differ(earlier, strict=False):
            return earlier, makers[name]
    return found, makers[bad]


def _aligned(a: Normal, b: Normal, match: Match) -> tuple[dict[str, str], dict[str, str]]:
    """Tensor of ``a`` -> its counterpart: what paired nodes give, the inputs and outputs by position. And those of
    paired windows and other computations whose shapes are not the same."""
    other = dict(zip(a.graph.inputs, b.graph.inputs, strict=True))
    odd = {}
    for pair in match.pairs:
        if pair.a is not None and pair.b is not None:
            for x, y in zip(pair.a.outputs, pair.b.outputs, strict=False):
                if a.shapes.get(x) == b.shapes.get(y):
                    other[x] = y
                elif pair.a.op == pair.b.op and pair.a.op not in _ARRANGING:
                    odd[x] = y
    for x, y in zip(a.graph.outputs, b.graph.outputs, strict=True):
        other.setdefault(x, y)
    return other, odd


def _named(graph: Graph, feed: Feed) -> dict[str, np.ndarray]:
    return dict(zip(graph.inputs, feed, strict=True))


def _cuts(
    a: Graph, b: Graph, bad: str, other: Mapping[str, str], good: Sequence[str], values: Mapping[str, np.ndarray]
) -> Iterator[Problem]:
    """Parts of both that end at ``bad``: from the nearest tensors that agree, then from those before, and so on."""
    left = list(good)
    while left:
        back = {other[name]: name for name in left}
        near = _met(a, bad, set(left)) | {back[name] for name in _met(b, other[bad], set(back))}
        start = [name for name in left if name in near]
        feeds = [values[name].astype(np.float32) for name in start]
        if start:
            first = emit.part(a, {name: x.shape for name, x in zip(start, feeds, strict=True)}, [bad])
            second = emit.part(b, {other[n]: x.shape for n, x in zip(start, feeds, strict=True)}, [other[bad]])
            if len(first.inputs) == len(second.inputs) == len(start):
                yield Problem.of((first, second), feeds)
        inner = {name for name in start if name not in a.inputs}
        if not inner:
            return
        left = [name for name in left if name not in inner]


def _met(graph: Graph, end: str, stops: set[str]) -> set[str]:
    """The tensors of ``stops`` that are met first on the way back from ``end``."""
    wanted: set[str] = {end}
    met: set[str] = set()
    for node in reversed(graph.nodes):
        if wanted.intersection(node.outputs):
            for name in node.inputs:
                (met if name in stops else wanted).add(name)
    return met


def exact_output(graph: Graph, feed: Feed, roundings: Roundings | None = None) -> Judged:
    """The first output in float64. Raises what evaluating it does."""
    quantity = run(graph, _named(graph, feed), OPERATORS, roundings or {})[0]
    return Judged(graph.outputs[0], quantity.real, quantity.bound)


def differs(exact: Judged, other: np.ndarray) -> bool:
    """Whether any element is beyond its bound, or not finite in one alone, or the shapes are different."""
    if exact.value.shape != other.shape:
        return True
    with np.errstate(invalid="ignore"):
        near = np.abs(exact.value - other) <= exact.bound
    return not (near | (np.isnan(exact.value) & np.isnan(other)) | (exact.value == other)).all()


def differ(problem: Problem, strict: bool) -> bool:
    """Whether both graphs part; where ``strict``, beyond the bounds of both, so that correct float32 runs do, too."""
    return _part(*_exact(problem), strict)


def _exact(problem: Problem) -> tuple[Judged, Judged]:
    first, second = (exact_output(graph, problem.feeds) for graph in problem.graphs)
    return first, second


def _part(first: Judged, second: Judged, strict: bool) -> bool:
    if strict and first.bound.shape == second.bound.shape:
        first = replace(first, bound=first.bound + second.bound)
    return bool(first.value.size and second.value.size) and differs(first, second.value)


class StillParts:
    """Whether a smaller problem still fails in the way of ``problem``: in its shapes, or in its numbers."""

    def __init__(self, problem: Problem) -> None:
        first, second = _exact(problem)
        self._strict = _part(first, second, strict=True)
        self._reshaped = first.value.shape != second.value.shape

    def __call__(self, candidate: Problem) -> bool:
        first, second = _exact(candidate)
        finite = bool(np.isfinite(first.value).all() and np.isfinite(first.bound).all())
        reshaped = first.value.shape != second.value.shape
        return finite and reshaped == self._reshaped and _part(first, second, self._strict)
