"""The records for a plan: out of all logs that there are, the best of each of its kernels."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import xframe
from xframe.schedules import software
from xframe.schedules.device import GPU, Identity
from xframe.schedules.log import Entry, Log, LogError, is_log, read
from xframe.types import Plan, Tuned

#: Folders between a root and a log: device, network and batch, lowering.
DEPTH = 3


def roots() -> list[Path]:
    """Where logs are looked for: ``$XFRAME_SCHEDULES`` (``os.pathsep``-separated), or else our own ``schedules/``."""
    given = [Path(p) for p in os.environ.get("XFRAME_SCHEDULES", "").split(os.pathsep) if p]
    package = Path(xframe.__file__).parent
    own = [package / "data" / "schedules", package.parent / "schedules"]  # as installed; in a checkout
    return given or [p for p in own if p.is_dir()][:1]


def folders(root: Path) -> list[Path]:
    """The logs at or below ``root``, sorted, broken ones included. A link is not entered: reading it tells that.

    Raises
    ------
    LogError
        There is no such folder, or it can't be listed.
    """
    if not os.path.isdir(root):
        raise LogError(f"there is no folder {root} of schedule logs")
    return list(_folders(root, DEPTH))


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    try:
        if is_log(folder):
            yield folder
        elif depth:
            for path in sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")):
                if path.is_symlink():
                    yield path
                else:
                    yield from _folders(path, depth - 1)
    except OSError as e:
        raise LogError(f"the folder of schedule logs {folder} can't be read: {e.strerror or e}") from e


def title(folder: Path) -> str:
    """A log in words: ``schedules/amd-epyc-avx512-f26m2/alexnet-b1/winograd``."""
    return "/".join(Path(os.path.abspath(folder)).parts[-DEPTH - 1 :])


def stale(log: Log) -> str | None:
    """Why no machine can use ``log`` with the software that is installed here, in words; None if it can."""
    version = software.tvm_version()
    if version is None:
        return f"it is for TVM {log.tvm}, and TVM is not installed here"
    if log.tvm != version:
        return f"it was tuned with TVM {log.tvm}, and {version} is installed: tune anew"
    if log.passes != software.passes():
        return f"it was tuned with another pass list ({log.passes}; ours is {software.passes()}): tune anew"
    return None


def foreign(log: Log, *devices: Identity) -> str | None:
    """Why ``log`` is for none of ``devices``, in words; None if it is for one."""
    alike = [d for d in devices if d.kind == log.device.kind]
    if not alike:
        return f"it was tuned on another kind of device ({log.device.words}), and there is none of that kind here"
    how = [d.differs(log.device) for d in alike]
    if not all(how):
        return None
    return f"it was tuned on another kind of device ({how[0]}): tune here{'' if _never(log, alike) else _ALLOW}"


#: What else can be done about a foreign log.
_ALLOW = ", or pass --allow-foreign-log"


def _never(log: Log, devices: Iterable[Identity]) -> bool:
    """Whether no kernel of ``log`` can be one of these devices': a GPU's are defined for its multiprocessors."""
    return log.device.kind == GPU and (log.device.family, log.device.cores) not in {
        (d.family, d.cores) for d in devices
    }


@dataclass(frozen=True)
class _Candidate:
    """An entry that may be used, and whether its log is foreign."""

    entry: Entry
    target: str
    folder: Path
    foreign: str | None

    @property
    def rank(self) -> tuple[bool, float]:
        """This device's own records first, then by gain."""
        return self.foreign is None, self.entry.gain

    @property
    def tuned(self) -> Tuned:
        origin = title(self.folder) + (" (a foreign log)" if self.foreign else "")
        entry = self.entry
        return Tuned(entry.task, entry.tile, entry.trace, entry.workload, origin)


