"""Pairs of networks: equal ones, and such with one planted difference that a float32 run can't hide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import numpy as np
import onnx

from tests.generator import layouts, plants_weights, witness  # noqa: F401  (their tables fill when they are imported)
from tests.generator.net import Net, Rng
from tests.generator.plants import PLANTS
from tests.generator.random_net import random_net
from tests.generator.rewrites import REWRITES, Table
from tests.generator.witness import Feed

INVALID = (onnx.checker.ValidationError, onnx.shape_inference.InferenceError)
#: What a planted difference must reach, in bounds of the first network. Each of the two runs that show it may err by
#: one, so that the exact results differ by more than a bound.
CLEARLY = 4.0
TRIES = 200


@dataclass(frozen=True)
class Pair:
    """``kind``: the plant or the rewrites; ``feeds`` those of the first; ``distance`` in bounds of the first."""

    kind: str
    first: Net
    second: Net
    feeds: list[Feed]
    distance: float


def planted(
    seed: int, count: int, kinds: Sequence[str] = (), redrawn: Counter | None = None, start: int = 0
) -> Iterator[Pair]:
    """``count`` pairs that differ, from number ``start`` on, each kind in turn; half of the second ones are rewritten.

    ``redrawn`` counts, by kind, the plants that stayed within the bound or made no valid network.
    """
    redrawn = Counter() if redrawn is None else redrawn
    for number, kind in islice(enumerate(cycle(kinds or PLANTS)), start, start + count):
        yield _planted(np.random.default_rng((seed, number)), kind, redrawn)


def equal(seed: int, count: int, kinds: Sequence[str] = (), start: int = 0) -> Iterator[Pair]:
    """``count`` pairs that compute the same: each rewrite in turn, and up to two more of any kind."""
    for number, kind in islice(enumerate(cycle(kinds or REWRITES)), start, start + count):
        yield _equal(np.random.default_rng((seed, number, 1)), kind)


def _planted(r: Rng, kind: str, redrawn: Counter) -> Pair:
    for first, second in _edited(r, PLANTS, kind):
        fed = witness.feeds(first, r)
        try:
            one, two = _run(first, fed), _run(second, fed)
        except INVALID:  # a stride, say, that leaves other shapes than the layers after it need
            redrawn[kind] += 1
            continue
        if not witness.lively(one) or len(one[0]) != len(two[0]):
            continue
        distance = witness.distance(one, two, witness.bounds(first, fed))
        if not CLEARLY < distance < np.inf:  # outputs of another shape are too easy to tell
            redrawn[kind] += 1
            continue
        done = _rewritten(second, r, int(r.integers(0, 3)))
        return Pair(kind, first, second, fed, distance) if not done else Pair(kind, first, done[0], fed, distance)
    raise AssertionError(f"no network in {TRIES} that shows {kind!r}")


def _equal(r: Rng, kind: str) -> Pair:
    for first, second in _edited(r, REWRITES, kind):
        fed = witness.feeds(first, r)
        one = _run(first, fed)
        if not witness.lively(one):
            continue
        more = _rewritten(second, r, int(r.integers(0, 3)))
        second, kinds = more if more else (second, ())
        distance = witness.distance(one, _run(second, fed), witness.bounds(first, fed))
        return Pair(" + ".join((kind, *kinds)), first, second, fed, distance)
    raise AssertionError(f"no network in {TRIES} that takes {kind!r}")


def _edited(r: Rng, table: Table, kind: str) -> Iterator[tuple[Net, Net]]:
    edit, wants = table[kind]
    for _ in range(TRIES):
        first = random_net(r, wants)
        second = first.copy()
        if edit(second, r):
            yield first, second


def _rewritten(net: Net, r: Rng, count: int) -> tuple[Net, tuple[str, ...]] | None:
    made, done = net.copy(), []
    for kind in r.choice(sorted(REWRITES), count, replace=False):
        trial = made.copy()
        if REWRITES[kind][0](trial, r):
            made = trial
            done.append(str(kind))
    return (made, tuple(done)) if done else None


def _run(net: Net, fed: list[Feed]) -> list[list[np.ndarray]]:
    return witness.outputs(net.checked(), fed, net.axes)
