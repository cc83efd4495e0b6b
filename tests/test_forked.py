"""Processes that are forked are as those that are started."""

import os
import subprocess
import sys

import pytest

from xframe.tuning.child import Child
from xframe.worker import host
from xframe.worker.host import Worker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nothing is forked here")


def facts():
    return os.getpid(), os.getppid(), os.getsid(0), os.getcwd(), os.environ["XFRAME_TOLD"], sys.argv[0]


def test_they_are_of_this_process_and_have_what_they_were_given(tmp_path, monkeypatch):
    monkeypatch.setenv("XFRAME_TOLD", "it")
    monkeypatch.chdir(tmp_path)
    child = Child(1)
    try:
        pid, parent, session, folder, told, name = child.ask("the question", 60, facts)
        opened = {os.readlink(f"/proc/{pid}/fd/{n}") for n in os.listdir(f"/proc/{pid}/fd")}
    finally:
        child.close()
    assert (parent, session, folder, told) == (os.getpid(), pid, str(tmp_path), "it")
    assert name.endswith("child.py")
    assert len(opened) == 3, "nothing, its log and the connection"


def test_whoever_knows_one_can_end_its_group():
    """Also at once: it has a session of its own before it is known."""
    assert host.subprocess is not subprocess
    for _ in range(30):
        worker = Worker(1)
        assert os.getsid(worker.pid) == worker.pid
        worker.kill()
        assert not os.path.exists(f"/proc/{worker.pid}")
        worker.close()
