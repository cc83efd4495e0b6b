"""How a process of the fleet ends when it is asked to: work that is not ours is never disturbed by it."""

import os
import signal
import subprocess
import sys

import pytest

from xframe.fleet import processes

#: Asks its own process to end while a destructor runs, from where an exception would be printed and lost.
DISTURBED = """
import os, sys, time
from xframe.fleet import processes

class Held:
    def __del__(self):
        os.kill(os.getpid(), int(sys.argv[1]))
        for _ in range(100):
            time.sleep(0.001)
        print("destroyed", flush=True)

def work():
    Held()
    time.sleep(600)

processes.run_until_asked_to_end(work)
print("ended well", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_work_is_not_disturbed_by_the_signal_that_ends_it(number):
    done = subprocess.run(
        [sys.executable, "-c", DISTURBED, str(int(number))], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "ended well"


def test_work_that_ends_by_itself_or_in_error():
    before = signal.getsignal(signal.SIGTERM)
    processes.run_until_asked_to_end(lambda: None)
    with pytest.raises(ValueError, match="no such thing"):
        processes.run_until_asked_to_end(lambda: int("no such thing"))
    assert signal.getsignal(signal.SIGTERM) == before


def test_handlers_are_those_of_before_after_an_end():
    before = signal.getsignal(signal.SIGTERM)
    with processes.until_asked_to_end():
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("not ended")
    assert signal.getsignal(signal.SIGTERM) == before
