"""How much of a wall time the decomposition leaves unexplained, and whether it finds lies that are planted.

    python benchmarks/attribution.py --case alexnet:1,alexnet:16 --table
    python benchmarks/attribution.py --lies 20

Rows have the wall time, the residual with its interval, the time in kernels of no known kind, what the profiled steps
took longer than others, and what the profiler itself takes by its calibration; ``_share`` is of the wall time. With
``--lies N`` the rows are those of ``xframe selftest attribution --runs N``, which fails on a single miss.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.peers import cases
from benchmarks.rows import Row, budget, measured, name, options, run, table
from xframe import environment
from xframe.analysis.decomposition import explained
from xframe.analysis.terms import Decomposition
from xframe.comparison import Request
from xframe.results import Measurement, Run
from xframe.selftest import words
from xframe.selftest.attribution import Setting, attribution
from xframe.selftest.lies import LIES
from xframe.store import row

#: Of the wall time, at most.
RESIDUAL, UNATTRIBUTED = 0.03, 0.02
#: ONNX Runtime takes PyTorch's export.
RUNNERS = (("pytorch", "native"), ("tensorflow", "native"), ("jax", "native"), ("pytorch", "ort"))
CASES = "alexnet:1,alexnet:16"
#: Images that are seen in the profiled passes of a round, and passes at least: many, as a machine may go back and forth
#: between two speeds within a tenth of a second; a step of many images has both in it.
IMAGES, PASSES = 10, 6
#: A visit's samples take so long at most: what the machine changes between samples and passes is the noise here, and
#: goes down with the number of rounds.
VISIT_SECONDS = 0.4


def case_rows(model: str, batch: int, threads: Sequence[int], rounds: int) -> list[Row]:
    """The rows of one case."""
    request = Request(
        model,
        frameworks=tuple(dict.fromkeys(framework for framework, _ in RUNNERS)),
        runners=tuple(dict.fromkeys(runner for _, runner in RUNNERS)),
        batches=(batch,),
        threads=tuple(threads),
        budget=replace(budget(rounds), max_seconds=VISIT_SECONDS, profile=rounds * max(PASSES, IMAGES // batch)),
        pairs=RUNNERS,
    )
    measurements = measured(request)
    explanations = {d.case: d for d in explained(Run(1, "", (), {}, measurements))}
    return [_row(m, explanations.get(m.case)) for m in measurements]


def _row(m: Measurement, explained: Decomposition | None) -> Row:
    keys = ("model", "framework", "backend", "batch", "threads", "outcome", "reason", "median_s", "notes")
    r = {k: v for k, v in row(m).items() if k in keys}
    residual = explained["residual"] if explained else None
    wall = explained.wall.seconds if explained else None
    r["residual_s"] = residual and residual.seconds
    r["residual_low_s"], r["residual_high_s"] = (residual.low, residual.high) if residual else (None, None)
    r["residual_share"] = explained.residual_share if explained and wall else None
    r["unattributed_share"] = explained.unattributed_share if explained else None
    r["perturbation_share"] = explained.perturbation / wall if explained and wall else None
    r["profiler_share"] = explained.cost / wall if explained and wall else None
    return r


def reached(r: Row) -> bool:
    """Whether a row is within both bars."""
    residual, unattributed = r["residual_share"], r["unattributed_share"]
    return residual is not None and abs(residual) <= RESIDUAL and unattributed <= UNATTRIBUTED


def summary(rows: Iterable[Row]) -> str:
    """Markdown: each row against the bars; why one could not be explained."""
    body, notes = [], []
    for r in rows:
        what = [name(r), r["model"], str(r["batch"]), str(r["threads"])]
        if r["residual_share"] is None:
            body.append([*what, r["outcome"], "-", "-", "-", "-", "-", "no"])
            notes.append(f"- {' '.join(what)}: {r['reason'] or '; '.join(r['notes'])}")
            continue
        seconds = [f"{r[k] * 1e3:.3f}" for k in ("residual_s", "residual_low_s", "residual_high_s")]
        body.append([
            *what, f"{r['median_s'] * 1e3:.2f}", f"{seconds[0]} ({seconds[1]} to {seconds[2]})",
            *(f"{r[k]:.1%}" for k in ("residual_share", "unattributed_share", "perturbation_share", "profiler_share")),
            "yes" if reached(r) else "no",
        ])  # fmt: skip
    head = ["runner", "model", "batch", "threads", "ms", "residual ms", "residual", "unattributed", "profiled steps",
            "of it the profiler", "reached"]  # fmt: skip
    device = environment.cpu_device()
    about = (
        f"On {device.name}, {device.cores} CPUs. Residual at most {RESIDUAL:.0%} of the wall time, unattributed at most"
        f" {UNATTRIBUTED:.0%}; profiled steps: by how much they are slower than others in the same process."
    )
    return "\n\n".join([about, table(head, body), "\n".join(notes)])


def lies(case: tuple[str, int], threads: int, runs: int, as_json: bool) -> int:
    """Plant every lie ``runs`` times; 1 when one was missed."""
    setting, found = Setting(*case, threads), []
    for number in range(1, runs + 1):
        print(f"run {number} of {runs}", file=sys.stderr)
        found.append(attribution(setting, tuple(LIES), lambda line: print(line, file=sys.stderr, flush=True)))
        for finding in found[-1] if as_json else ():
            print(json.dumps({"run": number, "model": case[0], "batch": case[1], **finding.to_json()}), flush=True)
    if not as_json:
        words.render(found, sys.stdout)
    return int(any(not finding.ok for one in found for finding in one))


def main() -> int:
    parser = options(__doc__.splitlines()[0], rounds=60)
    parser.add_argument("--case", default=CASES, metavar="MODEL:BATCH,...")
    parser.add_argument("--lies", type=int, default=0, metavar="N", help="plant lies N times in the first case instead")
    parser.add_argument("--table", action="store_true", help="a table in Markdown")
    given = parser.parse_args()
    if given.lies:
        return lies(cases(given.case)[0], given.threads[0], given.lies, given.json)
    rows = []
    for case in cases(given.case):
        rows += case_rows(*case, given.threads, given.rounds)
    for r in rows if given.json or not given.table else ():
        print(json.dumps(r), flush=True)
    if given.table:
        print(summary(rows))
    return int(not all(map(reached, rows)))


if __name__ == "__main__":
    sys.exit(run(main))
