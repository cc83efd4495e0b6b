"""What a server says of itself when it is asked, and whether that is what its key promises.

It finds mistakes: a server on another machine than its key says, another version, code that can't run there. A server
that wants to lie can.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import xframe
from xframe.errors import XframeError
from xframe.schedules.device import Identity

if TYPE_CHECKING:
    from xframe.lowering.target import Cpu

#: Characters of the longest answer that is looked at.
_MOST = 1 << 16
#: What is run or unpickled on a server.
_MEASURES = ("fleet/session.py", *(f"tuning/{name}.py" for name in ("bench", "build", "judge", "timer")))


class Refused(XframeError):
    """A server that can't be measured on, in words that go on from its address: ``is on another machine``."""


@dataclass(frozen=True)
class About:
    """A server: the kind of device it is on, LLVM's name of its processor and what instructions that has, the
    ``threads`` that a kernel may use, the version of TVM that loads the libraries, and a hash of xframe's own sources
    that measure there."""

    identity: Identity
    processor: str
    instructions: tuple[str, ...]
    threads: int
    tvm: str
    sources: str

    @property
    def target(self) -> str:
        """The target for its own processor, as ``--target`` takes it."""
        return f"llvm -mcpu={self.processor}"

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "identity": self.identity.to_json()})

    @staticmethod
    def from_json(text: str) -> About:
        """The inverse of :meth:`to_json`. Raises Refused on anything else."""
        try:
            if len(text) > _MOST:
                raise ValueError(f"{len(text)} characters")
            data = json.loads(text)
            instructions, threads = data["instructions"], data["threads"]
            words = [data["processor"], data["tvm"], data["sources"], *instructions]
            if not isinstance(instructions, list) or not all(isinstance(w, str) for w in words):
                raise TypeError("words are not text")
            if type(threads) is not int or threads < 1:
                raise ValueError(f"{threads!r} threads")
            return About(Identity.from_json(data["identity"]), words[0], tuple(instructions), threads, *words[1:3])
        except (ValueError, TypeError, KeyError, XframeError) as e:
            raise Refused(f"does not say what it is in a way that can be read ({str(e)[:120]})") from e

    def check(self, key: str, expected: Identity | None, cpu: Cpu) -> None:
        """Raises Refused where this is not an ``expected`` device, or can't run what is built here for ``cpu``."""
        differs = None if expected is None else expected.differs(self.identity)
        if differs:
            raise Refused(f"calls itself {key}, but is not the device that servers of that key should be: {differs}")
        mine = _version()
        if self.tvm != mine:
            raise Refused(f"has TVM {self.tvm}, and libraries are built by {mine} here: install the same version")
        if self.sources != _sources():
            raise Refused("has another version of xframe, which measures in another way: install the same one")
        if cpu.threads > self.threads:
            raise Refused(f"gives a kernel {self.threads} threads at most, and {cpu.threads} are asked for")
        lacking = sorted(set(_instructions(cpu)) - set(self.instructions))
        if lacking:
            raise Refused(
                f"lacks instructions of the target {cpu.text!r}: {', '.join(lacking)}; give --target {self.target!r}"
            )


def here(threads: int) -> About:
    """This machine, with so many threads for a kernel. Imports TVM."""
    from xframe.lowering.target import Cpu
    from xframe.schedules import device

    cpu = Cpu.host(threads)
    return About(
        device.identity(), cpu.text.partition("-mcpu=")[2], _instructions(cpu), threads, _version(), _sources()
    )


def _version() -> str:
    import tvm

    return str(tvm.__version__)


@functools.cache
def _sources() -> str:
    root, digest = Path(xframe.__file__).parent, hashlib.sha256()
    for name in _MEASURES:
        digest.update((root / name).read_bytes())
    return digest.hexdigest()[:12]


def _instructions(cpu: Cpu) -> tuple[str, ...]:
    """What a compiler may use for ``cpu``, in LLVM's names."""
    from tvm.target import codegen

    from xframe.lowering.target import INSTRUCTIONS

    return tuple(sorted(INSTRUCTIONS.intersection(map(str, codegen.llvm_get_cpu_features(cpu.tvm)))))
