"""Records of another batch, thread count or machine as starting points: the nearest of what is offered here.

Nothing of a foreign record is believed: its point is measured here like any other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from xframe.lowering.target import Target
from xframe.lowering.tasks import Task
from xframe.tuning.points import Point
from xframe.tuning.search import Space, Spaces, Tiles
from xframe.types import ConvSite

if TYPE_CHECKING:
    from xframe.schedules.log import Entry, Log


def sources(logs: Iterable[Log], task: Task) -> list[Entry]:
    """The entries of ``logs`` that may be starting points of ``task``, the most alike first.

    They are of the same lowering of the same kernel, channels and strides. The same variant counts most, then the same
    image size, the same number of threads, the nearest batch, and of equals the larger gain.
    """
    found, own = [], task.variant.site
    for log in logs:
        for entry in log.entries.values():
            theirs = _fitting(entry, task)
            if theirs:
                site = theirs.variant.site
                variant = theirs.variant.detail != task.variant.detail
                differs = (variant, site.in_hw != own.in_hw, theirs.threads != task.threads)
                apart = abs(math.log2(site.batch) - math.log2(own.batch))
                found.append(((*differs, apart, -entry.gain), entry))
    return [entry for _, entry in sorted(found, key=lambda pair: pair[0])]


def adapted(entry: Entry, task: Task, cpu: Target, spaces: Tiles | None = None) -> Point | None:
    """The point of ``task`` that is most like ``entry``; None where it is of another kernel, or has no knobs.

    The register tile is the nearest that this processor has for the site. A knob at an end of its range stays at that
    end, as "all rows" are all rows here, too; others take the nearest value. ``spaces``: of the task where they are at
    hand.

    Raises
    ------
    UsageError
        ``task`` has no template.
    """
    if not _fitting(entry, task):
        return None
    spaces = spaces or Spaces(task, cpu)
    for tile in sorted(spaces.tiles, key=lambda tile: _apart(tile, entry.tile)):
        space = spaces[tile]
        if space.points:
            return space.nearest(_scaled(entry, space))
    return None


def _fitting(entry: Entry, task: Task) -> Task | None:
    """The task of ``entry``, if it is the same lowering of the same kernel, and its knobs are known.

    Batch, image size, what follows, and the number of threads may differ.
    """
    try:
        theirs = Task.named(entry.task)
    except ValueError:  # of a variant that there is no more
        return None
    same = theirs.lowering == task.lowering and _kernel(theirs.variant.site) == _kernel(task.variant.site)
    return theirs if same and entry.space == "template" and entry.knobs else None


def _kernel(site: ConvSite) -> tuple:
    return site.kernel, site.in_channels, site.out_channels, site.stride, site.dilation, site.groups, site.dtype


def _apart(tile: tuple[int, int], wanted: tuple[int, int]) -> float:
    return sum(abs(math.log2(a) - math.log2(b)) for a, b in zip(tile, wanted, strict=True))


def _scaled(entry: Entry, space: Space) -> dict[str, int]:
    """The knobs of ``entry`` with those at an end of their range moved to that end of the range here."""
    knobs = {name: value for name, value in (entry.knobs or {}).items() if name in space.candidates}
    offered = _offered(entry.trace, [name for name in space.candidates if name in knobs], knobs)
    for name, theirs in offered.items():
        if len(theirs) > 1 and knobs[name] in (min(theirs), max(theirs)):
            here = space.candidates[name]
            knobs[name] = min(here) if knobs[name] == min(theirs) else max(here)
    return knobs


def _offered(trace: str, names: list[str], knobs: Mapping[str, int]) -> dict[str, list[int]]:
    """What each knob could have been when ``trace``, JSON, was recorded; empty where it does not tell.

    The template asks in the order of ``names``, and each question is a sampling instruction.
    """
    try:
        instructions, decisions = json.loads(trace)
        made = dict(decisions)
        asked = [(inst[2][0], made[i]) for i, inst in enumerate(instructions) if inst[0] == "SampleCategorical"]
        agree = len(asked) == len(names) and all(
            values[at] == knobs[name] for name, (values, at) in zip(names, asked, strict=True)
        )
        return {name: list(values) for name, (values, _) in zip(names, asked, strict=True)} if agree else {}
    except (ValueError, TypeError, KeyError, IndexError):
        return {}
