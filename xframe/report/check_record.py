"""A check as JSON: what ``xframe check --json`` prints."""

from __future__ import annotations

from typing import Any

from xframe.equivalence.result import Check, Comparison, judged
from xframe.report.check_words import headline
from xframe.store import finite
from xframe.worker import wire

#: Grows with every change that an older reader would misread.
SCHEMA = 1


def plain(check: Check) -> dict[str, Any]:
    """The whole result as dicts, lists, strings, numbers and None; every key is always present.

    Its keys are those of :class:`xframe.equivalence.result.Check` and the records in it; states and levels are their
    values ("equivalent", "normal form"). Beside them stand what they derive: ``schema``, ``state``, ``exit_code`` and
    ``verdict`` (a sentence) of the whole, ``state`` and ``first_divergence`` (a layer, or None) of each comparison.
    JSON has no NaN and no infinity: they are None, and a row's ``ok`` and ``reason`` tell them from what has no value.
    """
    record = {
        "schema": SCHEMA,
        "state": check.state.value,
        "exit_code": check.exit_code,
        "verdict": headline(check),
        **wire.plain(check),
        "comparisons": [_comparison(c) for c in check.comparisons],
    }
    return finite(record)


def _comparison(comparison: Comparison) -> dict[str, Any]:
    return {
        **wire.plain(comparison),
        "state": judged(comparison).value,
        "first_divergence": wire.plain(comparison.first_divergence),
    }
