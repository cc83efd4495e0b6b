"""A schedule log: the tuned kernels of a device, as three files in a folder. docs/schedules.md has an example.

``database_workload.json`` and ``database_tuning_record.json`` are a database of MetaSchedule's; line i of the latter is
entry i of ``meta.json``, which says where the records are from and what was measured.
"""

import contextlib
import hashlib
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from xframe.errors import XframeError
from xframe.files import atomic
from xframe.schedules import record as records
from xframe.schedules import software
from xframe.schedules.device import GPU, Identity, identity
from xframe.schedules.lock import lock
from xframe.schedules.untrusted import Fields, LogError, parsed, text_of
from xframe.types import ConvSite

__all__ = ["Entry", "Log", "LogError", "is_log", "lock", "read", "remove", "write"]

#: Grows with every change that an older reader would misread.
SCHEMA = 1
META, WORKLOADS, RECORDS = "meta.json", "database_workload.json", "database_tuning_record.json"
FILES = (WORKLOADS, RECORDS, META)
#: A complete log that is about to replace the one in its parent folder.
NEXT = ".next"
TEMPLATE, AUTO = "template", "auto"
#: Of one log: entries; samples of one of them; seconds of one sample; terms of one loop.
MOST_ENTRIES, MOST_SAMPLES, MOST_SECONDS, MOST_EXTENT = 10_000, 10_000, 3600.0, 1 << 31
#: Rows, and vectors, of a tile: a GPU's block of threads has one of values.
MOST_TILE = 1024
_TASK = r"\S+ [a-z0-9_]+ \S+ [A-Z]\w* bias\S* t\d{1,4}"


@dataclass(frozen=True)
class Entry:
    """A tuned kernel: the best record of one task, how it was measured, and who did it.

    ``task``: name of an ``xframe.lowering.tasks.Task``. ``tile``: register tile (rows, vectors). ``workload``:
    structural hash of the function (``tasks.workload_of``). ``knobs``: those of the template by name, None where
    ``space`` is ``auto`` (MetaSchedule's own) and not ``template``. ``seconds``: raw samples of the kernel;
    ``baseline``: of the hand-written one, taken in turn with them. ``share``: the largest part of the float32 error
    bound that an output took against float64, at most 1. ``flop``: of the site. ``workload_line``, ``record``: what
    MetaSchedule's database has of it, as JSON. ``created``: ISO 8601. ``trials``: how many its search had made.
    ``session``: names the run that measured it. ``transferred``: from where its starting point was taken, in words.
    ``xframe``: the version that tuned it.
    """

    task: str
    tile: tuple[int, int]
    workload: str
    knobs: Mapping[str, int] | None
    space: str
    seconds: tuple[float, ...]
    baseline: tuple[float, ...]
    share: float
    flop: float
    workload_line: str
    record: str
    created: str
    seed: int
    trials: int
    session: str
    transferred: str | None
    xframe: str

    @property
    def trace(self) -> str:
        """The instructions and decisions of the record, as JSON."""
        return records.trace(self.record)

    @property
    def gain(self) -> float:
        """How many times faster than the hand-written schedule, medians of one measurement."""
        return statistics.median(self.baseline) / statistics.median(self.seconds)

    @property
    def site(self) -> ConvSite:
        return ConvSite.parse(self.task.split()[0])

    @property
    def lowering(self) -> str:
        return self.task.split()[1]

    @property
    def threads(self) -> int:
        return int(self.task.split()[-1][1:])


#: What ``meta.json`` has of an entry; the rest is in the database.
_IN_DATABASE = ("workload_line", "record")
_IN_META = tuple(f.name for f in fields(Entry) if f.name not in _IN_DATABASE)


@dataclass(frozen=True)
class Log:
    """The entries of one device, by task, and what they depend on.

    ``tvm``: its version. ``target``: the compiler's, as ``text`` of a ``xframe.lowering.target.Target`` has it.
    ``passes``: hash of the pass list (:func:`xframe.schedules.software.passes`). ``software``: what else code for a GPU
    was made and run with (:func:`xframe.schedules.software.cuda`), which is told, not compared; empty for a CPU.
    """

    device: Identity
    tvm: str
    target: str
    passes: str
    entries: Mapping[str, Entry] = field(default_factory=dict)
    software: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def here(target: str, entries: Iterable[Entry] = (), device: Identity | None = None) -> "Log":
        """A log of ``device``, by default this machine's CPU, with the software that is installed."""
        of = device or identity()
        more = software.cuda() if of.kind == GPU else {}
        version, passes = software.tvm_version() or "", software.passes()
        return Log(of, version, target, passes, {e.task: e for e in entries}, more)


def is_log(folder: Path) -> bool:
    """Whether there is a log in ``folder``, be it a broken one."""
    return any(os.path.lexists(folder / name) for name in (*FILES, NEXT))


