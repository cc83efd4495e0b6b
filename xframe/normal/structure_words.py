"""In what two graphs differ beside their layers' numbers: nodes that one has alone, and the order of what they read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from xframe.equivalence.result import Difference
from xframe.normal.steps import COMMUTATIVE, Steps
from xframe.normal.words import ACTIVATIONS, described

#: Nodes of a region, or inputs of a node, that are named one by one.
SHOWN = 6


@dataclass(frozen=True)
class Sides:
    """Two graphs and which node of the first corresponds to which of the second."""

    a: Steps
    b: Steps
    to: dict[int, int]
    names: tuple[str, str]

    @cached_property
    def back(self) -> dict[int, int]:
        return {j: i for i, j in self.to.items()}

    def in_a(self, steps: Steps, index: int) -> int | None:
        """A node of either graph that has a partner as a node of ``a``; inputs of the graph correspond by position."""
        if index < 0 or (steps is self.a and index in self.to):
            return index
        return self.back.get(index) if steps is self.b else None


@dataclass(frozen=True)
class _Region:
    """Neighbouring nodes without a partner; ``above`` and ``below`` them nodes of ``a``, inputs below zero."""

    nodes: tuple[int, ...]
    above: frozenset[int]
    below: frozenset[int]


def regions(sides: Sides) -> dict[tuple[int | None, int | None], tuple[Difference, ...]]:
    """The differences of nodes that only one graph has, by the first of each region: (node, None) or (None, node)."""
    mine, theirs = _regions(sides, sides.a), _regions(sides, sides.b)
    found: dict[tuple[int | None, int | None], tuple[Difference, ...]] = {}
    moved = _moved(sides, mine, theirs)
    gone = {i for i, _ in moved}, {j for _, j in moved}
    for (i, _), difference in moved.items():
        found[i, None] = (difference,)
    left = [r for r in theirs if not gone[1].issuperset(r.nodes)]
    for region in (r for r in mine if not gone[0].issuperset(r.nodes)):
        other = next(
            (r for r in left if r.above & region.above and (r.below & region.below or r.below == region.below)), None
        )
        if other is not None:
            left.remove(other)
        found[region.nodes[0], None] = (*found.get((region.nodes[0], None), ()), _told(sides, region, other))
    for region in left:
        found[None, region.nodes[0]] = (_told(sides, None, region),)
    return found


def wiring(sides: Sides, i: int, j: int) -> tuple[Difference, ...]:
    """Whether a pair reads other tensors, or the same in another order. Nodes that only one has are passed through:
    they are told of on their own."""
    mine = [_source(sides, sides.a, name) for name in sides.a[i].data]
    theirs = [_source(sides, sides.b, name) for name in sides.b[j].data]
    step, other = sides.a[i], sides.b[j]
    if mine == theirs or None in mine or None in theirs:
        return ()
    title = step.title if step.title == other.title else f"{step.title} ({other.title} in {sides.names[1]})"
    shown = _shown(sides, mine, theirs)
    if sorted(map(repr, mine)) == sorted(map(repr, theirs)):
        if step.op in COMMUTATIVE:
            return ()
        verb = "concatenates" if step.op == "Concat" else f"computes its {step.op} of its inputs"
        text = f"{title} {verb} in another order: {shown[0]} in {sides.names[0]}, and {shown[1]} in {sides.names[1]}"
        return (Difference("concatenation" if step.op == "Concat" else "order of inputs", step.title, text),)
    text = f"{title} reads {shown[0]} in {sides.names[0]}, and {shown[1]} in {sides.names[1]}"
    return (Difference("structure", step.title, text),)


def _shown(sides: Sides, mine: Sequence[Any], theirs: Sequence[Any]) -> list[str]:
    """What either reads, in words; of many tensors the first that is another one."""
    if max(len(mine), len(theirs)) <= SHOWN:
        return [", ".join(_tensor(sides, source) for source in sources) for sources in (mine, theirs)]
    first = next((n for n, (x, y) in enumerate(zip(mine, theirs, strict=False)) if x != y), min(len(mine), len(theirs)))
    named = [_tensor(sides, sources[first]) if first < len(sources) else "none" for sources in (mine, theirs)]
    return [f"{len(s)} tensors, number {first + 1} {n}" for s, n in zip((mine, theirs), named, strict=True)]


def outputs(sides: Sides, first: Sequence[int], second: Sequence[int], explained: bool) -> list[Difference]:
    """Outputs in another order, or of another number; other tensors only where nothing else explains them."""
    mine, theirs = (list(s.normal.graph.outputs) for s in (sides.a, sides.b))
    if len(mine) != len(theirs):
        text = f"{sides.names[0]} has {len(mine)} outputs ({', '.join(mine)}), and {sides.names[1]} {len(theirs)}"
        return [Difference("outputs", mine[0] if mine else "", f"{text} ({', '.join(theirs)})")]
    ends = [[_end(s, n, c) for n in names] for s, names, c in ((sides.a, mine, first), (sides.b, theirs, second))]
    sources = [[_source(sides, s, n) for n in names] for s, names in ((sides.a, mine), (sides.b, theirs))]
    for wanted, given in (ends, sources):
        if wanted == given:
            return []
        order = _order(wanted, given)
        if order is not None:
            return [_reordered(sides, mine, theirs, order)]
    off = next((n for n, (w, g) in enumerate(zip(*sources, strict=True)) if w != g or w is None), None)
    if explained or off is None:
        return []
    made = [_tensor(sides, given[off]) for given in sources]
    text = f"output {mine[off]} is made by {made[0]} in {sides.names[0]}, and by {made[1]} in {sides.names[1]}"
    return [Difference("outputs", mine[off], text)]


def _end(steps: Steps, name: str, classes: Sequence[int]) -> tuple[object, ...]:
    """What an output is: a computation, an input, or a constant."""
    index, port = steps.maker.get(name, (None, 0))
    if index is None:
        weight = steps.normal.weights.get(name)
        return "constant", weight.digest if weight else name
    return (classes[index], port) if index >= 0 else ("input", index)


def _order(wanted: Sequence[object], given: Sequence[object]) -> list[int] | None:
    """Where each wanted one is among the given, if they are the same in another order."""
    left = list(range(len(given)))
    order = []
    for n, item in enumerate(wanted):
        place = n if n in left and given[n] == item else next((p for p in left if given[p] == item), None)
        if place is None:
            return None
        left.remove(place)
        order.append(place)
    return order


def _reordered(sides: Sides, mine: list[str], theirs: list[str], order: list[int]) -> Difference:
    moved = [n for n, place in enumerate(order) if n != place]
    if len(moved) == 2:
        x, y = (mine[n] for n in moved)
        other = [theirs[n] for n in moved]
        there = "" if sorted(other) == sorted((x, y)) else f" (outputs {other[0]} and {other[1]} of {sides.names[1]})"
        text = f"outputs {x} and {y} are swapped in {sides.names[1]} against {sides.names[0]}{there}"
    else:
        shown = ", ".join(str(order.index(n) + 1) for n in range(len(order)))
        text = f"the outputs of {sides.names[1]} are those of {sides.names[0]} in another order: numbers {shown}"
    return Difference("outputs", mine[moved[0]], text)


def _source(sides: Sides, steps: Steps, name: str) -> tuple[Any, ...] | None:
    """The tensor of ``a`` that a data input comes from, through nodes without a partner that read one tensor."""
    if name not in steps.maker:
        return _end(steps, name, ())
    index, port = steps.maker[name]
    while sides.in_a(steps, index) is None:
        if len(set(steps.producers[index])) != 1:
            return None
        index, port = steps.maker[steps[index].data[0]]
    here = sides.in_a(steps, index)
    return None if here is None else (here, port)


def _tensor(sides: Sides, source: tuple[Any, ...] | None) -> str:
    """A tensor by its maker's name; several nodes of one graph alone have none."""
    index, port = source or ("several layers", "")
    if isinstance(index, str):
        return f"{index} {port[:8]}".strip()
    several = index >= 0 and len(sides.a[index].node.outputs) > 1
    return sides.a.title(index) + (f" (output {port + 1})" if several else "")


