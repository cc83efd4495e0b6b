"""CUDA text with one thing broken, and what becomes of it: what a check that is worth something must notice.

A mutant is the kernel without one barrier, or with one bound that is one too large or too small: of a loop, of a
comparison with a constant, of a ``min`` or ``max`` with one. All of a kernel's mutants are one text, which is compiled
once (``native/device/mutants.h``). A mutant is noticed by the shim, or by wrong numbers, or it is proved to be no other
kernel than the original, by one of four rules that are checked on a whole run, over all blocks, threads and loops:

- ``never another value``: wherever the bound is compared, the comparison comes out the same.
- ``same accesses``: every thread reads and writes the same places of device and shared memory, in the same order, with
  the same values, to the bit.
- ``same results``: what it writes to device memory is the same to the bit for random inputs, while nothing that it
  touches is out of bounds, undefined or raced for. Where a kernel reads and writes does not depend on its inputs, so
  two kernels whose sums have other terms agree on random numbers by chance alone.
- ``ordered anyway``: no two threads touch a word between the barriers that are left, one of them writing another value.
  This is computed from the list of all accesses (:mod:`tests.cuda_on_cpu.trace`), apart from the shim's own search for
  races.

What is neither noticed nor proved has survived.
"""

import ctypes
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tvm

from tests.cuda_on_cpu import build, errors, server, trace
from tests.cuda_on_cpu.shim import Shim, as_module, cuda_text, default_target, loaded
from tests.cuda_on_cpu.trace import ordered

#: Places of a kernel that ``native/device/mutants.h`` has room for.
PLACES = 8192
#: Rules by which a mutant is no other kernel.
NEVER, SAME, RESULTS, ORDERED = "never another value", "same accesses", "same results", "ordered anyway"
PROOFS = (NEVER, SAME, RESULTS, ORDERED)
WRONG, SURVIVED = "wrong numbers", "survived"

#: What is left out whole, and constants that are bounds.
_STEP = r"(?P<step>__syncthreads\(\);|\w+_async_wait_group_\d+\(\);)"
_BOUND = r"(?<=< )\d+(?=[);])|(?<=\()\d+(?= <= )|(?<=\bmin\()\d+(?=, )|(?<=\bmax\()\d+(?=, )|(?<=, )\d+(?=\))"
_PLACE = re.compile(f"{_STEP}|{_BOUND}")
#: A loop with a bound that is computed.
_LOOP = re.compile(r"(?<=for \(int )(\w+) = 0; \1 < (\([^;]*\));")


@dataclass(frozen=True)
class Mutant:
    """``number`` is its place's in the text of all mutants; ``by``: what a bound is changed by, 0 for a barrier, of
    which ``line`` is the line."""

    what: str
    number: int
    by: int
    line: int


@dataclass(frozen=True)
class Verdict:
    """``how`` a mutant was noticed: the name of an error, or :data:`WRONG`; or proved: one of :data:`PROOFS`."""

    mutant: Mutant
    how: str

    @property
    def noticed(self) -> bool:
        return self.how not in (*PROOFS, SURVIVED)

    @property
    def survived(self) -> bool:
        return self.how == SURVIVED


def mutants(text: str) -> tuple[str, list[Mutant]]:
    """The text of all mutants of a CUDA text, and which there are. Lines keep their numbers."""
    start = text.index('extern "C" __global__')  # behind the preamble, which has conditions of its own
    head, body = text[:start], text[start:]
    found: list[Mutant] = []
    count = itertools.count()

    def add(what: str, at: re.Match, *by: int) -> int:
        line, number = head.count("\n") + at.string.count("\n", 0, at.start()) + 1, next(count)
        said = text.splitlines()[line - 1].strip()[:100]
        found.extend(
            Mutant(f"line {line}: {what}{f' {b:+}' if b else ' removed'}: {said}", number, b, line) for b in by
        )
        return number

    def constant(at: re.Match) -> str:
        if at["step"]:
            return f"if (shim_kept({add(at[0], at, 0)})) {at[0]}"
        if at.string[at.start() - 2] == "," and not _ends_minimum(at.string, at.end()):
            return at[0]
        return f"ShimBound{{{at[0]}, {add(at[0], at, -1, 1)}}}"

    def computed(at: re.Match) -> str:
        return f"{at[1]} = 0; {at[1]} < ShimBound{{{at[2]}, {add('bound', at, -1, 1)}}};"

    return head + _LOOP.sub(computed, _PLACE.sub(constant, body)), found


