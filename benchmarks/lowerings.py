"""Each forced lowering against ONNX Runtime on the same graph, interleaved in one run.

    python benchmarks/lowerings.py --model alexnet --batch 1,16 --json

Rows are those of ``xframe compare --json`` with ``peer`` ("ort", or null for the peer itself) and ``ratio``: the peer's
median over this row's, above 1 where xframe's kernels are faster. Sites that a lowering refuses run under ``direct``.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.rows import budget, measured, numbers, options, run, show, with_peers
from xframe.comparison import Request
from xframe.registry import LOWERINGS, defaults

PEER = "ort"


def main() -> int:
    parser = options(__doc__.splitlines()[0], rounds=9)
    parser.add_argument("--model", default="alexnet", help="a registered model")
    parser.add_argument("--framework", default="pytorch", help="whose export is used")
    parser.add_argument("--batch", type=numbers, default=(1, 16))
    given = parser.parse_args()
    request = Request(
        given.model,
        frameworks=(given.framework,),
        runners=(PEER, "tvm"),
        lowerings=defaults(LOWERINGS),
        fallback="direct",
        batches=given.batch,
        threads=given.threads,
        budget=budget(given.rounds),
        baseline=False,
    )
    rows = with_peers(measured(request), lambda r: r["backend"] == PEER)
    show(rows, given.json)
    return int(any(r["outcome"] != "OK" for r in rows))


if __name__ == "__main__":
    sys.exit(run(main))
