"""What ran on an NVIDIA GPU, and which call of the host launched it: CUPTI's activity records, by ``ctypes``.

While kinds of activities are enabled, CUPTI fills buffers with records: one of each kernel, copy and setting of memory,
and one of each call of CUDA's runtime or driver, with the same correlation id as what it launched. Only leading fields
are read, which no version has moved: new ones have been added behind them (``cupti_activity.h``).

A process in which CUPTI was once used can stay slower when it records nothing any more: time in another one.
"""

import ctypes
import functools
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from xframe import nvidia
from xframe.errors import Unavailable, XframeError

T = TypeVar("T")

#: Values of ``CUPTI_API_VERSION``: CUDA 11.8, and the first whose records are not known.
OLDEST, UNKNOWN = 18, 130600
#: ``CUpti_ActivityKind``.
MEMCPY, MEMSET, DRIVER, RUNTIME, CONCURRENT_KERNEL = 1, 2, 4, 5, 10
KINDS = (CONCURRENT_KERNEL, MEMCPY, MEMSET, RUNTIME, DRIVER)
#: ``CUpti_ActivityMemcpyKind`` -> what profilers call it.
COPIES = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
FLUSH_FORCED = 1  # ``CUPTI_ACTIVITY_FLAG_FLUSH_FORCED``
SYSTEM_THREAD_ID = 1  # ``CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM``: what ``gettid`` gives
#: ``CUptiResult``.
SUCCESS, OUT_OF_MEMORY, NO_MORE_RECORDS, NOT_INITIALIZED = 0, 8, 12, 15
NO_PRIVILEGES, OTHER_SUBSCRIBER, UNKNOWN_ERROR = 35, 39, 999
_ADVICE = {
    OUT_OF_MEMORY: "leave more memory of the GPU free",
    NOT_INITIALIZED: "it needs a driver that knows the CUDA which this CUPTI is of: install CUPTI of the driver's CUDA",
    NO_PRIVILEGES: "have the driver loaded with NVreg_RestrictProfilingToAdminUsers=0, or run as root",
    UNKNOWN_ERROR: "it needs an NVIDIA GPU and its driver",
    OTHER_SUBSCRIBER: "end the profiler or debugger that has this process (nsys, ncu, cuda-gdb)",
}
#: Bytes of a buffer, so many that none is full before it is asked for: a thread of CUPTI's that hands one over waits
#: for the interpreter.
BUFFER = 32 << 20
#: Readings of both clocks, of which the tightest counts.
_READINGS = 20
#: CUPTI can't be told to forget a callback: it may call those of a recorder that is closed.
_KEPT: list[Any] = []

_U8, _U16, _U32, _I32, _U64, _I64 = (
    ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_int32, ctypes.c_uint64, ctypes.c_int64,
)  # fmt: skip
_REQUEST = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
_COMPLETE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, _U32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, _U32, ctypes.c_void_p)
#: Function -> its arguments: p any pointer, i int or enum, z size_t. Each gives a ``CUptiResult``.
_SIGNATURES = {
    "cuptiGetVersion": "p",
    "cuptiGetResultString": "ip",
    "cuptiGetTimestamp": "p",
    "cuptiSubscribe": "ppp",
    "cuptiUnsubscribe": "p",
    "cuptiSetThreadIdType": "i",
    "cuptiActivityRegisterCallbacks": "pp",
    "cuptiActivityEnable": "i",
    "cuptiActivityDisable": "i",
    "cuptiActivityFlushAll": "i",
    "cuptiActivityGetNumDroppedRecords": "pip",
    "cuptiActivityGetNextRecord": "pzp",
}
_TYPES: dict[str, Any] = {"p": ctypes.c_void_p, "i": ctypes.c_int, "z": ctypes.c_size_t}


