"""A run as CSV: its rows, and the terms of its decompositions. Seconds and bytes, in full precision."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from xframe.analysis.decomposition import Decomposition, Term
from xframe.report.page_html import clean
from xframe.report.page_rows import heading, name
from xframe.results import Run
from xframe.store import ROW_KEYS, row

#: Columns of the decompositions. ``part`` is the path below the term, empty for the term itself; ends of
#: an interval are empty where it is not known.
TERM_KEYS = ("title", "group", "row", "term", "part", "seconds", "low_s", "high_s", "share")


def rows(run: Run) -> str:
    """A line for each row with the columns ``xframe.store.ROW_KEYS``; what is no number or text is JSON."""
    return _csv(ROW_KEYS, (row(m) for m in run.measurements))


def decompositions(found: Sequence[Decomposition]) -> str:
    """A line for each term and part with the columns :data:`TERM_KEYS`; the term ``wall`` is the whole."""
    return _csv(TERM_KEYS, (line for d in found for line in _terms(d)))


def _terms(decomposition: Decomposition) -> Iterator[dict[str, Any]]:
    case, whole = decomposition.case, decomposition.wall.seconds
    start = {
        "title": decomposition.title,
        "group": heading(case) if case else "",
        "row": name(case) if case else "",
    }
    for term in (decomposition.wall, *decomposition.terms):
        for path, part in _parts(term, ()):
            yield {
                **start,
                "term": "wall" if term is decomposition.wall else term.name,
                "part": "/".join(path),
                "seconds": part.seconds,
                "low_s": part.low if math.isfinite(part.low) else None,
                "high_s": part.high if math.isfinite(part.high) else None,
                "share": part.seconds / whole if whole else None,
            }


def _parts(term: Term, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Term]]:
    yield path, term
    for part in term.parts:
        yield from _parts(part, (*path, part.name))


def _csv(keys: Sequence[str], lines: Iterable[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(keys)
    writer.writerows([_cell(line[k]) for k in keys] for line in lines)
    return out.getvalue()


def _cell(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula gets an apostrophe before it: names are untrusted."""
    if value is None:
        return ""
    if isinstance(value, (dict, list)):
        value = json.dumps(value) if value else ""
    if isinstance(value, str):
        value = clean(value)
        return f"'{value}" if value[:1] in ("=", "+", "-", "@") else value
    return value
