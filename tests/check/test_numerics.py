"""Layers of two normal forms against each other, in lockstep."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from xframe.check import numerics
from xframe.check.numerics import layers, outputs, verdict
from xframe.equivalence.graph import Evaluation, Graph, Node, run
from xframe.equivalence.reference import OPERATORS, Judged
from xframe.equivalence.result import State
from xframe.errors import UsageError
from xframe.normal.form import Normal, Weight
from xframe.normal.match import Match, Pair

SIZE = (1, 4, 8, 8)


def array(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def normal(nodes, weights, shape=SIZE, outputs=None, inputs=("x",)):
    """A normal form; the shapes of its tensors are those that come out."""
    nodes = tuple(nodes)
    outputs = outputs or (nodes[-1].outputs[0],)
    graph = Graph(nodes, weights, inputs, outputs, (shape,) * len(inputs))
    shapes = dict.fromkeys(inputs, shape) | {k: v.shape for k, v in weights.items()}
    try:
        run(graph, {n: array(*shape) for n in inputs}, OPERATORS, None, lambda n, q: shapes.update({n: q.value.shape}))
    except Exception:
        shapes.update({name: shape for n in nodes for name in n.outputs if name not in shapes})
    return Normal(graph, shapes, {k: Weight(v) for k, v in weights.items()}, {n.name: (n.name,) for n in nodes}, {})


def chain(depth=4, change=None, prefix="", op=None):
    """conv, relu, conv, relu, ...; ``change``: the convolution whose weights are others; ``op``: {layer: operator}."""
    nodes, weights, x = [], {}, "x"
    for i in range(depth):
        w = 0.3 * array(4, 4, 3, 3, seed=i)
        weights[f"{prefix}w{i}"] = w * np.float32(1.001) if i == change else w
        nodes.append(Node(f"{prefix}conv{i}", "Conv", (x, f"{prefix}w{i}"), (f"{prefix}c{i}",), {"pads": [1, 1, 1, 1]}))
        kind = (op or {}).get(i, "Relu")
        nodes.append(Node(f"{prefix}relu{i}", kind, (f"{prefix}c{i}",), (f"{prefix}r{i}",)))
        x = f"{prefix}r{i}"
    return normal(nodes, weights)


def matched(a, b, order=None):
    """Nodes paired by position in the list of nodes."""
    pairs = [Pair(x, y, False) for x, y in zip(a.graph.nodes, b.graph.nodes, strict=True)]
    return Match(tuple(pairs if order is None else [pairs[i] for i in order]), (), False)


@pytest.fixture
def counted(monkeypatch):
    """(operator, whether bounds were wanted) of each node that is evaluated."""
    seen = []
    inner = Evaluation._computed

    def computed(self, node):
        seen.append((node.name, self._roundings is not None))
        return inner(self, node)

    monkeypatch.setattr(Evaluation, "_computed", computed)
    return seen


def test_equal_graphs_are_evaluated_once_and_without_bounds(counted):
    a, b = chain(), chain(prefix="b_")
    counted.clear()
    rows = layers(a, b, matched(a, b), [[array(*SIZE)]])
    assert [(row.a, row.b, row.op) for row in rows[:2]] == [("conv0", "b_conv0", "Conv"), ("relu0", "b_relu0", "Relu")]
    assert len(rows) == 8
    assert all(row.ok and row.statistics.max_abs == 0 and row.statistics.ratio == 0 for row in rows)
    assert counted == [(n.name, False) for n in a.graph.nodes]


def test_the_first_row_that_is_not_ok_is_the_layer_to_blame(counted):
    a, b = chain(), chain(change=2, prefix="b_")
    counted.clear()
    rows = layers(a, b, matched(a, b), [[array(*SIZE)]])
    assert [row.ok for row in rows] == [True] * 4 + [False] * 4
    assert next(row for row in rows if not row.ok).a == "conv2"
    assert rows[4].statistics.ratio > 10
    assert "times the bound" in rows[4].reason
    # The unchanged prefix was computed once.
    assert [name for name, _ in counted if name.startswith("b_")] == ["b_conv2", "b_relu2", "b_conv3", "b_relu3"]


def test_the_match_is_not_trusted_with_what_is_the_same():
    """A pair said to be the same, whose weights or attributes are not, is evaluated and found out."""
    a = chain()
    for b in (chain(change=1), chain(op={1: "Elu"})):
        lie = Match(tuple(replace(p, same=True) for p in matched(a, b).pairs), (), True)
        assert not all(row.ok for row in layers(a, b, lie, [[array(*SIZE)]]))
    nodes = list(a.graph.nodes)
    nodes[2] = replace(nodes[2], attrs={"pads": [2, 2, 0, 0]})
    b = normal(nodes, {k: w.array for k, w in a.weights.items()})
    assert not all(row.ok for row in layers(a, b, matched(a, b), [[array(*SIZE)]]))


def test_rounding_of_weights_is_within_the_bound():
    """What a folded scale does to weights is no difference."""
    a = chain()
    weights = {k: np.nextafter(w.array, np.float32(9)) if k == "w1" else w.array for k, w in a.weights.items()}
    b = normal(a.graph.nodes, weights)
    rows = layers(a, b, matched(a, b), [[array(*SIZE)]])
    assert all(row.ok for row in rows)
    assert rows[-1].statistics.max_abs > 0
    assert rows[-1].statistics.bound > 0


def test_the_worst_feed_is_kept():
    """A layer that only some inputs reach."""
    a, b = (normal([Node("n", op, ("x",), ("y",))], {}) for op in ("Relu", "Abs"))
    positive = np.abs(array(*SIZE))
    for feeds in ([[positive], [-positive]], [[-positive], [positive]]):
        (row,) = layers(a, b, matched(a, b), feeds)
        assert not row.ok
        assert row.statistics.second > 0 == row.statistics.first
    (row,) = layers(a, b, matched(a, b), [[positive], [2 * positive]])
    assert row.ok


def test_nodes_may_be_in_another_order():
    """Two branches, written down in either order: tensors wait for their partner."""

    def branches(turned, last="Add"):
        left = [Node("l1", "Exp", ("x",), ("l1",)), Node("l2", "Tanh", ("l1",), ("l2",))]
        right = [Node("r1", "Relu", ("x",), ("r1",)), Node("r2", "Elu", ("r1",), ("r2",))]
        nodes = [*right, *left] if turned else [*left, *right]
        return normal([*nodes, Node("sum", last, ("l2", "r2"), ("y",))], {})

    a, b = branches(False), branches(True)
    by_name = {n.name: n for n in b.graph.nodes}
    match = Match(tuple(Pair(n, by_name[n.name], False) for n in a.graph.nodes), (), True)
    assert [row.ok for row in layers(a, b, match, [[array(*SIZE)]])] == [True] * 5
    crossed = Match((*match.pairs[2:], *match.pairs[:2]), (), True)
    assert [row.ok for row in layers(a, b, crossed, [[array(*SIZE)]])] == [True] * 5
    c = branches(True, "Sub")
    match = Match(tuple(replace(p, b=c.graph.nodes[b.graph.nodes.index(p.b)]) for p in match.pairs), (), False)
    assert [row.ok for row in layers(a, c, match, [[array(*SIZE)]])] == [True] * 4 + [False]


def test_nodes_without_a_partner_and_other_shapes_are_passed_over():
    a = chain(2)
    nodes = list(a.graph.nodes)
    nodes[-1] = replace(nodes[-1], inputs=("extra",))
    nodes.insert(-1, Node("extra", "MaxPool", ("c1",), ("extra",), {"kernel_shape": [2, 2]}))
    b = normal(nodes, {k: w.array for k, w in a.weights.items()})
    pairs = [Pair(x, y, False) for x, y in zip(a.graph.nodes, [*nodes[:3], nodes[-1]], strict=True)]
    match = Match((*pairs[:3], Pair(None, nodes[3], False), pairs[3]), (), False)
    rows = layers(a, b, match, [[array(*SIZE)]])
    assert [row.a for row in rows] == ["conv0", "relu0", "conv1"]
    assert all(row.ok for row in rows)


def test_an_unknown_operator_ends_the_comparison_there():
    a, b = (chain(3, change, op={1: "NonZero"}) for change in (None, 0))
    rows = layers(a, b, matched(a, b), [[array(*SIZE)]])
    assert [row.a for row in rows] == ["conv0", "relu0", "conv1", "relu1"]
    assert not rows[0].ok
    assert (rows[-1].ok, rows[-1].statistics) == (False, None)
    assert "NonZero" in rows[-1].reason


def test_not_finite_is_never_ok():
    a = normal([Node("log", "Log", ("x",), ("y",)), Node("abs", "Abs", ("y",), ("z",))], {})
    (first, second) = layers(a, a, matched(a, a), [[array(*SIZE)]])
    assert not first.ok
    assert not second.ok
    assert first.statistics is None
    assert "not finite" in first.reason
    b = normal([Node("log", "Identity", ("x",), ("y",)), Node("abs", "Abs", ("y",), ("z",))], {})
    (row, _) = layers(b, a, matched(b, a), [[array(*SIZE)]])
    assert not row.ok
    assert row.statistics.ratio == np.inf


@pytest.mark.parametrize("change", [None, 0])
def test_memory_does_not_grow_with_the_depth(change):
    shape, peaks = (1, 4, 64, 64), []
    for depth in (6, 24):
        a, b = chain(depth), chain(depth, change)
        a, b = (
            replace(n, shapes={k: shape if len(s) == 4 and s[0] == 1 else s for k, s in n.shapes.items()})
            for n in (a, b)
        )
        match, feed = matched(a, b), [array(*shape)]
        layers(a, b, match, [feed])
        tracemalloc.start()
        rows = layers(a, b, match, [feed])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(rows) == 2 * depth
    assert peaks[1] < peaks[0] + 8 * array(*shape).size  # one tensor more, of 36


def test_feeds_must_fit():
    a = chain(1)
    for feeds in ([], [[]], [[array(*SIZE)] * 2]):
        with pytest.raises(UsageError, match="feeds"):
            layers(a, a, matched(a, a), feeds)


# -- outputs and the verdict ------------------------------------------------------------------------------------------


def judged(value, name="y", bound=1e-6):
    return Judged(name, np.asarray(value, np.float64), np.full(np.shape(value), bound))


def test_outputs_keep_the_worst_feed():
    first = [[judged([1.0, 2.0]), judged([3.0], "z")], [judged([1.5, 2.5]), judged([3.5], "z")]]
    second = [[judged([1.0, 2.0]), judged([3.0], "z")], [judged([1.5, 2.6]), judged([3.5], "z")]]
    rows = outputs(first, second)
    assert [(row.a, row.ok) for row in rows] == [("y", False), ("z", True)]
    assert rows[0].statistics.at == (1,)
    state, reason = verdict(rows, (), "torch")
    assert state is State.DIFFERENT
    for word in ("torch", "2.6", "2.5", "y"):
        assert word in reason
    assert verdict(outputs(first, first), (), "torch") == (State.EQUIVALENT, "")


def test_the_verdict_names_the_first_layer():
    a, b = chain(), chain(change=2, prefix="b_")
    rows = layers(a, b, matched(a, b), [[array(*SIZE)]])
    state, reason = verdict(outputs([[judged([1.0])]], [[judged([1.1])]]), rows, "torch")
    assert state is State.DIFFERENT
    assert "the first layer that differs is conv2 (Conv)" in reason


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_could_not_be_compared_is_unchecked(value):
    bad = [[judged([value, 1.0])]]
    state, reason = verdict(outputs(bad, bad), (), "torch")
    assert state is State.UNCHECKED
    assert "not finite" in reason
    # An element that can be compared and differs says more than one that can't.
    assert verdict(outputs(bad, [[judged([value, 1.1])]]), (), "torch")[0] is State.DIFFERENT
    assert verdict(outputs([[judged([1.0, 1.0])]], bad), (), "torch")[0] is State.DIFFERENT
    blind = [[judged([1.0, 1.0], bound=2.0)]]
    assert verdict(outputs(blind, blind), (), "torch")[0] is State.UNCHECKED
    assert verdict((), (), "torch")[0] is State.UNCHECKED
    assert numerics.outputs([], []) == ()


def test_empty_tensors_are_unchecked():
    nothing = [[judged(np.ones((0, 3)))]]
    (row,) = outputs(nothing, nothing)
    assert (row.ok, row.statistics) == (False, None)
    assert "empty" in row.reason
