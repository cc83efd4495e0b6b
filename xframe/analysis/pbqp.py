"""Partitioned Boolean quadratic problems: one option a node, so that nodes and edges together cost least.

The reductions are those of Scholz and Eckstein (2002, doi 10.1145/513829.513835): a node with no neighbour (R0), one
(RI) or two (RII) is taken out exactly, its cost moved to its neighbours, so that chains, trees and series-parallel
graphs are solved by them alone. What is left over is searched by branch and bound, beginning with the plan that their
heuristic (RN) finds; where the search is stopped at its limit, the best plan so far is not proven.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

#: States that the search looks at before it gives up the proof.
LIMIT = 10000

#: A node that was taken out: its number, costs, and the matrices (own options first) to the neighbours it had then.
_Step = tuple[int, np.ndarray, dict[int, np.ndarray]]


@dataclass(frozen=True)
class Solution:
    """``choice``: an option for each node, of total ``cost``. ``optimal``: it is proven that none costs less.

    A ``cost`` of infinity says that no assignment is feasible where that is proven, else that none was found.
    """

    choice: tuple[int, ...]
    cost: float
    optimal: bool


def solve(
    nodes: Sequence[np.ndarray], edges: Mapping[tuple[int, int], np.ndarray] | None = None, limit: int = LIMIT
) -> Solution:
    """Minimise the sum of node costs and edge costs over all assignments of one option to each node.

    Parameters
    ----------
    nodes
        Costs of each node's options, any unit; infinite for an option that can't be taken.
    edges
        (a, b) of two different nodes -> costs of shape (options of a, options of b). (a, b) and (b, a) add up.
    limit
        States that the search of a core without reducible nodes may look at.

    Raises
    ------
    ValueError
        A node without options, an edge of another shape or between no two nodes, a cost that is NaN or minus infinity.
    """
    vectors = [np.asarray(v, dtype=np.float64) for v in nodes]
    matrices = {pair: np.asarray(m, dtype=np.float64) for pair, m in (edges or {}).items()}
    _check(vectors, matrices)
    problem = _Problem(vectors, matrices)
    problem.reduce()
    choice, optimal = _searched(problem, limit)
    return Solution(choice, _cost(vectors, matrices, choice), optimal)


def _check(vectors: list[np.ndarray], matrices: dict[tuple[int, int], np.ndarray]) -> None:
    for number, vector in enumerate(vectors):
        if vector.ndim != 1 or not vector.size:
            raise ValueError(f"node {number}: its costs have shape {vector.shape}, one or more in a row are needed")
    for (a, b), matrix in matrices.items():
        if a == b or not (0 <= a < len(vectors) and 0 <= b < len(vectors)):
            raise ValueError(f"edge ({a}, {b}) does not join two of the {len(vectors)} nodes")
        if matrix.shape != (vectors[a].size, vectors[b].size):
            raise ValueError(
                f"edge ({a}, {b}): its costs have shape {matrix.shape}, its nodes {vectors[a].size} and"
                f" {vectors[b].size} options"
            )
    if any(np.isnan(x).any() or (x == -np.inf).any() for x in (*vectors, *matrices.values())):
        raise ValueError("a cost is NaN or minus infinity")


def _cost(vectors: list[np.ndarray], matrices: dict[tuple[int, int], np.ndarray], choice: Sequence[int]) -> float:
    return math.fsum(
        [
            *(float(v[i]) for v, i in zip(vectors, choice, strict=True)),
            *(float(m[choice[a], choice[b]]) for (a, b), m in matrices.items()),
        ]
    )


class _Problem:
    """What is left of a problem, and the ``steps`` that took the rest out, whose cost is ``constant`` so far."""

    def __init__(self, vectors: Sequence[np.ndarray], matrices: Mapping[tuple[int, int], np.ndarray]):
        self.vectors = {number: v.copy() for number, v in enumerate(vectors)}
        self.links: dict[int, dict[int, np.ndarray]] = {number: {} for number in self.vectors}
        self.constant = 0.0
        self.steps: list[_Step] = []
        for (a, b), matrix in matrices.items():
            self._join(a, b, matrix)

    def copy(self) -> _Problem:
        """Arrays are shared: none is ever written to."""
        other = _Problem((), {})
        other.vectors, other.links = dict(self.vectors), {a: dict(x) for a, x in self.links.items()}
        other.constant, other.steps = self.constant, list(self.steps)
        return other

    def reduce(self) -> None:
        """Take out nodes with at most two neighbours until there is none: the minimum stays the same."""
        while (node := next((n for n, x in self.links.items() if len(x) <= 2), None)) is not None:
            vector, links = self._take_out(node)
            if not links:
                self.constant += float(vector.min())
            elif len(links) == 1:
                ((a, matrix),) = links.items()
                self.vectors[a] = self.vectors[a] + (vector[:, None] + matrix).min(0)
            else:
                (a, first), (b, second) = links.items()
                self._join(a, b, (vector[:, None, None] + first[:, :, None] + second[:, None, :]).min(0))

    def fix(self, node: int, option: int) -> None:
        """Give ``node`` that option."""
        vector, links = self._take_out(node, option)
        self.constant += float(vector[option])
        for a, matrix in links.items():
            self.vectors[a] = self.vectors[a] + matrix[option]

    def bound(self) -> float:
        """No assignment costs less: edges have been made to cost nothing at their cheapest."""
        return self.constant + math.fsum(float(v.min()) for v in self.vectors.values())

    def hardest(self) -> int:
        """The node with the most neighbours."""
        return max(self.links, key=lambda n: len(self.links[n]))

    def prospects(self, node: int) -> np.ndarray:
        """For each option of ``node`` what it costs, its neighbours at their best: RN takes the least."""
        around = (np.min(m + self.vectors[a], axis=1) for a, m in self.links[node].items())
        return sum(around, self.vectors[node])

    def choice(self) -> tuple[int, ...]:
        """The assignment that the steps lead to, once no node is left."""
        chosen: dict[int, int] = {}
        for node, vector, links in reversed(self.steps):
            chosen[node] = int(np.argmin(sum((m[:, chosen[a]] for a, m in links.items()), vector)))
        return tuple(chosen[n] for n in sorted(chosen))

    def _take_out(self, node: int, option: int | None = None) -> tuple[np.ndarray, dict[int, np.ndarray]]:
        vector, links = self.vectors.pop(node), self.links.pop(node)
        for a in links:
            del self.links[a][node]
        kept = vector if option is None else np.where(np.arange(vector.size) == option, 0.0, np.inf)
        self.steps.append((node, kept, links if option is None else {}))
        return vector, links

    def _join(self, a: int, b: int, matrix: np.ndarray) -> None:
        """Add an edge, and move to the nodes what depends on one of them alone; where that is all, no edge is left."""
        matrix = matrix + self.links[a].get(b, 0.0)
        least = matrix.min(1)
        self.vectors[a] = self.vectors[a] + least
        matrix = _less(matrix, least[:, None])
        least = matrix.min(0)
        self.vectors[b] = self.vectors[b] + least
        matrix = _less(matrix, least[None, :])
        self.links[a].pop(b, None), self.links[b].pop(a, None)
        if matrix.any():
            self.links[a][b], self.links[b][a] = matrix, matrix.T


def _less(matrix: np.ndarray, least: np.ndarray) -> np.ndarray:
    """``matrix - least``, nothing where ``least`` is infinite: the node can't take that option, whatever the edge."""
    return np.where(np.isinf(least), 0.0, matrix - np.where(np.isinf(least), 0.0, least))


def _heuristic(problem: _Problem) -> _Problem:
    """RN: each node that can't be reduced takes the option that looks best from where it stands."""
    problem = problem.copy()
    while problem.vectors:
        node = problem.hardest()
        problem.fix(node, int(np.argmin(problem.prospects(node))))
        problem.reduce()
    return problem


def _searched(problem: _Problem, limit: int) -> tuple[tuple[int, ...], bool]:
    """The best choice found for a reduced problem, and whether it is proven to be the best there is."""
    best, open_states, seen = _heuristic(problem), [problem], 0
    while open_states:
        state = open_states.pop()
        if state.bound() >= best.constant:
            continue
        if not state.vectors:
            best = state
            continue
        if seen == limit:
            return best.choice(), False
        seen += 1
        node = state.hardest()
        for option in np.argsort(-state.prospects(node), kind="stable"):  # the best looking one comes off the end
            child = state.copy()
            child.fix(node, int(option))
            child.reduce()
            open_states.append(child)
    return best.choice(), True