def _ends_minimum(text: str, end: int) -> bool:
    """Whether the parenthesis at ``end`` is that of a ``min`` or ``max``."""
    depth = 0
    for at in range(end, 0, -1):
        depth += {")": 1, "(": -1}.get(text[at], 0)
        if not depth:
            return text[at - 3 : at] in ("min", "max")
    return False


def judged(
    shim: Shim,
    func: Any,
    inputs: Sequence[np.ndarray],
    *,
    target: Any = None,
    config: Mapping[str, Any] | None = None,
    bounds: bool = True,
) -> list[Verdict]:
    """Every mutant of a scheduled PrimFunc, each run in two orders of its threads unless the first shows it.

    ``bounds``: those of its bounds, too, beside its barriers.

    Raises
    ------
    KernelError
        The kernel itself is wrong.
    """
    chosen = target or default_target()
    text, made = mutants(cuda_text(func, target=chosen, config=config))
    made = [m for m in made if bounds or not m.by]
    module = tvm.ir.save_json(as_module(func))
    arguments = module, list(inputs), chosen.export(), dict(config or {}), text, made
    return shim.call(_judged, *arguments, arch=str(chosen.attrs["arch"]), text=text)


def _judged(
    module: str, inputs: list[np.ndarray], target: dict, config: dict, text: str, made: list[Mutant]
) -> list[Verdict]:
    """In the process with the device."""
    run = loaded(module, "main", inputs, target, config)
    library = ctypes.CDLL(str(build.kernels(text)))
    capability = int("".join(filter(str.isdigit, target["arch"])))

    def outcome(order: str, mutant: Mutant | None) -> Any:
        told = server.apart(partial(_traced, run, library, mutant), server.Conditions(order, 0, capability, 60))
        if told[0] == "returned":
            return told[1]
        if mutant is None:
            raise errors.KINDS[told[1]](told[2])
        return told[1]

    original = {order: outcome(order, None) for order in ("forward", "reverse")}
    differs, accesses = original["forward"].differs, original["forward"].accesses

    def verdict(mutant: Mutant) -> str:
        if mutant.by and not differs[2 * mutant.number + (mutant.by > 0)]:
            return NEVER
        same = exact = True
        for order, right in original.items():
            found = outcome(order, mutant)
            if isinstance(found, str):
                return found
            if not all(map(_close, found.outputs, right.outputs)):
                return WRONG
            same = same and np.array_equal(found.accesses, right.accesses)
            exact = exact and all(a.tobytes() == b.tobytes() for a, b in zip(found.outputs, right.outputs, strict=True))
        if not mutant.by:
            return ORDERED if ordered(accesses, mutant.line) else SURVIVED
        return SAME if same else RESULTS if exact else SURVIVED

    return [Verdict(m, verdict(m)) for m in made]


@dataclass(frozen=True)
class _Run:
    outputs: list[np.ndarray]
    accesses: np.ndarray
    differs: bytes


def _traced(run: Callable[[], list[np.ndarray]], library: ctypes.CDLL, mutant: Mutant | None) -> _Run:
    if mutant is not None:
        ctypes.c_int.in_dll(library, "shim_mutant").value = mutant.number
        ctypes.c_int.in_dll(library, "shim_mutant_by").value = mutant.by
    server.runtime().shim_trace()
    outputs, accesses = run(), trace.taken(server.runtime())
    return _Run(outputs, accesses, bytes((ctypes.c_ubyte * (2 * PLACES)).in_dll(library, "shim_differs")))


def _close(found: np.ndarray, right: np.ndarray) -> bool:
    """What the original leaves without a value is a NaN, and must be one."""
    return np.allclose(found, right, rtol=0, atol=1e-4 * np.nanmax(np.abs(right)), equal_nan=True)
