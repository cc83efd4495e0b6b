"""What a check found, as text: printed at its end, and kept beside its steps.

Ratios are of times, another's over TVM's: above 1, TVM is faster. At a convolution they are of its kernels alone,
where all rows there have been profiled: cuDNN's is without bias and ReLU, which TVM's has. Else they are of whole rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from xframe.gpucheck.journal import DONE, Found


def lines(found: Sequence[Found]) -> Iterator[str]:
    """All of it: what is there, each step with its rows, and the ratios to what the vendor has."""
    for one in found:
        if one.step == "machine":
            yield from _machine(one.facts)
            yield ""
            continue
        gap = "\n" if one.rows else ""
        yield f"{gap}{one.step}: {one.state}" + (f" ({one.reason})" if one.reason else "")
        yield from (_row(row) for row in one.rows)
        yield from (f"  {name}: {why}" for name, why in one.facts.get("refused", {}).items())
        yield from (f"  log {name}" for name in one.facts.get("logs", ()))
    yield from ratios(found)


def _machine(facts: Mapping[str, Any]) -> Iterator[str]:
    for gpu in facts.get("gpus") or []:
        limit, memory = gpu.get("power_limit_w"), gpu.get("memory")
        extra = [f"{memory / 2**30:.0f} GiB" if memory else "", f"{limit:.0f} W" if limit else ""]
        yield ", ".join(filter(None, [f"GPU        {gpu['name']}", gpu.get("arch") or "", *extra]))
        yield f"           driver {gpu.get('driver')}, now {gpu.get('now')}"
    if not facts.get("gpus"):
        yield f"GPU        none: {facts.get('why') or 'the driver shows none to this process'}"
    for kind in ("libraries", "programs", "framework", "backend"):
        for name, value in (facts.get(kind) or {}).items():
            yield f"{kind[:9]:<10} {name}: {value or 'missing'}"


def _row(row: Mapping[str, Any]) -> str:
    name = " ".join(str(row[k]) for k in ("framework", "backend", "lowering") if row[k])
    options = "".join(f" {k}={v}" for k, v in row["options"].items())
    time = f"{row['median_s'] * 1e3:10.4f} ms" if row["median_s"] is not None else " " * 13
    error = f"error {row['error_ratio']:.3f} of its bound" if row["error_ratio"] is not None else ""
    return f"  {time}  {name}{options}: {row['outcome']} {error or row['reason']}".rstrip()


def ratios(found: Sequence[Found]) -> Iterator[str]:
    """What there is to compare: each site with cuDNN, whole networks with ONNX Runtime, GEMM with the GPU's peak."""
    sites = [one for one in found if "site" in one.facts and not one.facts.get("tuned")]
    tuned = {one.facts["site"]: one.rows for one in found if one.facts.get("tuned")}
    yield from _of_sites("untuned", {s.facts["site"]: (s.rows, s.rows) for s in sites})
    yield from _of_sites(
        "tuned", {s.facts["site"]: (tuned[s.facts["site"]], s.rows) for s in sites if s.facts["site"] in tuned}
    )
    lines = list(_of_networks(found))
    yield from ["\nwhole network: ONNX Runtime's best over TVM's best"] * bool(lines) + lines
    roofs = next((one.facts["roofs"] for one in found if "roofs" in one.facts), None)
    if roofs:
        flop, read = roofs["flop_per_s"] / 1e12, roofs["bytes_per_s"] / 1e9
        yield f"\nmeasured at most: {flop:.2f} TFLOP/s in float32, {read:.0f} GB/s read from memory"
        yield from _of_peak(found, roofs["flop_per_s"])


Rows = Sequence[Mapping[str, Any]]


def _of_sites(what: str, rows: Mapping[str, tuple[Rows, Rows]]) -> Iterator[str]:
    """``rows``: site -> those in which TVM's best is looked for, and those for cuDNN's."""
    pairs = {}
    for site, (ours, theirs) in rows.items():
        key = _time([*ours, *theirs])
        best = _best(ours, "tvm", key), _best(theirs, "cudnn", key)
        if best[0] and best[1]:
            pairs[site] = best[0], best[1]
    if pairs:
        yield f"\n{what}, site: cuDNN's best over TVM's best"
        for site, (our, their) in pairs.items():
            yield f"  {site}: {their[0] / our[0]:.2f}  (tvm {our[1]}, cudnn {their[1]})"
        mean = math.exp(sum(math.log(their[0] / our[0]) for our, their in pairs.values()) / len(pairs))
        yield f"  geometric mean of {len(pairs)}: {mean:.2f}"


def _of_networks(found: Sequence[Found]) -> Iterator[str]:
    for one in (x for x in found if "network" in x.facts):
        ours, theirs = _best(one.rows, "tvm"), _best(one.rows, "ort")
        if ours and theirs:
            yield f"  {one.facts['network']} batch {one.facts['batch']}: {theirs[0] / ours[0]:.2f}  (tvm {ours[1]})"


def _of_peak(found: Sequence[Found], peak: float) -> Iterator[str]:
    """The share of the peak that the kernels of GEMM reach, at each site and in whole networks."""
    for one in (x for x in found if x.facts.get("flop")):
        rows = [r for r in one.rows if r["backend"] == "tvm" and r["lowering"] == "gemm"]
        best = _best(rows, "tvm", "kernel_s") if all(r.get("kernel_s") for r in rows) else None
        if best:
            yield f"  {one.step}: gemm at {one.facts['flop'] / best[0] / peak:.0%} of it"


def _time(rows: Rows) -> str:
    """The time by which rows are compared: of their kernels, if all that were measured have it."""
    timed = [r for r in rows if r["median_s"] and r["backend"] in ("tvm", "cudnn")]
    return "kernel_s" if timed and all(r.get("kernel_s") for r in timed) else "median_s"


def _best(rows: Rows, backend: str, key: str = "median_s") -> tuple[float, str] | None:
    """Seconds and lowering of the fastest verified row."""
    good = [(r[key], r["lowering"]) for r in rows if r["backend"] == backend and r["median_s"]]
    return min(good, default=None)


def complete(found: Sequence[Found]) -> bool:
    """Whether every step came to its end."""
    return all(one.state == DONE for one in found)
