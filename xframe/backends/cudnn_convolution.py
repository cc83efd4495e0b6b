"""One convolution in cuDNN: what each algorithm says of it, and the call that forces one."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from xframe.backends.cudnn_device import ONE, ZERO, Dims, Gpu
from xframe.backends.cudnn_library import ALGORITHMS, CROSS_CORRELATION, FLOAT, MATH, CallFailed, Performance
from xframe.errors import XframeError
from xframe.types import ConvSite, Rounding

_NAMES = {number: name for name, number in ALGORITHMS.items()}
_MATH = {number: name for name, number in MATH.items()}
#: Kernel width -> (outputs of a tile, growth in one dimension) that cuDNN's Winograd is taken to have at most: F(4,3),
#: and F(5,5), after the names of its kernels (``winogradForwardData9x9_5x5``).
_WINOGRAD = {3: (4, 5.7), 5: (5, 12.0)}
#: Side of a tile of FFT_TILING.
_FFT_TILE = 32


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
    """The algorithm that a convolution runs with, and the bytes of workspace that it takes."""

    algorithm: str
    workspace: int


class Convolution:
    """The descriptors of a problem. ``image``, ``filters`` and ``out`` are NCHW, OIHW with I per group, and NCHW.

    Raises XframeError where cuDNN has another size for the output than ``out``.
    """

    def __init__(self, gpu: Gpu, image: Dims, filters: Dims, out: Dims, window: tuple[Sequence[int], ...], groups: int):
        (top, left), stride, dilation = window
        self._gpu = gpu
        descriptor = gpu.described("Convolution")
        gpu.api.cudnnSetConvolution2dDescriptor(descriptor, top, left, *stride, *dilation, CROSS_CORRELATION, FLOAT)
        gpu.api.cudnnSetConvolutionGroupCount(descriptor, groups)
        gpu.api.cudnnSetConvolutionMathType(descriptor, gpu.math_type)
        self.x, self.w, self.y = gpu.tensor(image), gpu.filter(filters), gpu.tensor(out)
        self.descriptor = descriptor
        sizes = [ctypes.c_int() for _ in range(4)]
        gpu.api.cudnnGetConvolution2dForwardOutputDim(descriptor, self.x, self.w, *map(ctypes.byref, sizes))
        told = tuple(n.value for n in sizes)
        if told != out:
            raise XframeError(
                f"cuDNN computes {told} where {out} was expected: its descriptors are not what they should be"
            )
        self._problem = (self.x, self.w, descriptor, self.y)

    def workspace(self, algorithm: str) -> int:
        """Bytes that an algorithm takes. Raises CallFailed with cuDNN's words when it can't do this convolution."""
        size = ctypes.c_size_t()
        self._gpu.api.cudnnGetConvolutionForwardWorkspaceSize(
            self._gpu.cudnn, *self._problem, ALGORITHMS[algorithm], ctypes.byref(size)
        )
        return size.value

    def call(self, choice: Choice, x: int, w: int, workspace: int, y: int) -> Callable[[], None]:
        """What runs it: y = x * w, by the chosen algorithm and no other."""
        return partial(
            self._gpu.api.cudnnConvolutionForward, self._gpu.cudnn, ONE, self.x, x, self.w, w, self.descriptor,
            ALGORITHMS[choice.algorithm], workspace, choice.workspace, ZERO, self.y, y,
        )  # fmt: skip

    def forced(self, algorithm: str, x: int, w: int, y: int) -> Choice:
        """``algorithm``, run once: some refusals come only then. Raises CallFailed."""
        choice = Choice(algorithm, self.workspace(algorithm))
        with self._gpu.lent(choice.workspace) as room:
            self.call(choice, x, w, room, y)()
            self._gpu.sync()
        return choice

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
        refused = self._gpu.api.words("cudnnConvolutionForward", result.status) if result.status else ""
        name = _NAMES.get(result.algo, f"algorithm {result.algo}")
        seconds = result.time * 1e-3 if result.time >= 0 and not result.status else None
        return Found(name, _MATH.get(result.math, str(result.math)), seconds, result.memory, refused)

    def best(self, found: Sequence[Found], x: int, w: int, y: int) -> Choice:
        """The first of ``found`` that computes as this device was told to, and can be had."""
        allowed = {self._gpu.math} if self._gpu.math == "fma" else set(MATH)
        said = []
        for one in found:
            if one.refused or one.algorithm not in ALGORITHMS or one.math not in allowed:
                continue
            try:
                return self.forced(one.algorithm, x, w, y)
            except CallFailed as e:
                if not e.refusal:
                    raise
                said.append(f"{one.algorithm}: {e.words}")
        raise XframeError(f"cuDNN has no algorithm for this convolution ({'; '.join(said) or 'none was offered'})")


def rounding(algorithm: str, site: ConvSite) -> Rounding:
    """How an algorithm rounds, for the error bound: sums over all products, or over channels between transforms."""
    channels, side = site.in_channels // site.groups, max(site.kernel)
    if algorithm.startswith("winograd") and side in _WINOGRAD:
        m, growth = _WINOGRAD[side]
        return Rounding(channels + 4 * (m + side - 1), growth**2, (m - 1, m - 1))
    if algorithm.startswith("fft"):
        whole = tuple(n + k for n, k in zip(site.in_hw, site.kernel, strict=True))
        h, w = whole if algorithm == "fft" else (min(n, _FFT_TILE) for n in whole)
        return Rounding(channels + 2 * (h + w), 1.0, (h - 1, w - 1))
    return Rounding(site.reduction)
