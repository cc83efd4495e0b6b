"""The journal of a tuning run: what was measured is on disk before anything else begins.

One file of JSON lines under ``$XFRAME_HOME/tuning/<device>/``, its name made of what is tuned and how. Each line
carries a checksum and is synced when it is appended, so that a run that is killed, or whose disk is full, has lost the
trials that were under way and no other. ``flock`` keeps a second run of the same settings out: it has its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import re
import shutil
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from xframe import files
from xframe.errors import UsageError, XframeError
from xframe.tuning.points import Point, Trial

SCHEMA = 1
#: Kinds of records: the first, what was measured, what was confirmed and decided of a kernel, the last.
BEGIN, TRIAL, DECISION, END = "begin", "trial", "decision", "end"
#: Bytes that must be free where a run writes.
LEAST_FREE = 64 << 20

Record = dict[str, Any]


def check_room(folder: Path) -> None:
    """Before the long work: whether ``folder`` can be written and has room. Raises XframeError, in words."""
    files.check_writable(folder)
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE:
        raise XframeError(
            f"{folder} has {free >> 20} MiB free, and tuning wants {LEAST_FREE >> 20} MiB before it begins: free some"
            " space or choose another folder"
        )


class Journal:
    """An open journal. ``records``: what was in it, the head and a torn last line left out; ``note``: words or "".

    Made by :meth:`open`; a context manager.
    """

    def __init__(self, path: Path, descriptor: int):
        self.path, self._descriptor = path, descriptor
        self.head: Record = {}
        self.records: list[Record] = []
        self.note = ""
        self._size = 0
        self._read()

    @staticmethod
    def open(subject: str, settings: Mapping[str, Any], versions: Mapping[str, str], device: str, resume: bool):
        """The journal of a run: a new one, or with ``resume`` the one that a run of the same settings left.

        Parameters
        ----------
        subject
            What is tuned, in words; begins the file's name.
        settings, versions
            Plain values. Both must be equal for a run to be resumed; settings are told by the command line's names.
        device
            The folder's name.

        Raises
        ------
        UsageError
            There is nothing to resume but a run of other settings.
        XframeError
            The journal to resume is of other versions, or damaged; the folder can't be written.
        """
        folder = files.home() / "tuning" / device
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:10]
        stem = re.sub(r"[^\w.,+-]+", "_", subject)[:80]
        if resume and not (folder / f"{stem}-{digest}.jsonl").exists():
            _refuse_others(folder, stem, settings)
        finished: Journal | None = None
        for number in itertools.count(1):
            path = folder / f"{stem}-{digest}{'' if number == 1 else f'.{number}'}.jsonl"
            if finished is not None and not path.exists():
                return finished
            one = _locked(path)
            if one is None:
                continue
            if not resume or not one.head:
                one._begin(settings, versions)
                if finished is not None:
                    finished.close()
                return one
            one._must_be_of(versions)
            if not one.finished:
                if finished is not None:
                    finished.close()
                return one
            if finished is None:
                finished = one
            else:
                one.close()
        raise AssertionError("unreachable")

    @property
    def finished(self) -> bool:
        return bool(self.records) and self.records[-1]["kind"] == END

    def append(self, kind: str, **fields: Any) -> None:
        """Put a record on the disk. Raises XframeError, the file as it was before, when it is full."""
        data = _line({"kind": kind, **fields})
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            os.fsync(self._descriptor)
        except OSError as e:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise XframeError(
                f"can't write the journal {self.path}: {e.strerror or e}; the trials before this one are in it: free"
                " some space, and go on with --resume"
            ) from e
        self._size += len(data)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)  # and with it the lock
            self._descriptor = -1

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _read(self) -> None:
        """Take in what is there; a last line that is not whole goes."""
        lines = self.path.read_bytes().splitlines(keepends=True)
        for number, line in enumerate(lines, 1):
            record = _record(line)
            if record is None:
                if number < len(lines):
                    self.close()
                    raise XframeError(
                        f"line {number} of the journal {self.path} is damaged, and not the last one: it was edited, or"
                        " the disk fails; start anew, without --resume"
                    )
                os.ftruncate(self._descriptor, self._size)
                break
            self._size += len(line)
            if number == 1:
                self.head = record
            else:
                self.records.append(record)

    def _begin(self, settings: Mapping[str, Any], versions: Mapping[str, str]) -> None:
        if self.records and not self.finished:
            aside = self.path.with_suffix(".old")
            with files.atomic(aside) as part:
                shutil.copyfile(self.path, part)
            self.note = f"an unfinished run of these settings was put aside as {aside}; --resume goes on with one"
        os.ftruncate(self._descriptor, 0)
        self._size, self.records = 0, []
        head = {
            "schema": SCHEMA,
            "settings": dict(settings),
            "versions": dict(versions),
            "session": uuid.uuid4().hex[:12],
        }
        self.append(BEGIN, **head)
        self.head = {"kind": BEGIN, **head}

    def _must_be_of(self, versions: Mapping[str, str]) -> None:
        there = {"schema": self.head.get("schema"), **self.head.get("versions", {})}
        wanted = {"schema": SCHEMA, **versions}
        if there != wanted:
            self.close()
            raise XframeError(
                f"can't resume: the journal {self.path} is of {_differences(there, wanted)}; times of both are not to"
                " be mixed: start anew, without --resume"
            )


def _locked(path: Path) -> Journal | None:
    """The journal at ``path``, which is made if need be; None while another process has it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as e:
        raise XframeError(
            f"can't write the journal {path}: {e.strerror or e}; name another folder by XFRAME_HOME"
        ) from e
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return Journal(path, descriptor)


