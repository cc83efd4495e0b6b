"""What a session of our server can do beyond TVM's: say what it is, and measure a candidate as on this machine.

The functions stand in the process that TVM forks for a session; what they keep is that session's own. Only numbers and
text go back: the host unpickles nothing of a server's. The other way pickles do no harm that the library beside them
could not do.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass

import tvm
import tvm_ffi

from xframe import environment
from xframe.tuning.bench import CACHE, COPIED, Memory, Run
from xframe.tuning.build import Chain
from xframe.tuning.judge import Arguments
from xframe.tuning.timer import Samples, alternate

#: Names of the functions, for the client.
ABOUT, CPU_SECONDS, LOAD, OUTPUT, SAMPLES = (
    f"xframe.fleet.{name}" for name in ("about", "cpu_seconds", "load", "output", "samples")
)


@dataclass(frozen=True)
class Upload:
    """What is run: the chains of a library, and what each register tile's chain takes."""

    candidate: Chain
    by_hand: Chain
    arguments: dict[tuple[int, int], Arguments]


class Session:
    """The functions of a server that says ``about`` of itself (JSON, :class:`xframe.fleet.about.About`)."""

    def __init__(self, about: str):
        self._about = about

    def functions(self) -> dict[str, Callable]:
        """By the names under which clients ask for them."""
        return {
            ABOUT: lambda: self._about,
            CPU_SECONDS: time.process_time,
            LOAD: self._load,
            OUTPUT: self._output,
            SAMPLES: self._samples,
        }

    def _load(self, library: str, upload: bytes, threads: int) -> None:
        """Load ``library``, a file in the session's folder, and run the hand-written kernel with so many threads."""
        tvm_ffi.get_global_func("runtime.config_threadpool")(1, threads)
        given: Upload = pickle.loads(upload)
        levels = environment.cache_bytes()
        cache = levels[max(levels)] if levels else CACHE
        self._memories = {
            chain.tile: Memory(chain, given.arguments[chain.tile], cache, COPIED // 2)
            for chain in (given.by_hand, given.candidate)
        }
        module = tvm.runtime.load_module(os.path.abspath(library))
        self._candidate, self._by_hand = (
            Run(module, chain, self._memories[chain.tile]) for chain in (given.candidate, given.by_hand)
        )
        self._by_hand.output()

    def _output(self) -> bytes:
        """The candidate's output, float32."""
        return self._candidate.output().tobytes()

    def _samples(self) -> str:
        """Raw seconds of the candidate and of the hand-written kernel, taken in turn, and a note, as JSON."""
        taken = alternate(self._candidate.subject(), self._by_hand.subject())
        notes = dict.fromkeys(m.copies.note for m in self._memories.values() if m.copies.note)
        return json.dumps({"seconds": taken.seconds, "baseline": taken.baseline, "note": "; ".join(notes)})


def read_samples(text: str) -> tuple[Samples, str]:
    """The inverse of what a session gives. Raises ValueError on anything else."""
    try:
        data = json.loads(text)
        taken, note = [tuple(float(s) for s in data[name]) for name in ("seconds", "baseline")], str(data["note"])
    except (TypeError, KeyError, OverflowError) as e:
        raise ValueError(str(e)) from e
    if not (0 < len(taken[0]) == len(taken[1]) and all(math.isfinite(s) and s > 0 for s in (*taken[0], *taken[1]))):
        raise ValueError("no pairs of seconds")
    return Samples(*taken), note
