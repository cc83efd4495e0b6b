"""A failing problem made smaller, by trying: fewer images, pixels and channels, and simpler numbers, while it fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from xframe.check import channels
from xframe.equivalence.bounds import Quantity
from xframe.equivalence.graph import Graph, run
from xframe.equivalence.reference import OPERATORS
from xframe.errors import XframeError

#: Axes of an image and of what a layer holds besides batch and channels.
SPATIAL = range(2, 5)
#: Images of a batch that are tried alone.
IMAGES = 8


@dataclass(frozen=True)
class Problem:
    """Graphs that take the same float32 ``feeds`` in the same order, whatever they call them."""

    graphs: tuple[Graph, ...]
    feeds: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, graphs: Sequence[Graph], feeds: Sequence[np.ndarray]) -> Problem:
        """With the graphs' input shapes those of the feeds."""
        shapes = tuple(x.shape for x in feeds)
        kept = tuple(np.ascontiguousarray(x) for x in feeds)
        return cls(tuple(replace(graph, shapes=shapes) for graph in graphs), kept)


Fails = Callable[[Problem], bool]


def shrink(problem: Problem, fails: Fails, seconds: float = 60.0) -> Problem:
    """The smallest problem found that ``fails`` still says is one, within about so many ``seconds``.

    ``problem`` itself fails. What can't be evaluated counts as not failing.
    """
    deadline = time.monotonic() + seconds

    def still(candidate: Problem) -> bool:
        if time.monotonic() > deadline:
            return False
        try:
            return fails(candidate)
        except (XframeError, ValueError, IndexError, TypeError, ZeroDivisionError, OverflowError):
            return False

    free = _freed(problem)
    problem = free if still(free) else problem
    size = None
    while size != _size(problem):
        size = _size(problem)
        problem = _fewer_images(problem, still)
        for axis in SPATIAL:
            problem = _cropped(problem, axis, still)
        problem = _fewer_channels(problem, still)
    return _simpler(problem, still)


def shapes(graph: Graph, feeds: Sequence[np.ndarray]) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor. Raises ModelError and what numpy raises where the feeds don't fit."""
    found = {name: array.shape for name, array in graph.constants.items()}
    found.update({name: x.shape for name, x in zip(graph.inputs, feeds, strict=True)})

    def observe(name: str, value: Quantity) -> None:
        found[name] = value.value.shape

    run(graph, dict(zip(graph.inputs, feeds, strict=True)), OPERATORS, None, observe)
    return found


def _size(problem: Problem) -> int:
    constants = sum(a.size for graph in problem.graphs for a in graph.constants.values())
    return constants + sum(x.size for x in problem.feeds)


def _freed(problem: Problem) -> Problem:
    """The same with reshapes that keep the batch whatever it is, and flatten whatever there is."""
    made = []
    for graph in problem.graphs:
        sizes, constants, nodes = shapes(graph, problem.feeds), dict(graph.constants), []
        for node in graph.nodes:
            x, y = (sizes.get(name, ()) for name in (node.inputs[0] if node.inputs else "", node.outputs[0]))
            if node.op == "Reshape" and x and y and x[0] == y[0] and node.inputs[1] in constants:
                if len(y) == 2:
                    node = replace(node, op="Flatten", inputs=node.inputs[:1], attrs={"axis": 1})
                elif not node.attrs.get("allowzero", 0):
                    name = f"{node.outputs[0]}.shape"
                    constants[name] = np.array([0, *y[1:]], np.int64)
                    node = replace(node, inputs=(node.inputs[0], name))
            nodes.append(node)
        made.append(replace(graph, nodes=tuple(nodes), constants=constants))
    return replace(problem, graphs=tuple(made))


def _fewer_images(problem: Problem, still: Fails) -> Problem:
    batch = problem.feeds[0].shape[0] if problem.feeds and problem.feeds[0].ndim else 1
    if batch < 2 or any(x.shape[:1] != (batch,) for x in problem.feeds):
        return problem
    alone = (Problem.of(problem.graphs, [x[i : i + 1] for x in problem.feeds]) for i in range(min(batch, IMAGES)))
    return next(filter(still, alone), problem)


def _cropped(problem: Problem, axis: int, still: Fails) -> Problem:
    """A part of the images: all inputs of one size are cut alike."""
    sizes = {x.shape[axis] for x in problem.feeds if x.ndim > axis}
    if not sizes:
        return problem
    size = max(sizes)

    def part(start: int, stop: int) -> Problem:
        cut = (slice(None),) * axis + (slice(start, stop),)
        feeds = [x[cut] if x.ndim > axis and x.shape[axis] == size else x for x in problem.feeds]
        return Problem.of(problem.graphs, feeds)

    return _narrowed(problem, size, 1, part, still)


def _fewer_channels(problem: Problem, still: Fails) -> Problem:
    number = 0
    while True:
        sizes = [shapes(graph, problem.feeds) for graph in problem.graphs]
        found = channels.found(problem.graphs, sizes)
        if number >= len(found):
            return problem
        chosen, number = found[number], number + 1

        def part(start: int, stop: int, problem: Problem = problem, chosen: channels.Channels = chosen) -> Problem:
            return Problem.of(*channels.cut(problem.graphs, problem.feeds, chosen, start, stop))

        problem = _narrowed(problem, chosen.size, chosen.step, part, still)


def _narrowed(problem: Problem, size: int, step: int, part: Callable[[int, int], Problem], still: Fails) -> Problem:
    """The smallest window of 0 to ``size`` whose part still fails: halves, then less and less is cut off either end."""
    start, stop, less = 0, size, size // 2
    while less := less // step * step:
        if stop - start > less:
            for low, high in ((start, stop - less), (start + less, stop)):
                candidate = part(low, high)
                if still(candidate):
                    problem, start, stop = candidate, low, high
                    break
            else:
                less //= 2
        else:
            less //= 2
    return problem


def _simpler(problem: Problem, still: Fails) -> Problem:
    """Ones or small whole numbers for the inputs, and for constants that all graphs have alike."""
    for i in range(len(problem.feeds)):
        made = (
            replace(problem, feeds=(*problem.feeds[:i], x, *problem.feeds[i + 1 :])) for x in _plain(problem.feeds[i])
        )
        problem = next(filter(still, made), problem)
    first, *others = problem.graphs
    for name, array in first.constants.items():
        if array.dtype.kind != "f":
            continue
        places = [[n for n, a in graph.constants.items() if np.array_equal(a, array)] for graph in others]
        if all(places):
            every = [[name], *places]
            problem = next(filter(still, (_with(problem, every, x) for x in _plain(array))), problem)
    return problem


def _plain(array: np.ndarray) -> Iterator[np.ndarray]:
    for made in (np.ones_like(array), np.rint(array), np.rint(array * 4) / 4):
        if not np.array_equal(made, array):
            yield made.astype(array.dtype)


def _with(problem: Problem, names: Sequence[Sequence[str]], array: np.ndarray) -> Problem:
    graphs = [
        replace(graph, constants={**graph.constants, **dict.fromkeys(some, array)})
        for graph, some in zip(problem.graphs, names, strict=True)
    ]
    return replace(problem, graphs=tuple(graphs))
