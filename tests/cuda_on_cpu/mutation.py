"""CUDA text with one thing broken: what a check that is worth something must notice."""

import re
from collections.abc import Iterator

_BARRIER = re.compile(r"__syncthreads\(\);")
_WAIT = re.compile(r"\w+_async_wait_group_\d+\(\);")
#: A bound of a loop or of a condition. Of shifts and of ``a < b`` between variables there is nothing to put off by one.
_BOUND = re.compile(r"(?<=< )(\d+)(?=\)|;)")


def without_barriers(text: str) -> Iterator[tuple[str, str]]:
    """What was done, and the text: once for each ``__syncthreads()``, without it."""
    return _changed(text, _BARRIER, lambda found: "")


def without_waits(text: str) -> Iterator[tuple[str, str]]:
    """What was done, and the text: once for each wait for asynchronous copies, without it."""
    return _changed(text, _WAIT, lambda found: "")


def bounds_off_by_one(text: str, by: int = 1) -> Iterator[tuple[str, str]]:
    """What was done, and the text: once for each constant bound of a loop or a condition, one larger, or smaller."""
    return _changed(text, _BOUND, lambda found: str(int(found[0]) + by))


def _changed(text, pattern, change) -> Iterator[tuple[str, str]]:
    # Behind the preamble, which has conditions of its own.
    start = text.index('extern "C" __global__')
    for found in pattern.finditer(text, start):
        line = text.count("\n", 0, found.start()) + 1
        new = change(found)
        what = f"line {line}: {found[0]} -> {new or 'nothing'}: {text.splitlines()[line - 1].strip()}"
        yield what, text[: found.start()] + new + text[found.end() :]
