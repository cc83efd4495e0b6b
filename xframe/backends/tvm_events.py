"""Where the time of a module that TVM compiled goes on a GPU: by CUDA's events, in the stream that TVM launches in.

As with cuDNN, where a kernel begins is taken from a pass as it is; how long it takes, from one that waits at a gate
until everything has been launched, so that waiting for the host is in no kernel. What the host does is that of the pass
as it is: its calls return before their kernels are done.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from xframe.backends.tvm_profile import Call, Instrument, Join, Watched, is_kernel, kernels_of, spans_of
from xframe.errors import XframeError
from xframe.types import Profile
from xframe.worker.cuda_driver import Driver, Gate

if TYPE_CHECKING:
    from xframe.backends.nodes import Nodes

#: Of passes whose gate was never proven to be closed until all was launched.
UNGATED = (
    "kernels were timed without a gate, as a pass waits for the GPU itself or asks for more than it queues: the host's"
    " gaps are in their times"
)


class WatchedOnGpu(Watched):
    """As :class:`Watched`, on the GPU ``index``, as CUDA counts those that this process sees.

    Raises
    ------
    Unavailable
        There is no driver.
    XframeError
        A call of the driver fails.
    """

    def __init__(
        self, machine: Any, step: Callable[[], None], sync: Callable[[], None], tensor: Any, index: int
    ) -> None:
        super().__init__(machine, step, sync, tensor)
        self._index = index

    def profiles(self, passes: int, join: Join, nodes: "Nodes") -> list[Profile]:
        with contextlib.closing(Driver(self._index)) as driver, driver.current():
            self._gate = Gate(driver, now=time.perf_counter)
            self._marks = _Marks(driver, len(self.shapes) + 1)
            return super().profiles(passes, join, nodes)

    def _instrument(self) -> Instrument:
        return _Marking(self._marks)

    def _profiled(self, join: Join, nodes: "Nodes", cost: float) -> Profile:
        self._step()
        self._sync()
        free = self._pass(gated=False)
        self._gate.expect(free.wall)
        queued = self._pass(gated=True)
        while not self._gate.counts(queued.closed):
            queued = self._pass(gated=True)
        launched, then = len(free.marks) - 1, len(queued.marks) - 1
        if launched != then:
            raise XframeError(
                f"a pass launched {launched} kernels and the next one {then}, so that their times can't be put together"
            )
        ran = [call for call in free.calls if is_kernel(call)]
        lead = _lead(ran, free)
        timed = []
        for i, call in enumerate(ran):
            start = lead + free.marks[i]
            end = min(start + queued.marks[i + 1] - queued.marks[i], lead + free.marks[i + 1])
            timed.append(Call(call.name, start, max(start, end)))
        kernels = kernels_of(timed, join, nodes)
        wall = max(free.wall, lead + free.marks[-1])
        rest = wall - sum(k.end - k.start for k in kernels)  # while a kernel ran, a callback cost nothing
        note = "" if self._gate.gated else UNGATED
        return Profile(wall, tuple(kernels), spans_of(free.calls), min(cost, rest), note)

    def _pass(self, gated: bool) -> "_Pass":
        instrument = self._instrument()
        with self._watching(instrument.function):
            if gated:
                self._gate.shut()
            start = time.perf_counter()
            self._step()
            self._marks.next()
            closed = gated and self._gate.closed
            self._sync()
            wall = time.perf_counter() - start
        return _Pass(wall, instrument.calls(start), self._marks.seconds(), closed)


class _Pass(NamedTuple):
    """Its wall and calls by the host's clock; when each kernel began, and when the last was over, in seconds since the
    first began; and whether the gate was still closed when everything had been launched."""

    wall: float
    calls: list[Call]
    marks: list[float]
    closed: bool


class _Marks:
    """Events in the stream that TVM launches its kernels in, CUDA's legacy default stream: one is recorded each time.
    ``count``: so many are made before."""

    def __init__(self, driver: Driver, count: int) -> None:
        self._driver, self._events, self._recorded = driver, [driver.event() for _ in range(count)], 0

    def rewind(self) -> None:
        """Begin anew."""
        self._recorded = 0

    def next(self) -> None:
        if self._recorded == len(self._events):
            self._events.append(self._driver.event())
        self._driver.record(self._events[self._recorded], None)
        self._recorded += 1

    def seconds(self) -> list[float]:
        """Since the first, of each that was recorded; all must have passed."""
        first, *_ = self._events
        return [self._driver.between(first, event) for event in self._events[: self._recorded]]


class _Marking(Instrument):
    """The callback that marks where each kernel begins."""

    def __init__(self, marks: _Marks) -> None:
        super().__init__(marks.next)
        self._marks = marks
        marks.rewind()

    def rewind(self) -> None:
        super().rewind()
        self._marks.rewind()


def _lead(ran: Sequence[Call], free: _Pass) -> float:
    """When the first kernel began: midway between when it was asked for and the latest possible."""
    asked = ran[0].start if ran else 0.0
    return (asked + max(asked, free.wall - free.marks[-1])) / 2
