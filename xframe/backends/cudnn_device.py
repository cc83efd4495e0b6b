"""A GPU as the cuDNN backend uses it: its handles, its memory, and what must be freed."""

import contextlib
import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from xframe.backends.cudnn_library import (
    CUBLAS_DEFAULT_MATH,
    CUBLAS_TF32_MATH,
    FLOAT,
    MATH,
    NCHW,
    NON_BLOCKING,
    NOT_READY,
    THREAD_LOCAL,
    TO_DEVICE,
    TO_HOST,
    CallFailed,
    Libraries,
)
from xframe.errors import Unavailable

#: What results are scaled by, and how much is kept of what was there before.
ONE, ZERO = ctypes.byref(ctypes.c_float(1.0)), ctypes.byref(ctypes.c_float(0.0))
Dims = tuple[int, int, int, int]
#: Bytes that are set to zero, how often at first and at most, before calls that are timed: while the device is busy
#: with it, they are queued.
GATE_BYTES, GATE_TIMES, GATE_LONGEST = 256 << 20, 40, 40 << 6


def contiguous(dims: Dims) -> Dims:
    """Strides of an NCHW image that lies densely."""
    _, c, h, w = dims
    return c * h * w, h * w, w, 1


def channels_last(dims: Dims) -> Dims:
    """Strides of an image of (n, c, h, w), or of weights, that lies densely with its channels together."""
    _, c, h, w = dims
    return c * h * w, 1, w * c, c


@dataclass(frozen=True)
class Timeline:
    """Seconds since before the first of several calls at which each of them began, and at which the last was done.
    ``gated``: none of the host's time is between them, as all had been queued before the first began."""

    times: list[float]
    gated: bool


