"""Two models in numbers: every layer that corresponds, every output, and the verdict.

The second one's exact values are held against the first's and the error that a correct float32 run of the first may
have: what lies within is the same function for any user, what lies beyond is not.

Layers are those of the normal forms. Both are evaluated in float64 in lockstep, so that a tensor is dropped when its
last reader and its comparison are done. As long as both compute the same from the same, the second takes the first's
results: the unchanged part of a port costs one evaluation, and where nothing changed no bounds are needed either.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from xframe.check.judging import blind
from xframe.equivalence.bounds import Quantity
from xframe.equivalence.graph import Evaluation, Node
from xframe.equivalence.reference import OPERATORS, Judged
from xframe.equivalence.result import LayerRow, State, Statistics
from xframe.equivalence.statistics import statistics
from xframe.equivalence.verdict import judge, uncompared
from xframe.errors import ModelError, UsageError
from xframe.normal.form import Normal
from xframe.normal.match import Match

Rows = tuple[LayerRow, ...]
#: What is said of two tensors of different shapes.
APART = Statistics(math.inf, None, math.inf, None, (math.inf,) * 4, math.inf)
#: Two tensors that correspond, with the nodes that give them.
Aligned = tuple[str, str, Node, Node]


def layers(a: Normal, b: Normal, match: Match, feeds: Sequence[Sequence[np.ndarray]]) -> Rows:
    """Hold every tensor of ``b`` that has a counterpart in ``a`` against it.

    Parameters
    ----------
    a, b
        Their inputs correspond by position.
    match
        Which nodes correspond; of tensors of different shapes, those differ whose nodes do.
    feeds
        Each is a list of arrays in the order of ``a``'s inputs and in the layout of the normal form.

    Returns
    -------
    rows
        One for each aligned tensor, in topological order; its statistics are those of the feed for which it is furthest
        off. A row that is not ok without statistics could not be compared, for the reason that it tells; with
        statistics, the two differ. A layer that can't be evaluated has such a row; what depends on it has none.

    Raises
    ------
    UsageError
        No feeds, or not as many arrays as ``a`` has inputs.
    """
    if not feeds or any(len(feed) != len(a.graph.inputs) for feed in feeds):
        raise UsageError(f"feeds of {len(a.graph.inputs)} arrays are needed, one or more")
    aligned = _aligned(a, b, match)
    shared = _shared(a, b, aligned)
    found: dict[tuple[str, str], LayerRow] = {}
    for feed in feeds:
        for key, row in _Lockstep(a, b, feed, aligned, shared).rows():
            found[key] = _worse(found.get(key), row)
    return tuple(found.values())


def outputs(first: Sequence[Sequence[Judged]], second: Sequence[Sequence[Judged]]) -> Rows:
    """Hold the exact outputs of the second model against those of the first; both are given by feed, then by output.

    Returns
    -------
    rows
        One for each output, of the feed for which it is furthest off; read as those of :func:`layers`.
    """
    found: dict[int, LayerRow] = {}
    for wanted, given in zip(first, second, strict=True):
        for i, (want, got) in enumerate(zip(wanted, given, strict=True)):
            row = LayerRow(want.name, got.name, "output", want.value.shape, *_judged(want, got.value))
            found[i] = _worse(found.get(i), row)
    return tuple(found.values())


def verdict(outputs: Rows, layers: Rows, name: str) -> tuple[State, str]:
    """What the outputs decide, and in a sentence why it is not EQUIVALENT; layers tell where it began.

    Parameters
    ----------
    name
        What the first model is called.
    """
    differing = [row for row in outputs if not row.ok and row.statistics is not None]
    unknown = [row for row in outputs if not row.ok and row.statistics is None]
    begin = next((row for row in layers if not row.ok and row.statistics is not None), None)
    began = "" if begin is None else f"; the first layer that differs is {begin.a or begin.b} ({begin.op})"
    if differing:
        worst = max(differing, key=lambda row: row.statistics.ratio if row.statistics else 0.0)
        return State.DIFFERENT, f"against {name}: {worst.reason}{began}"
    if unknown or not outputs:
        return State.UNCHECKED, (unknown[0].reason if unknown else "no outputs to compare") + began
    return State.EQUIVALENT, ""


def _aligned(a: Normal, b: Normal, match: Match) -> list[Aligned]:
    needed = [{node.name for node in normal.graph.needed()} for normal in (a, b)]
    found = []
    for pair in match.pairs:
        if pair.a is None or pair.b is None or pair.a.name not in needed[0] or pair.b.name not in needed[1]:
            continue
        for one, other in zip(pair.a.outputs, pair.b.outputs, strict=False):
            if one not in a.shapes or other not in b.shapes:
                continue
            first, second = a.shapes[one], b.shapes[other]
            if first == second or (_resized(first, second) and any(not d.harmless for d in pair.differences)):
                found.append((one, other, pair.a, pair.b))
    return found


def _resized(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two shapes are not those of the same elements."""
    return math.prod(a) != math.prod(b)


def _shared(a: Normal, b: Normal, aligned: Sequence[Aligned]) -> dict[str, str]:
    """Tensors of ``b`` -> those of ``a`` that have the same bits, as the same nodes make them of the same tensors.

    Decided here, not by the match: numbers must not depend on what the normal forms are said to be.
    """
    found = dict(zip(b.graph.inputs, a.graph.inputs, strict=False))
    partners = {node_b.name: node_a for _, _, node_a, node_b in aligned}
    for node in b.graph.needed():
        partner = partners.get(node.name)
        if partner is not None and _identical(a, partner, b, node, found):
            found.update(zip(node.outputs, partner.outputs, strict=True))
    return found


