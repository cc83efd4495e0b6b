"""NVIDIA's management library: which GPUs there are, and what state they are in while something is measured.

By ``ctypes`` on the driver's own library, so that nothing needs to be installed. Names and values are those of
``nvml.h``.
"""

import contextlib
import ctypes
import os
import re
from collections.abc import Iterator
from typing import Any

from xframe.errors import Unavailable

LIBRARY = "libnvidia-ml.so.1"
#: ``nvmlClockType_t``: of the multiprocessors, of the memory.
CLOCKS = {"sm": 1, "memory": 2}
#: Why the clocks are what they are (``nvmlClocksEventReasons``). The first is no throttling: there is nothing to do.
REASONS = {
    0x001: "idle",
    0x002: "application clocks",
    0x004: "software power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "hardware power brake",
    0x100: "display clocks",
}
#: Those that make a measurement slower than the GPU is.
THROTTLING = frozenset(REASONS[bit] for bit in (0x004, 0x008, 0x020, 0x040, 0x080))
_TEMPERATURE_GPU = 0


class Nvml:
    """The library, opened; a context manager.

    Raises
    ------
    Unavailable
        There is no driver, or it does not answer.
    """

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as e:
            raise Unavailable(f"no NVIDIA driver can be asked about GPUs here ({e})") from e
        status = self._library.nvmlInit_v2()
        if status:
            raise Unavailable(f"the NVIDIA driver does not answer: {self._words(status)}")

    def __enter__(self) -> "Nvml":
        return self

    def __exit__(self, *_: Any) -> None:
        self._library.nvmlShutdown()

    def _words(self, status: int) -> str:
        tell = self._library.nvmlErrorString
        tell.restype, tell.argtypes = ctypes.c_char_p, [ctypes.c_int]
        return f"{(tell(status) or b'').decode(errors='replace')} ({status})"

    def _asked(self, function: str, kind: Any, *args: Any) -> Any:
        """The value that a function writes behind its last argument; None where this driver or GPU can't tell."""
        value = kind()
        try:
            status = getattr(self._library, function)(*args, ctypes.byref(value))
        except AttributeError:  # an old driver
            return None
        return None if status else value.value

    def _text(self, function: str, *args: Any) -> str | None:
        buffer = ctypes.create_string_buffer(96)
        status = getattr(self._library, function)(*args, buffer, ctypes.c_uint(len(buffer)))
        return None if status else buffer.value.decode(errors="replace")

    def driver(self) -> str | None:
        """The version of the driver."""
        return self._text("nvmlSystemGetDriverVersion")

    def visible(self) -> list[ctypes.c_void_p]:
        """The GPUs that CUDA shows to this process, in its order, as far as ``CUDA_VISIBLE_DEVICES`` tells.

        NVML knows all of the machine in the order of the bus: what is CUDA's, too, where they are of one kind, or
        ``CUDA_DEVICE_ORDER`` is ``PCI_BUS_ID``.
        """
        count = self._asked("nvmlDeviceGetCount_v2", ctypes.c_uint) or 0
        named = os.environ.get("CUDA_VISIBLE_DEVICES")
        found: list[ctypes.c_void_p] = []
        for name in range(count) if named is None else named.split(","):
            handle = self._handle(str(name).strip())
            if handle is None:
                break  # CUDA ignores what comes after one that is not there, too
            found.append(handle)
        return found

    def _handle(self, name: str) -> ctypes.c_void_p | None:
        handle = ctypes.c_void_p()
        if re.fullmatch(r"\d+", name):
            status = self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(name)), ctypes.byref(handle))
        elif name.startswith(("GPU-", "MIG-")):
            status = self._library.nvmlDeviceGetHandleByUUID(ctypes.c_char_p(name.encode()), ctypes.byref(handle))
        else:
            return None
        return None if status else handle

    def facts(self, gpu: ctypes.c_void_p) -> dict[str, Any]:
        """What a GPU is; None for what is not told.

        ``arch``: ``sm_90``; ``cores``: CUDA's; memory in bytes, power in W, clocks in MHz.
        """
        major, minor = ctypes.c_int(), ctypes.c_int()
        told = not self._library.nvmlDeviceGetCudaComputeCapability(gpu, ctypes.byref(major), ctypes.byref(minor))
        return {
            "name": self._text("nvmlDeviceGetName", gpu),
            "uuid": self._text("nvmlDeviceGetUUID", gpu),
            "arch": f"sm_{major.value}{minor.value}" if told else None,
            "cores": self._asked("nvmlDeviceGetNumGpuCores", ctypes.c_uint, gpu),
            "memory": self._asked("nvmlDeviceGetMemoryInfo", _Memory, gpu),
            "power_limit_w": _thousandths(self._asked("nvmlDeviceGetEnforcedPowerLimit", ctypes.c_uint, gpu)),
            **{
                f"max_{name}_clock_mhz": self._asked("nvmlDeviceGetMaxClockInfo", ctypes.c_uint, gpu, number)
                for name, number in CLOCKS.items()
            },
        }

    def state(self, gpu: ctypes.c_void_p) -> dict[str, Any]:
        """How a GPU is now. Power in W, clocks in MHz, temperature in degrees Celsius; ``reasons`` for the clocks."""
        bits = self._asked("nvmlDeviceGetCurrentClocksEventReasons", ctypes.c_ulonglong, gpu)
        if bits is None:  # what it was called before
            bits = self._asked("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong, gpu)
        return {
            "power_w": _thousandths(self._asked("nvmlDeviceGetPowerUsage", ctypes.c_uint, gpu)),
            "temperature_c": self._asked("nvmlDeviceGetTemperature", ctypes.c_uint, gpu, _TEMPERATURE_GPU),
            **{
                f"{name}_clock_mhz": self._asked("nvmlDeviceGetClockInfo", ctypes.c_uint, gpu, number)
                for name, number in CLOCKS.items()
            },
            "reasons": None if bits is None else [words for bit, words in REASONS.items() if bits & bit],
        }


class _Memory(ctypes.Structure):
    """``nvmlMemory_t``, bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))

    @property
    def value(self) -> int:
        return self.total


def _thousandths(value: int | None) -> float | None:
    return None if value is None else value / 1000


def gpus() -> list[dict[str, Any]]:
    """The GPUs that CUDA shows to this process: :meth:`Nvml.facts` and the driver's version. Raises Unavailable."""
    with Nvml() as nvml:
        driver = nvml.driver()
        return [{**nvml.facts(gpu), "driver": driver} for gpu in nvml.visible()]


def states() -> list[dict[str, Any]]:
    """How each of them is now: :meth:`Nvml.state`. Raises Unavailable."""
    with Nvml() as nvml:
        return [nvml.state(gpu) for gpu in nvml.visible()]


def watch(index: int) -> Iterator[dict[str, Any]]:
    """The state of one GPU each time it is asked for; ends at once where there is none."""
    with contextlib.suppress(Unavailable), Nvml() as nvml:
        visible = nvml.visible()
        while index < len(visible):
            yield nvml.state(visible[index])
