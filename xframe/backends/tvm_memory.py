"""Where TVM's virtual machine runs and its tensors lie: in this machine's memory or a GPU's. Without its compiler."""

import ctypes
import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm_ffi

from xframe.errors import Unavailable, UsageError, XframeError
from xframe.lowering import tvm_runtime

CPU, CUDA = 1, 2  # DLPack's device types
POOLED = 2  # the allocator that keeps memory between runs
ALIGNMENT = 64  # bytes; compiled code loads whole vectors
#: What TVM's runtime can be asked of a device, by number.
_EXISTS, _COMPUTE_CAPABILITY, _MULTIPROCESSORS = 0, 4, 7


class Host:
    """This machine's memory."""

    def __init__(self) -> None:
        tvm_runtime.load()

    def start(self, machine: Any) -> None:
        machine["vm_initialization"](CPU, 0, POOLED)

    def put(self, x: np.ndarray) -> Any:
        """A copy of a float32 array as a tensor."""
        return tvm_ffi.from_dlpack(aligned(x))

    def put_all(self, arrays: Sequence[np.ndarray]) -> list:
        """Aligned arrays as tensors; they are not copied."""
        return [tvm_ffi.from_dlpack(x) for x in arrays]

    def get(self, tensor: Any) -> np.ndarray:
        return np.from_dlpack(tensor).copy()

    def sync(self) -> None:
        """The virtual machine returns when it is done."""


class Gpu:
    """The memory of the GPU ``index``, as CUDA counts those that this process sees; ``arch`` is ``sm_90``.

    Raises
    ------
    Unavailable
        There is none, or what TVM needs of CUDA is missing.
    """

    def __init__(self, index: int) -> None:
        tvm_runtime.load(cuda=True)
        attribute = tvm_ffi.get_global_func("runtime.GetDeviceAttr")
        if not attribute(CUDA, index, _EXISTS):
            raise Unavailable(
                f"device cuda:{index} was asked for, and TVM finds no such GPU here: choose another, or --device cpu"
            )
        self.index, self._device = index, tvm_ffi.device("cuda", index)
        self.arch = "sm_" + str(attribute(CUDA, index, _COMPUTE_CAPABILITY)).replace(".", "")
        self.multiprocessors = int(attribute(CUDA, index, _MULTIPROCESSORS))
        self._allocate = tvm_ffi.get_global_func("runtime.TVMTensorAllocWithScope")
        self._write = tvm_ffi.get_global_func("runtime.TVMTensorCopyFromBytes")
        self._read = tvm_ffi.get_global_func("runtime.TVMTensorCopyToBytes")
        self._wait = tvm_ffi.get_global_func("runtime.Device_StreamSync")

    def start(self, machine: Any) -> None:
        machine["vm_initialization"](CUDA, self.index, POOLED, CPU, 0, POOLED)

    def put(self, x: np.ndarray) -> Any:
        """A float32 array as a tensor there; returns when it is copied."""
        tensor = self._allocate(tvm_ffi.Shape(x.shape), tvm_ffi.dtype("float32"), self._device, None)
        x = np.ascontiguousarray(x, dtype=np.float32)
        self._write(tensor, x.ctypes.data_as(ctypes.c_void_p), x.nbytes)
        return tensor

    def put_all(self, arrays: Sequence[np.ndarray]) -> list:
        return [self.put(x) for x in arrays]

    def get(self, tensor: Any) -> np.ndarray:
        """Waits until it is computed."""
        out = np.empty(tuple(tensor.shape), np.float32)
        self._read(tensor, out.ctypes.data_as(ctypes.c_void_p), out.nbytes)
        return out

    def sync(self) -> None:
        """Wait for what was launched. Raises XframeError where a kernel failed, which ends all use of the GPU here."""
        try:
            self._wait(self._device, 0)
        except Exception as e:
            raise XframeError(
                f"a kernel failed on the GPU, and who waits is not told which ({' '.join(str(e).split())[-300:]}):"
                " run again with CUDA_LAUNCH_BLOCKING=1 in the environment, and the launch that fails has its name"
            ) from e


def of(device: str) -> Host | Gpu:
    """Of ``cpu``, ``cuda`` or ``cuda:1``. Raises UsageError on anything else, Unavailable where it is not here."""
    if device == "cpu":
        return Host()
    found = re.fullmatch(r"cuda(?::(\d+))?", device)
    if found is None:
        raise UsageError(f"the TVM backend runs on cpu, cuda or cuda:<index>, not on {device!r}")
    return Gpu(int(found[1] or 0))


def aligned(x: np.ndarray) -> np.ndarray:
    """A copy of ``x`` that starts at a multiple of :data:`ALIGNMENT`."""
    block = aligned_bytes(x.nbytes)
    out = block[: x.nbytes].view(x.dtype).reshape(x.shape)
    out[...] = x
    return out


def aligned_bytes(size: int) -> np.ndarray:
    block = np.empty(size + ALIGNMENT, dtype=np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    return block[start : start + size]


def one_block(shapes: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """Uninitialised float32 arrays, aligned, side by side: large pages make streaming weights faster."""
    sizes = [4 * int(np.prod(shape)) for shape in shapes]
    starts = [0, *itertools.accumulate(n + -n % ALIGNMENT for n in sizes)]
    block = aligned_bytes(starts[-1])
    parts = (block[start : start + size] for start, size in zip(starts, sizes, strict=False))
    return [part.view(np.float32).reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