def _identical(a: Normal, node_a: Node, b: Normal, node_b: Node, shared: Mapping[str, str]) -> bool:
    kinds = [(n.op, n.opset, len(n.inputs), len(n.outputs), dict(n.attrs)) for n in (node_a, node_b)]
    if not _equal(*kinds):
        return False
    for one, other in zip(node_a.inputs, node_b.inputs, strict=True):
        if other in b.weights and one in a.weights:
            if a.weights[one].digest != b.weights[other].digest:
                return False
        elif (one or other) and shared.get(other) != one:
            return False
    return True


@dataclass
class _Side:
    """One graph at work. ``failed``: why a tensor is not there."""

    normal: Normal
    evaluation: Evaluation
    failed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._order = {id(node): i for i, node in enumerate(self.evaluation.nodes)}
        self._makers = {name: node for node in self.evaluation.nodes for name in node.outputs if name}
        self._done: set[int] = set()

    def path(self, name: str) -> list[Node]:
        """The nodes still to compute for a tensor, in order."""
        wanted: dict[int, Node] = {}
        open_ = [name]
        while open_:
            node = self._makers.get(open_.pop())
            if node is not None and id(node) not in self._done and id(node) not in wanted:
                wanted[id(node)] = node
                open_ += node.inputs
        return sorted(wanted.values(), key=lambda n: self._order[id(n)])

    def compute(self, node: Node, results: Sequence[Quantity] | None = None) -> None:
        self._done.add(id(node))
        why = next((self.failed[name] for name in node.inputs if name in self.failed), "")
        try:
            if not why:
                self.evaluation.step(node, results)
        except ModelError as error:
            why = str(error)
        if why:
            self.failed.update(dict.fromkeys(filter(None, node.outputs), why))

    def title(self, node: Node) -> str:
        return " + ".join(self.normal.sources.get(node.name, ())) or node.name


class _Lockstep:
    """Both graphs for one feed. ``shared``: see :func:`_shared`; when all is shared, values alone are computed."""

    def __init__(
        self, a: Normal, b: Normal, feed: Sequence[np.ndarray], aligned: Sequence[Aligned], shared: Mapping[str, str]
    ):
        feeds = [dict(zip(normal.graph.inputs, feed, strict=False)) for normal in (a, b)]
        same = all(shared.get(other) == one for one, other, _, _ in aligned)
        self._a = _Side(a, Evaluation(a.graph, feeds[0], OPERATORS, None if same else {}, [x[0] for x in aligned]))
        self._b = _Side(b, Evaluation(b.graph, feeds[1], OPERATORS, None, [x[1] for x in aligned]))
        self._aligned, self._shared, self._bounded = aligned, shared, not same

    def rows(self) -> Iterator[tuple[tuple[str, str], LayerRow]]:
        told: set[str] = set()
        for one, other, node_a, node_b in self._aligned:
            self._reach(one, other)
            why = self._a.failed.get(one) or self._b.failed.get(other)
            if why not in told:
                found, ok, reason = (None, False, why) if why else self._compared(one, other)
                titles, shape = (self._a.title(node_a), self._b.title(node_b)), self._a.normal.shapes[one]
                yield (one, other), LayerRow(*titles, node_a.op, shape, found, ok, reason)
            if why:
                told.add(why)
            self._a.evaluation.release(one)
            self._b.evaluation.release(other)

    def _reach(self, one: str, other: str) -> None:
        for node in self._a.path(one):
            self._a.compute(node)
        for node in self._b.path(other):
            sources = [self._a.evaluation.tensors.get(self._shared.get(name, "")) for name in node.outputs]
            known = [Quantity(q.value) for q in sources if q is not None]
            self._b.compute(node, known if len(known) == len(sources) else None)

    def _compared(self, one: str, other: str) -> tuple[Statistics | None, bool, str]:
        first, second = self._a.evaluation.output(one), self._b.evaluation.output(other).value
        found, ok, reason = _judged(Judged(one, first.real, first.bound), np.asarray(second))
        if found is not None and not self._bounded:
            found = replace(found, bound=0.0)  # both are the same bits, so that none was computed
        return found, ok, reason


def _judged(first: Judged, second: np.ndarray) -> tuple[Statistics | None, bool, str]:
    """Statistics, whether it passes, and why not. Without statistics nothing could be told."""
    if first.value.shape != second.shape:
        return APART, False, judge([second], [first]).reason
    why = uncompared(first)
    if why and blind(second, first):
        return None, False, why
    found = statistics(first, second)
    ok = not why and found.ratio <= 1
    return found, ok, "" if ok else judge([second], [first]).reason


def _worse(old: LayerRow | None, new: LayerRow) -> LayerRow:
    """Different before uncompared before equal; of two alike, the one with the larger share of its bound."""

    def rank(row: LayerRow) -> tuple[int, float]:
        return (0 if row.ok else 1 if row.statistics is None else 2), row.statistics.ratio if row.statistics else 0.0

    return new if old is None or rank(new) > rank(old) else old


def _equal(a: Any, b: Any) -> bool:
    """Whether two attributes are the same, of any kind that a node may have."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_equal(a[k], b[k]) for k in a)
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return type(a) is type(b) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_equal, a, b))
    return type(a) is type(b) and bool(a == b)
