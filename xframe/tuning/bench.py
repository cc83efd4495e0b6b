"""One candidate in this process: its library loaded, its outputs judged, its product timed."""

import time
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import tvm

from xframe import environment
from xframe.lowering.target import Cpu
from xframe.lowering.tasks import Task
from xframe.tuning.build import Built, Chain
from xframe.tuning.judge import Arguments, Judge
from xframe.tuning.timer import Copies, Subject, aligned, alternate, tensor, zeros

#: Bytes of a last-level cache that can't be told.
CACHE = 32 << 20
#: CPUs that other processes may use while a candidate is timed before it is noted; seconds that are too few to tell.
FOREIGN, TICKS = 0.15, 0.03
#: Bytes that copies of weights may take, and exact outputs of tasks that are not measured now.
COPIED, KEPT = 512 << 20, 1 << 30


@dataclass(frozen=True)
class Measured:
    """A candidate that computes its site. ``share`` and the samples as in ``points.Trial``; ``note``: what was not as
    it should be, in words."""

    share: float
    seconds: tuple[float, ...]
    baseline: tuple[float, ...]
    note: str = ""


class Memory:
    """All tensors of a chain: its image, outputs and constants. All libraries with the same chain use the same."""

    def __init__(self, chain: Chain, arguments: Arguments, cache: int, most: int):
        # Zeros to begin with: what memory may hold otherwise, numbers too small to be normal, slows kernels down.
        self.outputs = [zeros(step.output) for step in chain.steps]
        before = [aligned(arguments.image), *self.outputs]
        self._images = [tensor(a.reshape(s.inputs[0])) for a, s in zip(before, chain.steps, strict=False)]
        self._results = [tensor(a) for a in self.outputs]
        self._residual = [] if arguments.residual is None else [tensor(aligned(arguments.residual))]
        self._constants = [[tensor(aligned(a)) for a in arrays] for arrays in arguments.constants]
        self._product = chain.product
        self.copies = Copies(arguments.constants[chain.product], cache, most)

    def arguments(self, i: int) -> list:
        """Of step ``i``, its result last. Each time that it is the product's turn with other copies of its weights."""
        constants = self.copies.next() if i == self._product else self._constants[i]
        last = i == len(self._results) - 1
        return [self._images[i], *constants, *(self._residual if last else ()), self._results[i]]


class Run:
    """A chain of a loaded library over its memory."""

    def __init__(self, library: tvm.runtime.Module, chain: Chain, memory: Memory):
        self._product, self._memory = chain.product, memory
        self._functions = [library[step.function] for step in chain.steps]

    def subject(self) -> Subject:
        """Its product, to be timed after what comes before it."""
        function = self._functions[self._product]
        arguments: list = []

        def before() -> None:
            for i in range(self._product):
                self._functions[i](*self._memory.arguments(i))
            arguments[:] = self._memory.arguments(self._product)

        return Subject(before, lambda: function(*arguments))

    def output(self) -> np.ndarray:
        """Of the whole chain. Nothing that an earlier run computed is left in memory, from the product on."""
        for out in self._memory.outputs[self._product :]:
            out.fill(np.nan)
        for i, function in enumerate(self._functions):
            function(*self._memory.arguments(i))
        return self._memory.outputs[-1]


class Bench:
    """Measures candidates, one after the other; keeps what those of a task share.

    ``cache``: bytes of the last-level cache; by default this machine's.
    """

    def __init__(self, cpu: Cpu, cache: int | None = None):
        levels = environment.cache_bytes()
        self._cpu, self._cache = cpu, cache or (levels[max(levels)] if levels else CACHE)
        self._judges: OrderedDict[str, Judge] = OrderedDict()
        self._memories: dict[tuple[int, int], Memory] = {}
        self._task = ""

    def prepare(self, task: Task) -> Judge:
        """The judge of ``task``, which is the next one to be measured."""
        if task.name not in self._judges:
            while sum(j.nbytes for j in self._judges.values()) > KEPT:
                self._judges.popitem(last=False)
            self._judges[task.name] = Judge(task, self._cpu)
        self._judges.move_to_end(task.name)
        if task.name != self._task:
            self._task, self._memories = task.name, {}
        return self._judges[task.name]

    def measure(self, built: Built) -> Measured:
        """Judge the whole chain, time the product against the hand-written one, and judge again.

        Raises
        ------
        Mismatch
            An output is beyond its bound, or not finite.
        """
        judge = self.prepare(built.task)
        chains = {chain.tile: chain for chain in (built.by_hand, built.candidate)}
        self._memories = {tile: m for tile, m in self._memories.items() if tile in chains}
        for tile, chain in chains.items():
            if tile not in self._memories:
                self._memories[tile] = Memory(chain, judge.arguments(chain), self._cache, COPIED // 2)
        library = tvm.runtime.load_module(built.path)
        candidate, by_hand = (Run(library, c, self._memories[c.tile]) for c in (built.candidate, built.by_hand))
        share = judge.share(candidate.output())
        with _Others() as others:
            samples = alternate(candidate.subject(), by_hand.subject())
        share = max(share, judge.share(candidate.output()))
        notes = dict.fromkeys(note for note in (others.note, *(m.copies.note for m in self._memories.values())) if note)
        return Measured(share, samples.seconds, samples.baseline, "; ".join(notes))


class _Others:
    """What other processes do within the block; ``note``: that it was too much, in words."""

    def __enter__(self) -> "_Others":
        self._busy, self._own, self._start = environment.busy_seconds(), time.process_time(), time.monotonic()
        self.note = ""
        return self

    def __exit__(self, *exc: object) -> None:
        busy, wall = environment.busy_seconds(), time.monotonic() - self._start
        if busy is None or self._busy is None:
            return
        foreign = busy - self._busy - (time.process_time() - self._own)
        if foreign > FOREIGN * wall + TICKS:
            self.note = f"other processes used {foreign / wall:.1f} CPUs while it was timed"
