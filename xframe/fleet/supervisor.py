"""A server that comes back: TVM's RPC server in a child process, started anew whenever it dies."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import time
from collections.abc import Callable

from xframe.errors import Unavailable, XframeError
from xframe.fleet import processes
from xframe.fleet.address import Address
from xframe.worker.host import worker_environment

#: A child that dies within so many seconds can't serve; after so many of those in a row there is no use in going on.
QUICK_S, MOST_QUICK = 10.0, 5
#: Longest pause before another start, seconds; the first is the shortest, and each doubles.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 30.0


def check_installed() -> None:
    """Raises Unavailable where there is no TVM to serve with."""
    if importlib.util.find_spec("tvm") is None:
        raise Unavailable("a server needs TVM, which is not installed here: pip install 'xframe-eval[tune]'")


def server(listener: socket.socket, key: str, tracker: Address, reported: str | None, threads: int, say) -> None:
    """Serve at ``listener`` until asked to end by SIGINT, SIGTERM or SIGHUP.

    The socket is this process's, so the port stays the same through all restarts. ``reported``: the host that clients
    are told to connect to; None: where the tracker sees the server. ``threads``: of kernels. ``say`` takes lines.

    Raises XframeError as :func:`keep` does.
    """
    args = ["--fd", str(listener.fileno()), "--key", key, "--tracker", str(tracker)]
    args += [] if reported is None else ["--reported", reported]
    env = worker_environment(threads)

    def start():
        return processes.start("xframe.fleet.serving", *args, env=env, pass_fds=[listener.fileno()])

    with processes.until_asked_to_end():
        keep(start, say)


def keep(start: Callable[[], subprocess.Popen], say: Callable[[str], None]) -> None:
    """Have a process of ``start`` run all the time; on any exception, also one that a signal raises, end it.

    Raises
    ------
    XframeError
        It died within :data:`QUICK_S` seconds, :data:`MOST_QUICK` times in a row.
    """
    quick, process = 0, None
    try:
        while True:
            began = time.monotonic()
            process = start()
            code = process.wait()
            processes.end(process)  # what it left behind
            death = processes.cause_of_death(code)
            quick = quick + 1 if time.monotonic() - began < QUICK_S else 0
            if quick == MOST_QUICK:
                raise XframeError(f"the server does not run: it {death}, {quick} times at once; its words are above")
            pause = min(_FIRST_PAUSE_S * 2**quick, _LONGEST_PAUSE_S)
            say(f"the server {death}; starting it again in {pause:g} s")
            time.sleep(pause)
    finally:
        if process is not None:
            processes.end(process)
