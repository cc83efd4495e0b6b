"""What records of another batch are worth as starting points: the same search with and without them, trial for trial.

    python benchmarks/transfer.py --lowering winograd,fft --batch 16 --from 1 --trials 24 --seeds 3

Each kernel is tuned twice for each seed, the order changing from seed to seed, into folders that are deleted. Rows have
the geometric mean of the gains over the template with and without, and how many of the records kept began with one.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import rows
from benchmarks.rows import Row


def of_batch(logs: Sequence[Any], batch: int) -> list[Any]:
    """The ``xframe.schedules.log.Log``s that hold kernels of this batch alone."""
    from xframe.lowering.tasks import Task

    def batches(log: Any) -> set[int]:
        return {Task.named(name).variant.site.batch for name in log.entries}

    return [log for log in logs if batches(log) == {batch}]


def summary(found: Sequence[Row]) -> list[Row]:
    """Of each lowering over all seeds: both geometric means, and their ratio."""
    from xframe.tuning.result import geometric_mean

    out: list[Row] = []
    for lowering in dict.fromkeys(r["lowering"] for r in found):
        mine = [r for r in found if r["lowering"] == lowering]
        means = {w: geometric_mean(r["gain"] for r in mine if r["with"] is w and r["gain"]) for w in (True, False)}
        known, alone = means[True], means[False]
        out.append({
            "kind": "transfer", "lowering": lowering, "gain_with": known, "gain_without": alone,
            "ratio": known / alone if known and alone else None,
            "kernels": mine[0]["kernels"], "trials": mine[0]["trials"], "seeds": len({r["seed"] for r in mine}),
            "begun_with_one": sum(r["transferred"] for r in mine), "kept": sum(r["tuned"] for r in mine if r["with"]),
        })  # fmt: skip
    return out


def measured(given: Any) -> Iterator[Row]:
    """A row for each lowering, seed, and whether others were known."""
    from xframe.lowering.target import Cpu
    from xframe.schedules import find, log
    from xframe.tuning.runner import LocalRunner
    from xframe.tuning.session import tune
    from xframe.tuning.terminal import Bar
    from xframe.tuning.work import Request, works

    (threads,) = given.threads
    cpu = Cpu.host(threads)
    shipped = [log.read(folder) for root in find.roots() for folder in find.folders(root)]
    known = of_batch(shipped, given.source)
    asked = Request((given.model,), given.lowering, (given.batch,), "pytorch", threads).resolved()
    for work in works(asked, lambda line: print(line, file=sys.stderr)):
        for seed in range(given.seeds):
            for using in (True, False)[:: -1 if seed % 2 else 1]:
                with (
                    tempfile.TemporaryDirectory(prefix="xframe-transfer-") as folder,
                    closing(LocalRunner(cpu)) as runner,
                    Bar() as bar,
                ):
                    settings = {"transfer": using}
                    report = tune(
                        [work], runner, cpu, Path(folder), given.trials, seed=seed, settings=settings,
                        known=known if using else (), on_progress=bar,
                    )  # fmt: skip
                yield {
                    "kind": "session", "lowering": work.lowering, "seed": seed, "with": using, "gain": report.gain,
                    "kernels": len(report.rows), "trials": given.trials,
                    "tuned": sum(r.entry is not None for r in report.rows),
                    "transferred": sum(bool(r.entry and r.entry.transferred) for r in report.rows),
                }  # fmt: skip


def main() -> int:
    parser = rows.options(__doc__.splitlines()[0], rounds=1)
    parser.add_argument("--model", default="alexnet")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--from", dest="source", type=int, default=1, help="batch of the records that are known")
    parser.add_argument("--lowering", type=rows.names, default=("winograd", "fft"))
    parser.add_argument("--trials", type=int, default=24, help="of all kernels of a lowering together")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    found = []
    for row in measured(given):
        found.append(row)
        print(json.dumps(row), flush=True)
    for row in summary(found):
        print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(rows.run(main))
