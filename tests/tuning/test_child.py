"""A process that runs functions and may die of it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from xframe.errors import Mismatch, Unavailable, WorkerDied, WorkerTimeout, XframeError
from xframe.tuning import child as module
from xframe.tuning.child import Child

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("started")


@pytest.fixture(scope="module")
def shared(started):
    made = Child(1, [min(os.sched_getaffinity(0))])
    yield made
    made.kill()


def ask(child, function, *arguments, limit=60.0):
    return child.ask("the question", limit, function, *arguments)


def busy(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return os.getpid()


def mismatch(words):
    raise Mismatch(words)


def environment(*names):
    return [os.environ.get(n) for n in names], os.sched_getaffinity(0)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def test_what_a_function_returns(shared):
    np.testing.assert_array_equal(ask(shared, np.square, np.arange(3)), [0, 1, 4])
    assert ask(shared, os.getpid) != os.getpid()


def test_what_it_raises(shared):
    with pytest.raises(Mismatch, match=r"^far off$"):
        ask(shared, mismatch, "far off")
    with pytest.raises(XframeError, match=r"^ZeroDivisionError: "):
        ask(shared, divmod, 1, 0)
    with pytest.raises(XframeError, match="no_such_module"):
        ask(shared, __import__, "no_such_module")
    pid = ask(shared, os.getpid)
    assert ask(shared, os.getpid) == pid


def test_its_runtimes_have_so_many_threads_and_cpus(shared):
    names, affinity = ask(shared, environment, "TVM_NUM_THREADS", "TVM_BIND_THREADS", "OPENBLAS_NUM_THREADS")
    assert names == ["1", "0", "1"]
    assert affinity == {min(os.sched_getaffinity(0))}


def test_death_is_told_and_the_next_question_has_a_new_process(shared):
    pid, before = ask(shared, busy, 0.2), shared.cpu_s
    with pytest.raises(WorkerDied, match="the question ended its process: killed by SIGABRT"):
        ask(shared, os.abort)
    assert shared.fresh
    assert shared.cpu_s >= before
    assert ask(shared, os.getpid) != pid
    assert not shared.fresh
    with pytest.raises(WorkerDied, match="exit code 7"):
        ask(shared, os._exit, 7)


def test_what_hangs_is_stopped(shared):
    pid = ask(shared, os.getpid)
    with pytest.raises(WorkerTimeout, match=r"within 0\.2 s"):
        ask(shared, time.sleep, 600, limit=0.2)
    assert not alive(pid)
    assert ask(shared, abs, -1) == 1


def test_cpu_seconds_are_those_of_the_process_and_of_what_it_waited_for(shared):
    ask(shared, abs, 1)
    before = shared.cpu_s
    ask(shared, busy, 0.3)
    between = shared.cpu_s
    assert between - before >= 0.3
    code = "import time\nwhile time.process_time() < 0.3: pass"
    ask(shared, subprocess.check_call, [sys.executable, "-c", code])
    assert shared.cpu_s - between >= 0.3


def test_one_that_does_not_start_is_unavailable(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(Unavailable, match="No such file"):
        ask(Child(1), abs, 1)


def test_one_that_fails_while_it_starts_is_unavailable(monkeypatch):
    monkeypatch.setattr(module, "worker_environment", lambda threads, device: {"PYTHONHOME": "/nowhere"})
    with pytest.raises(Unavailable, match="does not start"):
        ask(Child(1), abs, 1)


@pytest.mark.skipif(sys.platform != "linux", reason="kernels elsewhere have no such signal")
@pytest.mark.parametrize("how", ["time.sleep, 600", "hold"])
def test_it_does_not_outlive_a_parent_that_is_killed(how):
    code = f"""
import time
from tests.tuning.test_child import hold, Child
made = Child(1)
print(made.ask("", 60.0, __import__("os").getpid), flush=True)
made.ask("", 600.0, {how})
"""
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    assert alive(pid)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    for _ in range(600):
        if not alive(pid):
            break
        time.sleep(0.05)
    assert not alive(pid)


def hold():
    """As compiled code may, it never gives Python's lock away: no thread sees the end of the parent."""
    import ctypes

    ctypes.PyDLL(None).pause()