def _refuse_others(folder: Path, stem: str, settings: Mapping[str, Any]) -> None:
    """Raise UsageError if an unfinished run of other settings is what the user may have meant."""
    for path in sorted(folder.glob(f"{stem}-*.jsonl")):
        if re.fullmatch(r"[0-9a-f]{10}(\.\d+)?", path.stem[len(stem) + 1 :]) is None:
            continue
        records = [_record(line) for line in path.read_bytes().splitlines(keepends=True)]
        whole = [r for r in records if r is not None]
        if len(whole) > 1 and whole[0].get("kind") == BEGIN and whole[-1]["kind"] != END:
            differences = _differences(whole[0]["settings"], settings, "--")
            raise UsageError(
                f"can't resume: the unfinished run, {path}, is of {differences}; give its settings, or start anew"
                " without --resume"
            )


def _differences(there: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> str:
    names = [n for n in {**wanted, **there} if there.get(n) != wanted.get(n)]
    return ", ".join(f"{prefix}{n} {there.get(n)}, not {wanted.get(n)}" for n in names)


def _line(record: Mapping[str, Any]) -> bytes:
    text = json.dumps(record, separators=(",", ":"))
    return f'{{"crc32":"{zlib.crc32(text.encode()):08x}","record":{text}}}\n'.encode()


def _record(line: bytes) -> Record | None:
    """What :func:`_line` wrote; None if that is not what it wrote."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        record = json.loads(line)["record"]
        if isinstance(record, dict) and "kind" in record and _line(record) == line:
            return record
    return None


def plain(trial: Trial) -> Record:
    """A trial for a record, without what MetaSchedule keeps of it: that is long, and needed of confirmed ones alone."""
    return asdict(replace(trial, workload_line="", record=""))


def trial_of(data: Record) -> Trial:
    """The inverse of :func:`plain`."""
    point = data["point"]
    knobs = tuple((str(name), int(value)) for name, value in point["knobs"])
    known = Point(tuple(point["tile"]), knobs, point["trace"])
    return Trial(**{**data, "point": known, "seconds": tuple(data["seconds"]), "baseline": tuple(data["baseline"])})
