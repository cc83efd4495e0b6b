"""One candidate in this process: its library loaded, its outputs judged, its product timed."""

import math
import mmap
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from xframe import environment
from xframe.lowering.target import Target
from xframe.lowering.tasks import Task
from xframe.tuning import build, cuda
from xframe.tuning.build import Built, Chain, Library
from xframe.tuning.judge import Arguments, Judge
from xframe.tuning.points import OK, Point, Trial
from xframe.tuning.timer import Copies, Subject, Watch, aligned, alternate, tensor

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

    def trial(self, point: Point, built: Built, cpu_s: float, where: str) -> Trial:
        """The trial of ``point``, whose library this was measured with."""
        return Trial(
            point,
            OK,
            seconds=self.seconds,
            baseline=self.baseline,
            share=self.share,
            workload=built.workload,
            workload_line=built.workload_line,
            record=build.recorded(built, self.seconds),
            cpu_s=cpu_s,
            where=where,
            note=self.note,
        )


class Tensors(Protocol):
    """The memory of a chain: its images, outputs and constants. Libraries with the same chain can use the same."""

    chain: Chain

    @property
    def note(self) -> str:
        """What is not as it should be, in words."""

    def renew(self) -> None:
        """Another candidate comes."""

    def arguments(self, i: int) -> list:
        """Of step ``i``, its result last. Called each time before the step runs."""

    def prepare(self) -> None:
        """Bring caches and image into the state in which the chain is to find them."""

    def spoil(self) -> None:
        """Leave nothing in memory that an earlier run computed, from the product on."""

    def result(self) -> np.ndarray:
        """What the last step has written."""


class Memory:
    """:class:`Tensors` in this machine's memory."""

    def __init__(self, chain: Chain, arguments: Arguments, cache: int, most: int):
        self.chain, self._given = chain, arguments
        self._constants = [[tensor(aligned(a)) for a in arrays] for arrays in arguments.constants]
        self.copies = Copies(arguments.constants[chain.product], cache, most)
        self.note = self.copies.note
        self.renew()

    def renew(self) -> None:
        """Images and outputs move to other pages. Which ones they have makes some percent of a kernel's time, and a
        candidate should not have the same luck each time."""
        steps = self.chain.steps
        self.outputs = [_pages(step.output) for step in steps]
        first = _pages(self._given.image.shape)
        first[...] = self._given.image
        images = [first, *self.outputs]
        self._images = [tensor(a.reshape(step.inputs[0])) for a, step in zip(images, steps, strict=False)]
        self._results = [tensor(out) for out in self.outputs]
        self._residual = []
        if self._given.residual is not None:
            residual = _pages(self._given.residual.shape)
            residual[...] = self._given.residual
            self._residual = [tensor(residual)]

    def arguments(self, i: int) -> list:
        """Of step ``i``, its result last. Each time that it is the product's turn with other copies of its weights."""
        constants = self.copies.next() if i == self.chain.product else self._constants[i]
        last = i == len(self._results) - 1
        return [self._images[i], *constants, *(self._residual if last else ()), self._results[i]]

    def prepare(self) -> None:
        """The image is warm, and the next copy of the weights is cold, without further ado."""

    def spoil(self) -> None:
        for out in self.outputs[self.chain.product :]:
            out.fill(np.nan)

    def result(self) -> np.ndarray:
        return self.outputs[-1]


def _pages(shape: tuple[int, ...]) -> np.ndarray:
    """float32 zeros in small pages of their own, in which the images of a network lie, too."""
    out = np.frombuffer(mmap.mmap(-1, 4 * math.prod(shape)), np.float32).reshape(shape)
    out.fill(0)  # so that all are there, in one order: threads that touch them first would mix them up
    return out


class Run:
    """A chain of a loaded library over its memory."""

    def __init__(self, library: Library, chain: Chain, memory: Tensors):
        self._product, self._memory = chain.product, memory
        self._functions = [library[step.function] for step in chain.steps]

    def subject(self) -> Subject:
        """Its product, to be timed after what comes before it."""
        function = self._functions[self._product]
        arguments: list = []

        def before() -> None:
            self._memory.prepare()
            for i in range(self._product):
                self._functions[i](*self._memory.arguments(i))
            arguments[:] = self._memory.arguments(self._product)

        return Subject(before, lambda: function(*arguments))

    def output(self) -> np.ndarray:
        """Of the whole chain. Nothing that an earlier run computed is left in memory, from the product on."""
        self._memory.spoil()
        for i, function in enumerate(self._functions):
            function(*self._memory.arguments(i))
        return self._memory.result()


class Host:
    """Measures by this machine's clock. ``cache``: bytes of the last-level cache; by default this machine's."""

    watch: Watch | None = None

    def __init__(self, cache: int | None = None):
        levels = environment.cache_bytes()
        self._cache = cache or (levels[max(levels)] if levels else CACHE)

    def memory(self, chain: Chain, arguments: Arguments) -> Memory:
        return Memory(chain, arguments, self._cache, COPIED // 2)

    def watched(self) -> "_Others":
        """A context manager; its ``note`` says afterwards what disturbed the measuring, in words."""
        return _Others()

    def usable(self) -> bool:
        """Whether more can be measured in this process after something went wrong."""
        return True


class Bench:
    """Measures candidates, one after the other; keeps what those of a task share.

    ``cache``: bytes of the last-level cache; by default the device's. ``device``: ``cpu``, or the GPU of this process.
    """

    def __init__(self, cpu: Target, cache: int | None = None, device: str = "cpu"):
        self._cpu = cpu
        self._place: Host | cuda.Place = Host(cache) if device == "cpu" else cuda.Place(device, cache)
        self._judges: OrderedDict[str, Judge] = OrderedDict()
        self._memories: dict[str, Tensors] = {}
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
        chains = {build.BY_HAND: built.by_hand, build.CANDIDATE: built.candidate}
        for role, chain in chains.items():
            memory = self._memories.get(role)
            if memory is not None and memory.chain.tile == chain.tile:
                memory.renew()
            else:
                self._memories[role] = self._place.memory(chain, judge.arguments(chain))
        library = Library(built)
        by_hand, candidate = (Run(library, chain, self._memories[role]) for role, chain in chains.items())
        share = judge.share(candidate.output())
        with self._place.watched() as others:
            samples = alternate(candidate.subject(), by_hand.subject(), watch=self._place.watch)
        share = max(share, judge.share(candidate.output()))
        notes = dict.fromkeys(note for note in (others.note, *(m.note for m in self._memories.values())) if note)
        return Measured(share, samples.seconds, samples.baseline, "; ".join(notes))

    def usable(self) -> bool:
        """Whether more can be measured in this process after something went wrong."""
        return self._place.usable()


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
