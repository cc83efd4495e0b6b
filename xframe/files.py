"""Where xframe keeps things, and how it writes them: whole or not at all."""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from xframe.errors import XframeError


def home() -> Path:
    """The cache folder: ``$XFRAME_HOME``, else ``xframe`` in the user's cache directory."""
    given = os.environ.get("XFRAME_HOME")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "xframe"


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


def sha256(path: Path) -> str:
    """Hex digest of a file's content."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
