"""The fourth level of a check: do two models have the same gradients, and where does automatic differentiation fail?

The judge is the float64 reverse pass (``xframe.equivalence.backward``) of each subject's own graph, as its file has it:
there each weight of a live model has its name and its layout. The live model's gradients are held against it, and then
the second subject's against that of the first: inputs, and weights that are the same numbers in both.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from xframe.check.counterparts import counterparts, twins, with_zero_biases
from xframe.check.gradient_words import Fault, fault, origin
from xframe.check.judging import compared
from xframe.check.signature import Binding, Signature, relaid
from xframe.check.subjects import Opened
from xframe.equivalence import backward
from xframe.equivalence.graph import Graph
from xframe.equivalence.reference import Judged
from xframe.equivalence.result import Difference, LayerRow, Level, LevelVerdict, State
from xframe.equivalence.statistics import statistics
from xframe.errors import XframeError

Array = np.ndarray
Feed = Sequence[Array]


@dataclass
class Side:
    """One subject at this level. ``exact``: gradients of its graph by input and weight; ``found``: the live model's;
    ``lost``: the live model's weights that its export does not have as they are."""

    opened: Opened
    exact: dict[str, Judged] = field(default_factory=dict)
    found: dict[str, Array] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        return self.opened.subject.name

    @property
    def still(self) -> bool:
        """Whether nothing changes the loss."""
        return not any(judged.value.any() for judged in self.exact.values())

    def evaluate(self, feed: Feed, cotangents: Sequence[Array]) -> None:
        """Fills it with the gradients for one feed, both in the subject's own order and layout."""
        graph: Graph = self.opened.graph
        given: dict[str, Array] = {}
        if self.opened.live is not None:
            inputs, weights = self.opened.live.gradients(list(feed), list(cotangents))
            graph = with_zero_biases(graph, {n: g.shape for n, g in weights.items() if n not in graph.constants})
            by_input = {n: g for n, g in zip(graph.inputs, inputs, strict=True) if g is not None}
            given = by_input | weights
        known = dict(zip(graph.inputs, feed, strict=True))
        exact = backward.gradients(graph, known, cotangents)
        self.exact = {}
        while exact:  # one after another: the largest weight of a network may be half of it
            name, q = exact.popitem()
            self.exact[name] = Judged(name, q.real, q.bound.astype(np.float32))
        known |= graph.constants
        self.lost = {n for n, g in given.items() if n not in known or known[n].shape != g.shape}
        self.found = {n: g for n, g in given.items() if n not in self.lost and known[n].dtype.kind == "f"}
        for name, gradient in self.found.items():
            still = np.zeros(gradient.shape)  # where the loss does not depend on it
            self.exact.setdefault(name, Judged(name, still, still + np.finfo(np.float32).tiny))


def compare(
    a: Opened, b: Opened, signature: Signature, feeds: Sequence[Feed], seed: int = 0
) -> tuple[LevelVerdict, tuple[LayerRow, ...]]:
    """Compare the gradients of the sum of seeded cotangents times outputs, by all inputs and weights.

    Parameters
    ----------
    signature
        How the inputs and outputs of the two correspond; aligned.
    feeds
        In the order and layout of ``a``'s inputs.
    seed
        Of the cotangents, which are N(0, 1).

    Returns
    -------
    verdict
        UNCHECKED when neither has a live model, when a live model's weight is not in its export, or when an operator's
        gradient is not known; the reason says so.
    rows
        One for each input, and each weight that both have with the same values and have once, of the last feed: ``b``'s
        gradient (the live model's, else the exact one) against the exact one of ``a``, laid out as in ``a``.
    """
    start = time.perf_counter()
    state, reason = State.UNCHECKED, ""
    differences: list[Difference] = []
    rows: list[LayerRow] = []
    try:
        if a.live is None and b.live is None:
            reason = f"neither {a.subject.name} nor {b.subject.name} is a live model that could be differentiated"
        else:
            sides = _side(a), _side(b)
            doubts: list[str] = []
            for number, feed in enumerate(feeds):
                _evaluate(*sides, signature, feed, seed + number)
                differences = [d for side in sides for d in _own(side, doubts)]
                doubts += [f"all gradients of {s.name} are zero: nothing was compared" for s in sides if s.still]
                across, rows = _across(*sides, signature.inputs, doubts)
                differences = differences or across  # what is wrong in itself explains the rest
                if differences:
                    break
            state, reason = _concluded(sides, differences, doubts)
    except XframeError as e:
        reason = str(e)
    taken = time.perf_counter() - start
    return LevelVerdict(Level.GRADIENTS, state, reason, tuple(differences), taken), tuple(rows)


def _side(opened: Opened) -> Side:
    kinds = {str(c.dtype) for c in opened.graph.constants.values()}
    narrow = sorted(kinds & {"float16", "bfloat16"})
    if narrow and opened.live is not None:
        raise XframeError(f"{opened.subject.name} computes in {narrow[0]}: bounds of gradients are known for float32")
    return Side(opened)


