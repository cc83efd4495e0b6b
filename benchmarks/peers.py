"""Whole networks against everything else that runs them here, interleaved in one run.

    python benchmarks/peers.py --case alexnet:1,alexnet:16 --table
    python benchmarks/peers.py --layers --table

Rows are those of ``xframe compare --json`` with ``peer``, the fastest peer of the case that is OK, and ``ratio``: the
peer's median over this row's, above 1 where xframe's kernels are faster. ``read_bytes_per_s`` is what memory gives at
that number of threads, measured before and after the case; our rows have ``conv_s``, all convolutions together, and at
batch 1 ``fc_read_share``, what the fully connected layers reach of that rate, both from profiled passes.
"""

import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import layers
from benchmarks.bandwidth import read_bandwidth
from benchmarks.rows import Row, budget, measured, name, names, options, run, show, table, with_peers
from xframe import environment, zoo
from xframe.comparison import Request
from xframe.errors import UsageError, XframeError
from xframe.results import Measurement

#: (model, batch) -> times as fast as the fastest peer that the best plan must be.
BARS = {
    ("alexnet", 1): 1.4,
    ("alexnet", 16): 2.6,
    ("vgg16", 1): 2.2,
    ("vgg16", 8): 2.3,
    ("resnet50", 1): 1.2,
    ("resnet50", 8): 1.3,
    ("overfeat", 1): 1.5,
    ("squeezenet", 1): 1.0,
    ("mobilenet_v2", 1): 1.0,
}
#: AlexNet at batch 1: most seconds of all convolutions, least share of the read bandwidth.
CONVOLUTIONS, FC_SHARE = 2.6e-3, 0.9
#: The backends take PyTorch's export.
PEERS = (
    ("pytorch", "ort"),
    ("pytorch", "openvino"),
    ("pytorch", "native"),
    ("torch.compile", "native"),
    ("tensorflow", "native"),
    ("jax", "native"),
)
OURS = "tvm"


def cases(text: str) -> list[tuple[str, int]]:
    """``alexnet:1,vgg16:8`` as (model, batch). Raises UsageError on anything else."""
    try:
        return [(model, int(batch)) for model, _, batch in (c.partition(":") for c in names(text))]
    except ValueError:
        raise UsageError(f"--case {text!r}: give cases like alexnet:1,vgg16:8") from None


def case_rows(model: str, batch: int, threads: Sequence[int], lowerings: Sequence[str], rounds: int) -> list[Row]:
    """The rows of one case."""
    request = Request(
        model,
        frameworks=tuple(dict.fromkeys(framework for framework, _ in PEERS)),
        runners=tuple(dict.fromkeys((*(runner for _, runner in PEERS), OURS))),
        lowerings=tuple(lowerings),
        fallback="direct",
        batches=(batch,),
        threads=tuple(threads),
        budget=budget(rounds, profile=True),
        pairs=(*PEERS, ("pytorch", OURS)),
    )
    rates = {n: [_rate(n)] for n in threads}
    measurements = measured(request)
    for n in threads:
        rates[n].append(_rate(n))
    rows = with_peers(measurements, lambda r: r["backend"] != OURS)
    for r, m in zip(rows, measurements, strict=True):
        r["read_bytes_per_s"] = max(rates[r["threads"]])
        r.update(_parts(m, r["read_bytes_per_s"]))
    return rows


def _rate(threads: int) -> float:
    """Read bandwidth, bytes a second; 0 where it can't be measured."""
    try:
        return read_bandwidth(threads)
    except XframeError as e:
        print(e, file=sys.stderr)
        return 0.0


def _parts(m: Measurement, rate: float) -> dict[str, float | None]:
    """Seconds of all convolutions in a typical profiled pass, and the share of ``rate`` at which weights were read."""
    if m.case.runner != OURS or not m.profiles:
        return {"conv_s": None, "fc_read_share": None}
    convolutions, dense = (
        statistics.median(
            sum(k.end - k.start for k in kernels if wanted(k)) for kernels in (p.kernels for p in m.profiles)
        )
        for wanted in (lambda k: k.site is not None, lambda k: k.name.startswith("fc"))
    )
    spec = zoo.spec(m.case.model)
    shapes = zoo.tensors(spec)
    weights = 4 * sum(math.prod(shapes[f"{x.name}.weight"]) for x in spec.layers if x.op == "fc")
    share = weights / dense / rate if dense and rate and m.case.batch == 1 else None
    return {"conv_s": convolutions, "fc_read_share": share}


def summary(groups: Sequence[list[Row]]) -> str:
    """Markdown: what each case took in each runner, the best of our plans against its bar, the machine."""
    peers = [framework if runner == "native" else runner for framework, runner in PEERS]
    plans = list(dict.fromkeys(r["lowering"] for group in groups for r in group if r["backend"] == OURS))
    body, notes = [], []
    for group in groups:
        for threads in dict.fromkeys(r["threads"] for r in group):
            mine = [r for r in group if r["threads"] == threads]
            model, batch = mine[0]["model"], mine[0]["batch"]
            theirs = {name(r): r for r in mine if r["backend"] != OURS}
            ours = {r["lowering"]: r for r in mine if r["backend"] == OURS}
            times = [_time(found.get(n)) for found, of in ((theirs, peers), (ours, plans)) for n in of]
            best = max((r for r in ours.values() if r["ratio"]), key=lambda r: r["ratio"], default=None)
            bar = BARS.get((model, batch))
            reached = "no" if best is None or (bar and best["ratio"] < bar) else "yes" if bar else ""
            ratio = f"{best['ratio']:.2f}x {best['peer']}" if best else "-"
            body.append([model, str(batch), str(threads), *times, ratio, f"{bar}x" if bar else "", reached])
            notes += [f"- {text}" for r in ours.values() if (text := _note(r))]
    device, versions = environment.cpu_device(), environment.versions()
    head = ["model", "batch", "threads", *peers, *plans, "ratio", "must reach", "reached"]
    about = f"Medians in ms on {device.name}, {device.cores} CPUs; ratio: of the best plan to the fastest peer."
    installed = ", ".join(f"{k} {v}" for k, v in versions.items())
    return "\n\n".join([about, table(head, body), "\n".join(notes), installed])


def _time(r: Row | None) -> str:
    if r is None:
        return "-"
    return f"{r['median_s'] * 1e3:.2f}" if r["outcome"] == "OK" else r["outcome"]


def _note(r: Row) -> str:
    """Where the time of one of our rows went; AlexNet's at batch 1 against its bars; why a row failed."""
    what = f"{r['model']} batch {r['batch']}, {r['threads']} threads, {r['lowering']}: "
    if r["outcome"] != "OK":
        return f"{what}{r['outcome']}, {r['reason']}"
    barred = (r["model"], r["batch"]) == ("alexnet", 1)
    found = []
    if r["conv_s"]:
        bar = f" (at most {CONVOLUTIONS * 1e3:.1f})" if barred else ""
        found.append(f"all convolutions {r['conv_s'] * 1e3:.2f} ms{bar}")
    if r["fc_read_share"]:
        bar = f" (at least {FC_SHARE:.0%})" if barred else ""
        rate = f"{r['read_bytes_per_s'] / 1e9:.1f} GB/s"
        found.append(f"fully connected layers at {r['fc_read_share']:.0%}{bar} of the {rate} that memory gives")
    return what + "; ".join(found) if found else ""


def main() -> int:
    parser = options(__doc__.splitlines()[0], rounds=5)
    parser.set_defaults(threads=(2, 1))
    parser.add_argument("--case", default=",".join(f"{m}:{b}" for m, b in BARS), metavar="MODEL:BATCH,...")
    parser.add_argument("--lowering", type=names, default=("best",), help="plans of ours; where one refuses, direct")
    parser.add_argument("--table", action="store_true", help="a table in Markdown, with what must be reached")
    parser.add_argument("--layers", action="store_true", help="single convolutions against oneDNN instead")
    given = parser.parse_args()
    if given.layers:
        work = layers.rows(given.threads, given.rounds)
    else:
        work = (case_rows(*case, given.threads, given.lowering, given.rounds) for case in cases(given.case))
    groups = []
    for rows in work:
        groups.append(rows)
        if given.json or not given.table:
            show(rows, given.json)
    if given.table and given.layers:
        print("\n\n".join(layers.tables(groups, threads) for threads in given.threads))
    elif given.table:
        print(summary(groups))
    return int(any(r["outcome"] not in ("OK", "UNSUPPORTED") for rows in groups for r in rows))


if __name__ == "__main__":
    sys.exit(run(main))