def read(folder: Path, losses: bool = False) -> Log:
    """The log in ``folder``, complete and of one moment, also while somebody writes it.

    Nothing in it is executed, and no path in it is opened. ``losses``: take entries that are slower than their
    baseline, too.

    Raises
    ------
    LogError
        It is missing, broken, edited, or not what a log may have; one sentence that says what.
    """
    folder = Path(folder)
    try:
        return _parsed(_texts(folder), losses)
    except (LogError, RecursionError) as e:
        why = "it is nested too deeply" if isinstance(e, RecursionError) else e
        raise LogError(f"the schedule log {folder} is refused: {why}; remove it, or tune anew") from e


def _texts(folder: Path) -> dict[str, str]:
    """The three files, as they stood at one moment."""
    if os.path.islink(folder):
        raise LogError("its folder is a symbolic link, which is not followed")
    for _ in range(200):
        before = _stamp(folder)
        source = folder / NEXT if _is_waiting(folder) else folder
        try:
            texts = {name: text_of(source / name) for name in FILES}
        except LogError:
            if _stamp(folder) == before:
                raise
        else:
            if _stamp(folder) == before:
                return texts
        time.sleep(0.01)
    raise LogError("somebody rewrites it all the time")


def _stamp(folder: Path) -> list[tuple[int, ...] | None]:
    """Which files there are, and their state: it differs after every change."""

    def state(path: Path) -> tuple[int, ...] | None:
        try:
            s = os.lstat(path)
        except OSError:
            return None
        return s.st_ino, s.st_mtime_ns, s.st_size

    return [state(folder / name) for name in (NEXT, *FILES)]


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _parsed(texts: Mapping[str, str], losses: bool) -> Log:
    meta = parsed(texts[META], META)
    if not isinstance(meta, dict) or "schema" not in meta:
        raise LogError(f"{META} has no schema number")
    if meta["schema"] != SCHEMA or type(meta["schema"]) is not int:
        raise LogError(f"it has schema {ascii(meta['schema'])[:40]}, and this xframe reads {SCHEMA}")
    more = ("software",) if "software" in meta else ()
    head = Fields(meta, META, ("schema", "device", "tvm", "target", "passes", "files", "entries", "digest", *more))
    if head["digest"] != _digest({k: v for k, v in meta.items() if k != "digest"}):
        raise LogError(f"{META} was edited since it was written: its digest is of something else")
    files = Fields(head["files"], "the files", (WORKLOADS, RECORDS))
    for name in (WORKLOADS, RECORDS):
        if files[name] != _sha256(texts[name]):
            raise LogError(f"{name} was edited or cut short since it was written: its digest is another one")
    rows, workloads, lines = head["entries"], _split(texts[WORKLOADS]), _split(texts[RECORDS])
    if not isinstance(rows, list) or len(rows) > MOST_ENTRIES or len(rows) != len(lines):
        raise LogError(f"{META} must have an entry for each line of {RECORDS}, at most {MOST_ENTRIES}")
    for number, line in enumerate(workloads):
        records.workload(line, f"line {number + 1} of {WORKLOADS}")
    entries = [
        _entry(row, number, line, workloads, losses) for number, (row, line) in enumerate(zip(rows, lines, strict=True))
    ]
    by_task = {e.task: e for e in entries}
    if len(by_task) < len(entries):
        raise LogError("it has a kernel twice")
    return Log(
        Identity.from_json(head["device"]),
        head.text("tvm", r"[\w.+-]+"),
        head.text("target", r"[\w ,.=+-]+"),
        head.text("passes", r"[0-9a-f]+"),
        by_task,
        _software(head["software"]) if more else {},
    )


def _software(data: Any) -> dict[str, str]:
    """The names and versions of a log's ``software``."""
    names = data if isinstance(data, dict) else ()
    given = Fields(data, "'software'", [n for n in names if n in ("driver", "compiler")])
    return {name: given.text(name, r"[\w .+-]+") for name in names}