class KernelRecord(ctypes.Structure):
    """``CUpti_ActivityKernel9`` and its successors, up to the name."""

    _fields_ = (
        *(("kind", _U32), ("cacheConfig", _U8), ("sharedMemoryConfig", _U8), ("registersPerThread", _U16)),
        *(("partitionedGlobalCacheRequested", _U32), ("partitionedGlobalCacheExecuted", _U32)),
        *(("start", _U64), ("end", _U64), ("completed", _U64)),
        *(("deviceId", _U32), ("contextId", _U32), ("streamId", _U32)),
        *((name, _I32) for name in ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")),
        *(("staticSharedMemory", _I32), ("dynamicSharedMemory", _I32)),
        *(("localMemoryPerThread", _U32), ("localMemoryTotal", _U32)),
        *(("correlationId", _U32), ("gridId", _I64), ("name", ctypes.c_char_p)),
    )


class MemcpyRecord(ctypes.Structure):
    """``CUpti_ActivityMemcpy5`` and its successors, up to the correlation id."""

    _fields_ = (
        *(("kind", _U32), ("copyKind", _U8), ("srcKind", _U8), ("dstKind", _U8), ("flags", _U8)),
        *(("bytes", _U64), ("start", _U64), ("end", _U64)),
        *(("deviceId", _U32), ("contextId", _U32), ("streamId", _U32), ("correlationId", _U32)),
    )


class MemsetRecord(ctypes.Structure):
    """``CUpti_ActivityMemset4``, up to the correlation id."""

    _fields_ = (
        *(("kind", _U32), ("value", _U32), ("bytes", _U64), ("start", _U64), ("end", _U64)),
        *(("deviceId", _U32), ("contextId", _U32), ("streamId", _U32), ("correlationId", _U32)),
    )


class ApiRecord(ctypes.Structure):
    """``CUpti_ActivityAPI``: a call of CUDA's runtime or driver."""

    _fields_ = (
        *(("kind", _U32), ("cbid", _U32), ("start", _U64), ("end", _U64)),
        *(("processId", _U32), ("threadId", _U32), ("correlationId", _U32), ("returnValue", _U32)),
    )


_RECORDS: dict[int, Any] = {
    **{CONCURRENT_KERNEL: KernelRecord, MEMCPY: MemcpyRecord, MEMSET: MemsetRecord},
    **{RUNTIME: ApiRecord, DRIVER: ApiRecord},
}


class Activity(NamedTuple):
    """A kernel, copy or setting of memory on a GPU; ``call``: the correlation id of what launched it."""

    name: str
    start: int
    end: int
    stream: int
    call: int


class Call(NamedTuple):
    """A call of CUDA on the host, on a thread of that id of the system."""

    start: int
    end: int
    thread: int


class Recording(NamedTuple):
    """What was recorded: nanoseconds of the clock that the recorder was given. ``calls`` by correlation id."""

    activities: tuple[Activity, ...]
    calls: Mapping[int, Call]

    def owned(self, intervals: Iterable[tuple[int, int, int, T]]) -> Iterator[tuple[Activity, T | None]]:
        """Each activity, and what the thread that launched it was at then; None where nobody can tell.

        Parameters
        ----------
        intervals
            Of the host: start and end in nanoseconds, the thread's id, and what it was at. Of those of one thread that
            overlap, the one that began last is meant.
        """
        threads = defaultdict(list)
        for start, end, thread, what in intervals:
            threads[thread].append((start, end, what))
        for begun in threads.values():
            begun.sort(key=lambda interval: interval[0])
        starts = {thread: [start for start, _, _ in begun] for thread, begun in threads.items()}
        for activity in self.activities:
            found, call = None, self.calls.get(activity.call)
            if call is not None and (at := bisect_right(starts.get(call.thread, ()), call.start)):
                _, end, what = threads[call.thread][at - 1]
                found = what if call.end <= end else None
            yield activity, found


class Recorder:
    """Records what this process does on GPUs, from each :meth:`start` to its :meth:`stop`. One in a process at a time.

    Raises
    ------
    Unavailable
        CUPTI does not load, is of a version whose records are not known, or refuses: for lack of privileges, or where
        there is another profiler.
    """

    def __init__(self) -> None:
        self._library = nvidia.load("cupti")
        for name, letters in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = [_TYPES[letter] for letter in letters], ctypes.c_int
        self._empty: dict[int, Any] = {}  # by address: buffers that CUPTI has
        self._full: list[tuple[int, Any, int]] = []  # with the bytes of each that are records
        self._known()
        self._subscriber = ctypes.c_void_p()
        callbacks = _CALLBACK(_nothing), _REQUEST(self._request), _COMPLETE(self._complete)
        _KEPT.append(callbacks)
        self._do("cuptiSubscribe", ctypes.byref(self._subscriber), callbacks[0], None)
        self._do("cuptiSetThreadIdType", SYSTEM_THREAD_ID)
        self._do("cuptiActivityRegisterCallbacks", *callbacks[1:])

    def _known(self) -> None:
        version = _U32()
        self._do("cuptiGetVersion", ctypes.byref(version))
        if not OLDEST <= version.value < UNKNOWN:
            raise Unavailable(
                f"the records of CUPTI are known of CUDA 11.8 to 13.5, and it is of version {version.value} here: pip"
                " install 'nvidia-cuda-cupti>=13,<13.6'"
            )

    def start(self, clock: Callable[[], int]) -> None:
        """Record from now on. ``clock`` tells nanoseconds, and so will the records. Raises as the class does."""
        self._clock = clock
        self._full.clear()
        try:
            for kind in KINDS:
                self._do("cuptiActivityEnable", kind)
            self._ahead = self._offset()
        except XframeError:
            self._disable()
            raise

    def stop(self) -> Recording:
        """Record no more, and what was recorded. The device must have been waited for.

        Raises
        ------
        XframeError
            Records were lost: what is left is not all that ran.
        """
        self._ahead = (self._ahead + self._offset()) // 2
        self._disable()
        self._do("cuptiActivityFlushAll", FLUSH_FORCED)
        lost = ctypes.c_size_t()
        self._do("cuptiActivityGetNumDroppedRecords", None, 0, ctypes.byref(lost))
        recording, untimed = self._read()
        if lost.value + untimed:
            raise XframeError(
                f"CUPTI lost {lost.value} records and {untimed} times of kernels, so that this is no whole profile:"
                " profile fewer passes at a time, or leave more memory of the GPU free"
            )
        return recording

    def close(self) -> None:
        """Let other profilers have the process."""
        self._do("cuptiUnsubscribe", self._subscriber)

    def _do(self, function: str, *args: Any) -> None:
        if status := getattr(self._library, function)(*args):
            raise self._failure(function, status)

    def _failure(self, function: str, status: int) -> Unavailable:
        words = ctypes.c_char_p()
        self._library.cuptiGetResultString(status, ctypes.byref(words))
        name = (words.value or b"a status of no name").decode(errors="replace")
        advice = _ADVICE.get(status, "its manual says what can be done")
        return Unavailable(f"CUPTI was to tell what runs on the GPU, and {function} gave {name} ({status}): {advice}")

    def _disable(self) -> None:
        for kind in KINDS:
            self._library.cuptiActivityDisable(kind)  # one that is not enabled, too

    def _offset(self) -> int:
        """Nanoseconds that CUPTI's clock is ahead of ours."""
        stamp, readings = _U64(), []
        for _ in range(_READINGS):
            before = self._clock()
            self._do("cuptiGetTimestamp", ctypes.byref(stamp))
            after = self._clock()
            readings.append((after - before, stamp.value - (before + after) // 2))
        return min(readings)[1]

    def _request(self, buffer: Any, size: Any, records: Any) -> None:
        made = (_U64 * (BUFFER // 8))()  # aligned as records are
        address = ctypes.addressof(made)
        self._empty[address] = made
        buffer[0], size[0], records[0] = address, ctypes.sizeof(made), 0

    def _complete(self, context: Any, stream: int, buffer: int, size: int, valid: int) -> None:
        self._full.append((buffer, self._empty.pop(buffer), valid))

    def _read(self) -> tuple[Recording, int]:
        """What the buffers hold, and of how many activities the times are missing."""
        activities: list[Activity] = []
        calls: dict[int, Call] = {}
        untimed = 0
        full, self._full = self._full, []
        for buffer, _, valid in full:
            for record in self._records(buffer, valid) if valid else ():
                if isinstance(record, ApiRecord):
                    new = Call(record.start - self._ahead, record.end - self._ahead, record.threadId)
                    calls[record.correlationId] = _outer(calls.get(record.correlationId), new)
                elif not record.start or not record.end:
                    untimed += 1
                else:
                    times = record.start - self._ahead, record.end - self._ahead
                    activities.append(Activity(_name(record), *times, record.streamId, record.correlationId))
        activities.sort(key=lambda activity: activity.start)
        return Recording(tuple(activities), calls), untimed

    def _records(self, buffer: int, valid: int) -> Iterator[Any]:
        """The records of a buffer that are of our kinds."""
        at = ctypes.c_void_p()
        step = self._library.cuptiActivityGetNextRecord
        while not (status := step(buffer, valid, ctypes.byref(at))):
            assert at.value is not None
            if kind := _RECORDS.get(_U32.from_address(at.value).value):
                yield kind.from_address(at.value)
        if status != NO_MORE_RECORDS:
            raise self._failure("cuptiActivityGetNextRecord", status)


def _nothing(*_: Any) -> None:
    """No callback is enabled: a subscriber has to have one."""


def _outer(known: Call | None, new: Call) -> Call:
    """The outer one of two calls of the same id: the runtime's, which calls the driver."""
    return new if known is None or new.end - new.start > known.end - known.start else known


def _name(record: Any) -> str:
    if isinstance(record, MemcpyRecord):
        return f"Memcpy {COPIES.get(record.copyKind, '')}".rstrip()
    return "Memset" if isinstance(record, MemsetRecord) else demangled((record.name or b"").decode(errors="replace"))


@functools.cache
def demangled(name: str) -> str:
    """The name of a C++ function as its source has it; any other, as it is."""
    if not name.startswith("_Z"):
        return name
    try:
        function = getattr(ctypes.CDLL("libstdc++.so.6"), "__cxa_demangle")
    except (OSError, AttributeError):
        return name
    function.argtypes, function.restype = [ctypes.c_char_p, *[ctypes.c_void_p] * 3], ctypes.c_void_p
    if not (made := function(name.encode(), None, None, None)):
        return name
    text = ctypes.string_at(made).decode(errors="replace")
    free = ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]
    free(made)
    return text
