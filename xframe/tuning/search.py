"""The points of a task, and the order in which to try them: by hand first, then by chance or by what was learnt."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from tvm import s_tir

from xframe.errors import UsageError
from xframe.lowering.stage import Stage, Tile
from xframe.lowering.target import Target
from xframe.lowering.tasks import Task
from xframe.tuning.cost import Cost, ratio
from xframe.tuning.points import OK, Point, Trial

#: ``evolutionary``: children of the best points so far, the most promising first by a learnt cost model. ``replay``:
#: points at random; it learns nothing.
EVOLUTIONARY, REPLAY = "evolutionary", "replay"
STRATEGIES = (EVOLUTIONARY, REPLAY)
#: Parents are so many of the best measured points; a round makes so many children in so many attempts each; so many of
#: them have two parents.
PARENTS, CHILDREN, ATTEMPTS, CROSSED = 8, 64, 4, 0.3
#: The share of points by chance, whatever was learnt.
CHANCE = 0.2


@dataclass(frozen=True)
class Space:
    """What a template offers with one register tile. ``points`` are all of it, the hand-written one first.

    ``candidates``: of each knob, in the order in which the template asks. ``work``: multiply-adds of the product, with
    those that only fill its last tiles.
    """

    tile: tuple[int, int]
    candidates: Mapping[str, tuple[int, ...]]
    points: tuple[Point, ...]
    work: float = 1.0

    @staticmethod
    def of(stage: Stage, tile: tuple[int, int]) -> Space:
        """The space of a product that was defined with ``tile``.

        Candidates of a knob may depend on another's value, so the template is asked once with each value.
        """
        _, by_hand = stage.templated()
        first, asked = by_hand.space, {}
        for name in list(first)[:-1]:  # nothing can depend on the last knob
            for value in first[name]:
                if value != by_hand.decided[name]:
                    asked[name, value] = _offered(stage, name, value)
        everything = {
            n: tuple(sorted({*v, *(x for o in asked.values() for x in o.get(n, ()))})) for n, v in first.items()
        }

        def allowed(chosen: Mapping[str, int]) -> bool:
            for name, value in chosen.items():
                others = [asked[n, v].get(name, ()) for n, v in chosen.items() if n != name and (n, v) in asked]
                changed = [offer for offer in others if offer != first[name]] or [first[name]]
                if not all(value in offer for offer in changed):
                    return False
            return True

        choices = (dict(zip(everything, values, strict=True)) for values in itertools.product(*everything.values()))
        points = [_point(tile, chosen) for chosen in choices if allowed(chosen)]
        hand = _point(tile, by_hand.decided)
        return Space(tile, everything, (hand, *(p for p in points if p != hand)), _work(stage))

    def nearest(self, knobs: Mapping[str, int]) -> Point:
        """The point with the nearest values, as powers of two; knobs that are not named are by hand."""
        wanted = {**dict(self.points[0].knobs), **knobs}
        point = _point(self.tile, {n: min(v, key=lambda x: _apart(x, wanted[n])) for n, v in self.candidates.items()})
        if point in self:
            return point
        return min(self.points, key=lambda p: sum(_apart(value, wanted[name]) for name, value in p.knobs))

    def __contains__(self, point: Point) -> bool:
        return point in self._all

    @cached_property
    def _all(self) -> frozenset[Point]:
        return frozenset(self.points)


def _point(tile: tuple[int, int], knobs: Mapping[str, int]) -> Point:
    return Point(tile, tuple(sorted(knobs.items())))


def _offered(stage: Stage, name: str, value: int) -> dict[str, tuple[int, ...]]:
    """The candidates of all knobs when one has a ``value``; none at all where the template can't take it."""
    try:
        return stage.templated({name: value})[1].space
    except (UsageError, RuntimeError):  # RuntimeError: a scheduling error of TVM's
        return {}


def _apart(value: int, wanted: int) -> float:
    return abs(math.log2(1 + value) - math.log2(1 + wanted))


def _work(stage: Stage) -> float:
    sch = s_tir.Schedule(stage.func)
    return math.prod(int(v.dom.extent) for v in sch.get(sch.get_sblock("product")).iter_vars)


class Tiles(Protocol):
    """The spaces of a task: ``tiles``, the hand-written one first, and the space of each."""

    tiles: tuple[tuple[int, int], ...]

    def __getitem__(self, tile: tuple[int, int]) -> Space: ...


class Spaces:
    """The :class:`Tiles` of a task, each space made when it is first asked for.

    A definition transforms all weights, so it takes time and memory: only what can be chosen is kept of it.

    Raises
    ------
    UsageError
        The kernel has no template.
    """

    def __init__(self, task: Task, cpu: Target):
        self._task, self._cpu = task, cpu
        stage = product(task, cpu)
        if stage is None:
            raise UsageError(f"{task.name} is straight-line code: it has no template, so there is nothing to tune")
        self.tiles = tuple((tile.rows, tile.vectors) for tile in stage.tiles)
        self._made = {self.tiles[0]: Space.of(stage, self.tiles[0])}

    def __getitem__(self, tile: tuple[int, int]) -> Space:
        """The space of one of ``tiles``; without points where the lowering would do the site in another way with it."""
        if tile not in self._made:
            stage = product(self._task, self._cpu, tile)
            self._made[tile] = Space.of(stage, tile) if stage else Space(tile, {}, ())
        return self._made[tile]


