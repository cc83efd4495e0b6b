"""One writer at a time in a log's folder."""

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from xframe.errors import XframeError

LOCK = ".lock"
#: Seconds to wait for another writer. Writing a log takes milliseconds.
WAIT_S = 60.0
#: The folders that each thread holds.
_held = threading.local()


@contextlib.contextmanager
def lock(folder: Path, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold ``folder`` alone: what is read and written inside is not mixed with what another writer does.

    The folder is made if need be. The operating system frees the lock of a process that dies, however it dies. The same
    thread may hold a folder several times over.

    Raises
    ------
    XframeError
        The folder can't be made or written, or somebody else has held it for ``wait_s`` seconds.
    """
    folder = Path(os.path.abspath(folder))
    mine: set[Path] = _held.__dict__.setdefault("folders", set())
    if folder in mine:
        yield
        return
    fd = _acquired(folder, wait_s)
    mine.add(folder)
    try:
        yield
    finally:
        mine.discard(folder)
        with contextlib.suppress(OSError):
            (folder / LOCK).unlink(missing_ok=True)  # before it is freed, so that nobody else's is taken away
        os.close(fd)


def _acquired(folder: Path, wait_s: float) -> int:
    """A file descriptor that has the lock."""
    path, deadline = folder / LOCK, time.monotonic() + wait_s
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except FileNotFoundError:  # the folder was removed in between
            continue
        except OSError as e:
            raise XframeError(f"can't write to the folder {folder}: {e.strerror or e}; choose another one") from e
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(fd, path):
                with contextlib.suppress(OSError):  # it only helps whoever waits
                    os.truncate(fd, 0)
                    os.write(fd, str(os.getpid()).encode())
                return fd
        except BlockingIOError:
            if time.monotonic() > deadline:
                holder = os.pread(fd, 20, 0).decode("ascii", "replace")
                os.close(fd)
                raise XframeError(
                    f"process {holder or '?'} has been writing the schedule log {folder} for {wait_s:g} s: wait for it,"
                    " or end it"
                ) from None
            time.sleep(0.02)
        except OSError as e:
            os.close(fd)
            raise XframeError(
                f"the folder {folder} can't be locked ({e.strerror or e}): use one on a local disk"
            ) from e
        os.close(fd)


def _is(fd: int, path: Path) -> bool:
    """Whether ``path`` is still the file that was opened, and not removed by its last holder."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
