"""The host's handle on a worker process: start it pinned, ask it, and put its death into words."""

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, MutableMapping, Optional, Sequence, Tuple

from xframe import errors, registry
from xframe.worker import wire

#: Inherited settings that would pin one runtime and not another.
_UNEVEN = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_HW_SUBSET", "TVM_BIND_THREADS")
#: What would round the products of some runtimes to TF32, whatever they were told.
_UNSEEN = ("NVIDIA_TF32_OVERRIDE",)
#: A GPU's memory is for all workers that are open on it: no framework takes what it does not use.
_SHARED_GPU = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
_OUT_OF_MEMORY = ("bad_alloc", "MemoryError", "Cannot allocate memory", "out of memory")
#: Settings of this interpreter, which mean nothing, or harm, to another one.
_PYTHONS = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONWARNINGS", "VIRTUAL_ENV")
_PACKAGE = Path(__file__).resolve().parents[1]
#: Longest wait for spinning threads, seconds. Intel's OpenMP spins 0.2 s by default.
_SETTLE = 0.3


def worker_environment(
    threads: int, device: str = "cpu", more: Optional[Mapping[str, str]] = None, alone: Optional[str] = None
) -> Dict[str, str]:
    """Environment variables of a worker: every runtime gets the same number of threads, and is asked to be quiet.

    ``more`` are set too; those that end in ``_FLAGS`` are added to what is there. ``alone``: a folder with this package
    and nothing else, for an interpreter that must not find what is beside it here, nor what the user's Python variables
    name.
    """
    dropped = (*_UNEVEN, *_UNSEEN) if alone is None else (*_UNEVEN, *_UNSEEN, *_PYTHONS)
    env = {k: v for k, v in os.environ.items() if k not in dropped}
    for name in ("OMP", "OPENBLAS", "MKL", "TVM", "NUMEXPR", "VECLIB_MAXIMUM"):
        env[name + "_NUM_THREADS"] = str(threads)
    # TVM's own binding halves its speed, and that of whatever shares the cores, once a process is pinned already.
    env["TVM_BIND_THREADS"] = "0"
    env["OMP_DYNAMIC"] = env["MKL_DYNAMIC"] = "FALSE"
    flags = "--xla_cpu_multi_thread_eigen=true intra_op_parallelism_threads=%d" % threads
    env["XLA_FLAGS"] = (env.get("XLA_FLAGS", "") + " " + flags).strip()
    env.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if device == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = "-1"
    else:
        in_bus_order(env)
        env.update(_SHARED_GPU)
    for name, value in (more or {}).items():
        env[name] = (env.get(name, "") + " " + value).strip() if name.endswith("_FLAGS") else value
    root = alone or str(_PACKAGE.parent)
    env["PYTHONPATH"] = os.pathsep.join(p for p in (root, env.get("PYTHONPATH")) if p)
    return env


def in_bus_order(variables: MutableMapping[str, str]) -> None:
    """In an environment, CUDA counts GPUs as the driver does when it is asked how they are, unless told otherwise."""
    variables.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


def package_alone(folder: str) -> str:
    """Make ``folder``, with a link to this package in it, for the path of an interpreter that is to find nothing else:
    where it is installed, all packages of this interpreter are beside it."""
    os.mkdir(folder)
    os.symlink(str(_PACKAGE), os.path.join(folder, _PACKAGE.name))
    return folder


def plugin_row(table: Dict[str, registry.Row], name: str) -> List[Any]:
    """The registry row of ``name`` as it travels to a worker."""
    row = table[name]
    return [name, row.where, row.needs, row.extra, row.environment]


