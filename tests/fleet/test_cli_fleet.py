"""``xframe fleet``: what it prints, what it refuses, and that nothing is left of it when it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fleet.conftest import LONG, Fleet, wait_for
from xframe import cli


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A tracker and one server."""
    with open(tmp_path_factory.mktemp("small") / "log", "w") as log:
        made = Fleet(log)
        try:
            made.start_servers(1, "zen4")
            yield made
        finally:
            made.close()


@pytest.fixture
def xframe(capsys):
    """Runs a command here; gives its exit code, stdout and stderr."""

    def call(*args):
        code = cli.main([str(a) for a in args])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return call


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["status", "--tracker", "nowhere"], "--tracker 'nowhere' is not an address"),
        (["server", "--key", "two words", "--tracker", "127.0.0.1:9190"], "--key 'two words' can't name a kind"),
        (["server", "--key", "x", "--tracker", "127.0.0.1"], "--tracker '127.0.0.1' is not an address"),
        (["server", "--key", "x", "--tracker", "h:1", "--threads", "0"], "--threads 0 makes no sense"),
        (["server", "--key", "x", "--tracker", "h:1", "--threads", "9999"], "--threads 9999 makes no sense"),
        (["server", "--key", "x", "--tracker", "h:1", "--port", "70000"], "--port 70000 makes no sense"),
        (["tracker", "--port", "-1"], "--port -1 makes no sense"),
        (["server", "--tracker", "h:1"], "--key"),
    ],
)
def test_a_request_that_makes_no_sense(xframe, args, words):
    code, out, err = xframe("fleet", *args)
    assert (code, out) == (2, "")
    assert words in err


def test_no_tracker(xframe):
    code, out, err = xframe("fleet", "status", "--tracker", "127.0.0.1:9")
    assert (code, out) == (1, "")
    assert err.startswith("xframe: no tracker answers at 127.0.0.1:9 ")
    assert len(err.splitlines()) == 1


def test_a_port_that_is_taken(xframe, small):
    code, _, err = xframe("fleet", "tracker", "--port", small.tracker.address.port)
    assert code == 1
    assert f"can't listen at {small.address}: " in err


def test_status(xframe, small):
    (server,) = small.servers
    code, out, _ = xframe("fleet", "status", "--tracker", small.address)
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["server", "zen4", server],
        ["key", "zen4", "1", "servers,", "1", "free,", "0", "requests", "waiting"],
    ]
    code, out, _ = xframe("fleet", "status", "--tracker", small.address, "--json")
    host, _, port = server.rpartition(":")
    assert [json.loads(line) for line in out.splitlines()] == [
        {"kind": "server", "key": "zen4", "host": host, "port": int(port)},
        {"kind": "key", "key": "zen4", "servers": 1, "free": 1, "waiting": 0},
    ]


def test_status_needs_no_tvm(small):
    code = "import sys; from xframe.cli import main; main(sys.argv[1:]); assert 'tvm' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", code, "fleet", "status", "--tracker", small.address], capture_output=True, timeout=LONG
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_other_machines_are_let_in_with_a_warning_only():
    command = [sys.executable, "-m", "xframe.cli", "fleet", "tracker", "--host", "0.0.0.0", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        words = process.stderr.readline()
        assert process.stdout.readline().startswith("tracker at 0.0.0.0:")
    finally:
        process.terminate()
        out, err = process.communicate(timeout=LONG)
    assert "TVM's RPC trusts its peers" in words
    assert (process.returncode, out, err) == (0, "", "")


def left(tracker):
    """Processes that still have the tracker's address on their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if tracker.encode() in words:
            found.append(int(path.parent.name))
    return found


def test_nothing_is_left_of_a_server_that_ends(small):
    """However it ends: three at a time, one after the other."""
    made = small.start_servers(3, "short")
    ends = dict(zip(made, [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], strict=True))
    processes = 8  # of each server its supervisor and what that keeps alive
    assert len(left(small.address)) == processes
    for server, number in ends.items():
        process = small.servers.pop(server)
        os.kill(process.pid, number)
        process.wait(LONG)
        processes -= 2
        wait_for(lambda: len(left(small.address)) == processes)  # noqa: B023
        wait_for(lambda: server not in {str(a) for _, a in small.tracker.status().servers})  # noqa: B023
        assert process.returncode == (-number if number == signal.SIGKILL else 0)
    assert small.free("zen4") == 1


def test_a_server_whose_tracker_comes_later_finds_it(small):
    """And keeps its port."""
    (server,) = small.servers
    small.tracker_process.kill()
    small.tracker_process.wait()
    time.sleep(3)  # it has noticed by then: it asks every 2 s
    small.start_tracker()
    wait_for(lambda: [str(a) for _, a in small.tracker.status().servers] == [server])
