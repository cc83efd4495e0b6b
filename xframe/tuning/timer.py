"""A candidate's product and the hand-written one, timed in turn: the image warm, the weights cold, as in a network.

There, the layers between two runs of a kernel have pushed its weights out of the caches, and the stage before it has
just written its image. So each timed call takes the next of many copies of the weights, and follows that stage. On a
GPU see ``xframe.tuning.cuda``.
"""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import tvm_ffi

from xframe.worker.timing import clock_ns, median_error, quartiles

#: Copies of weights at most: there are never more samples than that.
COPIES = 4096
ALIGNMENT = 64  # bytes; compiled code loads whole vectors
#: Pairs of samples: the least, and the most.
LEAST, MOST = 3, 1000
#: Seconds, waits for the stages before included: what is measured for so long at least, and at most.
SHORTEST, LONGEST = 0.05, 1.0
#: Standard error of a median, relative to it, at which it is known well enough.
STABLE = 0.004
#: A candidate all of whose samples are so many times as long as all of the other's is hopeless.
HOPELESS = 1.25


@dataclass(frozen=True)
class Samples:
    """Raw seconds of pairs of calls, one after the other."""

    seconds: tuple[float, ...]
    baseline: tuple[float, ...]


@dataclass(frozen=True)
class Subject:
    """What is timed: ``call``, each time after ``before``."""

    before: Callable[[], None]
    call: Callable[[], None]


#: The nanoseconds that a call takes, once it was made; None where it is to be made again, after what comes before it.
Watch = Callable[[Callable[[], None]], int | None]


def alternate(
    candidate: Subject, by_hand: Subject, clock: Callable[[], int] = clock_ns, watch: Watch | None = None
) -> Samples:
    """Time the two in turn, A B A B, until both medians are known well enough or the time is over.

    The first pair warms up. A hopeless candidate is left after :data:`LEAST` pairs or fewer. ``clock``: nanoseconds;
    ``watch``: what times a call, by default that clock.
    """

    def by_clock(call: Callable[[], None]) -> int:
        before = clock()
        call()
        return clock() - before

    watched = watch or by_clock

    def timed(subject: Subject) -> int:
        while True:
            subject.before()
            spent = watched(subject.call)
            if spent is not None:
                return spent

    taken: tuple[list[int], list[int]] = ([], [])
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for subject in (candidate, by_hand):
            subject.before()
            subject.call()
        start, spent, look = clock(), 0, 1
        while len(taken[0]) < LEAST or (spent < LONGEST * 1e9 and len(taken[0]) < MOST):
            for subject, samples in zip((candidate, by_hand), taken, strict=True):
                samples.append(timed(subject))
            spent, count = clock() - start, len(taken[0])
            if count >= look:
                if _enough(*taken, spent):
                    break
                look = count + count // 4 + 1  # so that the cost of looking does not grow with their square
    finally:
        if collecting:
            gc.enable()
    seconds, baseline = (tuple(ns * 1e-9 for ns in samples) for samples in taken)
    return Samples(seconds, baseline)


def _enough(candidate: Sequence[int], by_hand: Sequence[int], spent: int) -> bool:
    """Whether they tell before the time is over. ``spent``: nanoseconds."""
    hopeless = min(candidate) > HOPELESS * max(by_hand)
    if len(candidate) < LEAST:
        return hopeless and spent > LONGEST * 1e9 / 2
    return hopeless or (spent >= SHORTEST * 1e9 and _stable(candidate) and _stable(by_hand))


def _stable(samples: Sequence[int]) -> bool:
    """Whether the median is known well enough."""
    q1, median, q3 = quartiles(samples)
    return median_error(q1, q3, len(samples)) <= STABLE * median


def aligned(array: np.ndarray) -> np.ndarray:
    """A float32 copy that starts at a multiple of :data:`ALIGNMENT`."""
    block = np.empty(4 * array.size + ALIGNMENT, np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    out = block[start : start + 4 * array.size].view(np.float32).reshape(array.shape)
    out[...] = array
    return out


class Copies:
    """The constants of a product, as often as it takes to find none of them in a cache when its turn comes again.

    Parameters
    ----------
    constants
        Arrays.
    cache
        Bytes of the last-level cache; copies have twice as many together.
    memory
        Bytes of all copies at most, but for the first.
    """

    def __init__(self, constants: Sequence[np.ndarray], cache: int, memory: int):
        size = sum(a.nbytes for a in constants)
        wanted = max(1, -(-2 * cache // max(size, 1)))
        count = min(wanted, max(1, memory // max(size, 1)), COPIES)
        self.note = ""
        if count < min(wanted, COPIES):
            self.note = (
                f"{count} copies of the weights, {count * size >> 20} MiB, are less than twice the last-level cache of "
                f"{cache >> 20} MiB: some of them may be warm"
            )
        # One block an argument: like the parameters of a network, it lies in large pages.
        blocks = [np.broadcast_to(a, (count, *a.shape)) for a in map(_padded, constants)]
        blocks = [aligned(b) for b in blocks]
        self._tensors = [
            tuple(tensor(b[i, : a.size].reshape(a.shape)) for b, a in zip(blocks, constants, strict=True))
            for i in range(count)
        ]
        self._turn = 0

    def __len__(self) -> int:
        return len(self._tensors)

    def next(self) -> tuple:
        """The tensors of the copy whose turn it is."""
        self._turn = (self._turn + 1) % len(self._tensors)
        return self._tensors[self._turn]


def _padded(array: np.ndarray) -> np.ndarray:
    """Flat, of whole alignments."""
    return np.pad(array.ravel(), (0, -array.size % (ALIGNMENT // 4)))


def tensor(array: np.ndarray) -> tvm_ffi.Tensor:
    """The same memory, as compiled code takes it."""
    return tvm_ffi.from_dlpack(array)
