"""How fast a kernel could be at best, given what it computes and what it must move: the roofline of a machine.

One roof for the arithmetic and one for each level of the memory (Williams, Waterman and Patterson 2009; a roof a level:
Yang, Kurth and Williams 2019). Times instead of rates, so that kernels without arithmetic have a roof as well, and the
roofs of several kernels add up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

COMPUTE = "compute"


@dataclass(frozen=True)
class Level:
    """A level of the memory: ``holds`` bytes of data that are used again, read at ``bytes_per_s`` by all threads."""

    name: str
    holds: float
    bytes_per_s: float


@dataclass(frozen=True)
class Machine:
    """What some threads reach at most. ``levels``: the nearest first; the last holds everything."""

    flop_per_s: float
    levels: tuple[Level, ...]

    def __post_init__(self) -> None:
        if not self.levels or not math.isinf(self.levels[-1].holds):
            raise ValueError(f"the last level holds everything, and these do not end with one: {self.levels}")

    def place(self, size: float) -> int:
        """The position of the nearest level that holds ``size`` bytes."""
        return next(i for i, level in enumerate(self.levels) if size <= level.holds)


@dataclass(frozen=True)
class Work:
    """One call of a kernel: FLOP, bytes of the images that it reads and writes, bytes of its weights."""

    flop: float
    image_bytes: int
    weight_bytes: int = 0

    @property
    def bytes(self) -> int:
        return self.image_bytes + self.weight_bytes


def attainable(work: Work, weights: float, machine: Machine) -> tuple[float, str]:
    """Seconds that a call takes at least, and what the time is for: :data:`COMPUTE` or the name of a level.

    Images come from the nearest level that holds those of this kernel, which the one before wrote or left there.
    Weights come from the one that holds all ``weights`` of the network, in bytes: between two passes the others were
    read. What comes from a level passes all nearer ones too.
    """
    streams = [(work.image_bytes, machine.place(work.image_bytes)), (work.weight_bytes, machine.place(weights))]
    roofs = [(work.flop / machine.flop_per_s, COMPUTE)]
    for i, level in enumerate(machine.levels):
        roofs.append((sum(size for size, place in streams if place >= i) / level.bytes_per_s, level.name))
    return max(roofs, key=lambda roof: roof[0])
