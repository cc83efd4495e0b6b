"""A candidate on a GPU: its memory, and the seconds that its kernel takes there.

As on a CPU the image is warm and the weights are cold, as they are in a network. Before each timed call a copy between
two arrays, each twice as large as the level-2 cache, takes that; then the image is written anew and the stages before
the product run; then the product, between two events of CUDA's in the stream of them all. Nothing waits before the
second event: while the GPU copies, the host asks for all the rest, so that no time of the host's is between the events.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm

from xframe import environment
from xframe.errors import Unavailable, XframeError
from xframe.lowering.cuda.target import SHARED_CACHE
from xframe.tuning.build import Chain
from xframe.tuning.judge import Arguments

#: CUDA's runtime library, which TVM has loaded.
LIBRARIES = ("libcudart.so.13", "libcudart.so.12")
_ON_DEVICE = 3  # cudaMemcpyDeviceToDevice


class Runtime:
    """What TVM's Python does not offer of CUDA's runtime, in the stream that TVM launches its kernels in.

    Raises
    ------
    Unavailable
        There is no such GPU, or no runtime library.
    """

    def __init__(self, index: int):
        self.device = tvm.cuda(index)
        if not self.device.exist:
            raise Unavailable(f"device cuda:{index} was asked for, and TVM finds no such GPU here")
        self._library = _library()
        self._library.cudaGetErrorString.restype = ctypes.c_char_p
        self._call("cudaSetDevice", index)
        self._events = [ctypes.c_void_p(), ctypes.c_void_p()]
        for event in self._events:
            self._call("cudaEventCreate", ctypes.byref(event))

    def _call(self, function: str, *arguments: Any) -> None:
        status = getattr(self._library, function)(*arguments)
        if status:
            raise XframeError(f"{function} failed: {self._library.cudaGetErrorString(status).decode()} ({status})")

    def copy(self, to: tvm.runtime.Tensor, source: tvm.runtime.Tensor, size: int) -> None:
        """Ask for a copy of ``size`` bytes on the device, without waiting for it."""
        places = ctypes.c_void_p(to.data_ptr()), ctypes.c_void_p(source.data_ptr())
        self._call("cudaMemcpyAsync", *places, ctypes.c_size_t(size), _ON_DEVICE, None)

    def watch(self, call: Callable[[], None]) -> int:
        """The nanoseconds on the device of what ``call`` launches."""
        start, end = self._events
        self._call("cudaEventRecord", start, None)
        call()
        self._call("cudaEventRecord", end, None)
        self._call("cudaEventSynchronize", end)
        spent = ctypes.c_float()
        self._call("cudaEventElapsedTime", ctypes.byref(spent), start, end)
        return max(1, round(spent.value * 1e6))

    def sync(self) -> None:
        """Raises XframeError where something went wrong that this process can't get over: an access to what is not
        there ends all that a process can do with a GPU."""
        self._call("cudaStreamSynchronize", None)


def _library() -> ctypes.CDLL:
    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise Unavailable(
        f"kernels of a GPU are timed by CUDA's runtime library, and none is here: {' or '.join(LIBRARIES)}"
    )


class Tensors:
    """Of a chain, on the GPU: see ``bench.Tensors``."""

    note = ""

    def __init__(self, chain: Chain, given: Arguments, runtime: Runtime, flush: Callable[[], None]):
        self.chain, self._given, self._runtime, self._flush = chain, given, runtime, flush
        self._constants = [[self._put(a) for a in arrays] for arrays in given.constants]
        self._outputs = [self._put(np.full(step.output, np.nan, np.float32)) for step in chain.steps]
        self._image, self._anew = self._put(given.image), self._put(given.image)
        views = [out._create_view(step.inputs[0]) for out, step in zip(self._outputs, chain.steps[1:], strict=False)]
        self._images = [self._image, *views]
        self._residual = [] if given.residual is None else [self._put(given.residual)]

    def _put(self, array: np.ndarray) -> tvm.runtime.Tensor:
        return tvm.runtime.tensor(np.ascontiguousarray(array), self._runtime.device)

    def renew(self) -> None:
        """The memory of a GPU is the same for all."""

    def arguments(self, i: int) -> list:
        last = i == len(self._outputs) - 1
        return [self._images[i], *self._constants[i], *(self._residual if last else ()), self._outputs[i]]

    def prepare(self) -> None:
        self._flush()
        self._runtime.copy(self._image, self._anew, self._given.image.nbytes)

    def spoil(self) -> None:
        for out in self._outputs[self.chain.product :]:
            out.copyfrom(np.full(tuple(out.shape), np.nan, np.float32))

    def result(self) -> np.ndarray:
        return self._outputs[-1].numpy()


class Place:
    """Measures on the GPU ``cuda`` or ``cuda:<number>``. ``cache``: bytes of its level-2 cache; None: as it says."""

    def __init__(self, device: str, cache: int | None = None):
        self._device, self._runtime = device, Runtime(environment.gpu_index(device))
        self._size = 2 * (cache or self._runtime.device.l2_cache_size_bytes or SHARED_CACHE)
        self._scratch = [tvm.runtime.tensor(np.zeros(self._size, np.uint8), self._runtime.device) for _ in range(2)]
        self.watch = self._runtime.watch

    def memory(self, chain: Chain, arguments: Arguments) -> Tensors:
        return Tensors(chain, arguments, self._runtime, self._flush)

    def watched(self) -> _Slowed:
        """See ``bench.Host``."""
        return _Slowed(self._device)

    def usable(self) -> bool:
        """Whether the GPU still does what this process asks for."""
        try:
            self._runtime.sync()
        except XframeError:
            return False
        return True

    def _flush(self) -> None:
        to, source = self._scratch
        self._runtime.copy(to, source, self._size)


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
