"""Which node of one graph corresponds to which of another, where they are not the same computation.

Three steps, from certain to plausible. What is equal from the inputs on is paired. Then nodes are paired whose
surroundings, up to some distance, occur once in each graph: the largest surroundings first, so that a change disturbs
only what is near it. Last, pairs grow along the edges: neighbours of pairs, the most alike first. No two pairs ever
cross: what comes before in one graph never comes after in the other.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence

import numpy as np

from xframe.normal.form import Weight
from xframe.normal.steps import COMMUTATIVE, Step, Steps

#: Operators that may stand for one another in the same place.
FAMILIES = (
    {"Relu", "LeakyRelu", "PRelu", "Elu", "Selu", "Celu", "Gelu", "Clip", "Sigmoid", "Tanh", "HardSigmoid"}
    | {"HardSwish", "Swish", "Mish", "Softplus", "Softsign", "ThresholdedRelu", "Erf"},
    {"MaxPool", "AveragePool", "LpPool"},
    {"GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceMax", "ReduceSum"},
    {"LRN", "BatchNormalization", "InstanceNormalization", "LayerNormalization", "GroupNormalization"},
    {"Conv", "ConvTranspose"},
    {"Gemm", "MatMul"},
    {"Add", "Sub", "Mul", "Div", "Sum", "Max", "Min", "Mean", "Concat"},
    {"Softmax", "LogSoftmax", "Hardmax", "Sigmoid"},
    {"Resize", "Upsample"},
)
#: How far surroundings reach, in edges, from strict to loose.
RADII = (16, 8, 4, 2, 1, 0)
#: How many nodes may be skipped at a step along the edges, in both graphs together.
SKIPS = 3
#: Below this likeness a neighbour is no partner. An operator of the same family in the same place has more.
LEAST = 0.4
SAMPLE = 256


def align(a: Steps, b: Steps, first: Sequence[int], second: Sequence[int]) -> dict[int, int]:
    """Node of ``a`` -> node of ``b``. ``first`` and ``second``: their classes, equal for equal computations."""
    pairs = _Pairs(a, b)
    waiting = defaultdict(list)
    for j, number in reversed(list(enumerate(second))):
        waiting[number].append(j)
    for i, number in enumerate(first):
        if waiting[number]:
            pairs.add(i, waiting[number].pop())
    _unique(pairs, lambda s: s.exact, RADII)
    _unique(pairs, _outline, RADII[:-1])
    _unique(pairs, lambda s: (s.op, s.weight_shapes), RADII[:3])
    pairs.grow()
    _unique(pairs, _outline, RADII[-1:])
    pairs.grow()
    return pairs.to


def _outline(step: Step) -> tuple[Hashable, ...]:
    return step.op, step.shape, step.weight_shapes


class _Pairs:
    """Pairs found so far, and how they grow."""

    def __init__(self, a: Steps, b: Steps):
        self.a, self.b = a, b
        self.to: dict[int, int] = {}
        self.back: dict[int, int] = {}
        self.places = np.zeros((2, min(len(a), len(b))), int)
        self.heap: list[tuple[float, int, int]] = []
        self.sketches: dict[int, np.ndarray] = {}
        self.static: dict[tuple[int, int], float] = {}

    def add(self, i: int, j: int) -> None:
        self.places[:, len(self.to)] = i, j
        self.to[i], self.back[j] = j, i

    def fits(self, i: int, j: int) -> bool:
        """Whether neither has a partner, and the pair crosses none that there is."""
        if i in self.to or j in self.back:
            return False
        mine, theirs = self.places[:, : len(self.to)]
        (above, below), (over, under) = self.a.reach, self.b.reach
        return not ((above[i, mine] & under[j, theirs]).any() or (below[i, mine] & over[j, theirs]).any())

    @property
    def complete(self) -> bool:
        return len(self.to) == self.places.shape[1]

    def grow(self) -> None:
        if self.complete:
            return
        for i, j in [*self.to.items(), *((-1 - n, -1 - n) for n in range(len(self.a.normal.graph.inputs)))]:
            self.offer(i, j)
        ends = zip(self.a.normal.graph.outputs, self.b.normal.graph.outputs, strict=False)
        for x, y in ends:
            self.propose(self.a.maker.get(x, (-1, 0))[0], self.b.maker.get(y, (-1, 0))[0])
        while self.heap:
            _, i, j = heapq.heappop(self.heap)
            if self.fits(i, j):
                self.add(i, j)
                self.offer(i, j)

    def offer(self, i: int, j: int) -> None:
        """Propose what is near to a pair on either side of it."""
        for down in (True, False):
            mine, theirs = list(_near(self.a, self.to, i, down)), list(_near(self.b, self.back, j, down))
            for x, skipped in mine:
                for y, more in theirs:
                    if len(skipped) + len(more) <= SKIPS:
                        self.propose(x, y, sum(skipped) + sum(more))

    def propose(self, i: int, j: int, cost: float = 0.0) -> None:
        if i < 0 or j < 0 or i in self.to or j in self.back:
            return
        likeness = self.likeness(i, j)
        if likeness >= LEAST:
            heapq.heappush(self.heap, (cost - likeness, i, j))

    def likeness(self, i: int, j: int) -> float:
        """From 0 to 1.1: operator, shapes, weights, settings, and how many of the neighbours are partners."""
        if (i, j) not in self.static:
            self.static[i, j] = _likeness(self.a[i], self.b[j], self.sketch)
        if not self.static[i, j]:
            return 0.0
        above = self.share(self.a.producers[i], self.b.producers[j], self.a[i].op in COMMUTATIVE)
        below = self.share(self.a.consumers[i], self.b.consumers[j], True)
        return self.static[i, j] + 0.2 * above + 0.2 * below

    def sketch(self, weight: Weight) -> np.ndarray:
        if id(weight) not in self.sketches:
            self.sketches[id(weight)] = _sketch(weight.array)
        return self.sketches[id(weight)]

    def share(self, mine: Sequence[int], theirs: Sequence[int], anyhow: bool) -> float:
        """The share of ``mine`` whose partners are in ``theirs``; an input of the graph is its own partner."""
        partners = [n if n < 0 else self.to.get(n) for n in mine]
        common = sum((Counter(p for p in partners if p is not None) & Counter(theirs)).values())
        placed = sum(p == t for p, t in zip(partners, theirs, strict=False))
        most = max(len(mine), len(theirs))
        return (common if anyhow else (common + placed) / 2) / most if most else 0.0


def _near(steps: Steps, paired: dict[int, int], start: int, down: bool) -> Iterator[tuple[int, tuple[float, ...]]]:
    """Nodes without a partner within ``SKIPS`` of one, through others without a partner, and what each of those costs:
    a layer without weights is sooner left out."""
    edges = steps.consumers if down else steps.producers
    if start >= 0:
        near = edges[start]
    else:
        near = [i for i, made in enumerate(steps.producers) if start in made] if down else []
    ring: list[tuple[int, tuple[float, ...]]] = [(n, ()) for n in near]
    seen: set[int] = set()
    while ring:
        fresh: list[tuple[int, tuple[float, ...]]] = []
        for n, skipped in ring:
            if n >= 0 and n not in paired and n not in seen and len(fresh) < 2 * SKIPS:
                seen.add(n)
                fresh.append((n, skipped))
        yield from fresh
        ring = [
            (m, (*skipped, 0.15 if steps[n].constants else 0.05))
            for n, skipped in fresh
            if len(skipped) < SKIPS
            for m in edges[n]
        ]


def _unique(pairs: _Pairs, label_of: Callable[[Step], Hashable], radii: Sequence[int]) -> None:
    """Pair nodes that have no partner and whose label, with those around them, occurs once in each graph."""
    if pairs.complete:
        return
    numbers: dict[Hashable, int] = {}
    rounds = [[[numbers.setdefault(label_of(s), len(numbers)) for s in g.steps] for g in (pairs.a, pairs.b)]]
    for _ in range(max(radii)):
        numbers = {}
        rounds.append(
            [
                [numbers.setdefault(key, len(numbers)) for key in _around(steps, labels)]
                for steps, labels in zip((pairs.a, pairs.b), rounds[-1], strict=True)
            ]
        )
    for radius in radii:
        places: list[dict[int, list[int]]] = []
        for labels, paired in zip(rounds[radius], (pairs.to, pairs.back), strict=True):
            found = defaultdict(list)
            for i, label in enumerate(labels):
                if i not in paired:
                    found[label].append(i)
            places.append(found)
        for label, group in places[0].items():
            other = places[1].get(label, [])
            if len(group) == len(other) == 1 and pairs.fits(group[0], other[0]):
                pairs.add(group[0], other[0])


def _around(steps: Steps, labels: Sequence[int]) -> Iterator[Hashable]:
    for i, step in enumerate(steps.steps):
        above = [labels[n] if n >= 0 else n for n in steps.producers[i]]
        below = sorted(labels[n] for n in steps.consumers[i])
        yield labels[i], tuple(sorted(above) if step.op in COMMUTATIVE else above), tuple(below)


def _likeness(a: Step, b: Step, sketch: Callable[[Weight], np.ndarray]) -> float:
    """From 0 (no partners) to 0.7, the neighbours left out."""
    if a.op != b.op and not any(a.op in family and b.op in family for family in FAMILIES):
        return 0.0
    total = 0.35 + 0.05 * (a.settings == b.settings) if a.op == b.op else 0.1
    total += 0.1 * (a.shape == b.shape)
    if a.weight_shapes != b.weight_shapes:
        return total
    alike = 0.5
    for x, y in list(zip(a.constants.values(), b.constants.values(), strict=True))[:1]:
        alike = 1.0 if x.digest == y.digest else max(float(np.mean(sketch(x) * sketch(y))), 0.0)
    return total + 0.1 + 0.1 * alike


def _sketch(array: np.ndarray) -> np.ndarray:
    """A few elements, centred and scaled: the mean of two sketches' product is their correlation."""
    places = np.linspace(0, max(array.size - 1, 0), SAMPLE if array.size else 0).astype(int)
    values = array.reshape(1)[:1] if not array.ndim else array[np.unravel_index(places, array.shape)]
    values = values.astype(np.float64)
    values = values - (values.mean() if values.size > 1 else 0.0)
    size = np.sqrt(np.mean(np.square(values))) if values.size else 0.0
    return values / size if size > 0 else np.ones(max(values.size, 1))