class Worker:
    """A process that holds one executable. A context manager; not for use by two threads at a time.

    Parameters
    ----------
    threads
        Threads of every runtime in it.
    device
        ``"cpu"`` hides the GPUs from it.
    cpus
        CPUs it may run on; None leaves the affinity as it is.
    python
        The interpreter, for frameworks that need their own.
    variables
        Environment variables on top of those of every worker.
    alone
        Its interpreter finds this package, and what it has itself; nothing that is installed here.
    """

    def __init__(
        self,
        threads: int,
        device: str = "cpu",
        cpus: Optional[Iterable[int]] = None,
        python: str = sys.executable,
        variables: Optional[Mapping[str, str]] = None,
        alone: bool = False,
    ) -> None:
        self.dead = False
        self._asked = ""
        self._buffer = b""
        self._folder = tempfile.mkdtemp(prefix="xframe-worker-")
        self._log = self.place("stderr")
        path = package_alone(self.place("path")) if alone else None
        command = [python, "-m", "xframe.worker"]
        if cpus is not None:
            command += ["--cpus", ",".join(str(c) for c in sorted(cpus))]
        try:
            with open(self._log, "wb") as log:
                # A session of its own: Ctrl-C reaches the host alone, and one kill ends all that a plugin started.
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=worker_environment(threads, device, variables, path),
                    cwd=path,  # the first place where modules are looked for
                    start_new_session=True,
                )
        except OSError as e:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise errors.Unavailable("can't start a worker with %s: %s" % (python, e.strerror or e)) from e

        self._requests = self._process.stdin  # type: Any
        self._replies = self._process.stdout  # type: Any

    @property
    def pid(self) -> int:
        return self._process.pid

    def place(self, name: str) -> str:
        """The path of a file that both sides can write, and that goes when this ends."""
        return os.path.join(self._folder, name)

    def call(self, cmd: str, limit: float, **fields: Any) -> Dict[str, Any]:
        """Send one command and wait for its reply. Raises what :meth:`send` and :meth:`receive` raise."""
        self.send(cmd, **fields)
        return self.receive(limit)

    def send(self, cmd: str, **fields: Any) -> None:
        """Send one command, whose reply must be received before the next one is sent.

        Raises
        ------
        WorkerDied
            The process ended; the message says of what.
        """
        if self.dead:
            raise errors.WorkerDied("the worker was asked to %s after its end" % cmd)
        self._asked = cmd
        fields = {k: v.absolute() if isinstance(v, Path) else v for k, v in fields.items()}
        try:
            self._requests.write(json.dumps(wire.plain(dict(fields, cmd=cmd))).encode() + b"\n")
            self._requests.flush()
        except OSError:
            raise self._died() from None

    def receive(self, limit: float) -> Dict[str, Any]:
        """Wait for the reply to the command sent last.

        Raises
        ------
        WorkerTimeout
            No reply within ``limit`` seconds; the worker is killed.
        WorkerDied
            The process ended; the message says of what.
        XframeError
            What the command raised there, as the class that it was.
        """
        try:
            reply = json.loads(self._line(limit).decode())
        except TimeoutError:
            last = self._last_words()
            self.kill()
            raise errors.WorkerTimeout(
                "%s did not finish within %g s and was stopped%s; raise the limit if it needs longer"
                % (self._asked, limit, last)
            ) from None
        except (EOFError, OSError):
            raise self._died() from None
        except BaseException:  # an interrupt: the reply would be taken for that of the next command
            self.kill()
            raise
        if not reply["ok"]:
            raise errors.by_kind(reply["kind"], reply["reason"])
        return reply

    def run(self, feeds: Sequence[Any], limit: float) -> Tuple[List[Any], Dict[str, Any]]:
        """Bind ``feeds`` (canonical), run one step; its outputs (canonical) and the reply."""
        feeds_path = self.place("feeds.npz")
        wire.save_arrays(feeds_path, feeds)
        return self._outputs("run", limit, feeds=feeds_path)

    def fetch(self, limit: float) -> List[Any]:
        """The outputs of the last step, canonical."""
        return self._outputs("fetch", limit)[0]

    def gradients(self, feeds: Sequence[Any], cotangents: Sequence[Any], limit: float, **fields: Any) -> Dict[str, Any]:
        """Gradients by name, as :meth:`xframe.protocols.Framework.gradients` gives them.

        ``fields``: plugin, spec, weights and batch, as the worker's command takes them.
        """
        paths = self.place("feeds.npz"), self.place("cotangents.npz")
        wire.save_arrays(paths[0], feeds)
        wire.save_arrays(paths[1], cotangents)
        arrays, reply = self._outputs("gradients", limit, feeds=paths[0], cotangents=paths[1], **fields)
        return dict(zip(reply["names"], arrays))

    def log(self, limit: int = 4000) -> str:
        """The end of what the process wrote to stderr (and to fd 1)."""
        try:
            with open(self._log, "rb") as f:
                f.seek(max(0, os.path.getsize(self._log) - limit))
                return f.read().decode("utf-8", "replace")
        except OSError:
            return ""

    def kill(self) -> None:
        """End the process and all it started, now. Safe from another thread and when it is dead already."""
        if not self.dead:
            self.dead = True
            # Also when the process has gone: what it started may live, and while it does the group keeps its number.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Ask the process to end, kill it if it does not, remove its files."""
        if not self.dead:
            with contextlib.suppress(errors.XframeError):
                self.call("close", limit=10)
        self.kill()
        for pipe in (self._requests, self._replies):
            with contextlib.suppress(OSError):  # what could not be sent is of no use any more
                pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def _outputs(self, cmd: str, limit: float, **fields: Any) -> Tuple[List[Any], Dict[str, Any]]:
        path = self.place("outputs.npz")
        reply = self.call(cmd, limit, outputs=path, **fields)
        arrays = wire.load_arrays(path)
        os.unlink(path)
        return arrays, reply

    def _line(self, limit: float) -> bytes:
        deadline = time.monotonic() + limit
        fd = self._replies.fileno()
        with selectors.DefaultSelector() as waiting:
            waiting.register(fd, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = deadline - time.monotonic()
                if left <= 0 or not waiting.select(left):
                    raise TimeoutError
                chunk = os.read(fd, 1 << 16)
                if not chunk:
                    raise EOFError
                self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line

    def _died(self) -> errors.WorkerDied:
        return errors.WorkerDied("the worker process died in %s: %s" % (self._asked, self._obituary()))

    def _last_words(self) -> str:
        lines = [x.strip() for x in self.log().splitlines() if x.strip()]
        return " (its last words: %s)" % lines[-1][:200] if lines else ""

    def _obituary(self) -> str:
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:  # it closed its pipe and lives on
            code = None
        log, last = self.log(), self._last_words()
        self.kill()
        if code is None:
            return "it closed its pipe" + last
        if any(w in log for w in _OUT_OF_MEMORY):
            return "out of memory%s" % last
        if code >= 0:
            return "exit code %d%s" % (code, last)
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = "signal %d" % -code
        return "killed by %s%s%s" % (name, ": out of memory?" if -code == signal.SIGKILL else "", last)


def _runs(pid: int) -> bool:
    """Does any thread of the process run, or want to? A thread that spins always does."""
    with contextlib.suppress(OSError):
        for task in Path("/proc/%d/task" % pid).iterdir():
            with contextlib.suppress(OSError):
                if (task / "stat").read_bytes().rpartition(b") ")[2].startswith(b"R"):
                    return True
    return False


def settle(pids: Iterable[int]) -> bool:
    """Wait until no thread of these processes runs; False when some still did after 0.3 s.

    Where threads can't be looked at (macOS) it waits all that time.
    """
    pids, deadline = list(pids), time.monotonic() + _SETTLE
    if not Path("/proc/self/task").exists():
        time.sleep(_SETTLE)
        return True
    while True:
        time.sleep(0.01)
        if not any(_runs(pid) for pid in pids):
            return True
        if time.monotonic() >= deadline:
            return False
