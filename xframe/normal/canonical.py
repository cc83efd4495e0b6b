"""The normal form of a graph: one way to write what exporters write in many.

Two passes. The first (``trace`` and the rules of ``shapes``, ``pointwise``, ``windows``, ``products``, ``resizing``)
takes the file's nodes in order: constants are folded, transposes absorbed, attributes completed, operator sets made
one. The second (``fusing`` and the fusions of ``affine``, ``functions`` and ``patterns``) looks at what stands beside
what: padding, biases, batch normalisation, groups, functions written in parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from xframe.equivalence.graph import Graph
from xframe.errors import UsageError
from xframe.normal import affine, constants, functions, patterns, pointwise, products, resizing, shapes, trace, windows
from xframe.normal.draft import Axes, Draft, identity, inverse
from xframe.normal.form import Normal, Weight
from xframe.normal.fusing import Fuser, Fusion
from xframe.normal.loading import Raw
from xframe.normal.trace import Rule, Trace, Value

RULES: dict[str, Rule] = {**shapes.RULES, **pointwise.RULES, **windows.RULES, **products.RULES, **resizing.RULES}


def canonical(
    graph: Graph,
    *,
    inputs: Mapping[str, tuple[int, ...]] | None = None,
    outputs: Mapping[str, tuple[int, ...]] | None = None,
    fold_batchnorm: bool = True,
) -> Normal:
    """The normal form of a raw graph.

    Parameters
    ----------
    graph
        From :func:`xframe.normal.loading.load`.
    inputs, outputs
        Name -> axes: the graph's tensor is the canonical one transposed by ``axes``. An input in NHWC has
        (0, 2, 3, 1), so that the normal form's is NCHW.
    fold_batchnorm
        Let scales and shifts of channels pass into the weights before them, in float64 and rounded to float32 once.
        Without it every weight keeps its bits, and the graph computes exactly what the raw one does.

    Raises
    ------
    ModelError
        Shapes that do not fit, or that depend on data.
    UsageError
        ``inputs`` or ``outputs`` name a tensor that is none, or axes that are no permutation of its own.
    """
    inputs, outputs = dict(inputs or {}), dict(outputs or {})
    for what, given, names in (("input", inputs, graph.inputs), ("output", outputs, graph.outputs)):
        for name in given:
            if name not in names:
                raise UsageError(f"there is no {what} {name}: the graph has {', '.join(names)}")
    t = Trace({*graph.constants, *graph.inputs, *(o for n in graph.nodes for o in n.outputs)})
    _inputs(t, graph, inputs)
    used = {name for node in graph.nodes for name in node.inputs} | set(graph.outputs)
    for name, array in graph.constants.items():
        if name in used:
            t.values[name] = constants.initial(name, array)
    for node in graph.nodes:
        trace.run(t, node, RULES)
    ends = [_output(t, name, outputs.get(name)) for name in graph.outputs]
    fusions = _fusions(fold_batchnorm)
    fused = Fuser(t.draft, ends, fusions)
    return _normal(graph, fused.draft, fused.outputs, t)


def _fusions(fold: bool) -> dict[str, list[Fusion]]:
    tables = [affine.ALWAYS, functions.FUSIONS, patterns.FUSIONS, *([affine.FOLDING] if fold else [])]
    return {op: [f for table in tables for f in table.get(op, [])] for table in tables for op in table}


def _inputs(t: Trace, graph: Graph, layouts: Mapping[str, Axes]) -> None:
    kinds = graph.dtypes if isinstance(graph, Raw) and graph.dtypes else ("float32",) * len(graph.inputs)
    for name, shape, kind in zip(graph.inputs, graph.shapes, kinds, strict=True):
        axes = tuple(layouts.get(name, ())) or identity(len(shape))
        _permutes(name, axes, len(shape))
        size = tuple(n or 1 for n in shape)
        t.draft.shapes[name] = tuple(size[i] for i in inverse(axes))
        whole = kind.startswith(("int", "uint", "bool"))
        t.draft.dtypes[name] = np.dtype(kind) if whole else trace.FLOAT
        t.bind(name, Value(name, axes))
        if kind not in ("float32", "float64") and not whole:
            t.draft.notes[f"input {name} is {kind}: what the model computes in it is taken as exact"] += 1


def _permutes(name: str, axes: Axes, rank: int) -> None:
    if sorted(axes) != list(range(rank)):
        raise UsageError(f"{name} has {rank} axes, {tuple(axes)} does not order them")


def _output(t: Trace, name: str, axes: Axes | None) -> str:
    """The canonical tensor that the file's output is, transposed by ``axes``."""
    v = t.values[name]
    rank = len(t.shape(v))
    axes = tuple(axes or ()) or identity(rank)
    _permutes(name, axes, rank)
    t.node = trace.Node(name, "", (name,), (name,))
    return t.aligned(v, axes)


def _normal(graph: Graph, draft: Draft, outputs: tuple[str, ...], t: Trace) -> Normal:
    nodes = draft.needed(outputs)
    read = {n for node in nodes for n in node.inputs} | set(outputs)
    made = {o for node in nodes for o in node.outputs if o}
    names = _names({n: w for n, w in draft.weights.items() if n in read}, {*made, *graph.inputs, *outputs})
    nodes = [replace(node, inputs=tuple(names.get(n, n) for n in node.inputs)) for node in nodes]
    weights = {name: draft.weights[n] for n, name in names.items()}
    shapes = {n: draft.shapes[n] for n in (*graph.inputs, *made)} | {n: w.array.shape for n, w in weights.items()}
    notes = [f"{text}: {count}" if count > 1 else text for text, count in draft.notes.items()]
    arrays = {n: w.array for n, w in weights.items()}
    sizes = tuple(draft.shapes[n] for n in graph.inputs)
    return Normal(
        Graph(tuple(nodes), arrays, graph.inputs, outputs, sizes),
        shapes,
        weights,
        {node.name: draft.sources[node.name] for node in nodes},
        {n: at for n, at in t.tensors.items() if n in made or n in graph.inputs},
        (*(graph.notes if isinstance(graph, Raw) else ()), *notes),
    )


def _names(weights: Mapping[str, Weight], taken: set[str]) -> dict[str, str]:
    """Each constant's name: that of the tensor it was made of, if no other has it."""
    free = {n: w.source[0] for n, w in weights.items() if w.source and w.source[0] not in weights and n not in taken}
    claims = Counter(free.values())
    return {n: free[n] if n in free and claims[free[n]] == 1 and free[n] not in taken else n for n in weights}
