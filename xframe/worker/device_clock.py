"""Seconds that a step takes on a GPU, by CUDA's own events, whatever library launches its kernels.

Two things make that possible without knowing the streams of a framework. An event can be recorded of a whole context,
and a whole context can be made to wait for one (``cuCtxRecordEvent``, ``cuCtxWaitEvent``: CUDA 12.5). And a gate
(``cuda_driver.Gate``), which the step waits for, so that everything is asked for before the first kernel runs. Behind
a step that waits for the device inside it is open, as it is behind one that asks for more than the device queues; where
that is always so, times have the host's share in them, and say so.

What a framework asks for after its step has returned would be missed. So as much time as a whole step takes passes
before the end is recorded, which costs nothing behind a gate; and a step after whose end the framework still has
something to wait for is refused. Nor may a stream of a context be recorded while the framework captures it, which would
spoil its graph: steps that are timed are warm, and that time is over by then, too.

NVIDIA's reference does not say in so many words that a stream may wait for an event of a context, nor that the default
stream does what its context is told. So each clock proves both before it is read.
"""

import time
from typing import Any, Callable, List, NamedTuple

from xframe.errors import Unavailable, XframeError
from xframe.worker.cuda_driver import Driver, Gate
from xframe.worker.timing import quartiles

#: How device times were taken.
GATED = "CUDA events behind a gate"
UNGATED = (
    "CUDA events without a gate, which was open before all had been asked for (the step waits for the device itself, or"
    " asks for more than it queues): the host's gaps are in it"
)
#: Steps in which there is nothing, to know what the clock itself takes.
EMPTY = 5
#: Time in which late launches may come, seconds: at least, and the longest since the step was asked for.
_GRACE, _ENOUGH = 2e-4, 0.25
#: What a framework may wait for after the end of its step: seconds, in which its threads wake up, and a share of the
#: step.
_LATE, _SHARE = 1e-4, 0.05
#: Of a proof: seconds for which the gate is held, as the first calls of a driver are slow, and of the work behind it.
_HELD, _WORK = 1e-2, 1e-3
_OLDEST = 12050  # CUDA 12.5

Steps = Callable[[], None]


class Readings(NamedTuple):
    """Raw seconds of steps on the device, and how they were taken (:data:`GATED` or :data:`UNGATED`)."""

    seconds: List[float]
    how: str


