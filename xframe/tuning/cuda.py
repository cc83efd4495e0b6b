"""A candidate on a GPU: its memory, and the seconds that its kernel takes there.

As on a CPU the image is warm and the weights are cold, as they are in a network. Before each timed call a copy between
two arrays, each twice as large as the level-2 cache, takes that; then the image is written anew and the stages before
the product run; then the product, between two events. All of it waits at a gate until it has been asked for, so that no
time of the host's is between the events. A call whose gate opened too early is made again.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm

from xframe import environment
from xframe.errors import Unavailable, XframeError
from xframe.lowering import tvm_runtime
from xframe.lowering.cuda.target import SHARED_CACHE
from xframe.tuning.build import Chain
from xframe.tuning.judge import Arguments
from xframe.types import gpu_index
from xframe.worker.cuda_driver import Driver, Gate

#: Seconds for which the gate is held at first: it takes some 50 us to ask for a copy, three stages and two events.
HOLD = 2e-4
#: Of what was measured when the gate had been given up.
UNGATED = "the host was never ahead of the GPU: its gaps may be in the times"


class Stopwatch:
    """Times what TVM launches, in the stream that it launches in: CUDA's legacy default stream.

    Raises
    ------
    Unavailable
        There is no such GPU, or something is missing that TVM needs to use it.
    """

    def __init__(self, index: int):
        tvm_runtime.load(cuda=True)
        self.device = tvm.cuda(index)
        if not self.device.exist:
            raise Unavailable(f"device cuda:{index} was asked for, and TVM finds no such GPU here")
        self._driver = Driver(index)
        self._current = self._driver.current()
        self._current.__enter__()  # as long as this process lives
        self._start, self._end = self._driver.event(), self._driver.event()
        self._gate = Gate(self._driver, hold=HOLD)

    @property
    def note(self) -> str:
        """What is not as it should be, in words."""
        return "" if self._gate.gated else UNGATED

    def shut(self) -> None:
        """What is asked for until :meth:`watch` ends waits until all of it has been."""
        self._gate.shut()

    def copy(self, to: tvm.runtime.Tensor, source: tvm.runtime.Tensor, size: int) -> None:
        """Ask for a copy of ``size`` bytes on the device, without waiting for it."""
        self._driver.call("cuMemcpyDtoDAsync_v2", to.data_ptr(), source.data_ptr(), size, None)

    def watch(self, call: Callable[[], None]) -> int | None:
        """The nanoseconds on the device of what ``call`` launches; None where the gate opened too early."""
        self._driver.record(self._start, None)
        call()
        self._driver.record(self._end, None)
        closed = self._gate.closed
        self._driver.wait(self._end)
        if not self._gate.counts(closed):
            return None
        return max(1, round(self._driver.between(self._start, self._end) * 1e9))

    def sync(self) -> None:
        """Raises XframeError where something went wrong that this process can't get over: an access to what is not
        there ends all that a process can do with a GPU."""
        self._driver.call("cuStreamSynchronize", None)


class Tensors:
    """Of a chain, on the GPU: see ``bench.Tensors``."""

    def __init__(self, chain: Chain, given: Arguments, watch: Stopwatch, flush: Callable[[], None]):
        self.chain, self._given, self._watch, self._flush = chain, given, watch, flush
        self._constants = [[self._put(a) for a in arrays] for arrays in given.constants]
        self._outputs = [self._put(np.full(step.output, np.nan, np.float32)) for step in chain.steps]
        self._image, self._anew = self._put(given.image), self._put(given.image)
        views = [out._create_view(step.inputs[0]) for out, step in zip(self._outputs, chain.steps[1:], strict=False)]
        self._images = [self._image, *views]
        self._residual = [] if given.residual is None else [self._put(given.residual)]

    def _put(self, array: np.ndarray) -> tvm.runtime.Tensor:
        return tvm.runtime.tensor(np.ascontiguousarray(array), self._watch.device)

    @property
    def note(self) -> str:
        return self._watch.note

    def renew(self) -> None:
        """The memory of a GPU is the same for all."""

    def arguments(self, i: int) -> list:
        last = i == len(self._outputs) - 1
        return [self._images[i], *self._constants[i], *(self._residual if last else ()), self._outputs[i]]

    def prepare(self) -> None:
        self._watch.shut()
        self._flush()
        self._watch.copy(self._image, self._anew, self._given.image.nbytes)

    def spoil(self) -> None:
        for out in self._outputs[self.chain.product :]:
            out.copyfrom(np.full(tuple(out.shape), np.nan, np.float32))

    def result(self) -> np.ndarray:
        return self._outputs[-1].numpy()


class Place:
    """Measures on the GPU ``cuda`` or ``cuda:<number>``. ``cache``: bytes of its level-2 cache; None: as it says."""

    def __init__(self, device: str, cache: int | None = None):
        self._device, self._watch = device, Stopwatch(gpu_index(device))
        self._size = 2 * (cache or self._watch.device.l2_cache_size_bytes or SHARED_CACHE)
        self._scratch = [tvm.runtime.tensor(np.zeros(self._size, np.uint8), self._watch.device) for _ in range(2)]
        self.watch = self._watch.watch

    def memory(self, chain: Chain, arguments: Arguments) -> Tensors:
        return Tensors(chain, arguments, self._watch, self._flush)

    def watched(self) -> _Slowed:
        """See ``bench.Host``."""
        return _Slowed(self._device)

    def usable(self) -> bool:
        """Whether the GPU still does what this process asks for."""
        try:
            self._watch.sync()
        except XframeError:
            return False
        return True

    def _flush(self) -> None:
        to, source = self._scratch
        self._watch.copy(to, source, self._size)


class _Slowed:
    """``note``: what slowed the GPU down within the block, as the driver says at its end, in words."""

    def __init__(self, device: str):
        self._device, self.note = device, ""

    def __enter__(self) -> _Slowed:
        return self

    def __exit__(self, *exc: object) -> None:
        why = environment.throttled(environment.gpu_state(self._device))
        if why:
            self.note = f"the GPU was slowed down while it was timed: {', '.join(sorted(why))}"
