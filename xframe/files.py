"""Where xframe keeps things, and how it writes them: whole or not at all."""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from xframe.errors import XframeError

Kept = TypeVar("Kept")


def home() -> Path:
    """The cache folder: ``$XFRAME_HOME``, else ``xframe`` in the user's cache directory."""
    given = os.environ.get("XFRAME_HOME")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "xframe"


@contextlib.contextmanager
def home_at(folder: Path) -> Iterator[None]:
    """Within the block, here and in processes that are started, :func:`home` is ``folder``."""
    before = os.environ.get("XFRAME_HOME")
    os.environ["XFRAME_HOME"] = str(folder.resolve())
    try:
        yield
    finally:
        os.environ.pop("XFRAME_HOME", None)
        if before is not None:
            os.environ["XFRAME_HOME"] = before


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that becomes ``path`` when the block ends well, and vanishes when it does not.

    Raises
    ------
    XframeError
        The folder can't be made or written, or the disk is full.
    """
    path = Path(path)
    part = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        os.close(fd)
        part = Path(name)
        yield part
        os.chmod(part, 0o644)
        os.replace(part, path)
    except OSError as e:
        raise XframeError(f"can't write {path}: {e.strerror or e}; choose another folder or free some space") from e
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


def check_writable(folder: Path) -> None:
    """Before the long work: make ``folder`` and write to a file in it that no other process sees, and nobody finds.

    Raises
    ------
    XframeError
        The folder can't be made or written, or the disk is full.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\0" * 4096)
    except OSError as e:
        raise XframeError(
            f"can't write to the folder {folder}: {e.strerror or e}; choose another folder or free some space"
        ) from e


def place(folder: str, facts: Mapping[str, Any]) -> Path:
    """Where what depends on ``facts``, which are JSON, is kept: a file in a folder of :func:`home`."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
    return home() / folder / f"{digest}.json"


def kept(path: Path, read: Callable[[Any], Kept]) -> Kept | None:
    """What ``read`` makes of the JSON in a file; None where there is no file, or one that was cut or edited."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return read(json.loads(path.read_text(encoding="utf-8")))
    return None


def keep(path: Path, facts: Mapping[str, Any], content: Mapping[str, Any]) -> None:
    """Write ``content`` for :func:`kept`, with the time, and with what it depends on for who looks into the file.

    Raises XframeError as :func:`atomic` does."""
    created = datetime.now().astimezone().isoformat(timespec="seconds")
    with atomic(path) as part:
        part.write_text(json.dumps({"of": {**facts, "created": created}, **content}) + "\n", encoding="utf-8")


def sha256(path: Path) -> str:
    """Hex digest of a file's content."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
