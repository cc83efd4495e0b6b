"""Trials on the servers of a tracker: built and judged here, run and timed there, again where a server is lost."""

from __future__ import annotations

import contextlib
import queue
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xframe import registry
from xframe.errors import Unavailable, UsageError, WorkerDied, WorkerTimeout, XframeError
from xframe.fleet import client
from xframe.fleet.about import About, Refused
from xframe.fleet.address import Address, check_key
from xframe.fleet.client import Hung, Lost, LostRunning
from xframe.fleet.tracker import Grant, Tracker, TrackerGone
from xframe.lowering.target import Cpu
from xframe.lowering.tasks import Task
from xframe.schedules.device import Identity
from xframe.tuning import build
from xframe.tuning.bench import Measured
from xframe.tuning.build import Built
from xframe.tuning.child import Child
from xframe.tuning.points import TIMEOUT, Point, Trial
from xframe.tuning.runner import LIMIT, PREPARING, outcome_of
from xframe.worker.host import plugin_row

#: Seconds without any server to measure on, after which there is no use in waiting.
PATIENCE = 120.0
#: Servers that may be lost while a candidate runs before it is held to be its doing; and all that may be lost over it.
MOST_CRASHES, MOST_LOST = 3, 10
#: Seconds: for connecting to a server; that one may answer late; of one wait for a free one; before another is asked.
CONNECT_S, GRACE_S, _WAIT_S, _PAUSE_S = 20.0, 15.0, 30.0, 0.5


@dataclass(frozen=True)
class Met:
    """A server that a child has a session with, and what it says of itself, if it can."""

    server: Address
    about: About | None


