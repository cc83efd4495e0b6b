"""The supervisor: its child comes back, gives up in words, and leaves nothing behind however it ends."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from xframe.errors import XframeError
from xframe.fleet import processes, supervisor

#: A child as the server's: lives with its parent, has a child of its own, writes both their numbers down.
CHILD = """
import os, pathlib, subprocess, sys, time
from xframe.fleet import processes
processes.live_with_parent()
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
part = pathlib.Path(os.environ["NUMBERS"] + ".part")
part.write_text(f"{os.getpid()} {grandchild.pid}")
part.rename(os.environ["NUMBERS"])
time.sleep(600)
"""
#: A supervisor of such children in a process of its own.
PARENT = """
import os
from xframe.fleet import processes, supervisor
with processes.until_asked_to_end():
    supervisor.keep(lambda: processes.start("fleet_child", env=os.environ), lambda line: print(line, flush=True))
print("ended well", flush=True)
"""


def wait_for(fact, seconds=60):
    """Until ``fact()`` holds, which it must within so many seconds; its value."""
    deadline = time.monotonic() + seconds
    while not (value := fact()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)
    return value


def alive(pid):
    """Whether the process is there and no zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    return False


@pytest.fixture
def supervised(tmp_path):
    """A supervisor's process; ``numbers()`` waits for (child, grandchild) and takes them."""
    (tmp_path / "fleet_child.py").write_text(CHILD)
    env = {
        **os.environ,
        "NUMBERS": str(tmp_path / "numbers"),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
    }
    process = subprocess.Popen([sys.executable, "-c", PARENT], env=env, stdout=subprocess.PIPE, text=True)

    def numbers():
        file = wait_for(lambda: next(tmp_path.glob("numbers"), None))
        found = [int(n) for n in file.read_text().split()]
        file.unlink()
        return found

    yield process, numbers
    process.kill()
    process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_ends_cleanly_when_asked(supervised, number):
    process, numbers = supervised
    pids = numbers()
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "ended well\n")
    assert not any(map(alive, pids))


def test_nothing_outlives_a_supervisor_that_was_killed(supervised):
    process, numbers = supervised
    pids = numbers()
    assert all(map(alive, pids))
    process.kill()
    wait_for(lambda: not any(map(alive, pids)))


def test_a_child_that_dies_comes_back_and_its_own_child_is_gone(supervised):
    process, numbers = supervised
    first = numbers()
    os.kill(first[0], signal.SIGSEGV)
    second = numbers()
    assert not any(map(alive, first))
    assert all(map(alive, second))
    assert "the server was killed by SIGSEGV; starting it again" in process.stdout.readline()


def test_one_that_never_runs_is_given_up(monkeypatch):
    monkeypatch.setattr(supervisor, "_FIRST_PAUSE_S", 0.0)
    started, said = [], []

    def start():
        started.append(subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"], start_new_session=True))
        return started[-1]

    with pytest.raises(XframeError, match="the server does not run: it ended with exit code 7, 5 times at once"):
        supervisor.keep(start, said.append)
    assert len(started) == supervisor.MOST_QUICK == len(said) + 1
    assert all(process.returncode == 7 for process in started)


def test_deaths_in_words():
    assert processes.cause_of_death(3) == "ended with exit code 3"
    assert processes.cause_of_death(-11) == "was killed by SIGSEGV"
    assert processes.cause_of_death(-999) == "was killed by signal 999"
