"""What each convolution takes under each runner and lowering, read off the profiled passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from xframe.analysis import shares
from xframe.analysis.algorithms import unlabelled
from xframe.analysis.labels import words
from xframe.report.page_rows import Group, column
from xframe.results import LayerWork
from xframe.types import ConvSite


@dataclass(frozen=True)
class Cell:
    """``seconds``: of all layers of that shape, the median over passes, then over frameworks; ``samples``: one a pass.

    ``fell_back``: the lowering refused the site, and what ran is its fallback. ``ran``: the lowering where the column
    does not name it.
    """

    seconds: float
    samples: tuple[float, ...]
    fell_back: bool = False
    ran: str = ""


@dataclass(frozen=True)
class SiteTimes:
    """``sites``: in the order of the network. A cell is missing where no kernel could be joined to the site.
    ``unranked``: columns of rows that are not held against the others."""

    sites: tuple[ConvSite, ...]
    columns: tuple[str, ...]
    cells: dict[tuple[ConvSite, str], Cell]
    labels: dict[ConvSite, str]
    unranked: frozenset[str] = frozenset()

    def best(self, site: ConvSite) -> str | None:
        """The column that is fastest there by its own doing: a fallback's time is no merit of where it stands."""
        columns = [c for c in self.columns if c not in self.unranked]
        own = {c: cell.seconds for c in columns if (cell := self.cells.get((site, c))) and not cell.fell_back}
        return min(own, key=own.__getitem__, default=None)

    def direct(self, site: ConvSite) -> float | None:
        """Seconds of the direct lowering there, None where it was not measured."""
        cell = next((self.cells.get((site, c)) for c in self.columns if c == "tvm direct"), None)
        return None if cell is None or cell.fell_back else cell.seconds

    @staticmethod
    def of(group: Group, layers: Sequence[LayerWork]) -> SiteTimes | None:
        """Those of a group's rows; None where no kernel is tied to a convolution."""
        times: dict[tuple[ConvSite, str], list[tuple[float, ...]]] = {}
        fell_back: set[tuple[ConvSite, str]] = set()
        ran: dict[tuple[ConvSite, str], dict[str, None]] = {}
        columns: dict[str, None] = {}
        for entry in group.timed:
            m = entry.measurement
            if not m.profiles:
                continue
            where = column(m.case)
            fell_back |= {(site, where) for site, _ in m.case.plan.fallback}
            for site, lowering in unlabelled(m).items():
                ran.setdefault((site, where), {})[lowering] = None
            for site, samples in shares.spent(m.profiles, shares.site).items():
                if not median(samples) > 0:  # of kernels that end before they begin nothing is known
                    continue
                columns[where] = None
                times.setdefault((site, where), []).append(samples)
        cells = {
            key: Cell(
                median(median(s) for s in found), tuple(x for s in found for x in s), key in fell_back,
                "/".join(ran.get(key, ())),
            )
            for key, found in times.items()
        }  # fmt: skip
        if not cells:
            return None
        sites = _order(group, layers, [site for site, _ in cells])
        labels = {s: _label(s, group, layers) for s in sites}
        unranked = frozenset(column(e.case) for e in group.timed if e.number in group.apart)
        return SiteTimes(sites, tuple(sorted(columns, key=_rank)), cells, labels, unranked)


def _rank(column: str) -> tuple[int, str]:
    """Frameworks first, then other backends, then lowerings."""
    return (2 if column.startswith("tvm ") else 0, column)


def _order(group: Group, layers: Sequence[LayerWork], found: Sequence[ConvSite]) -> tuple[ConvSite, ...]:
    known = [layer.site for layer in layers if layer.site is not None]
    known += [s for e in group.entries if e.case.artifact for _, s in e.case.artifact.conv_sites]
    return tuple(dict.fromkeys(s for s in (*known, *found) if s in set(found)))


def _label(site: ConvSite, group: Group, layers: Sequence[LayerWork]) -> str:
    """``conv3: 192x13x13 -> 384, 3x3``; several layers of one shape share a row."""
    names = [layer.name for layer in layers if layer.site == site]
    counts = [sum(s == site for _, s in e.case.artifact.conv_sites) for e in group.entries if e.case.artifact]
    count = len(names) or max(counts, default=1)
    text = words(site) + (f" (x{count})" if count > 1 else "")
    return f"{names[0] if count == 1 else f'{names[0]} to {names[-1]}'}: {text}" if names else text
