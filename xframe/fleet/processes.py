"""Child processes that never outlive their parent, however it ends, and take all that they started with them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping


def start(module: str, *args: str, env: Mapping[str, str], pass_fds: Iterable[int] = ()) -> subprocess.Popen:
    """``python -m module args`` in a process group of its own; it must call :func:`live_with_parent`.

    It writes to this process's stderr. A signal from the keyboard does not reach it.
    """
    return subprocess.Popen(
        [sys.executable, "-m", module, *args],
        stdin=subprocess.PIPE,
        stdout=2,
        env=dict(env),
        pass_fds=tuple(pass_fds),
        start_new_session=True,
    )


def live_with_parent() -> None:
    """In a process that :func:`start` started: end it, and its group, as soon as its parent is gone.

    The parent holds the other end of stdin, which the system closes for it if it is killed.
    """

    def watch():
        with contextlib.suppress(OSError):
            while os.read(0, 1 << 10):
                pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def end(process: subprocess.Popen) -> None:
    """Kill a process that :func:`start` started with all that it started, and wait for it. Again does nothing."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()


def cause_of_death(code: int) -> str:
    """An exit code in words: ``was killed by SIGSEGV``, ``ended with exit code 1``."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


#: What asks a process to end: the keyboard, the system, a terminal that closes.
_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def until_asked_to_end() -> Iterator[None]:
    """The block ends quietly on SIGINT, SIGTERM and SIGHUP, by an exception wherever it is. In the main thread only."""

    def stop(number, frame):
        raise KeyboardInterrupt

    with _on_endings(stop), contextlib.suppress(KeyboardInterrupt):
        yield


def run_until_asked_to_end(work: Callable[[], None]) -> None:
    """Run ``work()``, in a thread, until SIGINT, SIGTERM or SIGHUP, or its end. In the main thread only.

    For Python code that is not ours: no exception disturbs it where it would not stand one, in a destructor say. It
    goes on until the process is over, which C++ code on its stack would not survive. Raises what ``work`` raises.
    """
    over, raised = threading.Event(), []

    def run():
        try:
            work()
        except BaseException as e:
            raised.append(e)
        finally:
            over.set()

    with _on_endings(lambda number, frame: over.set()):
        threading.Thread(target=run, daemon=True).start()
        over.wait()
    if raised:
        raise raised[0]


@contextlib.contextmanager
def _on_endings(handler: Callable[[int, object], None]) -> Iterator[None]:
    """Within the block ``handler`` answers the signals."""
    before = {n: signal.signal(n, handler) for n in _ENDINGS}
    try:
        yield
    finally:
        for number, kept in before.items():
            signal.signal(number, kept)
