"""MetaSchedule's own space of schedules for the function that a template is of: ``--space auto``.

The function stays what it is, its arguments and their layout included: rules that would change what is computed or how
its constants lie are left out. So is everything that tunes with tensor intrinsics: float32 products have none. There
are no prefetches, as no rule marks loops for them.
"""

from __future__ import annotations

import contextlib
import math
import random
import sys
import types
from functools import cached_property

from tvm import IRModule, s_tir
from tvm.s_tir.schedule import Trace

from xframe.errors import UsageError
from xframe.lowering.stage import replayed
from xframe.lowering.target import Target
from xframe.lowering.tasks import Task, trace_of
from xframe.tuning.points import Point
from xframe.tuning.search import EVOLUTIONARY, REPLAY, Search, Tiles, product

#: Draws in a row that may give nothing new before the space counts as exhausted: many fail TVM's own checks.
DRAWS = 64
#: Children of a round: each is a schedule that is made.
CHILDREN = 16
#: Decisions of a trace that a child makes anew, at most.
MUTATED = 2
#: What makes random schedules invalid: TVM's scheduling errors, and sizes that its C++ refuses.
REFUSED = (RuntimeError, ValueError, TypeError)


def points(task: Task, cpu: Target, n: int, seed: int = 0) -> list[Point]:
    """``n`` random points of MetaSchedule's space, of the hand-written register tile; fewer where it has no more."""
    search = AutoSearch(task, cpu, REPLAY, seed)
    _, *found = search.propose(n + 1)
    return found


class AutoSearch(Search):
    """A :class:`~xframe.tuning.search.Search` of MetaSchedule's space, which begins with the template by hand, too.

    ``evolutionary`` makes new decisions in the best traces so far.
    """

    _children = CHILDREN

    def __init__(
        self, task: Task, cpu: Target, strategy: str = EVOLUTIONARY, seed: int = 0, spaces: Tiles | None = None
    ):
        if cpu.kind != "cpu":
            raise UsageError("MetaSchedule's own space is searched for CPUs alone: leave out --space, or take template")
        super().__init__(task, cpu, strategy, seed, spaces)
        self._tile = self.spaces.tiles[0]
        stage = product(task, cpu, self._tile)
        assert stage is not None  # else there were no spaces
        self._designs = Designs(IRModule({"main": stage.func}), cpu)

    @property
    def size(self) -> float:
        """Infinity: the decisions of MetaSchedule's space can't be counted."""
        return math.inf

    def _by_chance(self, rng: random.Random) -> Point | None:
        for _ in range(DRAWS):
            point = self._point(self._designs.drawn(rng))
            if point and point not in self._tried:
                return point
        return None

    def _belongs(self, point: Point) -> bool:
        return point.trace is not None

    def _child(self, mother: Point, father: Point, rng: random.Random) -> Point | None:
        """Traces have one parent: those of two designs have no decisions in common."""
        return self._point(self._designs.mutated(str(mother.trace), rng))

    def _point(self, sch: s_tir.Schedule | None) -> Point | None:
        return Point(self._tile, trace=trace_of(sch)) if sch else None


class Designs:
    """The design spaces that MetaSchedule's rules for CPUs generate for a module with one function, ``main``."""

    def __init__(self, module: IRModule, cpu: Target):
        self._module, self._cpu = module, cpu

    def drawn(self, rng: random.Random) -> s_tir.Schedule | None:
        """A schedule with random decisions; None where they turn out to be invalid."""
        return self._applied(rng.choice(self._traces), {}, rng)

    def mutated(self, trace: str, rng: random.Random) -> s_tir.Schedule | None:
        """A schedule with some decisions of ``trace``, JSON, made anew; None where they turn out to be invalid."""
        sch = replayed(self._module["main"], trace)
        made = [(inst, sch.trace.get_decision(inst)) for inst in sch.trace.insts]
        sampled = [i for i, (_, decision) in enumerate(made) if decision is not None]
        if not sampled:
            return None
        anew = set(rng.sample(sampled, min(len(sampled), rng.randint(1, MUTATED))))
        kept = {inst: decision for i, (inst, decision) in enumerate(made) if decision is not None and i not in anew}
        return self._applied(sch.trace, kept, rng)

    def _applied(self, trace: Trace, decisions: dict, rng: random.Random) -> s_tir.Schedule | None:
        """``trace`` with ``decisions``, those that are missing drawn at random, and then post-processed."""
        sch = s_tir.Schedule(self._module, seed=rng.randrange(1, 1 << 31), error_render_level="none")
        try:
            Trace(trace.insts, decisions).apply_to_schedule(sch, remove_postproc=True)
            sch.enter_postproc()
            if all(step.apply(sch) for step in self._context.space_generator.postprocs):
                return sch
        except REFUSED:
            pass
        return None

    @cached_property
    def _traces(self) -> list[Trace]:
        return [sch.trace for sch in self._context.generate_design_space()]

    @cached_property
    def _context(self):
        with _without_intrinsics():
            from tvm.s_tir import meta_schedule as ms

            # Inlining would put the column matrix of im2col into its product: another algorithm.
            inlining = ms.schedule_rule.AutoInline
            rules = [rule for rule in ms.schedule_rule.ScheduleRule.create("llvm") if not isinstance(rule, inlining)]
            # Without RewriteLayout, which packs constants anew.
            steps = [
                ms.postproc.DisallowDynamicLoop(),
                ms.postproc.RewriteParallelVectorizeUnroll(),
                ms.postproc.RewriteReductionBlock(),
            ]
            generator = ms.space_generator.PostOrderApply(sch_rules=rules, postprocs=steps, mutator_probs={})
            return ms.TuneContext(
                self._module, target=self._cpu.tvm, space_generator=generator, rand_state=1, num_threads=1
            )


@contextlib.contextmanager
def _without_intrinsics():
    """Let a TuneContext be made without TVM's tensor intrinsics: parsing those of all targets takes half a minute."""
    name = "tvm.s_tir.tensor_intrin"
    if name in sys.modules:
        yield
        return
    sys.modules[name] = types.ModuleType(name)
    try:
        yield
    finally:
        del sys.modules[name]
