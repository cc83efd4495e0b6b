"""A process of our own that runs functions for us, one at a time, and may die of it: ``python -m xframe.tuning.child``.

Functions and arguments travel pickled over a socket that only the two have. The process ends when its parent does,
however that ended.
"""

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import queue
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Collection
from multiprocessing.connection import Connection
from typing import Any

from xframe import errors
from xframe.errors import Unavailable, WorkerDied, WorkerTimeout, XframeError
from xframe.worker.__main__ import one_line
from xframe.worker.alone import without_frameworks
from xframe.worker.host import worker_environment

#: Seconds that a new process may take to import what it needs.
START = 120.0
_PR_SET_PDEATHSIG = 1


class Child:
    """A process that is started when it is asked something, and again after it died.

    Not for use by two threads at a time, but for :meth:`kill` and :meth:`close`. On Linux it dies with the thread that
    started it.

    Parameters
    ----------
    threads
        Of every runtime in it.
    cpus
        It is pinned to these; None leaves the affinity as it is.
    device
        ``cpu``, where it is to see no GPU.
    """

    def __init__(self, threads: int, cpus: Collection[int] | None = None, device: str = "cpu"):
        self._threads, self._cpus, self._device = threads, cpus, device
        self._process: subprocess.Popen | None = None
        self._lock, self._closed = threading.Lock(), False
        self._spent, self._now = 0.0, 0.0
        self.fresh = True

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all processes so far, what they waited for included, up to the last reply of a living one."""
        return self._spent + self._now

    def ask(self, doing: str, limit: float, function: Callable, *arguments: Any) -> Any:
        """What ``function`` returns there; it must be one of a module. From then on the process is not ``fresh``.

        Parameters
        ----------
        doing
            What this is, in words.
        limit
            Seconds that it may take, without the start of a process.

        Raises
        ------
        WorkerTimeout
            It took longer, and the process was killed.
        WorkerDied
            The process ended; the message says of what.
        XframeError
            What the function raised, or the words of any other exception.
        Unavailable
            No process can be started.
        """
        if self._process is None:
            self._start()
        self.fresh = False
        try:
            self._connection.send_bytes(pickle.dumps((function, arguments)))
        except OSError:
            raise self._died(doing) from None
        return self._receive(doing, limit)

    def close(self) -> None:
        """As :meth:`kill`, and no process is started any more: to ask raises XframeError."""
        self._closed = True
        self.kill()

    def kill(self) -> None:
        """End the process and all that it started, now. Safe from another thread, and when there is none."""
        with self._lock:
            process, self._process = self._process, None
            if process is None:
                return
            # First those that it started: while it is not waited for, its number is not given to another.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            self._spent, self._now = self._spent + usage.ru_utime + usage.ru_stime, 0.0
            self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 4000))
            lines = [x.strip() for x in self._log.read().decode("utf-8", "replace").splitlines() if x.strip()]
            self._log.close()
            self._obituary = _end(process.returncode) + (f"; its last words: {lines[-1][:200]}" if lines else "")
            self.fresh = True

    def _start(self) -> None:
        environment = worker_environment(self._threads, self._device)
        # Threads of linear algebra wait for work by spinning, beside what is timed.
        environment.update(OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
        self._connection, theirs = multiprocessing.Pipe()
        pinned = ",".join(map(str, sorted(self._cpus or ())))
        try:
            with self._lock:
                if self._closed:
                    raise XframeError("nothing runs in it any more: it was closed")
                self._log = tempfile.TemporaryFile()  # noqa: SIM115
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "xframe.tuning.child", str(theirs.fileno()), str(os.getpid()), pinned],
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=self._log,
                    env=environment,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C reaches the parent alone
                )
        except OSError as e:
            self._log.close()
            raise Unavailable(f"can't start a process that tunes: {e.strerror or e}") from e
        finally:
            theirs.close()
        try:
            self._receive("starting", START)
        except XframeError as e:
            raise Unavailable(f"a process that tunes does not start: {e}") from e

    def _receive(self, doing: str, limit: float) -> Any:
        try:
            if not self._connection.poll(limit):
                self.kill()
                raise WorkerTimeout(f"{doing} did not end within {limit:g} s and was stopped")
            value, error, self._now = self._connection.recv()
        except (EOFError, OSError):
            raise self._died(doing) from None
        except BaseException:  # an interrupt: the reply would be taken for that of the next question
            self.kill()
            raise
        if error is not None:
            raise error
        return value

    def _died(self, doing: str) -> WorkerDied:
        self.kill()
        return WorkerDied(f"{doing} ended its process: {self._obituary}")


def _end(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"killed by {name}"


# The other side


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent has gone, even while compiled code keeps all threads out."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _cpu_s() -> float:
    """CPU seconds of this process and of those that it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def _answer(request: bytes) -> tuple[Any, XframeError | None]:
    try:
        function, arguments = pickle.loads(request)
        return function(*arguments), None
    except XframeError as e:
        return None, errors.by_outcome(e.outcome.value, str(e))
    except Exception as e:
        traceback.print_exc()
        return None, XframeError(one_line(e))


def main() -> None:
    descriptor, parent, cpus = sys.argv[1:]
    _die_with(int(parent))
    if cpus:
        # Before anything is imported: thread pools are sized by what is allowed then.
        os.sched_setaffinity(0, {int(c) for c in cpus.split(",")})
    connection = Connection(int(descriptor))
    todo: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    # A thread reads, so that the end of the parent ends this process in the middle of anything.
    def read() -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                todo.put(connection.recv_bytes())
        os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    with without_frameworks():
        import xframe.tuning.bench  # noqa: F401
    connection.send((None, None, _cpu_s()))
    while True:
        value, error = _answer(todo.get())
        connection.send((value, error, _cpu_s()))


if __name__ == "__main__":
    main()