def _entry(row: Any, number: int, line: str, workloads: list[str], losses: bool) -> Entry:
    where = f"entry {number + 1}"
    given = Fields(row, where, _IN_META)
    task = given.text("task", _TASK)
    try:
        ConvSite.parse(task.split()[0])
    except ValueError as e:
        raise LogError(f"{where} is for no convolution: {ascii(task)[:80]}") from e
    tile = given["tile"]
    if not (isinstance(tile, list) and len(tile) == 2 and all(type(n) is int and 1 <= n <= MOST_TILE for n in tile)):
        raise LogError(f"'tile' in {where} must be two whole numbers from 1 to {MOST_TILE}")
    space = given.text("space", f"{TEMPLATE}|{AUTO}")
    if (given["knobs"] is None) != (space == AUTO):
        raise LogError(f"{where} must have knobs if it is of the template, and only then")
    created = given.text("created")
    try:
        datetime.fromisoformat(created)
    except ValueError as e:
        raise LogError(f"'created' in {where} is no date") from e
    record = records.checked(line, f"line {number + 1} of {RECORDS}")
    index = parsed(line, where)[0]
    if type(index) is not int or not 0 <= index < len(workloads):
        raise LogError(f"line {number + 1} of {RECORDS} is of a workload that is not there")
    entry = Entry(
        task=task,
        tile=(tile[0], tile[1]),
        workload=given.text("workload", r"[0-9a-f]{16}"),
        knobs=None if given["knobs"] is None else given.integers("knobs", r"\w{1,40}", -MOST_EXTENT, MOST_EXTENT, 100),
        space=space,
        seconds=given.numbers("seconds", 1e-9, MOST_SECONDS, MOST_SAMPLES),
        baseline=given.numbers("baseline", 1e-9, MOST_SECONDS, MOST_SAMPLES),
        share=given.number("share", 0.0, 1.0),
        flop=given.number("flop", 1.0, 1e18),
        workload_line=workloads[index],
        record=json.dumps(record),
        created=created,
        seed=given.whole("seed", 0, 1 << 64),
        trials=given.whole("trials", 1, 1 << 40),
        session=given.text("session"),
        transferred=given.optional_text("transferred"),
        xframe=given.text("xframe"),
    )
    if entry.gain < 1 and not losses:
        raise LogError(f"{where} is slower than its baseline ({entry.gain:.3f} times as fast), and is not to be used")
    return entry


def write(folder: Path, log: Log) -> None:
    """Make ``log`` the log in ``folder``, whole or not at all: whoever reads meanwhile sees the old one or the new one.

    Raises
    ------
    LogError
        It has what :func:`read` would refuse.
    XframeError
        The folder can't be written, or the disk is full: then the old log stays.
    """
    folder = Path(folder)
    try:
        texts = _files(log)
        _parsed(texts, losses=False)
    except LogError as e:
        raise LogError(f"the schedule log {folder} is not written: {e}") from e
    if os.path.islink(folder):
        raise LogError(f"the schedule log {folder} is not written: its folder is a symbolic link")
    with lock(folder), _as_error(folder):
        _settle(folder)
        for left in folder.glob(".*.part"):  # of writers that were killed
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        part = Path(tempfile.mkdtemp(prefix=f"{NEXT}.", suffix=".part", dir=folder))
        try:
            for name, text in texts.items():
                with open(part / name, "w", encoding="utf-8") as f:
                    f.write(text)
                    f.flush()
                    os.fsync(f.fileno())
            part.chmod(0o755)
            part.rename(folder / NEXT)  # from now on this is the log
        finally:
            shutil.rmtree(part, ignore_errors=True)
        _settle(folder)


def _is_waiting(folder: Path) -> bool:
    return os.path.isdir(folder / NEXT) and not os.path.islink(folder / NEXT)


def _settle(folder: Path) -> None:
    """Bring the files of a complete log that waits in :data:`NEXT` to their places."""
    waiting = folder / NEXT
    if not _is_waiting(folder):
        return
    for name in FILES:
        with atomic(folder / name) as part:
            shutil.copyfile(waiting / name, part)
    gone = Path(tempfile.mkdtemp(prefix=f"{NEXT}.", suffix=".part", dir=folder))
    waiting.rename(gone)  # at once, as half of it would be a broken log
    shutil.rmtree(gone)


def remove(folder: Path) -> None:
    """Take the log in ``folder`` away, and the folder if nothing else is in it. Raises XframeError if it can't."""
    folder = Path(folder)
    with lock(folder), _as_error(folder):
        _settle(folder)
        for name in reversed(FILES):
            (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


@contextlib.contextmanager
def _as_error(folder: Path):
    try:
        yield
    except OSError as e:
        raise XframeError(
            f"can't write the schedule log {folder}: {e.strerror or e}; choose another folder or free some space"
        ) from e


def _files(log: Log) -> dict[str, str]:
    """The content of the three files: an entry, a record or a workload a line."""
    entries = [log.entries[task] for task in sorted(log.entries)]
    workloads = {line: number for number, line in enumerate(dict.fromkeys(e.workload_line.strip() for e in entries))}
    lines = [
        json.dumps([workloads[e.workload_line.strip()], records.checked(e.record, f"the record of {e.task}")])
        for e in entries
    ]
    texts = {WORKLOADS: _lines(workloads), RECORDS: _lines(lines)}
    head: dict[str, Any] = {
        "schema": SCHEMA,
        "device": log.device.to_json(),
        "tvm": log.tvm,
        "target": log.target,
        "passes": log.passes,
        **({"software": dict(log.software)} if log.software else {}),
        "files": {name: _sha256(text) for name, text in texts.items()},
    }
    rows = [
        json.loads(json.dumps({name: value for name, value in asdict(e).items() if name in _IN_META})) for e in entries
    ]
    head["digest"] = _digest({**head, "entries": rows})
    shown = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    shown += [' "entries": [\n  ' + ",\n  ".join(map(json.dumps, rows)) + "\n ]" if rows else ' "entries": []']
    return {**texts, META: "{\n" + ",\n".join(shown) + "\n}\n"}


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _split(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []
