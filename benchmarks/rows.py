"""What the benchmarks share: the rows of a comparison, each held against the fastest of its peers."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from xframe.comparison import Request, compare
from xframe.errors import UsageError, XframeError
from xframe.measure import Budget
from xframe.results import Measurement
from xframe.store import row
from xframe.types import Case, Plan

Row = dict[str, Any]


def options(description: str, rounds: int) -> argparse.ArgumentParser:
    """The parser with the flags that all of them have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--threads", type=numbers, default=(2,))
    parser.add_argument("--rounds", type=int, default=rounds, help="visits to each row, in turn with the others")
    parser.add_argument("--json", action="store_true", help="one JSON object a row")
    return parser


def run(benchmark: Callable[[], int]) -> int:
    """Its exit code; an error becomes one line."""
    try:
        return benchmark()
    except XframeError as e:
        print(f"{Path(sys.argv[0]).stem}: {e}", file=sys.stderr)
        return e.exit_code


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(","))


def names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def budget(rounds: int, profile: bool = False) -> Budget:
    """Longer visits than those of ``xframe compare``: ratios are what is asked for."""
    return Budget(rounds=rounds, min_samples=7, min_seconds=0.25, max_seconds=1.5, profile=profile)


def measured(request: Request) -> Sequence[Measurement]:
    """What ``request`` asks for; where all of it fails at once, one measurement that says why.

    Raises
    ------
    UsageError
        The request makes no sense.
    """
    try:
        return compare(request, lambda text: print(text, file=sys.stderr, flush=True)).measurements
    except UsageError:
        raise
    except XframeError as e:
        runner, (batch, threads) = request.runners[-1], (x[0] for x in (request.batches, request.threads))
        case = Case(request.model, None, runner, Plan(), request.device, batch, threads)
        return [Measurement(case, e.outcome, str(e))]


def name(r: Row) -> str:
    """What a row runs in: a backend, or the framework of a native row."""
    return r["framework"] if r["backend"] == "native" else r["backend"]


def with_peers(measurements: Iterable[Measurement], is_peer: Callable[[Row], bool]) -> list[Row]:
    """The rows, each with ``peer``, the fastest OK one of the same model, batch and threads, and ``ratio``, that peer's
    median over its own. Both are null for a peer, and ``ratio`` where either has no time."""
    rows = [row(m) for m in measurements]
    for r in rows:
        group = [p for p in rows if all(p[k] == r[k] for k in ("model", "batch", "threads"))]
        peers = [p for p in group if is_peer(p) and p["median_s"]]
        best = min(peers, key=lambda p: p["median_s"], default=None)
        r["peer"] = None if best is None or is_peer(r) else name(best)
        r["ratio"] = best["median_s"] / r["median_s"] if r["peer"] and best and r["median_s"] else None
    return rows


def show(rows: Iterable[Row], as_json: bool) -> None:
    """A line for each row."""
    for r in rows:
        print(json.dumps(r) if as_json else line(r), flush=True)


def line(r: Row) -> str:
    what = f"{r['model']:12} batch {r['batch']:<3} threads {r['threads']} {name(r):13} {r['lowering']:9}"
    if r["outcome"] != "OK":
        return f"{what} {r['outcome']}: {r['reason']}"
    ratio = "" if r["ratio"] is None else f"  {r['ratio']:.2f}x {r['peer']}"
    return f"{what} {r['median_s'] * 1e3:8.2f} ms (IQR {r['iqr_s'] * 1e3:.2f}){ratio}"


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
