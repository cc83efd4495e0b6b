"""How fast a kernel could be at best, given what it computes and what it must move: the roofline of a machine.

One roof for the arithmetic and one for each level of the memory (Williams, Waterman and Patterson 2009; a roof a level:
Yang, Kurth and Williams 2019). Times instead of rates, so that kernels without arithmetic have a roof as well, and the
roofs of several kernels add up.
"""

from __future__ import annotations

from dataclasses import dataclass

from xframe.results import Machine

COMPUTE = "compute"


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