def tuned(
    plan: Plan,
    device: Identity | str,
    threads: int | None,
    where: Sequence[Path] | None = None,
    allow_foreign: bool = False,
) -> tuple[tuple[Tuned, ...], list[str]]:
    """The best record of each kernel of ``plan`` that has one, and in words what was refused and what is foreign.

    The logs of all networks are looked at: a kernel is a kernel. A log that can't be read is told of if it is of a
    lowering of the plan; one that is stale or of another device, if a kernel of the plan has no record elsewhere. Logs
    of GPUs are nothing to a CPU, nor the other way round.

    Parameters
    ----------
    device
        What the plan runs on; or the architecture of a GPU that is not here, such as ``sm_90``: logs of any GPU of it.
    threads
        That kernels are for; of a GPU, its multiprocessors. None: those of the device.
    where
        Folders of logs instead of :func:`roots`.
    allow_foreign
        Take records of other devices where this one has none.
    """
    wanted = {f"{site.key} {lowering}" for site, lowering in plan.lowerings}
    best: dict[str, _Candidate] = {}
    refused: list[tuple[Path, str, set[str]]] = []
    notes: list[str] = []
    candidates: list[_Candidate] = []
    for folder in _all(where, notes):
        try:
            log = read(folder)
        except LogError as e:
            if folder.name in {lowering for _, lowering in plan.lowerings}:
                notes.append(str(e))
            continue
        entries = [e for e in log.entries.values() if _key(e) in wanted and threads in (None, e.threads)]
        if not entries or not _of_kind(log, device):
            continue
        strange = None if isinstance(device, str) else foreign(log, device)
        allowed = allow_foreign and not (isinstance(device, Identity) and _never(log, [device]))
        why = stale(log) or (None if allowed else strange) or _other_target(plan, log)
        if why:
            refused.append((folder, why, {e.task for e in entries}))
        else:
            candidates += [_Candidate(e, log.target, folder, strange) for e in entries]
    for candidate in candidates if threads is None else _of_our_target(plan, threads, candidates):
        known = best.get(candidate.entry.task)
        if known is None or candidate.rank > known.rank:
            best[candidate.entry.task] = candidate
    missed = [(folder, why) for folder, why, tasks in refused if tasks - set(best)]
    notes += _told("is not used", missed)
    notes += _told("is used although", [(c.folder, c.foreign) for c in best.values() if c.foreign])
    return tuple(best[task].tuned for task in sorted(best)), notes


def _of_kind(log: Log, device: Identity | str) -> bool:
    if isinstance(device, str):
        return (log.device.kind, log.device.family) == (GPU, device)
    return log.device.kind == device.kind


def _key(entry: Entry) -> str:
    return " ".join(entry.task.split()[:2])


def _all(where: Sequence[Path] | None, notes: list[str]) -> Iterator[Path]:
    for root in roots() if where is None else where:
        try:
            yield from folders(root)
        except LogError as e:
            notes.append(str(e))


def _other_target(plan: Plan, log: Log) -> str | None:
    if plan.target is None or plan.target == log.target:
        return None
    return f"it is for the target {log.target!r}, and the plan for {plan.target!r}"


def _of_our_target(plan: Plan, threads: int, candidates: list[_Candidate]) -> list[_Candidate]:
    """Those for the target that the plan is compiled for. TVM is asked for this machine's only if they differ: on a GPU
    they can't, as the architecture is all of it."""
    if plan.target is not None or len({c.target for c in candidates}) < 2:
        return candidates
    from xframe.lowering.target import Cpu

    return [c for c in candidates if c.target == Cpu.host(threads).text]


def _told(what: str, logs: Iterable[tuple[Path, str | None]]) -> list[str]:
    """A sentence for each reason, with the logs that it holds for."""
    by_reason: dict[str, dict[str, None]] = {}
    for folder, why in logs:
        by_reason.setdefault(str(why), {})[title(folder)] = None
    lines = []
    for why, titles in by_reason.items():
        first, *others = titles
        also = f" (and {len(others)} more)" if others else ""
        lines.append(f"the schedule log {first}{also} {what}: {why}")
    return lines