class DeviceClock:
    """Times steps of whatever runs in the primary context of one GPU.

    Parameters
    ----------
    index
        Of the GPU, as CUDA counts those that this process sees.
    library
        The driver's; None loads it.
    now, sleep
        The host's clock, in seconds, and how to let it pass.

    Raises
    ------
    Unavailable
        There is no driver, or it is older than CUDA 12.5.
    XframeError
        There is no such GPU, a call of the driver fails, or a stream does not wait where its context should.
    """

    def __init__(
        self,
        index: int,
        library: Any = None,
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._now, self._sleep = now, sleep
        self._driver = Driver(index, library)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        driver = self._driver
        if driver.version < _OLDEST:
            raise Unavailable(
                "device times need a driver for CUDA 12.5 or later, and that for CUDA %d.%d is here: update it"
                % (driver.version // 1000, driver.version % 1000 // 10)
            )
        with driver.current():
            self._stream, other = driver.stream(), driver.stream()
            self._end, self._done = driver.event(), driver.event(timed=False)
            self._gate = Gate(driver, self._stream, _HELD, self._now)
            for stream in (None, other):
                self._prove(stream)
            self._gate = Gate(driver, self._stream, now=self._now)
            #: Seconds that the clock finds where there is nothing: what is in every reading.
            self.empty_s = quartiles([self._step(_nothing, _nothing, 0.0).span for _ in range(EMPTY)])[1]

    def _prove(self, stream: Any) -> None:
        """Raises XframeError where work in ``stream`` does not wait at a closed gate, or is not waited for."""
        driver, gate = self._driver, self._gate
        probe, waiting = driver.event(timed=False), []  # type: Any, List[bool]

        def ask() -> None:
            driver.record(probe, stream)
            driver.nap(stream, _WORK)
            waiting.append(not driver.passed(probe))

        taken = self._step(ask, _nothing, 0.0)
        while not gate.counts(taken.closed):
            waiting.clear()
            taken = self._step(ask, _nothing, 0.0)
        if not gate.gated:
            raise XframeError("no gate of this GPU stayed closed until a few calls were made: no device times")
        if not all(waiting):
            raise XframeError("the streams of this GPU do not wait for an event of their context: no device times")
        if taken.span < 0.9 * _WORK:
            raise XframeError("an event of this GPU's context does not wait for its streams: no device times")

    def read(self, ask: Steps, sync: Steps, expected: float, count: int, longest: float) -> Readings:
        """Time ``count`` steps, or as many as begin within ``longest`` seconds, at least one.

        Parameters
        ----------
        ask
            Launches a step; may return before it is done.
        sync
            Waits until it is.
        expected
            Seconds that both together take.

        Raises
        ------
        XframeError
            The step launches work after it has returned, or nothing of it is between the events: they can't time it.
        """
        with self._driver.current():
            return self._read(ask, sync, expected, count, longest)

    def _read(self, ask: Steps, sync: Steps, expected: float, count: int, longest: float) -> Readings:
        self._gate.expect(expected)
        deadline = self._now() + longest
        seconds, late = [], []  # type: List[float], List[float]
        while not seconds or (len(seconds) < count and self._now() < deadline):
            taken = self._step(ask, sync, expected if self._gate.gated else 0.0)
            if self._gate.counts(taken.closed):
                seconds.append(taken.span)
                late.append(taken.late)
                continue
            if not seconds and self._now() >= deadline:
                self._gate.give_up()  # who asks for so long takes all the time that there is
            if not self._gate.gated:
                seconds, late = [], []
        middle = quartiles(seconds)[1]
        waited = quartiles(late)[0]  # what came late always did, while threads may wake up late at times
        if min(seconds) <= 0 or middle <= self.empty_s:
            raise XframeError(
                "the step took %.1f us by the device's events, no more than nothing does (%.1f us): its work is not"
                " between them" % (middle * 1e6, self.empty_s * 1e6)
            )
        if waited > _LATE + _SHARE * middle:
            raise XframeError(
                "the step is not over on the device when its events say so: %.3f ms of it came after %.3f ms, launched"
                " when it had returned" % (waited * 1e3, middle * 1e3)
            )
        return Readings(seconds, GATED if self._gate.gated else UNGATED)

    def close(self) -> None:
        """Free what it holds of the context. Safe to call twice."""
        self._driver.close()

    def _step(self, ask: Steps, sync: Steps, expected: float) -> "_Taken":
        driver, gate = self._driver, self._gate
        gate.shut()
        driver.call("cuCtxWaitEvent", driver.context, gate.opened)
        began = self._now()
        ask()
        if gate.gated:
            self._sleep(max(_GRACE, min(expected, _ENOUGH) - (self._now() - began)))
        driver.call("cuCtxRecordEvent", driver.context, self._done)
        driver.call("cuStreamWaitEvent", self._stream, self._done, 0)
        driver.record(self._end, self._stream)
        closed = gate.closed
        driver.wait(self._end)
        first = self._waited(sync)
        late = first - self._waited(sync)  # the second finds nothing to wait for
        return _Taken(driver.between(gate.opened, self._end), closed, late)

    def _waited(self, sync: Steps) -> float:
        before = self._now()
        sync()
        return self._now() - before


class _Taken(NamedTuple):
    """A step: its seconds between the events, whether the gate was still closed when all had been asked for, and how
    long the framework had to wait for it afterwards."""

    span: float
    closed: bool
    late: float


def _nothing() -> None:
    pass
