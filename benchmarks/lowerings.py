"""Each forced lowering against ONNX Runtime on the same graph, interleaved in one run.

    python benchmarks/lowerings.py --model alexnet --batch 1,16 --json

Rows are those of ``xframe compare --json`` with ``peer`` ("ort", or null for the peer itself) and ``ratio``: the peer's
median over this row's, above 1 where xframe's kernels are faster. Sites that a lowering refuses run under ``direct``.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from xframe.comparison import Request, compare
from xframe.errors import XframeError
from xframe.measure import Budget
from xframe.registry import LOWERINGS
from xframe.store import row

PEER = "ort"


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(","))


def measured(options: argparse.Namespace) -> list[dict]:
    """The rows, the peer's first, for each batch and thread count."""
    request = Request(
        options.model,
        frameworks=(options.framework,),
        runners=(PEER, "tvm"),
        lowerings=tuple(LOWERINGS),
        fallback="direct",
        batches=options.batch,
        threads=options.threads,
        budget=Budget(rounds=options.rounds, min_samples=7, min_seconds=0.25, max_seconds=1.5, profile=False),
        baseline=False,
    )
    run = compare(request, lambda text: print(text, file=sys.stderr))
    rows = [row(m) for m in run.measurements]
    medians = {(r["batch"], r["threads"]): r["median_s"] for r in rows if r["backend"] == PEER}
    for r in rows:
        peer = medians.get((r["batch"], r["threads"]))
        is_peer = r["backend"] == PEER
        r["peer"] = None if is_peer else PEER
        r["ratio"] = None if is_peer or not peer or not r["median_s"] else peer / r["median_s"]
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="alexnet", help="a registered model")
    parser.add_argument("--framework", default="pytorch", help="whose export is used")
    parser.add_argument("--batch", type=numbers, default=(1, 16))
    parser.add_argument("--threads", type=numbers, default=(2,))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="one JSON object a row")
    options = parser.parse_args()
    try:
        rows = measured(options)
    except XframeError as e:
        print(f"lowerings: {e}", file=sys.stderr)
        return e.exit_code
    for r in rows:
        if options.json:
            print(json.dumps(r))
        elif r["outcome"] == "OK":
            ratio = "" if r["ratio"] is None else f"  {r['ratio']:.2f}x {PEER}"
            what = f"batch {r['batch']:<3} threads {r['threads']} {r['backend']:4} {r['lowering']:9}"
            print(f"{what} {r['median_s'] * 1e3:8.2f} ms (IQR {r['iqr_s'] * 1e3:.2f}){ratio}")
        else:
            print(f"batch {r['batch']:<3} {r['backend']:4} {r['lowering']:9} {r['outcome']}: {r['reason']}")
    return 0 if all(r["outcome"] == "OK" for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
