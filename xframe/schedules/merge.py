"""Logs of several runs and machines put together: of each kernel the best record, with its provenance."""

from dataclasses import replace
from pathlib import Path

from xframe.schedules.log import Log, LogError, is_log, lock, read, write


def merge(into: Log, other: Log) -> Log:
    """Both logs as one. Of two records of a kernel the one that gained more over its own baseline wins.

    Raises
    ------
    LogError
        They are of different devices, targets, versions of TVM or pass lists, so that one can't stand beside the other.
    """
    how = into.device.differs(other.device)
    if how:
        raise LogError(f"the logs are of different devices ({how}): keep them in folders of their own")
    for what, mine, theirs in (
        ("versions of TVM", into.tvm, other.tvm),
        ("targets", into.target, other.target),
        ("pass lists", into.passes, other.passes),
    ):
        if mine != theirs:
            raise LogError(
                f"the logs are of different {what} ({mine} and {theirs}): remove the older one, or have"
                " `xframe schedules prune` do it"
            )
    entries = dict(into.entries)
    for task, entry in other.entries.items():
        if task not in entries or entry.gain > entries[task].gain:
            entries[task] = entry
    return replace(into, entries=entries, software=other.software or into.software)


def update(folder: Path, log: Log) -> Log:
    """Merge ``log`` into the log in ``folder``, if there is one; also with several writers at once nothing is lost.

    Returns what is in the folder now.

    Raises
    ------
    LogError
        The log that is there is broken, or can't be merged with this one.
    XframeError
        The folder can't be written, or the disk is full.
    """
    with lock(folder):
        try:
            merged = merge(read(folder), log) if is_log(folder) else log
        except LogError as e:
            raise LogError(f"nothing is merged into {folder}: {e}") from e
        write(folder, merged)
        return merged


def place(root: Path, folder: Path, log: Log) -> Path:
    """Where under ``root`` the log that is now in ``folder`` belongs: by its device, and its network and lowering.

    Raises LogError where ``folder`` is not named after a network and a lowering.
    """
    network, lowering = Path(folder).absolute().parts[-2:]
    if lowering not in {e.lowering for e in log.entries.values()} or "-b" not in network:
        raise LogError(
            f"{folder} is not named as the folder of a log is, NETWORK-bBATCH/LOWERING, or is of another lowering:"
            " rename it"
        )
    return root / log.device.slug / network / lowering
