"""The layers of all comparisons and runs side by side: one row a layer, in order, one column a comparison or a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xframe.equivalence.result import Check, LayerRow, RunRow

#: What makes a row: whether it is an output, its name in the first subject, and which of that name it is.
Key = tuple[bool, str, int]


@dataclass(frozen=True)
class Column:
    """``subject`` as executed by ``runner``, or in float64 where that is empty; held against ``against``."""

    subject: str
    runner: str
    against: str
    cells: dict[Key, LayerRow]


@dataclass(frozen=True)
class Grid:
    """``keys``: the rows, in order, outputs last. A column has no cell where its subject has no such layer."""

    columns: tuple[Column, ...]
    keys: tuple[Key, ...]

    @classmethod
    def of(cls, check: Check) -> Grid:
        """All comparisons, and the runs that were looked at layer by layer."""
        first = check.subjects[0].name if check.subjects else ""
        columns = [Column(c.name, "", first, _cells(c.layers, c.outputs, {})) for c in check.comparisons]
        renamed = {c.name: {row.b: row.a for row in c.layers if row.a and row.b} for c in check.comparisons}
        for run in check.runs:
            if run.layers:
                names = renamed.get(run.subject, {})
                columns.append(Column(run.subject, run.runner, "its own graph", _cells(run.layers, (), names)))
        keys = [
            key for output in (False, True) for key in _merged([k for k in c.cells if k[0] == output] for c in columns)
        ]
        return cls(tuple(columns), tuple(keys))

    def row(self, key: Key) -> LayerRow:
        """What names the row: its cell in the first column that has one."""
        return next(c.cells[key] for c in self.columns if key in c.cells)


def without_layers(runs: Sequence[RunRow]) -> list[RunRow]:
    """The runs of which only the outputs are known."""
    return [run for run in runs if not run.layers]


def _cells(layers: Sequence[LayerRow], outputs: Sequence[LayerRow], names: dict[str, str]) -> dict[Key, LayerRow]:
    """By key. ``names``: those of the first subject, for a run of another one."""
    seen: Counter[tuple[bool, str]] = Counter()
    found: dict[Key, LayerRow] = {}
    for output, row in [*((False, r) for r in layers), *((True, r) for r in outputs)]:
        own = row.b or row.a if names else row.a or row.b
        name = names.get(own, own)
        found[(output, name, seen[output, name])] = row
        seen[output, name] += 1
    return found


def _merged(lists: Iterable[Sequence[Key]]) -> list[Key]:
    """All keys: in the order of the first list, those of a later one after the key that they follow there."""
    merged: list[Key] = []
    for keys in lists:
        places = {key: i for i, key in enumerate(merged)}
        behind: dict[int, list[Key]] = {}
        at = -1
        for key in keys:
            if key in places:
                at = max(at, places[key])
            else:
                behind.setdefault(at, []).append(key)
        merged = behind.get(-1, []) + [k for i, old in enumerate(merged) for k in (old, *behind.get(i, ()))]
    return merged
