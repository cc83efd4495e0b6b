"""The first layer that a runner gets wrong, found with networks that end at one layer or another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from xframe.check import emit
from xframe.check.engine import Feed
from xframe.check.shrink import Problem
from xframe.equivalence.graph import Graph, Node, run
from xframe.equivalence.reference import OPERATORS
from xframe.errors import XframeError

Finding = TypeVar("Finding")


def first_wrong_prefix(
    graph: Graph, feed: Feed, tensors: Sequence[str], wrong: Callable[[Graph, Feed], Finding | None]
) -> tuple[str, Finding] | None:
    """The first of ``tensors`` (in topological order) that is wrong where the network before it is right.

    Parameters
    ----------
    wrong
        What is wrong with the only output of a network for a feed, None where it is right; an XframeError where it
        can't be executed, whereupon another layer is tried.

    Returns
    -------
    tuple or None
        The tensor and what is wrong with it; None when the network that ends at the last one is right.
    """
    named = dict(zip(graph.inputs, feed, strict=True))

    def ended_at(name: str) -> Finding | None:
        ended = emit.part(graph, {}, [name])
        return wrong(ended, [named[x] for x in ended.inputs])

    left = list(tensors)
    try:
        found = ended_at(left[-1]) if left else None
    except XframeError:
        return None
    if found is None:
        return None
    right, last = -1, len(left) - 1
    while last - right > 1:
        middle = (right + last) // 2
        try:
            here = ended_at(left[middle])
        except XframeError:
            del left[middle]
            last -= 1
            continue
        if here is None:
            right = middle
        else:
            last, found = middle, here
    return left[last], found


def ancestors(graph: Graph, output: str) -> set[str]:
    """The tensors that ``output`` depends on, itself included."""
    wanted = {output}
    for node in reversed(graph.nodes):
        if wanted.intersection(node.outputs):
            wanted.update(node.inputs)
    return wanted


def wrong_prefix(
    graph: Graph, feed: Feed, wrong: Callable[[Graph, Feed], Finding | None]
) -> tuple[str, Finding] | None:
    """:func:`first_wrong_prefix` over all float32 tensors, for the first output where it finds something."""
    tensors = emit.floating(graph)
    for output in graph.outputs:
        before = ancestors(graph, output)
        found = first_wrong_prefix(graph, feed, [t for t in tensors if t in before], wrong)
        if found:
            return found
    return None


def fewest(graph: Graph, feed: Feed, end: str, fails: Callable[[Problem], bool]) -> Problem:
    """The fewest nodes up to the tensor ``end`` that fail by themselves, fed with exact values; else all of them."""
    ended = emit.part(graph, {}, [end])
    named = dict(zip(graph.inputs, feed, strict=True))
    whole = Problem.of((ended,), [named[x] for x in ended.inputs])
    values = dict(named)
    run(ended, named, OPERATORS, None, lambda name, q: values.update({name: q.value}))
    count = 1
    while count < len(ended.nodes):
        try:
            problem = _tail(ended, ended.nodes[-count:], values)
            if fails(problem):
                return problem
        except XframeError:
            pass
        count += max(1, count // 2)
    return whole


def _tail(graph: Graph, nodes: Sequence[Node], values: Mapping[str, np.ndarray]) -> Problem:
    """``nodes`` alone: the numbers that they read become inputs, shapes and indices constants."""
    made = {name for node in nodes for name in node.outputs}
    read = [name for name in dict.fromkeys(n for node in nodes for n in node.inputs) if name and name not in made]
    inputs = [n for n in read if n not in graph.constants and values[n].dtype.kind == "f"]
    constants = {n: graph.constants[n] if n in graph.constants else values[n] for n in read if n not in inputs}
    feeds = [values[n].astype(np.float32) for n in inputs]
    part = Graph(tuple(nodes), constants, tuple(inputs), graph.outputs, tuple(x.shape for x in feeds))
    return Problem.of((part,), feeds)
