"""What CUPTI records on a GPU: which events of a trace are kernels and copies, and what their names tell.

XLA's profiler, which is TensorFlow's and JAX's, has a plane for each GPU and in it a line for each stream. There are
other lines, too: CUPTI's own overhead, counters, and what tools derive from the streams (steps, modules, operators,
name scopes), whose events repeat the kernels. What ran is told by the details that records of activities alone have.
The profiler puts these times on the clock of the host's events, by one offset that it reads when it starts.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from xframe.errors import XframeError
from xframe.frameworks.traces import Event
from xframe.types import Kernel

#: How the names of the planes of GPUs begin.
PLANES = "/device:GPU:"
#: Calls of the driver in which the host waits for a GPU: what else runs meanwhile tells more.
WAITING = ("cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize")
#: Of kernels that no instruction of the trace launched, where they are more than this share of the time of all.
_NOBODYS = 0.05
NOBODYS = (
    "kernels of no layer take over 5 % of the kernels' time: XLA's trace has no instruction for what runs in a CUDA"
    " graph; with XLA_FLAGS=--xla_gpu_enable_command_buffer= it makes none, and kernels are launched one by one"
)
_DETAILS = frozenset(("kernel_details", "memcpy_details", "Memset_details"))
#: Kernels that put values into another order; the last two are TensorFlow's, inside of its operators.
_RELAYOUT = re.compile(r"nchwto|nhwcto|transpose|SwapDimension1And2|ShuffleInTensor3", re.IGNORECASE)


def ran(stats: Mapping[str, Any]) -> bool:
    """Whether an event in a GPU's plane is a kernel, a copy or a setting of memory."""
    return not _DETAILS.isdisjoint(stats)


def split(events: Iterable[Event], runner: str) -> tuple[list[Event], list[Event]]:
    """What ran on the GPU, in order, and the host's events.

    Raises
    ------
    XframeError
        Nothing ran there, by this trace.
    """
    device: list[Event] = []
    host: list[Event] = []
    for event in events:
        (device if event.device else host).append(event)
    if not device:
        raise XframeError(
            f"the trace of {runner} has no kernel of a GPU, as CUPTI is missing or not for this user: install CUPTI of"
            " this CUDA, and have the driver loaded with NVreg_RestrictProfilingToAdminUsers=0"
        )
    return sorted(device, key=lambda e: (e.start, e.end)), host


def note(kernels: Sequence[Kernel]) -> str:
    """What is to be known of a step of XLA's whose kernels have no instruction; empty where they have."""
    nobodys = sum(k.end - k.start for k in kernels if not k.layer and not k.kind)
    return NOBODYS if nobodys > _NOBODYS * sum(k.end - k.start for k in kernels) else ""


def kind(name: str, known: str) -> str:
    """The kind of a kernel of that name; ``known``: that of the operator it is from. Libraries add changes of layout to
    operators, and copies."""
    if _RELAYOUT.search(name):
        return "layout"
    return "copy" if name.startswith(("Memcpy", "Memset")) else known
