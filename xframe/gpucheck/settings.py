"""What is checked, and how much of it: the settings of a check, its steps, and the budget of their rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from xframe import environment, nvml, zoo
from xframe.comparison import Request
from xframe.errors import Unavailable
from xframe.jobs import Budget
from xframe.prebuilt.folder import IMAGES
from xframe.results import Measurement
from xframe.types import gpu_index

Progress = Callable[[str], None]
#: Seconds that most steps have at least, and a command to a row that is open: ONNX Runtime's profile starts anew.
LEAST, COMMAND = 20.0, 40.0
#: The part of a step's seconds in which its rows must have been opened, exports and all: what is late is left out, and
#: the rest is timed.
OPENING = 0.6
#: Short, as many rows share little time.
QUICK = Budget(rounds=2, min_samples=5, min_seconds=0.1, max_seconds=0.3)
#: Rows that are open at once at most, and where nobody tells how much memory a GPU has; its bytes for each of them.
ROWS, UNKNOWN, ROW_BYTES = 24, 8, 4 << 30
#: Threads of a row, which serve the GPU: of a framework's own work on the host, and of compilers.
THREADS = 8
#: The step that tunes; where tuned kernels are kept, in the folder of the check.
TUNING, LOGS = "tuning", "schedules"


@dataclass(frozen=True)
class Settings:
    """What to check. ``prebuilt``: a folder of ``xframe build``; with it TVM compiles nothing here.

    ``batches``: in the order of their worth. ``device``: one GPU.
    """

    model: str = "alexnet"
    framework: str = "pytorch"
    device: str = "cuda"
    batches: tuple[int, ...] = (1, 128, 16)
    minutes: float = 10.0
    prebuilt: Path | None = None
    budget: Budget = field(default_factory=lambda: QUICK)


#: What a step gives: rows, and facts beside those that are known before.
Result = tuple[Sequence[Measurement], Mapping[str, Any]]


@dataclass(frozen=True)
class Step:
    """``run``, given its folder and the seconds that it should take, measures something.

    ``share``: its part of the time, of all shares of what is still to be done. ``facts``: what its rows are of, which
    is told of a step that was cut off, too. ``least``: seconds that it has at least, or it is not begun. ``after``: the
    step whose result it needs, if it needs one.
    """

    name: str
    share: float
    run: Callable[[Path, float], Result]
    facts: Mapping[str, Any] = field(default_factory=dict)
    least: float = LEAST
    after: str = ""


def convolutions(settings: Settings) -> list[str]:
    """Those of the network, in its order."""
    return [layer.name for layer in zoo.spec(settings.model).layers if layer.op == "conv"]


def site_step(name: str, batch: int) -> str:
    """The step that measures one of them."""
    return f"site {name} batch {batch}"


def threads() -> int:
    """Threads of each row: :data:`THREADS`, or as many as this process has CPUs."""
    return min(THREADS, len(environment.allowed_cpus()))


def request(settings: Settings, model: str, limit: float, **asked: Any) -> Request:
    """What is asked of ``model`` within ``limit`` seconds, beside what holds for all of a check."""
    common = {"device": settings.device, "threads": (threads(),), "images": IMAGES, "baseline": False}
    return Request(model, **{**common, "budget": limited(settings, limit), **asked})


def limited(settings: Settings, limit: float) -> Budget:
    """The budget of rows that are to be open and timed within ``limit`` seconds."""
    return replace(
        settings.budget,
        open_limit=limit,
        opening=OPENING * limit,
        run_limit=max(limit / 3, COMMAND),
        workers=_rows(settings.device),
        starts=min(ROWS, len(environment.allowed_cpus())),
    )


def _rows(device: str) -> int:
    """Rows that may be open at once: each has a context, its tensors and a library's workspace on the GPU."""
    index = gpu_index(device) if device.startswith("cuda") else 0
    try:
        memory = nvml.gpus()[index]["memory"]
    except (Unavailable, IndexError):
        memory = None
    return max(1, min(ROWS, memory // ROW_BYTES)) if memory else UNKNOWN
