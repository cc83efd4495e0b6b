"""What a log should not keep: records that nobody can use any more, and those that are slower than the template."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from xframe.schedules import find, software
from xframe.schedules.device import GPU, Identity
from xframe.schedules.log import Entry, Log, lock, read, remove, write
from xframe.types import Tuned


@dataclass(frozen=True)
class Dropped:
    """A record that was, or would be, dropped, and why."""

    task: str
    reason: str


def prune(
    folder: Path, device: Identity, dry_run: bool = False, on_progress: Callable[[str], None] | None = None
) -> list[Dropped]:
    """Drop what is stale or slower than its baseline from the log in ``folder``; an empty log goes as a whole.

    Stale are records of another version of TVM or another pass list, and those of ``device`` whose kernel is defined
    otherwise by now, or whose trace does not apply to it. For the second kind each kernel is defined anew, which takes
    about a second; those of GPUs wherever we are.

    Parameters
    ----------
    dry_run
        Only tell.
    on_progress
        Called with a line on the kernel that is looked at.

    Raises
    ------
    LogError
        The log is broken.
    XframeError
        It can't be written.
    """
    if dry_run:
        return _dropped(read(folder, losses=True), device, on_progress)
    with lock(folder):
        log = read(folder, losses=True)
        dropped = _dropped(log, device, on_progress)
        kept = {t: e for t, e in log.entries.items() if t not in {d.task for d in dropped}}
        if not kept:
            remove(folder)
        elif dropped:
            write(folder, replace(log, entries=kept))
    if not kept:
        with contextlib.suppress(OSError):
            folder.rmdir()  # only now that its lock is gone, too; it stays if there is anything else
    return dropped


def _dropped(log: Log, device: Identity, on_progress: Callable[[str], None] | None) -> list[Dropped]:
    if software.tvm_version() is not None and (why := find.stale(log)):
        return [Dropped(task, why) for task in log.entries]
    known = log.device.kind == GPU or find.foreign(log, device) is None
    defined_here = software.tvm_version() is not None and known
    dropped = []
    for task, entry in log.entries.items():
        if on_progress is not None:
            on_progress(task)
        slower = f"it is slower than its baseline: {entry.gain:.3f}x" if entry.gain < 1 else None
        why = slower or (_redefined(entry, log.target) if defined_here else None)
        if why:
            dropped.append(Dropped(task, why))
    return dropped


def _redefined(entry: Entry, target: str) -> str | None:
    """Why the kernel that the lowering has by this name now can't be scheduled by the record; None if it can."""
    import numpy as np

    from xframe.lowering.target import named
    from xframe.lowering.tasks import Task, define

    try:
        task = Task.named(entry.task)
    except ValueError as e:
        return str(e)
    site = entry.site
    weight = np.zeros((site.out_channels, site.in_channels // site.groups, *site.kernel), np.float32)
    bias = np.zeros(site.out_channels, np.float32)
    tuned = Tuned(entry.task, entry.tile, entry.trace, entry.workload, "this log")
    schedule = define(task, weight, bias, named(target, task.threads), tuned).schedule
    return None if schedule.startswith("tuned") else schedule.partition(" is refused: ")[2] or schedule
