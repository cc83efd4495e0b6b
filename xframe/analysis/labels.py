"""Short names for what is measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xframe.registry import BACKENDS
from xframe.results import LayerWork
from xframe.types import KINDS, Case, ConvSite

#: The backend that the lowerings are written for. Another one may have algorithms of its own that it can be told; the
#: rest pick by themselves, and have one row.
PLANNED = "tvm"


def algorithms(runner: str, by_default: bool = False) -> tuple[str, ...]:
    """What a runner that is not :data:`PLANNED` can be told to compute convolutions by; empty: it picks by itself.

    ``by_default``: without those that are only where they are named.
    """
    if runner not in BACKENDS or runner == PLANNED:
        return ()
    row = BACKENDS[runner]
    return tuple(name for name in row.algorithms if not (by_default and name in row.where_named))


def planned(case: Case) -> bool:
    """Whether the label of a case's plan tells its row from others of the same runner."""
    return case.runner == PLANNED or bool(algorithms(case.runner))


def title(case: Case) -> str:
    """``pytorch tvm winograd, batch 1, threads 2``: a row in words, with its switches that are not at their default."""
    names = [case.framework or case.model, case.runner, case.plan.label if planned(case) else ""]
    names += [f"{name}={value}" for name, value in case.options]
    return f"{' '.join(n for n in names if n)}, batch {case.batch}, threads {case.threads}"


def words(site: ConvSite) -> str:
    """``64x27x27 -> 192, 5x5 /2``: what a reader needs to recognise a site; the rest where it is not the default."""
    kernel = "x".join(map(str, site.kernel))
    text = f"{site.in_channels}x{site.in_hw[0]}x{site.in_hw[1]} -> {site.out_channels}, {kernel}"
    text += f" /{site.stride[0]}" if site.stride != (1, 1) else ""
    text += f" dilated {site.dilation[0]}" if site.dilation != (1, 1) else ""
    return text + (f" in {site.groups} groups" if site.groups != 1 else "")


def site_names(sites: Iterable[ConvSite], layers: Sequence[LayerWork] = ()) -> dict[ConvSite, str]:
    """A name for each site, no two the same: of its layers (``conv3``, ``conv4 and 2 more``), else in words.

    None is that of a kind of kernels, beside which they stand in terms: a layer may well be called ``conv``.
    """
    named: dict[ConvSite, list[str]] = {}
    for layer in layers:
        if layer.site is not None:
            named.setdefault(layer.site, []).append(layer.name)
    out: dict[ConvSite, str] = {}
    for site in sites:
        first, *more = named.get(site) or [words(site)]
        text = f"{first} and {len(more)} more" if more else words(site) if first in KINDS else first
        out[site] = text if text not in out.values() else site.key
    return out
