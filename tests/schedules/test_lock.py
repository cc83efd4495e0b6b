"""One writer at a time, whatever becomes of the others."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.schedules.logs import SITE, task
from xframe.errors import XframeError
from xframe.schedules.lock import LOCK, lock
from xframe.schedules.log import read

ROOT = Path(__file__).resolve().parents[2]
HOLDER = """
import sys, time
from pathlib import Path
from xframe.schedules.lock import lock
with lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""
#: Adds the entries of its own batches, one at a time.
WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from tests.schedules.logs import SITE, entry, log, task
from xframe.schedules.merge import update
sys.stdin.readline()
for batch in map(int, sys.argv[2:]):
    update(Path(sys.argv[1]), log(entry(task(replace(SITE, batch=batch)))))
"""


def python(code, *args):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", code, *map(str, args)], cwd=ROOT, **pipes)


def test_a_folder_that_somebody_holds_is_waited_for_and_then_told(tmp_path):
    with python(HOLDER, tmp_path) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(XframeError, match=f"process {holder.pid} has been writing the schedule log .* for 0.1 s"):
            lock(tmp_path, wait_s=0.1).__enter__()
        holder.kill()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_lock_of_a_dead_process_is_taken_over(tmp_path, how):
    with python(HOLDER, tmp_path) as holder:
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(how)
    with lock(tmp_path, wait_s=0):
        assert (tmp_path / LOCK).exists()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_file_that_nobody_holds_is_no_lock(tmp_path):
    (tmp_path / LOCK).write_text("1")
    with lock(tmp_path, wait_s=0):
        pass


def test_a_thread_may_hold_a_folder_twice_and_another_one_may_not(tmp_path):
    caught = []

    def other():
        try:
            lock(tmp_path, wait_s=0).__enter__()
        except XframeError as e:
            caught.append(e)

    with lock(tmp_path):
        with lock(tmp_path, wait_s=0):
            pass
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(caught) == 1
    with lock(tmp_path, wait_s=0):
        pass


def test_the_folder_is_made_and_other_folders_are_free(tmp_path):
    with lock(tmp_path / "a" / "b"), lock(tmp_path / "c", wait_s=0):
        assert (tmp_path / "a" / "b").is_dir()


def test_two_writers_at_once_lose_nothing(tmp_path):
    folder, batches = tmp_path / "log", [range(n, n + 8) for n in (1, 11, 21)]
    writers = [python(WRITER, folder, *some) for some in batches]
    for w in writers:
        w.stdin.write("go\n")
        w.stdin.flush()
    assert [w.communicate()[0] for w in writers] == [""] * 3
    assert [w.returncode for w in writers] == [0] * 3
    expected = {task(SITE).replace("n1c", f"n{batch}c", 1) for some in batches for batch in some}
    assert set(read(folder).entries) == expected
