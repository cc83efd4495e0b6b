"""The ways in which a lowering can do a site, and the choice among them: the fastest within the error budget."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from xframe.equivalence.bounds import predicted
from xframe.protocols import Lowering
from xframe.types import ConvSite, Device, Rounding

if TYPE_CHECKING:
    from xframe.lowering.stage import Tile
    from xframe.lowering.target import Target


def transform_flop(window: tuple[int, ...]) -> float:
    """The time of the transform of a window of that many rows and columns, in operations of a product.

    Straight-line code with its common terms shared, so about n log n steps a row or column; far from the peak (the
    factor was seen for Winograd windows of 8 to DFTs of 30).
    """
    return 32 * math.prod(window) * math.log2(sum(window) / 2)


@dataclass(frozen=True)
class Variant:
    """One way to do ``site``, e.g. with one tile size.

    ``tile``: the register tile of its product (``stage.Tile``); None: the one that should be fastest.

    ``device``: the kind of the only devices that it is for; None: for all.

    ``detail`` names it. ``flop`` (transforms as what takes as long), ``memory_bytes`` (constants) and ``cache_bytes``
    (temporaries) are its work, as ``Cpu.cost`` counts it; ``geometry`` is its lowering's own affair.
    """

    site: ConvSite
    rounding: Rounding
    detail: str = ""
    flop: float = 0.0
    memory_bytes: float = 0.0
    cache_bytes: float = 0.0
    geometry: Any = None
    tile: Tile | None = None
    device: str | None = None

    @property
    def error(self) -> float:
        """Largest error to expect, relative to the RMS of the site's output (``equivalence.bounds.predicted``)."""
        return predicted(self.rounding)


def refusal(lowering: Lowering, site: ConvSite, device: Device | None, budget: float) -> str | None:
    """Why ``lowering`` can't do ``site`` on ``device`` with an error of at most ``budget``, in words."""
    reason = lowering.refuses(site, device)
    if reason:
        return reason
    best = min(lowering.variants(site), key=lambda v: v.error)
    if best.error <= budget:
        return None
    what = f"its most exact variant, {best.detail}," if best.detail else "it"
    return f"{what} may err by {best.error:.1e} of the output's RMS, and the error budget is {budget:g}"


def choose(lowering: Lowering, site: ConvSite, cpu: Target, budget: float) -> Variant:
    """The variant with the least estimated time (``cost`` of ``cpu``) of those within ``budget``; there must be one."""
    within = [v for v in lowering.variants(site) if v.error <= budget and v.device in (None, cpu.kind)]
    return min(within, key=lambda v: cpu.cost(v.flop, v.memory_bytes, v.cache_bytes))
