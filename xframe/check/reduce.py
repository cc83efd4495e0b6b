"""The smallest sub-model and input on which two models, or a runner and its reference, still disagree.

First by bisection: the first layer that differs, cut out right after the last ones that do not. Then over its shape and
its numbers (:mod:`xframe.check.shrink`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from xframe.check.cutting import fewest, wrong_prefix
from xframe.check.engine import NATIVE, Engine, Feed, Runner
from xframe.check.judging import compared, worst
from xframe.check.parting import StillParts, exact_output, first_difference
from xframe.check.reproducer import Reduction, Side, write
from xframe.check.shrink import Problem, shrink
from xframe.equivalence.graph import Graph, Node
from xframe.equivalence.reference import Reference
from xframe.equivalence.result import State, Statistics
from xframe.equivalence.statistics import statistics
from xframe.errors import UsageError
from xframe.normal.form import Normal

if TYPE_CHECKING:
    from xframe.check.subjects import Opened
    from xframe.normal.match import Match

Progress = Callable[[str], None]


def reduce(
    a: Normal,
    b: Normal,
    match: Match,
    feeds: Sequence[Feed],
    folder: Path,
    *,
    names: tuple[str, str] = ("A", "B"),
    progress: Progress | None = None,
    seconds: float = 60.0,
) -> Reduction:
    """Write ``folder/a`` and ``folder/b``, each a ``model.onnx`` with test data, and ``folder/README.txt``.

    Parameters
    ----------
    a, b
        Normal forms whose inputs and outputs correspond by position.
    match
        Which of their nodes correspond.
    feeds
        Float32 arrays in the order and layout of the inputs of ``a``.
    names
        What the subjects are called.
    seconds
        About how long to try, once the layer is found.

    Raises
    ------
    UsageError
        They do not differ for these inputs, or something else lies in the folder.
    ModelError
        The float64 reference does not know an operator.
    XframeError
        The folder can't be written.
    """
    told = progress or (lambda line: None)
    told(f"where {names[0]} and {names[1]} part")
    found = next(filter(None, (first_difference(a, b, match, feed) for feed in feeds)), None)
    if found is None:
        raise UsageError(f"{names[0]} and {names[1]} do not differ for these inputs: there is nothing to reduce")
    problem, node = found
    told(f"smaller, from {_counted(problem)}")
    small = shrink(problem, StillParts(problem), seconds)
    exact = [exact_output(graph, small.feeds) for graph in small.graphs]
    far = statistics(exact[0], exact[1].value) if exact[0].value.shape == exact[1].value.shape else None
    parts = [f"{names[0]} and {names[1]} part at {', '.join(a.sources.get(node.name, (node.name,)))} ({node.op})."]
    parts += [d.text.rstrip(".") + "." for p in match.pairs if p.a is node for d in p.differences]
    shapes = [str(list(j.value.shape)) for j in exact]
    parts.append(_far(far) if far else f"For this input they give {shapes[0]} and {shapes[1]}.")
    sides = [
        Side(place, graph, small.feeds, [judged.value])
        for place, graph, judged in zip("ab", small.graphs, exact, strict=True)
    ]
    return write(folder, sides, " ".join(parts), names, far)


def _far(s: Statistics) -> str:
    return (
        f"For this input they differ by up to {s.max_abs:.3g}; at {list(s.at)} the exact results are {s.first:.9g} and "
        f"{s.second:.9g}, where a float32 run of the first may err by {s.bound:.3g}."
    )


def reduce_run(
    opened: Opened,
    runner: str,
    feeds: Sequence[Feed],
    folder: Path,
    *,
    progress: Progress | None = None,
    seconds: float = 120.0,
    **limits: float,
) -> Reduction:
    """Write the smallest sub-model on which a runner still leaves its reference: ``folder/model.onnx``, its test data
    with the exact outputs, and ``folder/README.txt``.

    Parameters
    ----------
    opened, runner, feeds, limits
        As for :func:`xframe.check.candidates.execute`.
    seconds
        About how long to try, once the layer is found.

    Raises
    ------
    UsageError
        The runner is unknown, runs natively, or is right for these inputs; something else lies in the folder.
    XframeError
        The whole does not run, or the folder can't be written.
    """
    told = progress or (lambda line: None)
    found, name, graph = Runner.parse(runner), opened.subject.name, opened.graph
    if found.backend == NATIVE:
        raise UsageError(f"{name} can't be reduced for {runner}: its framework runs it as a whole")
    with Engine(found, **limits) as engine:  # type: ignore[arg-type]

        def wrong(part: Graph, feed: Feed) -> str | None:
            ran = engine.run_graph(part, [feed])
            state, reason = compared(ran.outputs[0], Reference(part).evaluate(feed, ran.roundings))
            return reason if state is State.DIFFERENT else None

        def fails(problem: Problem) -> bool:
            return wrong(problem.graphs[0], problem.feeds) is not None

        told(f"where {found} leaves its reference")
        bad = next((feed for feed in feeds if wrong(graph, feed)), None)
        if bad is None:
            raise UsageError(f"{found} computes {name} right for these inputs: there is nothing to reduce")
        cut = wrong_prefix(graph, bad, wrong)
        problem = fewest(graph, bad, cut[0], fails) if cut else Problem.of((graph,), bad)
        told(f"smaller, from {_counted(problem)}")
        small = shrink(problem, fails, seconds)
        (part,) = small.graphs
        ran = engine.run_graph(part, [small.feeds])
    exact = Reference(part).evaluate(small.feeds, ran.roundings)
    _, reason = compared(ran.outputs[0], exact)
    sentence = f"{found} computes {', '.join(map(_title, part.nodes))} of {name} wrong: {reason}."
    side = Side("", part, small.feeds, [j.value for j in exact])
    return write(folder, [side], sentence, (name,), worst(ran.outputs, [exact]))


def _title(node: Node) -> str:
    return f"{node.name} ({node.op})"


def _counted(problem: Problem) -> str:
    nodes = " and ".join(str(len(graph.nodes)) for graph in problem.graphs)
    return f"{nodes} nodes on {', '.join('x'.join(map(str, x.shape)) for x in problem.feeds)}"