class FleetRunner:
    """Measures on the servers that a tracker has of one key: see ``points.Runner``.

    A server has one session at a time, so it measures one candidate at a time. A trial whose server is lost or stuck is
    measured again; each point has one trial. When there is nobody to measure any more, points under way have none:
    their futures raise XframeError, and so does :meth:`submit` from then on.

    Parameters
    ----------
    tracker
        Its address, ``host:port``.
    key
        Kind of device, as its servers were started with.
    workers
        Points under way. More than there are servers keep candidates built ahead; None: one more than there are now.
    cpu
        What to compile for: each server must be able to run it.
    timeout
        Seconds that a candidate may take to compile, and to be measured.
    patience
        Seconds to wait for a server when there is none, and for a tracker that has gone.
    expected
        The kind of device that servers must be; None: that of the first one.
    allow_unknown
        Whether servers that can't say what they are (TVM's own) are believed to be what their key says.
    say
        Called with a line about each server that is refused or lost; by default they go to stderr.

    Raises
    ------
    UsageError
        Numbers or names that make no sense.
    TrackerGone
        There is no tracker.
    XframeError
        It has no server of that key that can be used, and had none for ``patience`` seconds.
    Unavailable
        There is no C++ compiler.
    """

    def __init__(
        self,
        tracker: str,
        key: str,
        workers: int | None,
        cpu: Cpu,
        timeout: float = LIMIT,
        patience: float = PATIENCE,
        expected: Identity | None = None,
        allow_unknown: bool = False,
        say: Callable[[str], None] | None = None,
    ):
        if (workers is not None and workers < 1) or timeout <= 0:
            raise UsageError(f"{workers} workers and a limit of {timeout:g} s make no sense: both must be above 0")
        self._tracker, self._key, self._cpu = Tracker(Address.parse(tracker)), check_key(key), cpu
        self._timeout, self._patience, self._expected, self._allow = timeout, patience, expected, allow_unknown
        self._say = say or (lambda line: print(line, file=sys.stderr, flush=True))
        build.check_compiler()
        there = self._tracker.status().queues.get(key)  # a wrong address is told at once
        if there is None or not there.servers:
            self._say(f"the tracker at {tracker} has no server of {key} yet: waiting for one")
        self.width = workers = workers or 1 + (there.servers if there else 0)
        self._lock = threading.Lock()
        self._unable, self._measuring, self._refused = "", 0, dict[Address, str]()
        self._alive = time.monotonic()
        self._folder = Path(tempfile.mkdtemp(prefix="xframe-fleet-"))
        self._children = [Child(cpu.threads) for _ in range(workers)]
        self._free: queue.SimpleQueue[Child] = queue.SimpleQueue()
        for child in self._children:
            self._free.put(child)
        self._threads = ThreadPoolExecutor(workers, "fleet")
        try:
            self.about = self._threads.submit(self._first).result()
        except BaseException:
            self.close()
            raise

    @property
    def identity(self) -> Identity | None:
        """The kind of device that is measured on; None where servers can't say."""
        return self._expected

    def submit(self, task: Task, point: Point) -> Future[Trial]:
        """See ``points.Runner``."""
        if self._unable:
            raise XframeError(self._unable)
        return self._threads.submit(self._trial, task, point)

    def close(self) -> None:
        """See ``points.Runner``. Points under way have no trial: their futures raise XframeError."""
        self._unable = self._unable or "nothing is measured any more: the runner was closed"
        for child in self._children:
            child.kill()
        self._threads.shutdown()
        for child in self._children:  # what a thread has started meanwhile
            child.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _first(self) -> About | None:
        """What the first server says of itself: the others must be like it."""
        since = time.monotonic()
        with self._child() as child:
            while True:
                with contextlib.suppress(Lost, WorkerTimeout, WorkerDied):
                    about = self._meet(child, since).about
                    child.ask("leaving", CONNECT_S, client.disconnect)
                    if self._expected is None and about is not None:
                        self._expected = about.identity
                    return about
                time.sleep(_PAUSE_S)

    @contextlib.contextmanager
    def _child(self) -> Iterator[Child]:
        child = self._free.get()
        try:
            yield child
        finally:
            self._free.put(child)

    def _trial(self, task: Task, point: Point) -> Trial:
        with self._child() as child:
            spent, there, where, built = child.cpu_s, 0.0, "", None
            try:
                self._check_able()
                built = self._build(child, task, point)
                measured, there, where = self._measure(child, built)
            except (XframeError, OSError) as e:
                self._check_able(e)
                return Trial(point, _outcome(e), str(e), cpu_s=child.cpu_s - spent)
            finally:
                if built is not None:
                    Path(built.path).unlink(missing_ok=True)
            return measured.trial(point, built, child.cpu_s - spent + there, where)

    def _build(self, child: Child, task: Task, point: Point) -> Built:
        self._prepare(child, task)
        return child.ask("compiling the candidate", self._timeout, build.build, task, point, self._cpu, self._folder)

    def _prepare(self, child: Child, task: Task) -> None:
        """The hand-written kernels and the exact outputs; before a server is taken, which would wait for them."""
        what = plugin_row(registry.LOWERINGS, task.lowering), task, self._cpu, self._folder
        try:
            child.ask("making what all candidates share", PREPARING, client.prepare, *what)
        except (WorkerDied, WorkerTimeout) as e:  # nothing of the candidate was run
            raise XframeError(str(e)) from e

    def _measure(self, child: Child, built: Built) -> tuple[Measured, float, str]:
        """(what was measured, CPU seconds there, where), however many servers it takes."""
        crashes, words = 0, ""
        for _ in range(MOST_LOST):
            self._check_able()
            self._prepare(child, built.task)
            server = None
            try:
                server = self._meet(child, time.monotonic()).server
                with self._busy():
                    limit = self._timeout + GRACE_S
                    measured, there = _ask(child, f"running at {server}", limit, client.measure, built, self._cpu)
                return measured, there, str(server)
            except Lost as e:
                crashes, words = crashes + isinstance(e, LostRunning), str(e)
            except WorkerTimeout as e:
                words = f"is stuck: {e}"
            except WorkerDied as e:
                words = f"was lost with the process that talked to it: {e}"
            except XframeError as e:
                self._check_able(e)
                raise type(e)(f"at {server}: {e}") from None
            self._check_able()
            if server is not None:
                self._say(f"the server {server} {words}; its trial is measured again")
            if crashes == MOST_CRASHES:
                raise WorkerDied(f"{crashes} servers were lost while it ran; the last one, {server}, {words}")
            time.sleep(_PAUSE_S)
        raise XframeError(f"{MOST_LOST} servers were lost over it; the last one {words}")

    def _meet(self, child: Child, since: float) -> Met:
        """A session of ``child``, which wants one ``since`` then, with a server that is what it should be.

        Raises Lost, WorkerTimeout or WorkerDied where one is stuck or gone: what the child had prepared is, too.
        """
        while True:
            grant = self._granted(since)
            what = grant, self._key, self._expected, self._cpu, self._allow, self._timeout
            try:
                about = _ask(child, f"connecting to {grant.server}", CONNECT_S, client.connect, *what)
            except Refused as e:
                self._refuse(grant.server, str(e))
                time.sleep(_PAUSE_S)
                continue
            with self._lock:
                self._alive = time.monotonic()
                self._refused.pop(grant.server, None)
            return Met(grant.server, about)

    def _granted(self, since: float) -> Grant:
        """A free server of the key. Ends the runner when nothing was measured on any for too long."""
        while True:
            self._check_able()
            trouble = ""
            try:
                grant = self._tracker.request(self._key, min(self._patience, _WAIT_S), lambda: not self._unable)
            except TrackerGone as e:
                grant, trouble = None, str(e)
                time.sleep(_PAUSE_S)
            with self._lock:
                idle = 0.0 if self._measuring else time.monotonic() - max(since, self._alive)
            if idle > self._patience and (grant is None or grant.server in self._refused):
                self._unable = trouble or self._nobody()
            elif grant is not None:
                return grant

    def _nobody(self) -> str:
        """Why there is no server, in words."""
        start = f"xframe fleet server --key {self._key} --tracker {self._tracker.address}"
        words = f"no server of {self._key} could be measured on for {self._patience:g} s"
        try:
            status = self._tracker.status()
        except TrackerGone as e:
            return str(e)
        there, queues = {server for _, server in status.servers}, status.queues
        with self._lock:
            refused = [f"{server} {why}" for server, why in self._refused.items() if server in there]
        if refused:
            return f"{words}: {'; '.join(refused)}"
        here = queues.get(self._key)
        if here is not None and here.servers:
            return f"{words}: all {here.servers} that the tracker has are busy for others, or do not answer"
        others = ", ".join(f"{key} ({q.servers})" for key, q in queues.items() if q.servers)
        return (
            f"{words}: the tracker has none, {'only ' + others if others else 'nor any other'}; start one with: {start}"
        )

    def _refuse(self, server: Address, why: str) -> None:
        with self._lock:
            new = self._refused.get(server) != why
            self._refused[server] = why
        if new:
            self._say(f"the server {server} is refused: it {why}")

    @contextlib.contextmanager
    def _busy(self) -> Iterator[None]:
        with self._lock:
            self._measuring += 1
        try:
            yield
        finally:
            with self._lock:
                self._measuring -= 1
                self._alive = time.monotonic()

    def _check_able(self, error: Exception | None = None) -> None:
        """Raises XframeError where nothing can be measured any more, and what happened is no fault of a candidate."""
        if isinstance(error, Unavailable):
            self._unable = self._unable or str(error)
        if self._unable:
            raise XframeError(self._unable) from error


def _ask(child: Child, doing: str, limit: float, function: Callable, *arguments: Any) -> Any:
    """As ``child.ask``; also raises Refused, Lost, LostRunning and Hung."""
    value = child.ask(doing, limit, client.told, function, *arguments)
    if isinstance(value, XframeError):
        raise value
    return value


def _outcome(error: Exception) -> str:
    return TIMEOUT if isinstance(error, Hung) else outcome_of(error)
