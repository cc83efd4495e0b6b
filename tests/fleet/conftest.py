"""A fleet on this machine: a tracker and servers, each a process with a group of its own, as users start them."""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from xframe.fleet.address import Address
from xframe.fleet.tracker import Tracker, TrackerGone

ROOT = Path(__file__).resolve().parents[2]
#: Seconds for what takes a few: a bound on hanging.
LONG = 90.0
KEY = "here"


def wait_for(fact, seconds=LONG):
    """Until ``fact()`` holds, which it must within so many seconds; its value."""
    deadline = time.monotonic() + seconds
    while not (value := fact()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)
    return value


def first_line(process):
    """What it prints first, which it must within :data:`LONG` seconds."""
    with selectors.DefaultSelector() as waiting:
        waiting.register(process.stdout, selectors.EVENT_READ)
        assert waiting.select(LONG), "it says nothing"
    return process.stdout.readline().strip()


class Fleet:
    """``servers``: processes by address. All that was started is ended by :meth:`close`."""

    def __init__(self, log):
        self._log, self._all = log, []
        self.servers = {}
        self.tracker_process, self.tracker = None, None
        self.start_tracker()

    def start_tracker(self):
        """At the same port as before, if there was one."""
        port = self.tracker.address.port if self.tracker else 0
        self.tracker_process = self._start("-m", "xframe.cli", "fleet", "tracker", "--port", str(port))
        words = first_line(self.tracker_process)
        self.tracker = Tracker(Address.parse(words.removeprefix("tracker at ")))

    @property
    def address(self):
        return str(self.tracker.address)

    def start_servers(self, count, key=KEY):
        """As ``xframe fleet server`` does. Their addresses."""
        command = ["-m", "xframe.cli", "fleet", "server", "--key", key, "--tracker", self.address, "--threads", "1"]
        return self._add([self._start(*command) for _ in range(count)], key)

    def start_odd(self, key, *kinds):
        """See odd_server.py. Their addresses."""
        return self._add([self._start("-m", "tests.fleet.odd_server", kind, key, self.address) for kind in kinds], key)

    def free(self, key=KEY):
        """How many of the key's servers wait for work."""
        with contextlib.suppress(TrackerGone):
            queue = self.tracker.status().queues.get(key)
            return queue.free if queue else 0
        return 0

    def kill(self, address, number=signal.SIGKILL):
        """A server with all its processes."""
        process = self.servers[address].pid
        for pid in [*serving(process), process]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)

    def close(self):
        for process in self._all:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self._all:
            try:
                process.wait(LONG)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.stdout.close()

    def _add(self, processes, key):
        before = self.free(key)
        made = [Address.parse(first_line(p).split(" at ")[1].split(",")[0]) for p in processes]
        self.servers.update({str(a): p for a, p in zip(made, processes, strict=True)})
        wait_for(lambda: self.free(key) >= before + len(made))
        return [str(a) for a in made]

    def _start(self, *command):
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        self._all.append(process)
        return process


def serving(parent):
    """The processes that a supervisor has running."""
    return [int(n) for n in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """A tracker and three servers of :data:`KEY`."""
    with open(tmp_path_factory.mktemp("fleet") / "log", "w") as log:
        made = Fleet(log)
        try:
            made.start_servers(3)
            yield made
        finally:
            made.close()
