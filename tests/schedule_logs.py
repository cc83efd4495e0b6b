"""Schedule logs of this machine, made by hand: of the names of tasks alone, or with the traces of real ones."""

import json

import numpy as np

from tests.schedules.logs import TARGET, entry, record, saved
from xframe.schedules.device import identity

__all__ = ["entry", "put", "real"]


def real(task, cpu, tile=1, **knobs):
    """A record of a ``xframe.lowering.tasks.Task`` that compiles: its register tile of that number, and its knobs."""
    from xframe.lowering.tasks import trace_of, workload_of

    site = task.variant.site
    weight = np.zeros((site.out_channels, site.in_channels // site.groups, *site.kernel), np.float32)
    given = weight, np.zeros(site.out_channels, np.float32), cpu
    chosen = next(s for s in task.stages(*given) if s.schedule).tiles[tile]
    stage = next(s for s in task.stages(*given, chosen) if s.schedule)
    sch, decided = stage.templated(knobs)
    return entry(
        task.name,
        tile=(chosen.rows, chosen.vectors),
        workload=workload_of(stage.func),
        knobs=decided.decided,
        record=record(json.loads(trace_of(sch))),
    )


def put(root, *entries, target=TARGET, **changes):
    """Write a log of this machine, but for ``changes``, below ``root``; its folder."""
    folder = root / "device" / "net-b1" / entries[0].lowering
    return saved(folder, *entries, **{"device": identity(), "target": target, **changes})
