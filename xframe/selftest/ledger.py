"""What a planted lie took, by its own clock: the truth that its verdict is held against."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from xframe.errors import XframeError


class Ledger:
    """Seconds of each time that a lie was carried out, once a step: apart for steps under a profiler.

    ``path`` is the file that :meth:`write` writes, a new one; who reads it deletes it.
    """

    def __init__(self) -> None:
        handle, self.path = tempfile.mkstemp(prefix="xframe-planted-", suffix=".json")
        os.close(handle)
        self.plain: list[float] = []
        self.profiled: list[float] = []
        self._profiling = False

    @contextmanager
    def clocked(self) -> Iterator[None]:
        """Around one carrying out of the lie."""
        start = time.perf_counter()
        yield
        (self.profiled if self._profiling else self.plain).append(time.perf_counter() - start)

    @contextmanager
    def under_a_profiler(self) -> Iterator[None]:
        """Around steps that are not timed."""
        self._profiling = True
        try:
            yield
        finally:
            self._profiling = False

    def clear(self) -> None:
        """Forget all steps so far."""
        self.plain.clear()
        self.profiled.clear()

    def write(self) -> None:
        """Keep them."""
        Path(self.path).write_text(json.dumps({"plain": self.plain, "profiled": self.profiled}), encoding="utf-8")


def taken(path: str) -> list[float]:
    """The seconds that the lie took in each step without a profiler. Its file is gone afterwards.

    Raises
    ------
    XframeError
        There are none: the lie was not carried out, or its process died.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))["plain"]
    except (OSError, ValueError) as e:
        raise XframeError(f"the planted lie left no record ({e}): its process died; run it again") from e
    finally:
        Path(path).unlink(missing_ok=True)
    if not found:
        raise XframeError("the planted lie was carried out in no step: the framework no longer calls what it sits in")
    return found


def least(clock: Callable[[], float], count: int = 15) -> float:
    """The least of ``count`` times, after one in vain: other workers may start meanwhile, which only ever adds."""
    clock()
    return min(clock() for _ in range(count))