def _regions(sides: Sides, steps: Steps) -> list[_Region]:
    paired = sides.to if steps is sides.a else sides.back
    lone = [n for n in range(len(steps)) if n not in paired]
    found, seen = [], set()
    for start in lone:
        if start in seen:
            continue
        nodes, queue = {start}, [start]
        while queue:
            n = queue.pop()
            near = [m for m in (*steps.producers[n], *steps.consumers[n]) if m >= 0 and m not in paired]
            queue += [m for m in near if m not in nodes]
            nodes.update(near)
        seen |= nodes
        above = {sides.in_a(steps, m) for n in nodes for m in steps.producers[n] if m not in nodes}
        below = {sides.in_a(steps, m) for n in nodes for m in steps.consumers[n] if m not in nodes}
        found.append(_Region(tuple(sorted(nodes)), frozenset(above - {None}), frozenset(below - {None})))  # type: ignore[arg-type]
    return found


def _moved(sides: Sides, mine: list[_Region], theirs: list[_Region]) -> dict[tuple[int, int], Difference]:
    """Nodes that both have, at another place: (node of a, node of b)."""
    there: dict[object, list[int]] = {}
    for j in (n for r in theirs for n in r.nodes):
        there.setdefault(sides.b[j].exact, []).append(j)
    found: dict[tuple[int, int], Difference] = {}
    for i in (n for r in mine for n in r.nodes):
        for j in there.get(sides.a[i].exact, []):
            crossed = _crossed(sides, i, j)
            if crossed is not None:
                there[sides.a[i].exact].remove(j)
                found[i, j] = crossed
                break
    return found


