"""The driver of NVIDIA's GPUs by ``ctypes``: the context that all of a process share, its streams, events and gates.

A gate keeps a stream waiting until all that is to be timed has been asked for, so that no time of the host's is between
its events. It is a function of the host that sleeps, and opens by itself: who waits for the device behind it, whatever
he holds meanwhile, is only slow. Whether it was still closed when all had been asked for is looked at each time.
"""

import contextlib
import ctypes
import time
from typing import Any, Callable, Iterator, List, Tuple

from xframe.errors import Unavailable, XframeError

NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
UNTIMED = 2  # CU_EVENT_DISABLE_TIMING
_NOT_READY = 600  # CUDA_ERROR_NOT_READY
_TYPES = {"p": ctypes.c_void_p, "i": ctypes.c_int, "u": ctypes.c_uint, "a": ctypes.c_ulonglong, "z": ctypes.c_size_t}
#: Function of the driver -> its arguments: p a pointer or handle, a an address on the device, i int, u unsigned,
#: z size_t. All give a ``CUresult``.
SIGNATURES = {
    "cuInit": "u",
    "cuDriverGetVersion": "p",
    "cuDeviceGet": "pi",
    "cuDevicePrimaryCtxRetain": "pi",
    "cuDevicePrimaryCtxRelease_v2": "i",
    "cuCtxPushCurrent_v2": "p",
    "cuCtxPopCurrent_v2": "p",
    "cuCtxRecordEvent": "pp",
    "cuCtxWaitEvent": "pp",
    "cuStreamCreate": "pu",
    "cuStreamDestroy_v2": "p",
    "cuStreamSynchronize": "p",
    "cuStreamWaitEvent": "ppu",
    "cuLaunchHostFunc": "ppp",
    "cuMemcpyDtoDAsync_v2": "aazp",
    "cuEventCreate": "pu",
    "cuEventDestroy_v2": "p",
    "cuEventRecord": "pp",
    "cuEventQuery": "p",
    "cuEventSynchronize": "p",
    "cuEventElapsedTime": "ppp",
    "cuGetErrorName": "ip",
}

#: Longest that a gate is held because it was open too early, seconds; how often in a row it is found so before it is
#: given up; the longest for what is expected to take long: nobody asks for so long without waiting.
_LONGEST, _DOUBLINGS, _MOST = 0.25, 5, 1.0
#: Seconds that a gate has beyond what it is expected to take.
MARGIN = 1e-3


class Driver:
    """Calls of the driver in the primary context of one GPU, the one that CUDA's runtime library uses, too.

    Streams are handles, and None is CUDA's legacy default stream. What it made is freed by :meth:`close`.

    Parameters
    ----------
    index
        Of the GPU, as CUDA counts those that this process sees.
    library
        The driver's; None loads it.

    Raises
    ------
    Unavailable
        There is no driver, or it lacks a function.
    XframeError
        By each call that fails; there is no such GPU.
    """

    def __init__(self, index: int, library: Any = None) -> None:
        self._library = library or _loaded()
        self._nap = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p)
        self._made: List[Tuple[str, Any]] = []
        version, number = ctypes.c_int(), ctypes.c_int()
        self.call("cuInit", 0)
        self.call("cuDriverGetVersion", ctypes.byref(version))
        #: Of the CUDA that it is for: 13000 for 13.0.
        self.version = version.value
        self.call("cuDeviceGet", ctypes.byref(number), index)
        self._device, self.context = number.value, ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self._device)
        self._retained = True

    def call(self, function: str, *arguments: Any) -> None:
        """One of :data:`SIGNATURES`."""
        call = getattr(self._library, function, None)
        if call is None:
            raise Unavailable("a GPU's own times need a driver that has %s: update it" % function)
        status = call(*arguments)
        if status:
            self._fail(function, status)

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """The context is the current one of this thread."""
        self.call("cuCtxPushCurrent_v2", self.context)
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def stream(self) -> Any:
        """A new stream that waits for no other, nor they for it. The context must be the current one."""
        return self._new("cuStreamCreate", NON_BLOCKING)

    def event(self, timed: bool = True) -> Any:
        """A new event, which keeps its time if it is ``timed``. The context must be the current one."""
        return self._new("cuEventCreate", 0 if timed else UNTIMED)

    def nap(self, stream: Any, seconds: float) -> None:
        """What is asked of ``stream`` from now on waits for a function of the host that sleeps for so long."""
        self.call("cuLaunchHostFunc", stream, self._nap, ctypes.c_void_p(max(1, int(seconds * 1e6))))

    def record(self, event: Any, stream: Any) -> None:
        """``event`` passes when what was asked of ``stream`` so far is over."""
        self.call("cuEventRecord", event, stream)

    def passed(self, event: Any) -> bool:
        """Whether it has passed, without waiting."""
        status = self._library.cuEventQuery(event)
        if status not in (0, _NOT_READY):
            self._fail("cuEventQuery", status)
        return bool(status == 0)

    def wait(self, event: Any) -> None:
        """Until it has passed."""
        self.call("cuEventSynchronize", event)

    def between(self, start: Any, end: Any) -> float:
        """Seconds between two events that have passed."""
        milliseconds = ctypes.c_float()
        self.call("cuEventElapsedTime", ctypes.byref(milliseconds), start, end)
        return milliseconds.value * 1e-3

    def close(self) -> None:
        """Free what it made. Safe to call twice."""
        made, self._made = self._made, []
        if not self._retained:
            return
        self._retained = False
        with contextlib.ExitStack() as freed:  # in reverse, each whatever becomes of the others
            freed.callback(self.call, "cuDevicePrimaryCtxRelease_v2", self._device)
            freed.enter_context(self.current())
            for free, handle in made:
                freed.callback(self.call, free, handle)

    def _new(self, function: str, flags: int) -> Any:
        handle = ctypes.c_void_p()
        self.call(function, ctypes.byref(handle), flags)
        self._made.append((function.replace("Create", "Destroy") + "_v2", handle))
        return handle

    def _fail(self, function: str, status: int) -> None:
        name = ctypes.c_char_p()
        self._library.cuGetErrorName(status, ctypes.byref(name))
        raise XframeError("%s failed: %s (%d)" % (function, (name.value or b"?").decode(), status))


