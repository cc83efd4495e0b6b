"""The tracker's protocol, against peers that do not keep to it. TVM's own tracker is in test_runner.py."""

import contextlib
import json
import socket
import struct
import threading
import time

import pytest

from xframe.fleet import tracker as trackers
from xframe.fleet.address import Address, listen
from xframe.fleet.tracker import Grant, Queue, Tracker, TrackerGone

MAGIC = struct.pack("<i", 0x2F271)


def framed(value):
    data = json.dumps(value).encode()
    return struct.pack("<i", len(data)) + data


@contextlib.contextmanager
def peer(*replies, silent=False):
    """A Tracker whose peer sends ``replies`` after what it receives, one each, then closes or keeps silent."""
    listener = listen("127.0.0.1", [0])
    over = threading.Event()

    def answer():
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                for reply in replies:
                    connection.recv(1 << 16)
                    connection.sendall(reply)
                if silent:
                    over.wait(30)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield Tracker(Address(*listener.getsockname()[:2]))
    finally:
        over.set()
        listener.close()
        thread.join()


def test_a_grant_and_the_status_are_read():
    with peer(MAGIC, framed([0, ["10.0.0.7", 9091, "zen4:0.5"]])) as tracker:
        assert tracker.request("zen4", 10) == Grant(Address("10.0.0.7", 9091), "zen4:0.5")
    facts = {
        "queue_info": {"zen4": {"free": 1, "pending": 0}, "arm": {"free": 0, "pending": 2}},
        "server_info": [
            {"key": "server:zen4", "addr": ["10.0.0.8", 9092]},
            {"key": "server:zen4", "addr": ["10.0.0.7", 9091]},
            {"key": "server:new", "addr": ["10.0.0.9", 9091]},
        ],
    }
    with peer(MAGIC, framed([0, facts])) as tracker:
        status = tracker.status()
    assert [str(address) for _, address in status.servers] == ["10.0.0.9:9091", "10.0.0.7:9091", "10.0.0.8:9092"]
    assert status.queues == {"arm": Queue(0, 0, 2), "new": Queue(1, 0, 0), "zen4": Queue(2, 1, 0)}


def test_nobody_free_is_no_error():
    with peer(MAGIC, b"", silent=True) as tracker:
        assert tracker.request("zen4", 0.1) is None


def test_nobody_there():
    with listen("127.0.0.1", [0]) as listener:
        address = Address(*listener.getsockname()[:2])
    with pytest.raises(TrackerGone, match=rf"no tracker answers at {address} .*refused.*xframe fleet tracker --host"):
        Tracker(address).status()


@pytest.mark.parametrize(
    "replies",
    [
        (),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n",),
        (MAGIC,),
        (MAGIC, b"\x05\x00"),
        (MAGIC, struct.pack("<i", -1)),
        (MAGIC, struct.pack("<i", 1 << 30)),
        (MAGIC, struct.pack("<i", 2) + b"{["),
        (MAGIC, struct.pack("<i", 2) + b"\xff\xff"),
        (MAGIC, framed(None)),
        (MAGIC, framed([1, None])),
        (MAGIC, framed([0, {"server_info": [{"key": "server:x"}], "queue_info": {}}])),
        (MAGIC, framed([0, {"server_info": [], "queue_info": {"x": {}}}])),
        (MAGIC, framed([0, ["host", "port", "key"]])),
    ],
)
@pytest.mark.parametrize("ask", [lambda t: t.status(), lambda t: t.request("zen4", 5)], ids=["status", "request"])
def test_whatever_is_no_tracker_is_told_as_that(replies, ask):
    with peer(*replies) as tracker, pytest.raises(TrackerGone, match="tracker"):
        ask(tracker)


def test_a_tracker_that_does_not_answer_is_not_waited_for_long(monkeypatch):
    monkeypatch.setattr(trackers, "ANSWER_S", 0.2)
    began = time.monotonic()
    with peer(silent=True) as tracker, pytest.raises(TrackerGone, match="timed out"):
        tracker.status()
    assert time.monotonic() - began < 20  # a bound on hanging, not a speed


def test_the_requests_of_two_threads_do_not_meet():
    listener = listen("127.0.0.1", [0])

    def answer():
        for _ in range(2):
            connection, _ = listener.accept()
            threading.Thread(target=converse, args=(connection,)).start()

    def converse(connection):
        with connection:
            connection.recv(4)
            connection.sendall(MAGIC)
            size = struct.unpack("<i", connection.recv(4, socket.MSG_WAITALL))[0]
            key = json.loads(connection.recv(size, socket.MSG_WAITALL))[1]
            connection.sendall(framed([0, ["h", 1, key]]))

    serving = threading.Thread(target=answer)
    serving.start()
    tracker, found = Tracker(Address(*listener.getsockname()[:2])), {}
    asking = [threading.Thread(target=lambda k=k: found.update({k: tracker.request(k, 10).matchkey})) for k in "ab"]
    for thread in asking:
        thread.start()
    for thread in [*asking, serving]:
        thread.join()
    listener.close()
    assert found == {"a": "a", "b": "b"}
