"""Modules that TVM has scheduled for CUDA, run on the CPU and checked on the way."""

import atexit
import contextlib
import functools
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from tests.cuda_on_cpu import build
from tests.cuda_on_cpu.errors import KINDS, ChildFailed
from tests.cuda_on_cpu.server import ORDERS, Request, receive, send
from xframe.errors import Unavailable

ROOT = Path(__file__).resolve().parents[2]
#: Shared memory of a block, in bytes, by architecture: what a kernel may ask for.
SHARED_BYTES = {"sm_80": 163 << 10, "sm_90": 227 << 10}


@functools.cache
def target(arch: str = "sm_80"):
    """TVM's target of an architecture, with all that TVM would ask a device for. ``sm_80`` or ``sm_90``."""
    import tvm

    return tvm.target.Target(
        {
            "kind": "cuda",
            "arch": arch,
            "max_num_threads": 1024,
            "max_threads_per_block": 1024,
            "max_shared_memory_per_block": SHARED_BYTES[arch],
            "thread_warp_size": 32,
            "host": {"kind": "llvm"},
        }
    )


default_target = target  # where a parameter has its name


def as_module(module):
    """An IRModule: the one given, or one whose function ``main`` is the given PrimFunc."""
    import tvm

    if isinstance(module, tvm.ir.IRModule):
        return module
    return tvm.IRModule({"main": module.with_attr("global_symbol", "main")})


def compiled(module: Any, target: Any, config: Mapping[str, Any] | None = None) -> Any:
    """TVM's executable. Without ``config``, the PassContext around it stays as it is."""
    import tvm

    context = tvm.transform.PassContext(config=dict(config)) if config else contextlib.nullcontext()
    with context, target:
        return tvm.compile(module, target=target)


def cuda_text(module: Any, *, target: Any = None, config: Mapping[str, Any] | None = None) -> str:
    """The CUDA text that TVM generates for a scheduled PrimFunc or IRModule; nothing is run."""
    executable = compiled(as_module(module), target or default_target(), config)
    return "\n".join(_texts(executable.mod))


def _texts(module: Any) -> Iterator[str]:
    if module.kind == "cuda":
        yield module.inspect_source()
    for part in module.imports:
        yield from _texts(part)


class Shim:
    """A process in which TVM finds a CUDA device. Requests are answered one after another, each in a process apart.

    Raises
    ------
    Unavailable
        There is no g++ here, no TVM, or not the machine that this is written for.
    """

    def __init__(self) -> None:
        build.libraries()
        command = [sys.executable, "-c", "from tests.cuda_on_cpu import server; server.main()"]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            _, found = receive(self._process.stdout)
        except EOFError:
            found = False
        if not found:
            self.close()
            raise Unavailable("TVM finds no CUDA device under the shim: is its package here, with its CUDA runtime?")

    def close(self) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(
        self,
        function: Callable,
        *arguments: Any,
        order: str = "forward",
        seed: int = 0,
        arch: str = "sm_80",
        text: str | None = None,
        cpu_seconds: int = 300,
    ) -> Any:
        """``function(*arguments)`` in a process where ``tvm.cuda(0)`` is there. All of it must pickle.

        Parameters
        ----------
        order : str
            In which order threads run, and blocks: "forward", "reverse", or "shuffled" by ``seed``.
        arch : str
            The device that is played; it decides how much shared memory there is.
        text : str, optional
            CUDA text to run in place of what TVM generates.
        cpu_seconds : int
            Processor time after which the process is ended.

        Raises
        ------
        KernelError
            A kernel does what no kernel may: one of its subclasses.
        Refused
            A kernel has something that the shim does not know.
        ChildFailed
            The function raises, or its process ends.
        """
        if order not in ORDERS:
            raise ValueError(f"order {order!r}: choose from {', '.join(ORDERS)}")
        capability = int("".join(filter(str.isdigit, arch)))
        request = Request(pickle.dumps((function, arguments)), order, seed, capability, text, cpu_seconds)
        try:
            send(self._process.stdin, request)
            outcome, *rest = receive(self._process.stdout)
        except (EOFError, OSError, ValueError) as e:  # a closed pipe is one or the other
            raise ChildFailed("the process that answers has ended") from e
        if outcome == "returned":
            return pickle.loads(rest[0])
        kind, message = rest
        raise KINDS[kind](message)

    def run(
        self,
        module,
        inputs: Sequence[np.ndarray],
        *,
        function: str = "main",
        target=None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> list[np.ndarray]:
        """What a function of a module scheduled for CUDA computes.

        Parameters
        ----------
        module : PrimFunc or IRModule
            TIR with threads bound, or a Relax module, which runs in TVM's virtual machine.
        inputs : sequence of arrays
            The leading parameters of ``function``; the other parameters of a PrimFunc are its outputs, and are
            uninitialised memory when it starts.
        target : tvm.target.Target, optional
            What to compile for; by default sm_80.
        config : mapping, optional
            Of TVM's PassContext.

        Returns
        -------
        list of arrays
            The outputs.

        ``options`` are those of :meth:`call`, which also says what is raised.
        """
        import tvm

        chosen = target or default_target()
        arguments = (tvm.ir.save_json(as_module(module)), function, list(inputs), chosen.export(), dict(config or {}))
        return self.call(_run, *arguments, arch=str(chosen.attrs["arch"]), **options)


def _run(*arguments: Any) -> list[np.ndarray]:
    """In the process with the device."""
    return loaded(*arguments)()


def loaded(
    module: str, function: str, inputs: list[np.ndarray], target: dict, config: dict
) -> Callable[[], list[np.ndarray]]:
    """In the process with the device: what runs the function of a saved module on it, and gives its outputs."""
    import tvm
    from tvm import relax

    mod, device = tvm.ir.load_json(module), tvm.cuda(0)
    executable = compiled(mod, tvm.target.Target(target), config)
    arrays = [tvm.runtime.tensor(x, device) for x in inputs]
    if isinstance(mod[function], relax.Function):
        # Each storage in memory of its own, of its own size: bounds are checked against it.
        machine = relax.VirtualMachine(executable, device, memory_cfg="naive")

        def virtual() -> list[np.ndarray]:
            result = machine[function](*arrays)
            return [x.numpy() for x in ([result] if hasattr(result, "numpy") else result)]

        return virtual
    rest = mod[function].params[len(arrays) :]
    outputs = [tvm.runtime.empty([int(n) for n in p.shape], str(p.dtype), device) for p in rest]

    def plain() -> list[np.ndarray]:
        executable[function](*arrays, *outputs)
        return [x.numpy() for x in outputs]

    return plain


@functools.cache
def default() -> Shim:
    """The one of this process, started when it is first asked for."""
    shim = Shim()
    atexit.register(shim.close)
    return shim


def run(*arguments: Any, **options: Any) -> list[np.ndarray]:
    """:meth:`Shim.run` of :func:`default`."""
    return default().run(*arguments, **options)


def call(*arguments: Any, **options: Any) -> Any:
    """:meth:`Shim.call` of :func:`default`."""
    return default().call(*arguments, **options)
