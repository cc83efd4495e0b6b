"""The list of a launch's accesses to device and shared memory (``native/trace.h``), and what follows from it."""

import ctypes
from collections import Counter

import numpy as np

READ, WRITE, BARRIER = range(3)
#: In the kind of an access besides: to shared memory.
SHARED = 4
#: Banks of shared memory, the bytes of a word of one, threads of a warp.
BANKS, WORD, WARP = 32, 4, 32
#: Of a barrier the address is its line. Values are the first 16 bytes, of a write those after it.
ACCESS = np.dtype(
    [("address", "u8"), ("value", "u4", 4), ("block", "u4"), ("thread", "u2"), ("bytes", "u1"), ("kind", "u1")]
)


def taken(runtime: ctypes.CDLL) -> np.ndarray:
    """What was traced since ``shim_trace``, in its order: blocks one after another, and so the parts of a block that
    barriers divide; within a part, threads one after another."""
    count = ctypes.c_size_t()
    runtime.shim_traced.restype = ctypes.c_void_p
    place = runtime.shim_traced(ctypes.byref(count))
    return np.frombuffer(ctypes.string_at(place, count.value * ACCESS.itemsize), ACCESS)


def ordered(accesses: np.ndarray, without: int) -> bool:
    """Whether threads stay in order without the barrier of the line ``without``.

    So it is if no word is touched by two threads of a block between two of the barriers that are left, and written by
    one of them; but threads may write the same value.
    """
    ends = (accesses["kind"] == BARRIER) & (accesses["address"] != without)
    blocks = np.flatnonzero(np.diff(accesses["block"], prepend=accesses["block"][:1]))
    ends[blocks] = True
    part = np.cumsum(ends)
    words = []
    for i in range(4):
        some = (accesses["kind"] != BARRIER) & (accesses["bytes"] > 4 * i)
        a = accesses[some]
        words.append((part[some], a["address"] // 4 + i, a["thread"], a["kind"] & WRITE != 0, a["value"][:, i]))
    part, word, thread, write, value = (np.concatenate(x) for x in zip(*words, strict=True))
    order = np.lexsort((word, part))
    part, word, thread, write, value = (x[order] for x in (part, word, thread, write, value))
    first = np.flatnonzero(np.diff(part, prepend=-1) | np.diff(word, prepend=0).astype(bool))

    def vary(x: np.ndarray) -> np.ndarray:
        return np.minimum.reduceat(x, first) != np.maximum.reduceat(x, first)

    written, read = (np.logical_or.reduceat(x, first) for x in (write, ~write))
    return not bool(np.any(vary(thread) & written & (read | vary(value))))


def turns(accesses: np.ndarray, kind: int, width: int = WORD) -> Counter[tuple[int, int]]:
    """How often a warp's access to shared memory, a READ or a WRITE, takes so many turns of the banks, and so many if
    what is accessed lay side by side.

    A bank gives all threads of a warp that ask for the same word that word, and one word a turn. What threads of a warp
    do is together if it is their as manieth such access. ``width``: bytes that nvcc accesses at once, where g++ may
    access parts of them.
    """
    seen = accesses[accesses["kind"] == kind | SHARED]
    if not len(seen):
        return Counter()
    thread = seen["block"].astype(np.int64) << 16 | seen["thread"]
    order = np.argsort(thread, kind="stable")
    first = np.flatnonzero(np.diff(thread[order], prepend=-1))
    manieth = np.empty_like(thread)
    manieth[order] = np.arange(len(seen)) - np.repeat(first, np.diff(first, append=len(seen)))
    together = np.unique(thread // WARP << 32 | manieth, return_inverse=True)[1]
    address, words = seen["address"].astype(np.int64), width // WORD
    begin = address // width * words
    sizes = -(-(address + seen["bytes"]) // width) * words - begin
    access = np.repeat(np.arange(len(seen)), sizes)
    word = begin[access] + np.arange(len(access)) - (np.cumsum(sizes) - sizes)[access]
    word -= word.min() // BANKS * BANKS
    span = word.max() + 1
    group, word = np.divmod(np.unique(together[access] * span + word), span)
    took = np.bincount(group * BANKS + word % BANKS, minlength=(group.max() + 1) * BANKS)
    least = -(-np.bincount(group) // BANKS)
    return Counter(zip(took.reshape(-1, BANKS).max(axis=1).tolist(), least.tolist(), strict=True))
