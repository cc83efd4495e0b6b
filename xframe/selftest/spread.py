"""A row less several honest ones, so that what processes of the same code differ by is in its intervals.

An interval over the samples of two processes does not hold what tells the processes apart: which pages their weights
got, where their code lies. AlexNet's fully connected layers differ by a tenth for that alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from xframe.analysis.terms import Decomposition, Term


def against(row: Decomposition, honest: Sequence[Decomposition]) -> Decomposition:
    """``row`` less the mean of the ``honest`` rows, at least one.

    The interval of each term and part is widened on both sides by the spread of the honest rows there: the largest
    less the smallest. Of four normally distributed ones that is 2.06 standard deviations on average (Tippett 1925).
    """
    differences = [row.difference(one) for one in honest]
    first = differences[0]
    terms = tuple(_pooled([d[t.name] for d in differences]) for t in first.terms)
    return replace(
        first, title=f"{row.title} - honest", wall=_pooled([d.wall for d in differences]), terms=terms
    )  # fmt: skip


def _pooled(terms: Sequence[Term]) -> Term:
    """One term of the differences to each honest row; a part that one of them lacks is 0 there."""
    spread = max(t.seconds for t in terms) - min(t.seconds for t in terms)
    names = dict.fromkeys(p.name for t in terms for p in t.parts)
    return Term(
        terms[0].name,
        statistics.fmean(t.seconds for t in terms),
        statistics.fmean(t.low for t in terms) - spread,
        statistics.fmean(t.high for t in terms) + spread,
        tuple(_pooled([t.part(name) or Term(name, 0.0, 0.0, 0.0) for t in terms]) for name in names),
    )