def _evaluate(a: Side, b: Side, signature: Signature, feed: Feed, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shapes = {p.name: p.shape for p in a.opened.interface.outputs}
    unknown = [name for name, shape in shapes.items() if shape is None]
    if unknown:
        raise XframeError(f"the shape of output {unknown[0]} of {a.name} can't be told")
    first = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    second = {x.b: relaid(first[x.a], x.axes_a, x.axes_b) for x in signature.outputs}
    a.evaluate(feed, [first[name] for name in a.opened.graph.outputs])
    b.evaluate(signature.feed(feed), [second[name] for name in b.opened.graph.outputs])


def _concluded(sides: Sequence[Side], differences: Sequence[Difference], doubts: Sequence[str]) -> tuple[State, str]:
    if differences:
        return State.DIFFERENT, differences[0].text
    doubts = [*doubts, *(f"{w} of {s.name} is not in its export as it is" for s in sides for w in sorted(s.lost))]
    if doubts:
        more = f" (and {len(doubts) - 1} more)" if len(doubts) > 1 else ""
        return State.UNCHECKED, doubts[0] + more
    files = [s.name for s in sides if s.opened.live is None]
    return State.EQUIVALENT, f"{files[0]} is no live model: its exact gradients were compared" if files else ""


def _own(side: Side, doubts: list[str]) -> list[Difference]:
    """A live model's gradients against the exact ones of its own graph: one difference for each kind of fault."""
    results = {n: compared([got], [side.exact[n]]) for n, got in side.found.items()}
    for group in twins({n: side.opened.graph.constants[n] for n in side.found if n in side.opened.graph.constants}):
        if any(results[n][0] is State.DIFFERENT for n in group):  # weights of equal values may have changed names
            _sorted_out(side, group)
            results |= {n: compared([side.found[n]], [side.exact[n]]) for n in group}
    doubts += [
        f"the gradient of {n} in {side.name}: {why}" for n, (state, why) in results.items() if state is State.UNCHECKED
    ]
    faults: dict[str, Fault] = {
        n: fault(side.found[n], side.exact[n]) for n, (state, _) in results.items() if state is State.DIFFERENT
    }
    graph = side.opened.graph
    order = {name: i for i, node in enumerate(graph.needed()) for name in node.inputs}
    wrong = sorted(faults, key=lambda n: (order.get(n, -1), n not in graph.inputs, n), reverse=True)
    where, groups = origin(graph, wrong, set(side.found) - set(wrong)), dict[str, list[str]]()
    for name in wrong:
        groups.setdefault(faults[name].kind, []).append(name)
    differences = []
    for kind, names in groups.items():
        text = f"the gradient of {names[0]} in {side.name} {faults[names[0]].text}"
        if len(names) > 1:
            listed = ", ".join(names[1:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
            text += f"; so {'is' if len(names) == 2 else 'are'} {listed}"
        differences.append(Difference(f"gradient {kind}", names[0], text + where))
        where = ""
    return differences


def _sorted_out(side: Side, group: Sequence[str]) -> None:
    """Gives each of ``group`` the gradient that fits it, where one does: by their values their names can't be told."""
    given = {n: side.found[n] for n in group}
    fits = [(n, m) for n in group for m in group if _off(given[m], side.exact[n]) <= 1]
    fits.sort(key=lambda pair: pair[0] != pair[1])  # its own first
    places: dict[str, str] = {}
    for name, other in fits:
        if name not in places and other not in places.values():
            places[name] = other
    left = [m for m in group if m not in places.values()]
    for name in (n for n in group if n not in places):
        places[name] = name if name in left else left[0]
        left.remove(places[name])
    side.found |= {name: given[other] for name, other in places.items()}


def _off(got: Array, want: Judged) -> float:
    worst = float((np.abs(got - want.value) / want.bound).max(initial=0.0))
    return worst if np.isfinite(worst) else np.inf


def _across(a: Side, b: Side, inputs: Sequence[Binding], doubts: list[str]) -> tuple[list[Difference], list[LayerRow]]:
    """``b``'s gradients, the live model's where there is one, against the exact ones of ``a``."""
    got = {n: b.found.get(n, judged.value) for n, judged in b.exact.items()}
    pairs = [(x.a, x.b, relaid(got[x.b], x.axes_b, x.axes_a)) for x in inputs if x.a in a.exact and x.b in got]
    weights: list[Mapping[str, Array]] = [
        {n: c for n, c in side.opened.graph.constants.items() if n in side.exact} for side in (a, b)
    ]
    for one, other, moves in counterparts(*weights):
        pairs.append((one, other, min((move(got[other]) for move in moves), key=lambda g: _off(g, a.exact[one]))))
    differences, rows = [], []
    for one, other, gradient in pairs:
        want = a.exact[one]
        state, reason = compared([gradient], [want])
        passed = state is State.EQUIVALENT
        told = statistics(want, gradient)
        rows.append(LayerRow(one, other, "gradient", want.value.shape, told, passed, reason))
        if state is State.DIFFERENT:
            found = fault(gradient, want)
            text = f"the gradient of {other} in {b.name} {found.text} (exact: {one} of {a.name})"
            differences.append(Difference(f"gradient {found.kind}", one, text))
        elif state is State.UNCHECKED:
            doubts.append(f"the gradient of {one}: {reason}")
    return differences, rows