class Gate:
    """Keeps ``stream`` waiting. The driver's context must be the current one whenever it is used.

    ``opened`` is the event that passes as it opens. Once it is given up, as it is open before all has been asked for
    however long it is held, ``gated`` is False and it is never closed again. That is so behind it where the host waits
    for the device itself, or asks for more than the device queues (some thousand launches).

    Parameters
    ----------
    hold
        Seconds for which it is held at least.
    now
        The host's clock, in seconds.
    """

    def __init__(
        self, driver: Driver, stream: Any = None, hold: float = MARGIN, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self._driver, self._stream, self._now = driver, stream, now
        self._least = self._hold = hold
        self._shut = self._asked = 0.0  # when it was shut, and how long it took until all had been asked for
        self._missed = 0  # how often in a row it was open too early
        self.opened, self.gated = driver.event(), True

    def expect(self, seconds: float) -> None:
        """From now on it stays closed long enough to ask for what takes so long."""
        self._least = max(self._least, min(2 * seconds + MARGIN, _MOST))
        self._hold = max(self._hold, self._least)

    def shut(self) -> None:
        """What is asked of the stream from now on waits until it opens."""
        self._shut = self._now()
        if self.gated:
            self._driver.nap(self._stream, self._hold)
        self._driver.record(self.opened, self._stream)

    @property
    def closed(self) -> bool:
        """Whether it has not opened yet, now that all has been asked for."""
        opened = self._driver.passed(self.opened)
        self._asked = self._now() - self._shut
        return self.gated and not opened

    def counts(self, closed: bool) -> bool:
        """Whether a reading counts, of which ``closed`` tells whether it still was when all had been asked for.

        If not, the gate is held for twice as long, until it helps; where that does not help, everything counts. A host
        that was held up once, by whatever else the machine does, makes no gate longer for ever.
        """
        if closed or not self.gated:
            self._missed = 0
            self._hold = max(self._least, min(self._hold, 2 * self._asked))
            return True
        self._missed += 1
        self._hold = max(self._hold, min(2 * self._hold, _LONGEST))
        if self._missed >= _DOUBLINGS:
            self.give_up()
        return False

    def give_up(self) -> None:
        """It is never closed again."""
        self.gated = False


def _loaded() -> Any:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as e:
        raise Unavailable("a GPU's own times need an NVIDIA driver, and there is none here (%s)" % e) from e
    for name, letters in SIGNATURES.items():
        function = getattr(driver, name, None)
        if function is not None:
            function.argtypes, function.restype = [_TYPES[x] for x in letters], ctypes.c_int
    return driver