class Gpu:
    """One device with a stream, cuDNN and cuBLAS on it. Everything it makes is freed by :meth:`close`.

    Parameters
    ----------
    index
        Of the devices that this process sees.
    tf32
        Whether products may round their operands to TF32.

    Raises
    ------
    Unavailable
        A library does not load, there is no driver, or no such device.
    """

    def __init__(self, index: int, tf32: bool = False):
        self.api = Libraries()
        self.tf32 = tf32
        self.math = "default" if tf32 else "fma"
        self.bytes = 0
        #: What is freed when it is closed, the newest first.
        self.until = contextlib.ExitStack()
        self._gate, self._gates = 0, GATE_TIMES
        count = ctypes.c_int(0)
        try:
            self.api.cudaGetDeviceCount(ctypes.byref(count))
        except CallFailed as e:
            raise Unavailable(f"device cuda needs an NVIDIA driver and a GPU, and there is none here: {e.words}") from e
        if index >= count.value:
            raise Unavailable(f"device cuda:{index} was asked for, this process sees {count.value} GPU(s)")
        try:
            self._open(index, tf32)
        except BaseException:
            self.close()
            raise

    def _open(self, index: int, tf32: bool) -> None:
        self.api.cudaSetDevice(index)
        stream = ctypes.c_void_p()
        self.api.cudaStreamCreateWithFlags(ctypes.byref(stream), NON_BLOCKING)
        self.stream = stream
        self.until.callback(self.api.cudaStreamDestroy, stream)
        self.cudnn = self.made("cudnnCreate", "cudnnDestroy")
        self.api.cudnnSetStream(self.cudnn, stream)
        self.cublas = self.made("cublasCreate_v2", "cublasDestroy_v2")
        self.api.cublasSetStream_v2(self.cublas, stream)
        self.api.cublasSetMathMode(self.cublas, CUBLAS_TF32_MATH if tf32 else CUBLAS_DEFAULT_MATH)

    def survives(self, failure: CallFailed) -> bool:
        """Whether what failed costs only what was tried: cuDNN refused, or failed and the device still answers."""
        if failure.refusal or not failure.doubtful:
            return failure.refusal
        try:
            self.sync()
        except CallFailed:
            return False
        return True

    def made(self, create: str, destroy: str) -> ctypes.c_void_p:
        """A handle or descriptor."""
        handle = ctypes.c_void_p()
        getattr(self.api, create)(ctypes.byref(handle))
        self.until.callback(getattr(self.api, destroy), handle)
        return handle

    def described(self, kind: str) -> ctypes.c_void_p:
        """A new descriptor of a ``kind``: Tensor, Filter, Convolution, Pooling, ..."""
        return self.made(f"cudnnCreate{kind}Descriptor", f"cudnnDestroy{kind}Descriptor")

    def tensor(self, dims: Dims, strides: Dims | None = None) -> ctypes.c_void_p:
        """The descriptor of a float32 image of (n, c, h, w), dense unless strides are given."""
        made = self.described("Tensor")
        self.api.cudnnSetTensor4dDescriptorEx(made, FLOAT, *dims, *(strides or contiguous(dims)))
        return made

    def filter(self, dims: Dims) -> ctypes.c_void_p:
        """The descriptor of weights [out, in of a group, height, width]."""
        made = self.described("Filter")
        self.api.cudnnSetFilter4dDescriptor(made, FLOAT, NCHW, *dims)
        return made

    def room(self, size: int) -> int:
        """The address of ``size`` new bytes on the device; 0 for none."""
        if not size:
            return 0
        address = ctypes.c_void_p()
        self.api.cudaMalloc(ctypes.byref(address), size)
        self.until.callback(self.api.cudaFree, address)
        self.bytes += size
        return address.value or 0

    @contextlib.contextmanager
    def lent(self, size: int):
        """The address of ``size`` bytes until the block ends."""
        address = ctypes.c_void_p()
        if size:
            self.api.cudaMalloc(ctypes.byref(address), size)
        try:
            yield address.value or 0
        finally:
            if size:
                self.api.cudaFree(address)

    def upload(self, array: np.ndarray, address: int | None = None) -> int:
        """Copy an array to the device, to a new place unless one is given; its address."""
        data = np.ascontiguousarray(array, dtype=np.float32)
        address = self.room(data.nbytes) if address is None else address
        self.api.cudaMemcpy(address, data.ctypes.data, data.nbytes, TO_DEVICE)
        self.api.cudaDeviceSynchronize()  # from pageable memory it may return before the copy is there
        return address

    def download(self, address: int, shape: tuple[int, ...]) -> np.ndarray:
        """A copy of what is on the device, once the stream is done."""
        self.sync()
        out = np.empty(shape, dtype=np.float32)
        self.api.cudaMemcpy(out.ctypes.data, address, 4 * math.prod(shape), TO_HOST)
        return out

    def sync(self) -> None:
        """Wait for the stream."""
        self.api.cudaStreamSynchronize(self.stream)

    @property
    def math_type(self) -> int:
        return MATH[self.math]

    def timeline(self, calls: "list[Callable[[], None]]", gated: bool) -> "Timeline":
        """When each of ``calls`` began, and when the last was done. ``gated``: all were queued before the first began,
        behind as much work as that takes. A host that was held up once makes no gate longer for ever."""
        found = self._timeline(calls, gated)
        while gated and not found.gated and self._gates < GATE_LONGEST:
            self._gates *= 2
            found = self._timeline(calls, gated)
        if found.gated:
            self._gates = max(GATE_TIMES, self._gates - self._gates // 8)
        return found

    def _timeline(self, calls: "list[Callable[[], None]]", gated: bool) -> "Timeline":
        with contextlib.ExitStack() as until:
            events: list[Any] = []
            for _ in range(len(calls) + 1):
                event = ctypes.c_void_p()
                self.api.cudaEventCreateWithFlags(ctypes.byref(event), 0)
                until.callback(self.api.cudaEventDestroy, event)
                events.append(event)
            if gated:
                self._busy()
            for event, call in zip(events, calls, strict=False):
                self.api.cudaEventRecord(event, self.stream)
                call()
            self.api.cudaEventRecord(events[-1], self.stream)
            waiting = not self._passed(events[0])
            self.sync()
            return Timeline([self._between(events[0], event) for event in events], gated and waiting)

    def _busy(self) -> None:
        """Give the device something to do."""
        if not self._gate:
            address = ctypes.c_void_p()
            self.api.cudaMalloc(ctypes.byref(address), GATE_BYTES)
            self.until.callback(self.api.cudaFree, address)
            self._gate = address.value or 0
        for _ in range(self._gates):
            self.api.cudaMemsetAsync(self._gate, 0, GATE_BYTES, self.stream)

    def _passed(self, event: Any) -> bool:
        status = self.api.raw("cudaEventQuery")(event)
        if status not in (0, NOT_READY):
            raise self.api.failure("cudaEventQuery", status)
        return status == 0

    def captured(self, calls: "list[Callable[[], None]]") -> Callable[[], None]:
        """What queues all of ``calls`` at once: a CUDA graph. Each must have run before, as what a library does at its
        first call can't be captured."""
        graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
        self.api.cudaStreamBeginCapture(self.stream, THREAD_LOCAL)
        try:
            for call in calls:
                call()
        finally:
            self.api.cudaStreamEndCapture(self.stream, ctypes.byref(graph))
            self.until.callback(self.api.cudaGraphDestroy, graph)
        self.api.cudaGraphInstantiate(ctypes.byref(ready), graph, 0)
        self.until.callback(self.api.cudaGraphExecDestroy, ready)
        return partial(self.api.cudaGraphLaunch, ready, self.stream)

    def _between(self, first: Any, second: Any) -> float:
        milliseconds = ctypes.c_float()
        self.api.cudaEventElapsedTime(ctypes.byref(milliseconds), first, second)
        return milliseconds.value * 1e-3

    def close(self) -> None:
        """Free everything, the newest first. What fails on the way is not told: the process ends with it."""
        with contextlib.suppress(CallFailed):
            self.until.close()
