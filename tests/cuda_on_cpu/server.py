"""The process in which TVM finds a CUDA device: it takes requests and answers each from a fork of its own.

So TVM is imported once, and a kernel that breaks the process harms no other request. Requests and answers are pickles
on standard input and output; whatever else is printed goes to standard error.
"""

import ctypes
import functools
import os
import pickle
import resource
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

from tests.cuda_on_cpu import build
from tests.cuda_on_cpu.errors import Refused

ORDERS = ("forward", "reverse", "shuffled")


@dataclass(frozen=True)
class Request:
    """``call`` is a pickled (function, arguments); ``text`` replaces the CUDA text that TVM generates.

    A kernel that never ends is ended after ``cpu_seconds``: not of the clock, as the machine may be busy.
    """

    call: bytes
    order: str
    seed: int
    capability: int
    text: str | None
    cpu_seconds: int


def send(stream: BinaryIO, value: Any) -> None:
    data = pickle.dumps(value)
    stream.write(struct.pack("q", len(data)) + data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Raises EOFError where the other side has ended."""
    head = stream.read(8)
    if len(head) < 8:
        raise EOFError
    return pickle.loads(stream.read(struct.unpack("q", head)[0]))


class _Compiler:
    """Stands for nvcc. TVM hands exceptions on as its own, so what went wrong is kept here."""

    text: str | None = None
    refusal: Refused | None = None

    def __call__(self, generated: str) -> bytes:
        try:
            return b"CUDA-ON-CPU:" + os.fsencode(build.kernels(self.text or generated)) + b"\0"
        except Refused as e:
            self.refusal = e
            raise


@dataclass(frozen=True)
class Conditions:
    """Under which something runs apart; see :class:`Request`."""

    order: str
    seed: int
    capability: int
    cpu_seconds: int


_compiler = _Compiler()


@functools.cache
def runtime() -> ctypes.CDLL:
    """The library that plays the CUDA runtime. By its name TVM's is bound to it, and to the driver, once it is here."""
    found, _ = (ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL) for path in build.libraries())
    return found


def main() -> None:
    runtime()
    requests = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    import tvm

    tvm.register_global_func("tvm_callback_cuda_compile", _compiler.__call__, override=True)
    send(answers, ("ready", bool(tvm.cuda(0).exist)))
    while True:
        try:
            request = receive(requests)
        except EOFError:
            return
        conditions = Conditions(request.order, request.seed, request.capability, request.cpu_seconds)
        send(answers, apart(partial(_called, request), conditions))


def _called(request: Request) -> bytes:
    _compiler.text, _compiler.refusal = request.text, None
    function, arguments = pickle.loads(request.call)
    return pickle.dumps(function(*arguments))


def apart(job: Callable[[], Any], conditions: Conditions) -> tuple:
    """What became of ``job`` in a fork of this process: ("returned", value) or ("raised", kind, message)."""
    answer, fault = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(answer[0])
            os.close(fault[0])
            resource.setrlimit(resource.RLIMIT_CPU, (conditions.cpu_seconds, conditions.cpu_seconds + 5))
            order = ORDERS.index(conditions.order)
            runtime().shim_configure(fault[1], order, conditions.seed, conditions.capability)
            with os.fdopen(answer[1], "wb") as stream:
                pickle.dump(_answer(job), stream)
        finally:
            os._exit(0)
    os.close(answer[1])
    os.close(fault[1])
    with os.fdopen(answer[0], "rb") as stream, os.fdopen(fault[0]) as report:
        said, found = stream.read(), report.read()
    _, status = os.waitpid(child, 0)
    if found:
        kind, where, what, library, offset = found.split("\n")[:5]
        line = build.line_at(library, offset) if library else ""
        return "raised", kind, f"{where} {what}{f' ({line})' if line else ''}".strip()
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number in (signal.SIGXCPU, signal.SIGKILL):
            return "raised", "ChildFailed", f"it had not ended after {conditions.cpu_seconds} s of processor time"
        return "raised", "ChildFailed", f"the process was ended by {signal.Signals(number).name}"
    return pickle.loads(said) if said else ("raised", "ChildFailed", "the process ended without an answer")


def _answer(job: Callable[[], Any]) -> tuple:
    try:
        return "returned", job()
    except BaseException:
        if _compiler.refusal:
            return "raised", "Refused", str(_compiler.refusal)
        return "raised", "ChildFailed", traceback.format_exc()
