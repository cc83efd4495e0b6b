"""What is searched, and what became of it: a candidate of a task, a trial of a candidate, who runs trials."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from xframe.lowering.tasks import Task

#: What may become of a trial. All but OK cost that candidate alone.
OK, FAILED, TIMEOUT, CRASHED, WRONG = "OK", "FAILED", "TIMEOUT", "CRASHED", "WRONG"


@dataclass(frozen=True)
class Point:
    """One way to schedule a task's product: its register tile (rows, vectors) and the template's knobs by name, sorted.

    ``trace``: instructions of MetaSchedule's own space in the place of the template, as JSON; then there are no knobs.
    """

    tile: tuple[int, int]
    knobs: tuple[tuple[str, int], ...] = ()
    trace: str | None = None


@dataclass(frozen=True)
class Trial:
    """One measured point.

    ``seconds``: raw samples of the product kernel; ``baseline``: those of the hand-written one, taken in turn with
    them in the same process. ``share``: the largest part of the float32 error bound that an output of the site took
    against float64. ``workload``: the function's structural hash (``lowering.tasks.workload_of``);
    ``workload_line`` and ``record``: what MetaSchedule's database keeps of it, as JSON. ``cpu_s``: CPU seconds that
    building and measuring took, by process accounting. ``where``: the machine or server. All but OK have a
    ``reason``; ``note``: what was not as it should be of one that is OK, in words.
    """

    point: Point
    outcome: str
    reason: str = ""
    seconds: tuple[float, ...] = ()
    baseline: tuple[float, ...] = ()
    share: float | None = None
    workload: str = ""
    workload_line: str = ""
    record: str = ""
    cpu_s: float = 0.0
    where: str = ""
    note: str = ""


class Runner(Protocol):
    """Who builds and measures points, each in processes of its own: a candidate that crashes or hangs is a trial."""

    #: How many points it likes to have under way.
    width: int

    def submit(self, task: Task, point: Point) -> Future[Trial]:
        """Measure ``point``; the future ends in its one Trial.

        Raises XframeError when nobody can measure any more; the futures of points under way then may, too.
        """

    def close(self) -> None:
        """End all processes."""
