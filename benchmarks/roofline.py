"""Each kernel of forced plans against the roofline of this machine, and the memory that the plans take.

    python benchmarks/roofline.py --model alexnet --batch 1,16 --lowering winograd,fft

FLOP are those that a kernel does, counted in its loops: a multiply-add is two, a maximum one, and a tile that is only
partly needed counts whole. Bytes are those of its arguments, so that what it reads again is free. A share is the time
that the roofs leave (``xframe.analysis.roofline``) over the median time in profiled passes. All roofs are measured
first, with the same threads: FMA in registers, and the rates at which blocks are read that a cache holds or none does.
"""

import json
import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import rows
from benchmarks.rows import Row
from xframe import calibration, environment
from xframe.analysis.roofline import Work, attainable
from xframe.comparison import Request
from xframe.registry import LOWERINGS, defaults
from xframe.results import Machine, Measurement
from xframe.types import Outcome

PEER, OURS = "ort", "tvm"
PASSES = 9


def machine(threads: int) -> Machine:
    """The roofs of this machine, measured now.

    Raises
    ------
    XframeError
        TVM, which compiles the loops, is not here, or does not work.
    """
    return calibration.measured(threads)


def flop(func) -> float:
    """Floating-point operations of a PrimFunc; an integer one is none, and a loop of unknown length the longest."""
    from tvm import s_tir

    from xframe.lowering.graph import LOWERING, ROLE

    counted = s_tir.analysis.estimate_tir_flops(func.body)
    attrs = func.attrs or {}
    if (attrs.get(LOWERING), attrs.get(ROLE)) == ("fft", "product"):
        # Complex numbers: of the three operations of each real term, one flips a sign, which is no work for a processor
        # that multiplies and subtracts at once.
        return counted * 2 / 3
    return counted


def works(mod) -> dict[str, Work]:
    """The work of each kernel that ``main`` of a lowered module calls, by name. Weights are what no kernel makes."""
    from tvm import ir, relax

    main = mod["main"]
    made = set(main.params[: int(main.attrs["num_input"])])
    found = {}
    for binding in (b for block in main.body.blocks for b in block.bindings):
        made.add(binding.var)
        call = binding.value
        if isinstance(call, relax.Call) and call.op == ir.Op.get("relax.call_tir"):
            func, args = mod[call.args[0]], list(call.args[1].fields)
            sizes = [4 * math.prod(int(n) for n in p.shape) for p in func.params]
            weights = sum(n for n, arg in zip(sizes, args, strict=False) if arg not in made)
            found[call.args[0].name_hint] = Work(flop(func), sum(sizes) - weights, weights)
    return found


def lowered(m: Measurement) -> tuple[dict[str, Work], int]:
    """The work of the kernels of a measured plan, and the bytes of all its parameters."""
    import onnx

    from xframe.lowering import pipeline
    from xframe.lowering.target import Cpu

    assert m.case.artifact is not None
    mod, parameters, _ = pipeline.forced(onnx.load(m.case.artifact.path), m.case.plan, Cpu.host(m.case.threads))
    return works(mod), sum(a.nbytes for a in parameters)


def kernel_rows(m: Measurement, work: dict[str, Work], weights: int, roofs: Machine) -> list[Row]:
    """A row for each kernel, in the order of the first pass; ``median_s`` and ``attainable_s`` are of all its calls.

    ``role``: of its stage in a lowering; of a kernel of no convolution, its name without the number.
    """
    passes = []
    for one in (p.kernels for p in m.profiles):
        spent: Counter[str] = Counter()
        for k in one:
            spent[k.name] += k.end - k.start  # type: ignore[assignment]
        passes.append(spent)
    out = []
    for name, calls in Counter(k.name for k in m.kernels).items():
        first = next(k for k in m.kernels if k.name == name)
        least, limit = attainable(work[name], weights, roofs)
        taken = median(spent[name] for spent in passes)
        out.append(
            {
                **_case(m),
                "kernel": name,
                "site": first.site.key if first.site else None,
                "role": first.role if first.site else re.sub(r"\d+", "", name),
                "calls": calls,
                "flop": calls * work[name].flop,
                "bytes": calls * work[name].bytes,
                "weight_bytes": calls * work[name].weight_bytes,
                "median_s": taken,
                "attainable_s": calls * least,
                "limit": limit,
            }
        )
    return [_with_rates(r) for r in out]


def by_role(kernels: Iterable[Row]) -> list[Row]:
    """The sums over the kernels of each plan and role; ``limit`` is that of most of the attainable time."""
    groups: dict[tuple, list[Row]] = defaultdict(list)
    for r in kernels:
        groups[r["batch"], r["threads"], r["lowering"], r["site"] is None, r["role"]].append(r)
    out = []
    for group in groups.values():
        limits: Counter[str] = Counter()
        for r in group:
            limits[r["limit"]] += r["attainable_s"]
        sums = {k: sum(r[k] for r in group) for k in ("calls", "flop", "bytes", "weight_bytes", "median_s")}
        least = {"attainable_s": sum(limits.values()), "limit": max(limits, key=lambda name: limits[name])}
        out.append(_with_rates({**group[0], "kernel": None, "site": None, **sums, **least}))
    return out


def _case(m: Measurement) -> Row:
    return {k: rows.row(m)[k] for k in ("model", "batch", "threads", "lowering")}