def _crossed(sides: Sides, i: int, j: int) -> Difference | None:
    """That a node comes before another in the one graph, and after it in the other; the nearest such other is named."""
    a = sides.a
    for before in (False, True):
        mine, theirs = a.reach[before][i], sides.b.reach[not before][j]
        passed = [x for x, y in sides.to.items() if mine[x] and theirs[y]]
        if passed:
            other = a.title(min(passed) if before else max(passed))
            mine, theirs = ("before", "after") if before else ("after", "before")
            title, (first, second) = a.title(i), sides.names
            text = f"{title} ({a[i].op}) comes {mine} {other} in {first}, and {theirs} it in {second}"
            return Difference("structure", title, f"{text}: another order of the layers")
    return None


def _told(sides: Sides, mine: _Region | None, theirs: _Region | None) -> Difference:
    """A sentence about nodes that one graph has alone, or two groups in the same place."""
    parts = [(s, r) for s, r in ((sides.a, mine), (sides.b, theirs)) if r is not None]
    ops = [{s[n].op for n in r.nodes} for s, r in parts]
    where = parts[0][0].title(parts[0][1].nodes[0])
    place = _place(sides, parts[0][1])
    if mine is not None and theirs is not None:
        first, second = (_listed(s, r) for s, r in parts)
        text = f"{place} {sides.names[0]} computes {first}, and {sides.names[1]} {second}"
        forms = sorted("tanh" if "Tanh" in o else "erf" if o & {"Erf", "Gelu"} else "" for o in ops)
        if forms == ["erf", "tanh"]:
            return Difference("activation", where, f"{text}: Gelu exact in the one, approximated by tanh in the other")
        if all(o <= ACTIVATIONS for o in ops):
            return Difference("activation", where, text)
        return Difference("structure", where, text)
    has, lacks = sides.names if mine is not None else sides.names[::-1]
    steps, region = parts[0]
    if any(steps[n].op == "Dropout" and steps[n].settings["training_mode"] for n in region.nodes):
        text = (
            f"{place} {has} drops elements at random, {_listed(steps, region)} in training mode, and {lacks} does not"
        )
        return Difference("dropout in training mode", where, text)
    text = f"{place} {has} computes {_listed(steps, region)}, and {lacks} does not"
    if "Cast" in ops[0] or ops[0] & {"QuantizeLinear", "DequantizeLinear"}:
        return Difference("precision", where, text)
    return Difference("structure", where, text)


def _place(sides: Sides, region: _Region) -> str:
    above = sides.a.title(max(region.above)) if region.above else ""
    below = sides.a.title(min(region.below)) if region.below else ""
    if above and below:
        return f"between {above} and {below}"
    return f"after {above}" if above else f"before {below}" if below else "apart from all else"


def _listed(steps: Steps, region: _Region) -> str:
    shown = [f"{described(steps[n])} ({steps.title(n)})" for n in region.nodes[:SHOWN]]
    more = len(region.nodes) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
