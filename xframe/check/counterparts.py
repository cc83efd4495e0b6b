"""Which weight of one model is which of another, told by values; and the zero biases that an export lost."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from xframe.equivalence.graph import Graph, Node

Array = np.ndarray
Move = Callable[[Array], Array]

#: Elements looked at before all of them are, and at a time.
SAMPLE, BLOCK = 64, 1 << 20


def with_zero_biases(graph: Graph, missing: Mapping[str, tuple[int, ...]]) -> Graph:
    """The graph with the biases that its exporter dropped because they are zero, so that they have a gradient.

    Parameters
    ----------
    missing
        Shapes of the model's weights that the graph lacks. One is a bias where it fits a node that has none, and is
        named like the weight of that node alone (``conv1.bias``, ``conv1.weight``).
    """
    nodes, constants = list(graph.nodes), dict(graph.constants)
    for name, shape in missing.items():
        owner = re.split(r"[./](?=[^./]*$)", name)[0]
        found = [i for i, n in enumerate(nodes) if _filters(n, constants, owner) == shape]
        if len(found) == 1:
            node = nodes[found[0]]
            nodes[found[0]] = replace(node, inputs=(*node.inputs[:2], name))
            constants[name] = np.zeros(shape, np.float32)
    return replace(graph, nodes=tuple(nodes), constants=constants)


def _filters(node: Node, constants: Mapping[str, Array], owner: str) -> tuple[int, ...] | None:
    """The shape of the bias of a node that has none, if ``owner`` is what its weight belongs to."""
    if node.op not in ("Conv", "Gemm") or any(node.inputs[2:]) or node.inputs[1] not in constants:
        return None
    weight = node.inputs[1]
    if re.split(r"[./](?=[^./]*$)", weight)[0] != owner:
        return None
    return constants[weight].shape[0 if node.op == "Conv" or node.attrs.get("transB", 0) else 1 :][:1]


def twins(weights: Mapping[str, Array]) -> list[list[str]]:
    """Names of weights that have the same shape and the same values, where there are several."""
    groups = defaultdict(list)
    for name, w in weights.items():
        groups[w.shape, _mixed(w)].append(name)
    return [names for names in groups.values() if len(names) > 1]


def counterparts(a: Mapping[str, Array], b: Mapping[str, Array]) -> Iterator[tuple[str, str, list[Move]]]:
    """Pairs of weights that have the same values, in any layout.

    Weights of one value (zero biases), and values that a model has twice, tell nothing and are left out.

    Yields
    ------
    name in ``a``, name in ``b``, moves
        What takes ``b``'s weight, and so its gradient, to the layout of ``a``'s: more than one where the values leave
        it open.
    """
    found = []
    for weights in (a, b):
        groups = defaultdict(list)
        for name, w in weights.items():
            if w.size and w.min() != w.max():
                groups[w.size, _mixed(w)].append(name)
        found.append({key: names[0] for key, names in groups.items() if len(names) == 1})
    for key, name in found[0].items():
        other = found[1].get(key)
        ways = moves(b[other], a[name]) if other is not None else []
        if other is not None and ways:
            yield name, other, ways


def _mixed(w: Array) -> int:
    """A number that depends on the values, but not on their order nor on the sign of zero."""
    total, flat = 0, w.reshape(-1)
    for start in range(0, w.size, BLOCK):
        words = (flat[start : start + BLOCK].astype(np.float64) + 0.0).view(np.uint64)
        total += int((words * (words >> np.uint64(29) | np.uint64(1))).sum(dtype=np.uint64))
    return total % 2**64


def moves(value: Array, target: Array) -> list[Move]:
    """The ways in which ``value`` becomes ``target``: axes permuted and reshaped, or a product's inputs reordered."""
    if value.size != target.size or not value.size:
        return []
    shape, found = target.shape, list[Move]()
    for axes in _orders(value):

        def move(a: Array, axes: tuple[int, ...] = axes) -> Array:
            return a.transpose(axes).reshape(shape)

        if _alike(value.transpose(axes), target) and np.array_equal(move(value), target):
            found.append(move)
    return found or list(_reordered(value, target))


def _orders(value: Array) -> Iterator[tuple[int, ...]]:
    """Permutations of the axes that make a difference."""
    if value.ndim > 5:
        yield tuple(range(value.ndim))
        return
    seen = set()
    for axes in itertools.permutations(range(value.ndim)):
        key = tuple(a for a in axes if value.shape[a] != 1)
        if key not in seen:
            seen.add(key)
            yield axes


def _alike(view: Array, target: Array) -> bool:
    """Whether a few elements, in the same places of both, are the same."""
    at = np.linspace(0, target.size - 1, min(SAMPLE, target.size)).astype(np.int64)
    return np.array_equal(view[np.unravel_index(at, view.shape)], target[np.unravel_index(at, target.shape)])


def _matrices(a: Array) -> Sequence[Array]:
    """As [out, in], where the first axis is the outputs, and where the last is."""
    return a.reshape(a.shape[0], -1), a.reshape(-1, a.shape[-1]).T


def _reordered(value: Array, target: Array) -> Iterator[Move]:
    """The inputs of a product come in another order where the image before it was flattened in another layout."""
    if min(value.ndim, target.ndim) < 2:
        return
    for (i, have), (j, want) in itertools.product(enumerate(_matrices(value)), enumerate(_matrices(target))):
        if have.shape != want.shape:
            continue
        # Equal columns have equal products with anything: the products, sorted, tell which column is which.
        probe = np.random.default_rng(0).standard_normal(want.shape[0])
        order = np.empty(have.shape[1], np.int64)
        order[np.argsort(probe @ want, kind="stable")] = np.argsort(probe @ have, kind="stable")
        if np.array_equal(have[:, order], want):

            def move(a: Array, i: int = i, j: int = j, order: Array = order) -> Array:
                matrix = _matrices(a)[i][:, order]
                return (matrix.T if j else matrix).reshape(target.shape)

            yield move
            return
