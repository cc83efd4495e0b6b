"""A fleet on this machine, of which a server is killed in mid-run: is any trial lost, or doubled?

    python benchmarks/fleet.py --servers 3 --trials 48

A tracker and the servers run as users start them. One server, with all its processes, is killed when it has begun the
trial after a third of them. Exit code 1 when a point has no trial, two, or one that the loss of the server failed.
"""

import argparse
import collections
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Hashable
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import rows

KEY = "bench"


def tally(asked: list[Hashable], came: list[Hashable]) -> dict[str, int]:
    """Points that were asked for and of which no trial came, and trials beyond the one of each point."""
    counts = collections.Counter(came)
    return {
        "lost": sum(counts[point] == 0 for point in asked),
        "doubled": sum(n - 1 for n in counts.values()) + sum(point not in asked for point in counts),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="alexnet")
    parser.add_argument("--lowering", default="winograd")
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--trials", type=int, default=48)
    given = parser.parse_args()

    from tests.fleet.conftest import Fleet
    from xframe.fleet.runner import FleetRunner
    from xframe.lowering.target import Cpu
    from xframe.schedules import device
    from xframe.tuning.search import Search
    from xframe.tuning.work import Request, works

    cpu, lost, met_so_far = Cpu.host(1), [], itertools.count(1)
    asked = Request((given.model,), (given.lowering,), (1,), "pytorch", 1).resolved()
    tasks = [t for w in works(asked, lambda line: print(line, file=sys.stderr)) for t in w.tasks]
    each = -(-given.trials // len(tasks))
    asked_for = [(t, point) for t in tasks for point in Search(t, cpu, "replay", 0).propose(each)]

    class Harmed(FleetRunner):
        """Kills the server that it meets for the trial after a third of them."""

        def _meet(self, child, since):
            found = super()._meet(child, since)
            if next(met_so_far) == len(asked_for) // 3:
                fleet.kill(str(found.server))
            return found

    with tempfile.TemporaryFile("w") as log, closing(Fleet(log)) as fleet:
        fleet.start_servers(given.servers, KEY)
        began = time.monotonic()
        with closing(Harmed(fleet.address, KEY, None, cpu, expected=device.identity(), say=lost.append)) as runner:
            futures = [runner.submit(task, point) for task, point in asked_for]
            trials = [f.result() for f in futures]
        took = time.monotonic() - began
    found = tally(
        [(t.name, p) for t, p in asked_for], [(t.name, r.point) for (t, _), r in zip(asked_for, trials, strict=True)]
    )
    outcomes = collections.Counter(t.outcome for t in trials)
    met = not found["lost"] and not found["doubled"] and outcomes["OK"] == len(asked_for)
    print(json.dumps({
        "kind": "fleet", "asked": len(asked_for), **found, "outcomes": dict(outcomes), "said": lost, "seconds": took,
        "reasons": sorted({t.reason for t in trials if t.reason}),
        "of_each_server": dict(collections.Counter(t.where for t in trials)), "met": met,
    }))  # fmt: skip
    return int(not met)


if __name__ == "__main__":
    sys.exit(rows.run(main))
