"""One builder at a time, and the commands that it runs."""

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from xframe.errors import Unavailable, XframeError

Progress = Callable[[str], None]
#: Settings that would have pip put other things into the environment, or put them elsewhere.
_ASTRAY = (
    *("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_PYTHON", "PIP_CONSTRAINT", "PIP_PLATFORM"),
    *("VIRTUAL_ENV", "__PYVENV_LAUNCHER__"),
)
_OFFLINE = ("NewConnectionError", "ConnectTimeoutError", "Temporary failure in name resolution", "Max retries exceeded")
_NO_SPACE = ("No space left on device", "Disk quota exceeded")


@contextlib.contextmanager
def lock(path: Path, progress: Progress) -> Iterator[int]:
    """Hold ``path`` alone; gives the file descriptor that holds it.

    The commands of the builder inherit it: after a builder was killed, the next one waits for what it had started.

    Raises
    ------
    XframeError
        The folder can't be made or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as e:
        raise XframeError(f"can't write to the folder {path.parent}: {e.strerror or e}; set XFRAME_HOME") from e
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that works on the same environment")
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


class Commands:
    """Runs the commands of one build: what they print goes to a file, and their failures into words.

    Parameters
    ----------
    name
        The environment, for progress.
    doing
        What fails with a command, as ``"can't build the environment caffe"``.
    log
        The file that gets all they print.
    held
        The descriptor of the lock.
    progress
        Told what is being done.
    """

    def __init__(self, name: str, doing: str, log: Path, held: int, progress: Progress) -> None:
        self._name, self._doing, self._log, self._held, self._progress = name, doing, log, held, progress

    def __call__(
        self,
        what: str,
        command: Sequence[str | Path],
        variables: Mapping[str, str] | None = None,
        limit: float | None = None,
    ) -> str:
        """Run ``command``; what it printed on stdout.

        Raises
        ------
        Unavailable
            It could not be started, failed, or did not end within ``limit`` seconds; the message says where its output
            is.
        """
        self._progress(f"{self._name}: {what}")
        env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON") and k not in _ASTRAY}
        started = time.monotonic()
        with open(self._log, "ab") as log:
            log.write(f"\n$ {' '.join(map(str, command))}\n".encode())
            log.flush()
            start = log.tell()
            try:
                done = subprocess.run(
                    [str(part) for part in command],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env={**env, **(variables or {})},
                    cwd=self._log.parent,
                    timeout=limit,
                    pass_fds=(self._held,),
                )
            except OSError as e:
                raise self._failed(what, f"{command[0]} can't be started: {e.strerror or e}") from e
            except subprocess.TimeoutExpired:
                raise self._failed(what, f"it did not end within {limit:g} s") from None
            log.write(done.stdout)
            log.write(f"({time.monotonic() - started:.1f} s)\n".encode())
        if done.returncode:
            raise self._failed(what, self._reason(done.returncode, start))
        return done.stdout.decode("utf-8", "replace")

    def _failed(self, what: str, why: str) -> Unavailable:
        return Unavailable(f"{self._doing}: {what}: {why}; all of it is in {self._log}")

    def _reason(self, code: int, start: int) -> str:
        """Why a command failed, from what it printed from byte ``start`` of the log on."""
        with open(self._log, "rb") as f:
            f.seek(start)
            lines = [x.strip() for x in f.read().decode("utf-8", "replace").splitlines() if x.strip()][:-1]
        text = "\n".join(lines)
        if any(sign in text for sign in _NO_SPACE):
            return "the disk is full; free some space, or set XFRAME_HOME"
        if any(sign in text for sign in _OFFLINE):
            return "the package index can't be reached; what was fetched is kept for the next try"
        told = [x for x in lines if "error" in x.lower() and not x.lower().startswith("warning")] or lines
        how = f"exit code {code}" if code > 0 else f"killed by {_signal_name(-code)}"
        return f"{how}: {told[-1][:300]}" if told else how


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
