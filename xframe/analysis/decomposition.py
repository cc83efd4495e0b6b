"""Where the time of a row goes."""

from __future__ import annotations

from xframe.analysis.terms import TERMS, Decomposition, Term
from xframe.results import Run

__all__ = ["TERMS", "Decomposition", "Term", "explained"]


def explained(run: Run) -> list[Decomposition]:
    """A decomposition of each OK row that has profiles, in the order of the run."""
    raise NotImplementedError
