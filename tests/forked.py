"""Processes that start in no time: forked by one that has imported what each of them imports.

A worker imports numpy and onnx, and a process that tunes TVM, for longer than most tests need it, and there are
hundreds. :class:`Forks` stands in for the module ``subprocess`` where those are started; ``python -m tests.forked`` is
the process that forks. What it makes are children of this one, as those that are started: in a session of their own,
with the environment, the folder and the descriptors that they were given. What the loader or the interpreter reads as
it begins can't be changed afterwards: where that differs, or the interpreter, a process is started as ever. The threads
of numpy's products can't either: they are those of the tests.
"""

import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

from xframe.worker.alone import without_frameworks

ROOT = Path(__file__).resolve().parents[1]
#: What is forked, and what those import, the fakes in them, or TVM's backend. Nothing of it starts a thread.
MODULES = ("xframe.worker", "xframe.tuning.child")
IMPORTED = ("xframe.worker.session", "xframe.equivalence.reference", "xframe.backends.tvm", "xframe.tuning.bench")
#: How variables begin that are read once, as a process begins; but the path, which can be changed.
_READ_ONCE, _PATH = ("LD_", "GLIBC_", "MALLOC_", "PYTHON"), "PYTHONPATH"
_PYTHON = sys.executable
_PR_SET_CHILD_SUBREAPER = 36


def _read_once(variables):
    return {k: v for k, v in variables.items() if k.startswith(_READ_ONCE) and k != _PATH}


class Forks:
    """What is used of ``subprocess`` where :data:`MODULES` are started. A context manager."""

    PIPE, DEVNULL, TimeoutExpired = subprocess.PIPE, subprocess.DEVNULL, subprocess.TimeoutExpired

    def __init__(self):
        self._lock, self._process, self._read_once = threading.Lock(), None, {}

    def Popen(self, command, **options):
        """A process in a session of its own, forked where that can be."""
        python, _, module, *_ = command
        if python != _PYTHON or module not in MODULES or options.get("cwd") is not None:
            return subprocess.Popen(command, **options)
        with self._lock:
            if self._process is None:
                self._start()
            if _read_once(options["env"]) != self._read_once:
                return subprocess.Popen(command, **options)
            return self._fork(command[2:], **options)

    def _start(self):
        # What is orphaned becomes a child of this process: so does what the other one forks twice.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._read_once = _read_once(os.environ)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [_PYTHON, "-m", "tests.forked", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def _fork(self, arguments, env, stdin, stdout, stderr, pass_fds=(), start_new_session=True, cwd=None):
        with contextlib.ExitStack() as theirs:
            ours = [None, None]

            def descriptor(given, number):
                if given == self.PIPE:
                    ends = os.pipe()
                    ours[number] = ends[1 - number]
                    theirs.callback(os.close, ends[number])
                    return ends[number]
                if given == self.DEVNULL:
                    return theirs.enter_context(open(os.devnull)).fileno()
                return given.fileno()

            told, tells = os.pipe()
            theirs.callback(os.close, tells)
            given = [tells, descriptor(stdin, 0), descriptor(stdout, 1), stderr.fileno(), *pass_fds]
            request = {"arguments": arguments, "variables": env, "folder": os.getcwd(), "numbers": [0, 1, 2, *pass_fds]}
            socket.send_fds(self._socket, [json.dumps(request).encode()], given)
        with open(told, "rb") as pid:
            return Fork(int(pid.read()), *ours)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self._process is not None:
            self._socket.close()  # which ends it
            self._process.wait()


class Fork:
    """What is used of a ``Popen``. ``stdin`` and ``stdout``: descriptors of pipes, or None."""

    def __init__(self, pid, stdin, stdout):
        self.pid, self.returncode = pid, None
        self.stdin, self.stdout = stdin and os.fdopen(stdin, "wb"), stdout and os.fdopen(stdout, "rb")
        self._lock = threading.Lock()

    def wait(self, timeout=None):
        """Its exit code, that of a signal negative."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while self.returncode is None:
                pid, status = os.waitpid(self.pid, 0 if deadline is None else os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
                elif time.monotonic() > deadline:
                    raise subprocess.TimeoutExpired(MODULES, timeout)
                else:
                    time.sleep(0.01)
            return self.returncode


def main(descriptor):
    """Fork whenever asked to, until the other end of the socket is closed."""
    with without_frameworks():
        for name in IMPORTED:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    asked = socket.socket(fileno=descriptor)
    while True:
        message, given, _, _ = socket.recv_fds(asked, 1 << 20, 8)
        if not message:
            return
        if between := os.fork():
            os.waitpid(between, 0)
            for one in given:
                os.close(one)
            continue
        between = os.getpid()
        if os.fork():
            os._exit(0)
        try:
            while os.getppid() == between:  # its parent is to be who asked
                time.sleep(1e-4)
            os.setsid()  # before anyone knows it, and may end its group
            tells, *given = given
            os.write(tells, b"%d" % os.getpid())
            os.close(tells)
            _become(json.loads(message), given)
        except BaseException:
            traceback.print_exc()
        os._exit(1)


def _become(request, given):
    """In a fork: the process that was asked for."""
    numbers = request["numbers"]
    beyond = max(numbers) + 1
    kept = [fcntl.fcntl(one, fcntl.F_DUPFD, beyond) for one in given]
    for one, number in zip(kept, numbers, strict=True):
        os.dup2(one, number)
    for first, last in zip(numbers[2:], [*numbers[3:], 1 << 12], strict=True):
        os.closerange(first + 1, last)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["variables"])
    sys.path[:1] = [request["folder"], *filter(None, os.environ.get(_PATH, "").split(os.pathsep))]
    module, *sys.argv[1:] = request["arguments"]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
