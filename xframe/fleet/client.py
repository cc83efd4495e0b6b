"""One session with a server, from its client's side: functions for a :class:`xframe.tuning.child.Child`.

They run in a process of their own, because a call to a server that is stuck can only be ended with the process.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tvm import rpc

from xframe import registry
from xframe.errors import XframeError
from xframe.fleet import session, stock
from xframe.fleet.about import About, Refused
from xframe.fleet.session import Upload
from xframe.fleet.tracker import Grant
from xframe.lowering.target import Cpu
from xframe.lowering.tasks import Task
from xframe.schedules.device import Identity
from xframe.tuning import build
from xframe.tuning.bench import Bench, Measured
from xframe.tuning.build import Built
from xframe.tuning.timer import Samples
from xframe.worker.__main__ import one_line

#: What TVM's server sends when the time of a session is over.
_EXPIRED = "RPCSessionTimeoutError"


class Lost(XframeError):
    """The server, or the way to it: what was under way there is to be measured again, elsewhere."""


class LostRunning(Lost):
    """The server, while the candidate ran there: it may be the candidate's doing."""


class Hung(XframeError):
    """The candidate did not end in time, on a server on which the hand-written kernel did."""


class Remote:
    """A session with the server of ``grant``, which ends it after so many seconds.

    All methods raise Lost, LostRunning and Hung, and XframeError for what the server answers in words.
    """

    def __init__(self, grant: Grant, seconds: float):
        self._seconds, self._running, self._unknown = seconds, False, False
        self._session: Any = None
        self._stock: stock.Loaded | None = None
        with self._told():
            host, port = grant.server.host, grant.server.port
            self._session = rpc.connect(host, port, grant.matchkey, session_timeout=seconds)

    def about(self) -> About | None:
        """What the server says of itself; None where it can't. Raises Refused where that makes no sense."""
        with self._told():
            try:
                function = self._session.get_function(session.ABOUT)
            except AttributeError:
                self._unknown = True
                return None
            text = str(function())
        return About.from_json(text)

    def load(self, built: Built, upload: Upload, threads: int) -> None:
        """Send a candidate, and run the hand-written kernel."""
        name = os.path.basename(built.path)
        with self._told():
            self._session.upload(built.path, name)
            if self._unknown:
                self._stock = stock.Loaded(self._session, name, upload, threads)
            else:
                self._session.get_function(session.LOAD)(name, pickle.dumps(upload), threads)
        self._shape, self._running = built.candidate.steps[-1].output, True

    def output(self) -> np.ndarray:
        """That of the candidate."""
        with self._told():
            if self._stock is not None:
                return self._stock.output()
            data = bytes(self._session.get_function(session.OUTPUT)())
        if len(data) != 4 * math.prod(self._shape):
            raise Lost(f"gave an output of {len(data)} bytes, not {4 * math.prod(self._shape)}")
        return np.frombuffer(data, np.float32).reshape(self._shape)

    def samples(self) -> tuple[Samples, str]:
        """The candidate's and the hand-written kernel's, and a note."""
        with self._told():
            if self._stock is not None:
                return self._stock.samples(), "timed by TVM's own server"
            text = str(self._session.get_function(session.SAMPLES)())
        try:
            return session.read_samples(text)
        except ValueError as e:
            raise Lost(f"gave samples that make no sense ({e})") from e

    def cpu_seconds(self) -> float:
        """That the session has taken there; 0 where it can't be told any more."""
        with contextlib.suppress(Exception):
            return float(self._session.get_function(session.CPU_SECONDS)())
        return 0.0

    def close(self) -> None:
        """End the session, so that the server is free."""
        with contextlib.suppress(Exception):
            self._session.get_function("CloseRPCConnection")()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """What went wrong in the block, told apart: by the server's words, and by whether it still answers."""
        try:
            yield
        except XframeError:
            raise
        except Exception as e:
            if _EXPIRED in str(e):
                if self._running:
                    raise Hung(f"it did not end within {self._seconds:g} s") from None
                raise Lost(f"did not run the hand-written kernel within {self._seconds:g} s") from None
            if not self._answers():
                words = f"went away ({one_line(e)[:200]})"
                raise (LostRunning(words) if self._running else Lost(words)) from None
            raise XframeError(one_line(e)) from None

    def _answers(self) -> bool:
        try:
            self._session.get_function("runtime.NumThreads")()
        except Exception:
            return False
        return True


#: The session of this process.
_remote: Remote | None = None


def connect(
    grant: Grant, key: str, expected: Identity | None, cpu: Cpu, allow_unknown: bool, seconds: float
) -> About | None:
    """Have a session with a server that is what it should be; what it says of itself.

    Raises Refused, or as :class:`Remote` does.
    """
    global _remote
    disconnect()
    remote = Remote(grant, seconds)
    try:
        about = remote.about()
        if about is not None:
            about.check(key, expected, cpu)
        elif not allow_unknown:
            raise Refused("can't say what it is, as it is no 'xframe fleet server': start it by that")
    except BaseException:
        remote.close()
        raise
    _remote = remote
    return about


def told(function: Callable, *arguments: Any) -> Any:
    """What ``function`` gives, or raises of the errors above, as a value: a child tells them by outcome alone."""
    try:
        return function(*arguments)
    except (Refused, Lost, Hung) as e:
        return e


def disconnect() -> None:
    """End the session of this process, if it has one."""
    global _remote
    if _remote is not None:
        _remote.close()
    _remote = None


@functools.lru_cache
def _bench(cpu: Cpu) -> Bench:
    return Bench(cpu)


def prepare(row: list, task: Task, cpu: Cpu, folder: Path) -> None:
    """Have ready what all candidates of ``task`` share. ``row``: of its lowering, as it travels to a worker."""
    name, received = registry.received(row)
    registry.LOWERINGS[name] = received
    build.prepare(task, cpu, folder)
    _bench(cpu).prepare(task)


def measure(built: Built, cpu: Cpu) -> tuple[Measured, float]:
    """Judge and time a candidate over this process's session, and end that; also the CPU seconds that it took there.

    Raises
    ------
    Mismatch
        An output is beyond its bound, or not finite.
    XframeError
        As :class:`Remote` does.
    """
    if _remote is None:
        raise Lost("was not connected to")
    try:
        judge = _bench(cpu).prepare(built.task)
        chains = {chain.tile: chain for chain in (built.by_hand, built.candidate)}
        arguments = {tile: judge.arguments(chain) for tile, chain in chains.items()}
        _remote.load(built, Upload(built.candidate, built.by_hand, arguments), cpu.threads)
        share = judge.share(_remote.output())
        taken, note = _remote.samples()
        share = max(share, judge.share(_remote.output()))
        return Measured(share, taken.seconds, taken.baseline, note), _remote.cpu_seconds()
    finally:
        disconnect()
