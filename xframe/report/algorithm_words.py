"""What a runner computes its convolutions by, site by site, as its kernels tell."""

from __future__ import annotations

from xframe.analysis.algorithms import told
from xframe.analysis.labels import PLANNED, words
from xframe.results import Measurement
from xframe.types import ConvSite


def by_site(m: Measurement) -> str:
    """``winograd (jit_wino) at 64x27x27 -> 192, 5x5; gemm (gemm:jit) at ...``, without sites where all are alike.

    Empty where nobody tells, or the row's label has said so.
    """
    found: dict[str, list[ConvSite]] = {}
    every = told(m) if m.case.runner != PLANNED else {}
    for site, (lowering, text) in every.items():
        if text and text.rpartition(":")[2] != m.case.plan.label:  # cudnn:gemm
            found.setdefault(f"{lowering} ({text})" if lowering not in (None, text) else text, []).append(site)
    if len(found) == 1 and len(next(iter(found.values()))) == len(every):
        return next(iter(found))
    return "; ".join(f"{text} at {', '.join(map(words, sites))}" for text, sites in found.items())
