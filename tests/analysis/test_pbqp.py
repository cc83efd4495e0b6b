"""The solver against all assignments, counted out."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xframe.analysis.pbqp import Solution, solve

INF = np.inf
#: Whole numbers, so that sums are exact whatever their order.
COST = st.one_of(st.integers(-9, 9).map(float), st.just(INF))


def brute(nodes, edges):
    def cost(choice):
        inner = sum(nodes[n][i] for n, i in enumerate(choice))
        return inner + sum(m[choice[a]][choice[b]] for (a, b), m in edges.items())

    return min(map(cost, itertools.product(*(range(len(v)) for v in nodes)))), cost


@st.composite
def problems(draw, joins):
    """Up to six nodes of up to three options; ``joins(number of nodes)`` gives the edges that may be there."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
    nodes = [np.array(draw(st.lists(COST, min_size=n, max_size=n))) for n in sizes]
    edges = {}
    for a, b in joins(len(sizes)):
        if draw(st.booleans()):
            count = sizes[a] * sizes[b]
            edges[a, b] = np.reshape(draw(st.lists(COST, min_size=count, max_size=count)), (sizes[a], sizes[b]))
    return nodes, edges


def every_pair(n):
    return itertools.permutations(range(n), 2)


def series_parallel(n):
    """Each node joined to the two before it: reductions alone solve it."""
    return [(a, b) for b in range(n) for a in (b - 2, b - 1) if a >= 0]


@settings(max_examples=300)
@given(problems(every_pair))
def test_any_graph_is_solved_to_its_optimum_and_proven(problem):
    nodes, edges = problem
    best, cost = brute(nodes, edges)
    found = solve(nodes, edges)
    assert found.optimal
    assert found.cost == best
    assert cost(found.choice) == best


@settings(max_examples=150)
@given(problems(series_parallel))
def test_reductions_alone_are_exact_where_they_apply(problem):
    """With a limit of 0 nothing is searched."""
    nodes, edges = problem
    found = solve(nodes, edges, limit=0)
    assert found.optimal
    assert found.cost == brute(nodes, edges)[0]


@settings(max_examples=150)
@given(problems(every_pair))
def test_without_a_search_the_plan_is_as_good_as_told_and_never_called_proven_in_vain(problem):
    nodes, edges = problem
    best, cost = brute(nodes, edges)
    found = solve(nodes, edges, limit=0)
    assert cost(found.choice) == found.cost
    assert found.cost == best if found.optimal else found.cost >= best


def test_the_heuristic_can_miss_what_the_search_finds():
    """So that the two tests above are known to meet such problems at all."""
    g = np.random.default_rng(0)
    missed = 0
    for _ in range(30):
        nodes = [g.integers(0, 9, 3).astype(float) for _ in range(7)]
        edges = {p: g.integers(0, 9, (3, 3)).astype(float) for p in itertools.combinations(range(7), 2)}
        quick, proven = solve(nodes, edges, limit=0), solve(nodes, edges)
        assert proven.optimal
        assert quick.cost >= proven.cost
        missed += quick.cost > proven.cost
        assert not (quick.cost > proven.cost and quick.optimal)
    assert missed


def test_no_node_no_cost():
    assert solve([]) == Solution((), 0.0, True)


def test_an_edge_decides_against_the_nodes():
    nodes = [np.array([1.0, 2.0]), np.array([2.0, 1.0])]
    assert solve(nodes).choice == (0, 1)
    assert solve(nodes, {(0, 1): np.array([[0.0, 9.0], [9.0, 0.0]])}).cost == 3.0
    assert solve(nodes, {(0, 1): np.array([[0.0, 9.0], [0.0, 9.0]])}).choice == (0, 0)


def test_what_is_refused_is_not_taken():
    nodes = [np.array([INF, 5.0]), np.array([0.0, 7.0])]
    assert solve(nodes, {(0, 1): np.array([[0.0, 0.0], [INF, 0.0]])}) == Solution((1, 1), 12.0, True)


def test_no_feasible_assignment():
    equal, different = np.array([[0.0, INF], [INF, 0.0]]), np.array([[INF, 0.0], [0.0, INF]])
    for nodes, edges in (
        ([np.array([INF, INF])], {}),
        ([np.zeros(2), np.array([INF, INF])], {}),
        ([np.zeros(2)] * 2, {(0, 1): equal, (1, 0): different}),
        ([np.zeros(2)] * 4, {pair: different for pair in itertools.combinations(range(4), 2)}),
    ):
        found = solve(nodes, edges)
        assert found.cost == INF
        assert found.optimal


def test_a_long_chain_and_a_long_ladder():
    """Against dynamic programming over the chain; the ladder's two sides are one node of nine options each."""
    g = np.random.default_rng(1)
    nodes = [g.random(4) for _ in range(200)]
    edges = {(i, i + 1): g.random((4, 4)) for i in range(199)}
    best = nodes[0]
    for i in range(199):
        best = (best[:, None] + edges[i, i + 1]).min(0) + nodes[i + 1]
    found = solve(nodes, edges, limit=0)
    assert found.optimal
    assert found.cost == pytest.approx(best.min(), rel=1e-12)

    rails = {(i, i + 2): g.random((3, 3)) for i in range(38)}
    rungs = {(i, i + 1): g.random((3, 3)) for i in range(0, 40, 2)}
    nodes = [g.random(3) for _ in range(40)]
    rung = [(nodes[i][:, None] + nodes[i + 1] + rungs[i, i + 1]).ravel() for i in range(0, 40, 2)]
    best = rung[0]
    for step in range(19):
        i = 2 * step
        join = (rails[i, i + 2][:, None, :, None] + rails[i + 1, i + 3][None, :, None, :]).reshape(9, 9)
        best = (best[:, None] + join).min(0) + rung[step + 1]
    found = solve(nodes, {**rails, **rungs})
    assert found.optimal
    assert found.cost == pytest.approx(best.min(), rel=1e-12)


@pytest.mark.parametrize(
    ("nodes", "edges", "words"),
    [
        ([[]], {}, "node 0"),
        ([[[1.0]]], {}, "node 0"),
        ([[1.0]], {(0, 0): [[1.0]]}, "does not join two"),
        ([[1.0]], {(0, 1): [[1.0]]}, "does not join two"),
        ([[1.0], [1.0, 2.0]], {(0, 1): [[1.0], [2.0]]}, r"shape \(2, 1\)"),
        ([[np.nan]], {}, "NaN"),
        ([[1.0], [1.0]], {(0, 1): [[-INF]]}, "minus infinity"),
    ],
)
def test_senseless_problems_are_refused(nodes, edges, words):
    with pytest.raises(ValueError, match=words):
        solve(nodes, edges)
