"""One convolution in cuDNN's legacy interface: what each algorithm says of it, and the call that forces one."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from xframe.backends import cudnn_rounding
from xframe.backends.cudnn_device import ONE, ZERO, Dims, Gpu
from xframe.backends.cudnn_library import ALGORITHMS, CROSS_CORRELATION, FLOAT, MATH, CallFailed, Performance
from xframe.errors import XframeError
from xframe.types import ConvSite, Rounding

_NAMES = {number: name for name, number in ALGORITHMS.items()}
_MATH = {number: name for name, number in MATH.items()}


@dataclass(frozen=True)
class Problem:
    """A convolution: ``image``, ``filters`` and ``out`` are NCHW, OIHW with I per group, and NCHW; (rows, columns) of
    padding on both sides alike, stride and dilation."""

    image: Dims
    filters: Dims
    out: Dims
    pads: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    groups: int


@dataclass(frozen=True)
class Found:
    """What cuDNN says of one algorithm at one convolution.

    ``seconds``: measured by cuDNN, None where it did not; ``workspace`` in bytes; ``refused``: its words, if any.
    """

    algorithm: str
    math: str
    seconds: float | None
    workspace: int
    refused: str = ""


@dataclass(frozen=True)
class Choice:
    """What a convolution runs by.

    ``algorithm``: the registered name; ``words``: all of it in words; ``workspace``: the bytes that it takes;
    ``call(x, w, workspace, y)``: what runs it at these addresses, y = x * w; ``rounding(site)``: how it rounds;
    ``around(x, y)``: what must run before and after it, where its tensors lie otherwise than the network's.
    """

    algorithm: str
    words: str
    workspace: int
    call: Callable[[int, int, int, int], Callable[[], None]]
    rounding: Callable[[ConvSite], Rounding]
    around: Callable[[int, int], tuple[Callable[[], None], Callable[[], None]]] | None = None


class Interface(Protocol):
    """A convolution in one of cuDNN's two interfaces."""

    def forced(self, algorithm: str, x: int, w: int, y: int) -> Choice:
        """``algorithm``, which has run at these addresses. Raises CallFailed, in cuDNN's words where it refuses."""


class Convolution:
    """The descriptors of a problem. Raises XframeError where cuDNN has another size for the output."""

    def __init__(self, gpu: Gpu, problem: Problem):
        self._gpu = gpu
        descriptor = gpu.described("Convolution")
        window = *problem.pads, *problem.stride, *problem.dilation
        gpu.api.cudnnSetConvolution2dDescriptor(descriptor, *window, CROSS_CORRELATION, FLOAT)
        gpu.api.cudnnSetConvolutionGroupCount(descriptor, problem.groups)
        gpu.api.cudnnSetConvolutionMathType(descriptor, gpu.math_type)
        self.x, self.w, self.y = gpu.tensor(problem.image), gpu.filter(problem.filters), gpu.tensor(problem.out)
        self.descriptor = descriptor
        sizes = [ctypes.c_int() for _ in range(4)]
        gpu.api.cudnnGetConvolution2dForwardOutputDim(descriptor, self.x, self.w, *map(ctypes.byref, sizes))
        told = tuple(n.value for n in sizes)
        if told != problem.out:
            raise XframeError(
                f"cuDNN computes {told} where {problem.out} was expected: its descriptors are not what they should be"
            )
        self._problem = (self.x, self.w, descriptor, self.y)

    def workspace(self, algorithm: str) -> int:
        """Bytes that an algorithm takes. Raises CallFailed with cuDNN's words when it can't do this convolution."""
        size = ctypes.c_size_t()
        self._gpu.api.cudnnGetConvolutionForwardWorkspaceSize(
            self._gpu.cudnn, *self._problem, ALGORITHMS[algorithm], ctypes.byref(size)
        )
        return size.value

    def forced(self, algorithm: str, x: int, w: int, y: int) -> Choice:
        """``algorithm``, run once: some refusals come only then. Raises CallFailed."""
        size = self.workspace(algorithm)
        rounding = partial(cudnn_rounding.of_algorithm, algorithm, narrow=self._gpu.tf32)
        choice = Choice(algorithm, f"cudnn:{algorithm}", size, partial(self._call, algorithm, size), rounding)
        with self._gpu.lent(size) as room:
            choice.call(x, w, room, y)()
            self._gpu.sync()
        return choice

    def _call(self, algorithm: str, size: int, x: int, w: int, workspace: int, y: int) -> Callable[[], None]:
        return partial(
            self._gpu.api.cudnnConvolutionForward, self._gpu.cudnn, ONE, self.x, x, self.w, w, self.descriptor,
            ALGORITHMS[algorithm], workspace, size, ZERO, self.y, y,
        )  # fmt: skip

    def found(self, exhaustive: bool) -> list[Found]:
        """Every algorithm, the best first: by cuDNN's own measurement, or by its heuristics."""
        gpu, count = self._gpu, ctypes.c_int()
        gpu.api.cudnnGetConvolutionForwardAlgorithmMaxCount(gpu.cudnn, ctypes.byref(count))
        results, returned = (Performance * count.value)(), ctypes.c_int()
        ask = (
            gpu.api.cudnnFindConvolutionForwardAlgorithm
            if exhaustive
            else gpu.api.cudnnGetConvolutionForwardAlgorithm_v7
        )
        ask(gpu.cudnn, *self._problem, count.value, ctypes.byref(returned), results)
        return [self._told(r) for r in results[: returned.value]]

    def _told(self, result: Performance) -> Found:
        refused = self._gpu.api.name("cudnnConvolutionForward", result.status) if result.status else ""
        name = _NAMES.get(result.algo, f"algorithm {result.algo}")
        seconds = result.time * 1e-3 if result.time >= 0 and not result.status else None
        return Found(name, _MATH.get(result.math, str(result.math)), seconds, result.memory, refused)

    def best(self, found: Sequence[Found], x: int, w: int, y: int) -> Choice:
        """The first of ``found`` that computes as this device was told to, and can be had.

        cuDNN tries what can be on tensor cores with several math types, of which this device's is the one; what can't
        be it tries with the default one alone, and computes it as it is told.
        """
        able = [f for f in found if not f.refused and f.algorithm in ALGORITHMS]
        told = {f.algorithm for f in able if f.math == self._gpu.math}
        said = []
        for one in able:
            if one.math != (self._gpu.math if one.algorithm in told else "default"):
                continue
            try:
                return self.forced(one.algorithm, x, w, y)
            except CallFailed as e:
                if not self._gpu.survives(e):
                    raise
                said.append(f"{one.algorithm}: {e.words}")
        raise XframeError(f"cuDNN has no algorithm for this convolution ({'; '.join(said) or 'none was offered'})")