def product(task: Task, cpu: Target, tile: tuple[int, int] | None = None) -> Stage | None:
    """The product of ``task`` with a register tile (rows, vectors), or by hand; None where there is no template.

    Its weights are zero: what can be chosen does not depend on them.
    """
    site = task.variant.site
    weight = np.zeros((site.out_channels, site.in_channels // site.groups, *site.kernel), np.float32)
    given = Tile(*tile, cpu.lanes) if tile else None
    stages = task.stages(weight, np.zeros(site.out_channels, np.float32), cpu, given)
    return next((s for s in stages if s.schedule), None)


class Search:
    """Proposes points of a task that were not tried yet.

    What is proposed depends on ``seed`` and on what was tried alone, so a search that was interrupted goes on as it
    would have. ``spaces``: of the task where they are at hand.

    Raises
    ------
    UsageError
        There is no such strategy, or nothing to tune.
    Unavailable
        The strategy learns, and XGBoost is not installed.
    """

    _children = CHILDREN

    def __init__(
        self, task: Task, cpu: Target, strategy: str = EVOLUTIONARY, seed: int = 0, spaces: Tiles | None = None
    ):
        if strategy not in STRATEGIES:
            raise UsageError(f"there is no search strategy {strategy!r}: there are {' and '.join(STRATEGIES)}")
        self.spaces = spaces or Spaces(task, cpu)
        self._seed = f"{seed} {task.name}"
        self._cost = Cost(lambda tile: self.spaces[tile].work, seed) if strategy == EVOLUTIONARY else None
        self._first = [self.spaces[self.spaces.tiles[0]].points[0]]
        self._tried: set[Point] = set()
        self._measured: dict[Point, Trial] = {}

    @property
    def size(self) -> float:
        """How many points there are; infinity where they can't be counted."""
        return sum(len(self.spaces[tile].points) for tile in self.spaces.tiles)

    @property
    def best(self) -> Trial | None:
        """The fastest measured trial over its own baseline; None before the first."""
        return min(self._measured.values(), key=ratio, default=None)

    def start(self, points: Sequence[Point]) -> None:
        """Have ``points`` proposed right after the hand-written one."""
        self._first.extend(points)

    def propose(self, n: int) -> list[Point]:
        """The next ``n`` points, none of which was proposed or tried before; fewer where there are no more."""
        rng = random.Random(f"{self._seed} {len(self._tried)}")
        found: list[Point] = []

        def take(point: Point) -> None:
            if point not in self._tried:
                self._tried.add(point)
                found.append(point)

        while self._first and len(found) < n:
            take(self._first.pop(0))
        promising = iter(self._promising(rng) if len(found) < n else ())
        while len(found) < n:
            point = None if rng.random() < CHANCE else next(promising, None)
            point = point or self._by_chance(rng)
            if point is None:
                break
            take(point)
        return found

    def learn(self, trials: Sequence[Trial]) -> None:
        """Take in what became of points, proposed here or not."""
        self._tried.update(trial.point for trial in trials)
        self._measured.update({trial.point: trial for trial in trials if trial.outcome == OK})
        if self._cost:
            self._cost.learn(trials)

    def resume(self, trials: Sequence[Trial]) -> None:
        """Go on after ``trials`` of an earlier search of the same task: none of their points is proposed again."""
        self.learn(trials)

    def _by_chance(self, rng: random.Random) -> Point | None:
        """A point that was not tried: any tile, any point of it; None where there are no more."""
        for tile in rng.sample(self.spaces.tiles, len(self.spaces.tiles)):
            left = [p for p in self.spaces[tile].points if p not in self._tried]
            if left:
                return rng.choice(left)
        return None

    def _promising(self, rng: random.Random) -> list[Point]:
        """Children of the best points that were not tried, best first; none while too little is known."""
        if self._cost is None or not self._cost.ready:
            return []
        parents = sorted(filter(self._belongs, self._measured), key=lambda p: ratio(self._measured[p]))[:PARENTS]
        odds = [1 / (1 + rank) for rank in range(len(parents))]
        children: dict[Point, None] = {}
        for _ in range(ATTEMPTS * self._children if parents else 0):
            mother, father = rng.choices(parents, odds, k=2)
            child = self._child(mother, father, rng)
            if child and child not in self._tried:
                children[child] = None
            if len(children) == self._children:
                break
        predicted = self._cost.predict(list(children)) if children else None
        if predicted is None:
            return []
        return [child for _, child in sorted(zip(predicted, children, strict=True), key=lambda pair: pair[0])]

    def _belongs(self, point: Point) -> bool:
        """Whether a measured point is of this space, so that it can be a parent."""
        return point.tile in self.spaces.tiles and point in self.spaces[point.tile]

    def _child(self, mother: Point, father: Point, rng: random.Random) -> Point | None:
        """A point like them; None where it turns out to be none."""
        return self._crossed(mother, father, rng) if rng.random() < CROSSED else self._mutated(mother, rng)

    def _mutated(self, point: Point, rng: random.Random) -> Point | None:
        """``point`` with one choice made anew: its tile or a knob, half of the time one step up or down."""
        knobs = dict(point.knobs)
        name = rng.choice(["", *knobs])  # "": the tile
        if not name:
            return self._fitting(rng.choice(self.spaces.tiles), knobs)
        values = self.spaces[point.tile].candidates[name]
        at = values.index(knobs[name])
        near = [i for i in (at - 1, at + 1) if 0 <= i < len(values)]
        index = rng.choice(near) if near and rng.random() < 0.5 else rng.randrange(len(values))
        return self._fitting(point.tile, {**knobs, name: values[index]})

    def _crossed(self, mother: Point, father: Point, rng: random.Random) -> Point | None:
        """The tile of one, and each knob of either."""
        other = dict(father.knobs)
        mixed = {name: rng.choice([value, other.get(name, value)]) for name, value in mother.knobs}
        return self._fitting(rng.choice([mother, father]).tile, mixed)

    def _fitting(self, tile: tuple[int, int], knobs: Mapping[str, int]) -> Point | None:
        space = self.spaces[tile]
        return space.nearest(knobs) if space.points else None