def _with_rates(r: Row) -> Row:
    rates = {"flop_per_s": r["flop"] / r["median_s"], "bytes_per_s": r["bytes"] / r["median_s"]}
    return {**r, **rates, "attainable_flop_per_s": r["flop"] / r["attainable_s"], "share": _share(r)}


def _share(r: Row) -> float:
    return r["attainable_s"] / r["median_s"]


def memory_row(m: Measurement, kernels: Sequence[Row], peer: Measurement | None) -> Row:
    """Peak resident memory of the worker; ``transformed_bytes``: what the weights and biases of the convolutions
    take more than before; ``memory_ratio``: the peak without those over that of the peer."""
    plain = {s.key: 4 * s.out_channels * (s.reduction + 1) for s, _ in m.case.plan.lowerings}
    calls: Counter[str] = Counter(s.site.key for s in m.sites)
    weights = sum(r["weight_bytes"] for r in kernels if r["site"])
    transformed = weights - sum(n * plain[key] for key, n in calls.items())
    own, theirs = m.peak_bytes, peer.peak_bytes if peer else None
    ratio = (own - transformed) / theirs if own and theirs else None
    return {
        **_case(m),
        "peak_bytes": own,
        "peer": PEER,
        "peer_peak_bytes": theirs,
        "transformed_bytes": transformed,
        "memory_ratio": ratio,
    }


def kernel_table(title: str, found: Iterable[Row]) -> str:
    """Markdown, plan by plan, in the order of the rows."""
    head = (title, "batch", "threads", "lowering", "role", "MFLOP", "MB", "ms", "GFLOP/s", "GB/s", "attainable ms")
    body = []
    for r in found:
        values = (r["flop"] / 1e6, r["bytes"] / 1e6, r["median_s"] * 1e3, r["flop_per_s"] / 1e9, r["bytes_per_s"] / 1e9)
        times = (f"{values[0]:.1f}", f"{values[1]:.2f}", f"{values[2]:.3f}", f"{values[3]:.0f}", f"{values[4]:.0f}")
        least = (f"{r['attainable_s'] * 1e3:.3f}", r["limit"], f"{r['share']:.0%}")
        what = (r["kernel"] or str(r["calls"]), str(r["batch"]), str(r["threads"]), r["lowering"], r["role"])
        body.append((*what, *times, *least))
    return rows.table((*head, "limit", "share"), body)


def memory_table(found: Iterable[Row]) -> str:
    body = []
    for r in found:
        sizes = [
            f"{n / 1e6:.0f}" if n else "-" for n in (r["peak_bytes"], r["transformed_bytes"], r["peer_peak_bytes"])
        ]
        ratio = f"{r['memory_ratio']:.2f}" if r["memory_ratio"] else "-"
        body.append((str(r["batch"]), str(r["threads"]), r["lowering"], *sizes, ratio))
    return rows.table(("batch", "threads", "lowering", "peak MB", "transformed MB", f"{PEER} MB", "ratio"), body)


def main() -> int:
    parser = rows.options(__doc__.splitlines()[0], rounds=1)
    parser.add_argument("--model", default="alexnet", help="a registered model")
    parser.add_argument("--framework", default="pytorch", help="whose export is used")
    parser.add_argument("--batch", type=rows.numbers, default=(1, 16))
    parser.add_argument("--lowering", type=rows.names, default=defaults(LOWERINGS))
    given = parser.parse_args()
    roofs = {n: machine(n) for n in given.threads}
    request = Request(
        given.model,
        frameworks=(given.framework,),
        runners=(PEER, OURS),
        lowerings=given.lowering,
        fallback="direct",
        batches=given.batch,
        threads=given.threads,
        budget=replace(rows.budget(given.rounds), profile=PASSES),
        baseline=False,
    )
    found = rows.measured(request)
    if any("compile" in m.seconds for m in found):  # the compiler's memory is not that of the network
        found = rows.measured(request)
    peers = {(m.case.batch, m.case.threads): m for m in found if m.case.runner == PEER and m.outcome == Outcome.OK}
    kernels, memory, failed = [], [], [m for m in found if m.outcome != Outcome.OK]
    for m in found:
        if m.case.runner == OURS and m.outcome == Outcome.OK and m.profiles:
            own = kernel_rows(m, *lowered(m), roofs[m.case.threads])
            kernels += own
            memory.append(memory_row(m, own, peers.get((m.case.batch, m.case.threads))))
    if given.json:
        for n, roof in roofs.items():
            rates = {level.name: level.bytes_per_s for level in roof.levels}
            print(json.dumps({"kind": "machine", "threads": n, "flop_per_s": roof.flop_per_s, "bytes_per_s": rates}))
        for kind, those in (("kernel", kernels), ("role", by_role(kernels)), ("memory", memory)):
            for r in those:
                print(json.dumps({"kind": kind, **r}))
    else:
        for n, roof in roofs.items():
            reads = ", ".join(f"{level.bytes_per_s / 1e9:.0f} from {level.name}" for level in roof.levels)
            print(f"{environment.cpu_device().name}, threads {n}: {roof.flop_per_s / 1e9:.0f} GFLOP/s; GB/s: {reads}\n")
        for text in (kernel_table("kernel", kernels), kernel_table("kernels", by_role(kernels)), memory_table(memory)):
            print(text, end="\n\n")
    for m in failed:
        print(rows.line({**rows.row(m), "ratio": None}), file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(rows.run(main))
