"""Two normal forms laid side by side: which node corresponds to which, and in what they differ."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from xframe.equivalence.graph import Node
from xframe.equivalence.result import Difference
from xframe.normal import structure_words, words
from xframe.normal.align import align
from xframe.normal.form import Normal
from xframe.normal.steps import RESHAPES, Steps, classes

#: From how many layers on what is the same in all of them is told once; and how many of them are named.
FEW = 3


@dataclass(frozen=True)
class Pair:
    """Two nodes that correspond, or one without a partner.

    ``same``: the same computation, from the graph's inputs on, to the last bit of every weight. A pair below a
    difference is not the same, though it may have no difference of its own.
    """

    a: Node | None
    b: Node | None
    same: bool
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True)
class Match:
    """``pairs`` in topological order of the first graph; ``differences`` of all pairs in this order, those of the
    outputs last, and what is the same in many layers told once. ``equal``: no difference that is not harmless."""

    pairs: tuple[Pair, ...]
    differences: tuple[Difference, ...]
    equal: bool


def match(a: Normal, b: Normal, names: tuple[str, str] = ("A", "B")) -> Match:
    """Lay two normal forms side by side.

    Parameters
    ----------
    a, b
        The inputs correspond by position, and so do the outputs unless they are the same tensors in another order.
    names
        What the two are called in the sentences.
    """
    first, second = Steps(a), Steps(b)
    numbers = classes(first, second)
    to = align(first, second, *numbers)
    same = {i for i, j in to.items() if numbers[0][i] == numbers[1][j]}
    sides = structure_words.Sides(first, second, to, names)
    lone = structure_words.regions(sides)
    pairs: list[Pair] = []
    for i, j in _ordered(first, second, to):
        found = lone.get((i, j), ())
        if i is not None and j is not None and i not in same:
            layer = words.Layer(first[i], second[j], names, _image(first, i) or _image(second, j))
            found = (*words.of_layer(layer), *structure_words.wiring(sides, i, j), *found)
        nodes = [s[n].node if n is not None else None for s, n in ((first, i), (second, j))]
        pairs.append(Pair(nodes[0], nodes[1], i in same, found))
    told = [d for pair in pairs for d in pair.differences]
    told += structure_words.outputs(sides, *numbers, explained=any(not d.harmless for d in told))
    return Match(tuple(pairs), tuple(_gathered(told, names[1])), all(d.harmless for d in told))


def _gathered(told: list[Difference], second: str) -> Iterator[Difference]:
    """One sentence for what is the same in more than ``FEW`` layers: a float16 export, batch normalisation folded."""
    alike: dict[tuple[str, str], list[Difference]] = {}
    for difference in told:
        text = difference.text.removeprefix(difference.where)
        text = text.split(f" in {second})", 1)[-1] if text.startswith(" (") else text
        text = text.split(" (those of ")[0]
        key = text.split(",")[0] if difference.harmless else text
        alike.setdefault((difference.kind, key), []).append(difference)
    many = {id(group[0]): group for group in alike.values() if len(group) > FEW}
    silent = {id(d) for group in many.values() for d in group[1:]}
    for d in told:
        if id(d) in many:
            others = list(dict.fromkeys(o.where for o in many[id(d)][1:]))
            shown = ", ".join(others[:FEW]) + (", ..." if len(others) > FEW else "")
            yield replace(d, text=f"{d.text}; likewise in {len(others)} more layers ({shown})")
        elif id(d) not in silent:
            yield d


def _ordered(a: Steps, b: Steps, to: dict[int, int]) -> list[tuple[int | None, int | None]]:
    """All nodes of both in the order of ``a``; what only ``b`` has comes after what it reads."""
    back = {j: i for i, j in to.items()}
    after: dict[int, list[int]] = {}
    place: dict[int, int] = {}
    for j in range(len(b)):
        place[j] = back.get(j, max((place[m] for m in b.producers[j] if m >= 0), default=-1))
        if j not in back:
            after.setdefault(place[j], []).append(j)
    order: list[tuple[int | None, int | None]] = [(None, j) for j in after.get(-1, ())]
    for i in range(len(a)):
        order.append((i, to.get(i)))
        order += [(None, j) for j in after.get(i, ())]
    return order


def _image(steps: Steps, index: int) -> tuple[int, ...]:
    """(channels, height, width) that were flattened on the way to a product with [batch, inputs]."""
    step = steps[index]
    if step.op not in ("Gemm", "MatMul") or not step.data:
        return ()
    name = step.data[0]
    wanted = steps.normal.shapes.get(name, ())[-1:]
    while (maker := steps.maker.get(name, (-1, 0))[0]) >= 0 and len(steps[maker].data) == 1:
        name = steps[maker].data[0]
        shape = steps.normal.shapes.get(name, ())
        if steps[maker].op in RESHAPES and len(shape) == 4:
            return tuple(shape[1:]) if wanted == (math.prod(shape[1:]),) else ()
        if len(shape) == 2 and shape[-1:] != wanted:
            return ()
    return ()
