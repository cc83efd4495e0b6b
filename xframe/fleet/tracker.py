"""TVM's RPC tracker: its protocol from the client's side, with bounded waits, and the tracker itself.

Each request is a connection of its own, so nothing is left behind by a tracker that was restarted in between. Messages
are JSON behind their length; the first four bytes of a connection are a magic number, in both directions.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from xframe.errors import Unavailable, XframeError
from xframe.fleet.address import Address
from xframe.worker.alone import without_frameworks

_MAGIC = 0x2F271
_SUCCESS, _REQUEST, _SUMMARY = 0, 4, 6
#: Seconds that a tracker may take to answer what it can answer at once.
ANSWER_S = 10.0
#: Seconds between two looks at whether an answer is still wanted.
_GLANCE_S = 0.2
#: Bytes of the largest answer that is read.
_MOST_BYTES = 16 << 20


class TrackerGone(XframeError):
    """Nothing that speaks the tracker's protocol answers there."""


@dataclass(frozen=True)
class Grant:
    """A server that the tracker has set aside for one session: connect within a few seconds, with ``matchkey``."""

    server: Address
    matchkey: str


@dataclass(frozen=True)
class Queue:
    """Of one key: ``servers`` that are registered, those that are ``free``, and requests that are ``waiting``."""

    servers: int
    free: int
    waiting: int


@dataclass(frozen=True)
class Status:
    """What a tracker knows: ``servers`` as (key, address), sorted, and the queue of each key."""

    servers: tuple[tuple[str, Address], ...]
    queues: dict[str, Queue]


class Tracker:
    """A tracker at ``address``, as its clients see it. Safe to use from several threads."""

    def __init__(self, address: Address):
        self.address = address

    def request(self, key: str, seconds: float, wanted: Callable[[], bool] = lambda: True) -> Grant | None:
        """A server of ``key``, as soon as one is free; None when none was for so many seconds or is ``wanted`` no more.

        A request that is given up may cost its server some seconds, which wait for whoever asked: so few long ones are
        better than many short ones. Raises TrackerGone.
        """
        deadline = time.monotonic() + seconds
        with self._connected() as connection:
            _send(connection, [_REQUEST, key, "", 1])
            while not select.select([connection], [], [], min(_GLANCE_S, seconds))[0]:
                if time.monotonic() > deadline or not wanted():
                    return None
            answer = _receive(connection)
        try:
            code, (host, port, matchkey) = answer
            if code == _SUCCESS:
                return Grant(Address(str(host), int(port)), str(matchkey))
        except (TypeError, ValueError):
            pass
        raise TrackerGone(f"what answers at {self.address} is no TVM RPC tracker: it answered {str(answer)[:80]}")

    def status(self) -> Status:
        """All servers and queues. Raises TrackerGone."""
        with self._connected() as connection:
            _send(connection, [_SUMMARY])
            answer = _receive(connection)
        try:
            code, facts = answer
            servers = sorted(
                (str(s["key"]).removeprefix("server:"), Address(str(s["addr"][0]), int(s["addr"][1])))
                for s in facts["server_info"]
            )
            keys = {**{k: {"free": 0, "pending": 0} for k, _ in servers}, **facts["queue_info"]}
            queues = {
                k: Queue(sum(key == k for key, _ in servers), int(q["free"]), int(q["pending"]))
                for k, q in sorted(keys.items())
            }
        except (TypeError, ValueError, KeyError, IndexError, AttributeError):
            code, servers, queues = None, [], {}
        if code != _SUCCESS:
            raise TrackerGone(f"what answers at {self.address} is no TVM RPC tracker: it answered {str(answer)[:80]}")
        return Status(tuple(servers), queues)

    @contextlib.contextmanager
    def _connected(self):
        """A connection after the handshake; what goes wrong with it is TrackerGone."""
        try:
            with socket.create_connection((self.address.host, self.address.port), timeout=ANSWER_S) as connection:
                connection.sendall(struct.pack("<i", _MAGIC))
                if _exactly(connection, 4) != struct.pack("<i", _MAGIC):
                    raise TrackerGone(f"what answers at {self.address} is no TVM RPC tracker")
                yield connection
        except (OSError, ValueError) as e:
            why = getattr(e, "strerror", None) or str(e) or type(e).__name__
            raise TrackerGone(
                f"no tracker answers at {self.address} ({why}); start one with: xframe fleet tracker"
                f" --host {self.address.host} --port {self.address.port}"
            ) from e


def _send(connection: socket.socket, message: list) -> None:
    data = json.dumps(message).encode()
    connection.sendall(struct.pack("<i", len(data)) + data)


def _receive(connection: socket.socket) -> Any:
    size = struct.unpack("<i", _exactly(connection, 4))[0]
    if not 0 < size <= _MOST_BYTES:
        raise ValueError(f"a message of {size} bytes")
    return json.loads(_exactly(connection, size).decode())


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionResetError("it closed the connection")
        data += part
    return data


def server() -> Callable[[socket.socket], None]:
    """What is TVM's tracker at a listening socket, in the thread that calls it, for as long as that lives.

    Imports TVM. Raises Unavailable where TVM or tornado is not installed.
    """
    try:
        with without_frameworks():
            from tvm.rpc import base, tracker
    except ImportError as e:
        raise Unavailable(f"TVM's RPC tracker can't be imported ({e}): pip install 'xframe-eval[tune]'") from e
    return lambda listener: tracker._tracker_server(listener, base.random_key("tracker"))
