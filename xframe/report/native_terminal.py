"""The frameworks' own convolutions side by side: what each took in the profiled pass, what each computes them by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median

from rich.table import Table
from rich.text import Text

from xframe.analysis import shares
from xframe.analysis.labels import words
from xframe.report.algorithm_words import by_site
from xframe.results import Measurement
from xframe.types import KINDS, ConvSite, Kernel, Outcome

#: Kinds of kernels in words, where a table has their sums; convolutions have rows of their own.
_OTHERS = {kind: kind for kind in KINDS if kind != "conv"} | {"fc": "fully connected", "norm": "normalization"}


def profiled(rows: Sequence[Measurement]) -> list[Measurement]:
    """The native rows at their defaults that show their convolutions."""
    native = (m for m in rows if m.outcome == Outcome.OK and m.case.runner == "native" and not m.case.options)
    return [m for m in native if any(k.site is not None for k in m.kernels)]


def table(rows: Sequence[Measurement]) -> Table:
    """A column for each of these rows: milliseconds of each convolution, and of the other kinds of kernels."""
    columns = [{k: median(x) for k, x in shares.spent(m.profiles, _place).items()} for m in rows]
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    made.add_column("native", overflow="fold")
    for m in rows:
        made.add_column(m.case.framework or "-", justify="right", no_wrap=True)
    sites = dict.fromkeys(key for column in columns for key in column if isinstance(key, ConvSite))
    counts = [Counter(dict((k.layer, k.site) for k in m.kernels if k.site).values()) for m in rows]
    for site in sites:
        times = [column.get(site) for column in columns]
        best = min(t for t in times if t is not None)
        cells = [Text("-" if t is None else f"{t * 1e3:.3f}", style="bold" if t == best else "") for t in times]
        count = max(c[site] for c in counts)
        made.add_row(words(site) + (f" (x{count})" if count > 1 else ""), *cells)
    for kind, text in _OTHERS.items():
        if any(kind in column for column in columns):
            made.add_row(text, *(f"{column[kind] * 1e3:.3f}" if kind in column else "-" for column in columns))
    return made


def used(rows: Sequence[Measurement]) -> Iterator[str]:
    """What each framework computes its convolutions by, and with how many threads."""
    for m in rows:
        found = m.environment.get("convolution") or by_site(m)
        threads = m.environment.get("threads", m.case.threads)
        yield f"{m.case.framework}: {found or 'it does not tell by what'}; threads {threads}"


def _place(kernel: Kernel) -> ConvSite | str | None:
    """Its convolution, or else its kind; None where it is of a convolution that nobody knows."""
    return kernel.site or (kernel.kind if kernel.kind != "conv" else None) or None
