"""Where a runner leaves the float64 reference of the file that it executes: the first layer, or the fusion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xframe.check import emit
from xframe.check.cutting import wrong_prefix
from xframe.check.engine import Engine, Feed
from xframe.check.judging import compared, worst
from xframe.equivalence.bounds import Quantity
from xframe.equivalence.graph import Graph, Node, run
from xframe.equivalence.reference import OPERATORS, Judged
from xframe.equivalence.result import LayerRow, State
from xframe.errors import XframeError


@dataclass(frozen=True)
class Blame:
    """``layer``: name and operator, empty where none could be found; ``reason``: how it was found, in a sentence;
    ``layers``: the tensors that were looked at."""

    layer: str = ""
    reason: str = ""
    layers: tuple[LayerRow, ...] = ()


def blame(engine: Engine, graph: Graph, feed: Feed) -> Blame:
    """Find the layer at which the runner, which gets ``graph`` wrong for ``feed``, first does.

    All intermediate results are made outputs. Where that cures it, a fusion is to blame, and the tensors are looked for
    whose keeping cures it. Where it can't be done, networks that end at one layer or another are tried.
    """
    makers = {name: node for node in graph.needed() for name in node.outputs}
    try:
        tensors = emit.floating(graph)
        rows = judged_layers(engine, graph, feed, tensors)
    except XframeError:
        return _bisected(engine, graph, feed, makers)
    wrong = [row for row in rows.values() if not row.ok]
    if not wrong:
        return _fusion(engine, graph, feed, tensors, makers, tuple(rows.values()))
    return Blame(f"{wrong[0].a} ({wrong[0].op})", wrong[0].reason, tuple(rows.values()))


def judged_layers(engine: Engine, graph: Graph, feed: Feed, tensors: Sequence[str]) -> dict[str, LayerRow]:
    """The graph executed with ``tensors`` as outputs after its own, each held against its exact value.

    Returns
    -------
    dict
        Tensor -> row, in topological order, the graph's own outputs included.

    Raises
    ------
    XframeError
        It does not run like that.
    """
    whole = emit.exposed(graph, tensors)
    ran = engine.run_graph(whole, [feed])
    got = dict(zip(whole.outputs, ran.outputs[0], strict=True))
    makers = {name: node for node in graph.nodes for name in node.outputs}
    rows: dict[str, LayerRow] = {}

    def observe(name: str, exact: Quantity) -> None:
        if name in got:
            rows[name] = _row(makers[name], got.pop(name), Judged(name, exact.real, exact.bound))

    run(whole, dict(zip(whole.inputs, feed, strict=True)), OPERATORS, ran.roundings, observe)
    return rows


def _row(node: Node, got: np.ndarray, exact: Judged) -> LayerRow:
    state, reason = compared([got], [exact])
    ok, far = state is not State.DIFFERENT, worst([[got]], [[exact]])
    return LayerRow(node.name, node.name, node.op, exact.value.shape, far, ok, reason)


def _fusion(
    engine: Engine,
    graph: Graph,
    feed: Feed,
    tensors: Sequence[str],
    makers: dict[str, Node],
    rows: tuple[LayerRow, ...],
) -> Blame:
    """All is right while all intermediate results are kept: halve their set as long as what is left still cures."""
    kept = [name for name in tensors if name not in graph.outputs]

    def cures(some: Sequence[str]) -> bool:
        try:
            found = judged_layers(engine, graph, feed, some)
        except XframeError:
            return False
        return all(found[name].ok for name in graph.outputs if name in found)

    if cures(()):
        return Blame("", "the difference did not show again when it was run once more", rows)
    while len(kept) > 1:
        half = len(kept) // 2
        smaller = next((part for part in (kept[:half], kept[half:]) if cures(part)), None)
        if smaller is None:
            break
        kept = list(smaller)
    nodes = [makers[kept[0]]] if kept else []
    nodes += [node for node in graph.needed() if set(kept).intersection(node.inputs) and node not in nodes]
    named = [f"{node.name} ({node.op})" for node in nodes]
    shown = " and ".join(named if len(named) < 4 else [", ".join(named[:2]), f"{len(named) - 2} more nodes"])
    return Blame(
        f"a fusion of {shown}",
        f"the difference vanishes when intermediate results are kept: a fusion of {shown}",
        rows,
    )


def _bisected(engine: Engine, graph: Graph, feed: Feed, makers: dict[str, Node]) -> Blame:
    def wrong(ended: Graph, fed: Feed) -> LayerRow | None:
        row = judged_layers(engine, ended, fed, ())[ended.outputs[0]]
        return None if row.ok else row

    found = wrong_prefix(graph, feed, wrong)
    if found is None:
        return Blame("", "no layer could be found: the network cut short at its layers is right, or does not run")
    node = makers[found[0]]
    why = f"networks that end before {node.name} are right, the one that ends there is not: {found[1].reason}"
    return Blame(f"{node.name} ({node.op})", why, (found[1],))
