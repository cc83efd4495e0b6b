"""How many rows ``xframe diff`` calls changed between runs of the same code: none should be.

    python benchmarks/repeat.py --runs 3 --rounds 5 --json

Runs follow one another, each round of each row in a process of its own, and each run is held against the one before.
Every row of it is a line: the verdict, the ratio of the times with its interval, and how its neighbours moved.
"""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.peers import cases
from benchmarks.rows import names, options, run, table
from xframe.analysis.changes import Change, changes, percent
from xframe.analysis.ratios import THRESHOLD, Verdict
from xframe.cli.timing import budget
from xframe.comparison import Request, compare
from xframe.errors import UsageError

#: What is no change: times that are the same, or that nothing can be said of.
QUIET = (Verdict.SAME.value, Verdict.AMBIGUOUS.value)


def repeated(request: Request, runs: int, threshold: float = THRESHOLD) -> list[tuple[Change, ...]]:
    """The rows of each run but the first, against those of the run before."""
    if runs < 2:
        raise UsageError(f"--runs {runs} makes no sense: it takes two to tell a change")
    made = []
    for number in range(1, runs + 1):
        made.append(compare(request, lambda text, n=number: print(f"run {n} of {runs}: {text}", file=sys.stderr)))  # type: ignore[misc]
    return [changes(old, new, threshold).rows for old, new in pairwise(made)]


def summary(pairs: Sequence[Sequence[Change]]) -> str:
    """Markdown: each row of each pair, then how often each verdict was given."""
    body = [
        [str(number), str(c.identity), c.verdict, percent(c.times) if c.times else "-", c.reason or "-"]
        for number, rows in enumerate(pairs, 1)
        for c in rows
    ]
    counted = Counter(c.verdict for rows in pairs for c in rows)
    changed = sum(n for verdict, n in counted.items() if verdict not in QUIET)
    of = ", ".join(f"{verdict} {n}" for verdict, n in counted.most_common())
    head = ["pair", "row", "verdict", "new against old", "why"]
    return f"{table(head, body)}\n\n{changed} of {len(body)} rows of the same code are called changed ({of})."


def main() -> int:
    parser = options(__doc__.splitlines()[0], rounds=5)
    parser.add_argument("--case", type=cases, default=cases("alexnet:1"), metavar="MODEL:BATCH")
    parser.add_argument("--framework", type=names, default=("pytorch", "tensorflow", "jax"), metavar="A,B")
    parser.add_argument("--backend", type=names, default=("native", "ort"), metavar="A,B")
    parser.add_argument("--runs", type=int, default=2)
    given = parser.parse_args()
    ((model, batch),) = given.case
    request = Request(
        model,
        frameworks=given.framework,
        runners=given.backend,
        batches=(batch,),
        threads=given.threads,
        budget=replace(budget(given.rounds, None, fresh=True), profile=0),
    )
    pairs = repeated(request, given.runs)
    for c in (c for rows in pairs for c in rows if given.json):
        print(json.dumps(c.to_json()), flush=True)
    if not given.json:
        print(summary(pairs))
    return int(any(c.verdict not in QUIET for rows in pairs for c in rows))


if __name__ == "__main__":
    sys.exit(run(main))
