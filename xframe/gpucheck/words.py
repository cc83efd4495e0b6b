"""What a check found, as text: printed at its end, and kept beside its steps.

Ratios are of times, another's over TVM's: above 1, TVM is faster. Each is told by every clock that all rows have which
it is the best of, as they do not say the same (:data:`CLOCKS`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from xframe.gpucheck.journal import DONE, INTERRUPTED, Found
from xframe.worker.device_clock import UNGATED

Rows = Sequence[Mapping[str, Any]]
#: Key of a row's time -> what it is of, at a convolution. The last is told where there is no other.
CLOCKS = {
    "device_median_s": "whole rows by the GPU's clock (cuDNN's has the bias, ReLU and any change of layout as calls of"
    " their own)",
    "kernel_s": "the convolution's kernels alone (cuDNN's without bias and ReLU, which TVM's have)",
    "median_s": "whole rows by the host's clock",
}
#: Of a row whose time by the GPU's clock is longer than what the GPU does.
GAPS = "; the GPU's time has the host's gaps in it"


def lines(found: Sequence[Found]) -> Iterator[str]:
    """All of it: what is there, each step with its rows, and the ratios to what the vendor has."""
    for one in found:
        if one.step == "machine":
            yield from _machine(one.facts)
            yield ""
            continue
        gap = "\n" if one.rows else ""
        yield f"{gap}{one.step}: {one.state}" + (f" ({one.reason})" if one.reason else "")
        if one.rows:
            yield f"  {'host':>10}     {'GPU':>10}"
        for _, alike in itertools.groupby(one.rows, _refusal):
            yield _row(list(alike))
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


def _refusal(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What rows have in common that stand on one line: none of them was timed, for the same reason; or there is one."""
    if row["median_s"] is not None:
        return (id(row),)
    return row["framework"], row["backend"], row["outcome"], row["reason"]


def _row(rows: Rows) -> str:
    row = rows[0]
    lowerings = ", ".join(str(r["lowering"]) for r in rows)
    name = " ".join(str(x) for x in (row["framework"], row["backend"], lowerings) if x)
    options = "".join(f" {k}={v}" for k, v in row["options"].items()) if not rows[1:] else ""
    error = f"error {row['error_ratio']:.3f} of its bound" if row["error_ratio"] is not None else ""
    others = f" ({len(row['fallback'])} kinds of convolutions by the fallback)" if row.get("fallback") else ""
    detail = f" ({row['detail']})" if row.get("detail") else ""
    times = "  ".join(_milliseconds(row.get(key)) for key in ("median_s", "device_median_s"))
    gaps = GAPS if (row.get("device_clock") or "").startswith(UNGATED) else ""
    return f"  {times}  {name}{options}: {row['outcome']} {row['reason'] or error}{others}{detail}{gaps}".rstrip()


def _milliseconds(seconds: float | None) -> str:
    return " " * 13 if seconds is None else f"{seconds * 1e3:10.4f} ms"


def ratios(found: Sequence[Found]) -> Iterator[str]:
    """What there is to compare: each site with cuDNN, whole networks with others, GEMM with the GPU's peak."""
    sites = {one.facts["site"]: one.rows for one in found if "site" in one.facts and not one.facts.get("tuned")}
    tuned = {one.facts["site"]: one.rows for one in found if one.facts.get("tuned") and one.rows}
    yield from _of_sites("untuned", {name: (rows, rows) for name, rows in sites.items()})
    both = {name: ((*tuned[name], *sites[name]), sites[name]) for name in sites if name in tuned}
    yield from _of_sites("tuned", both)
    lines = list(_of_networks(found))
    yield from ["\nwhole network: the time of others over that of TVM's best beside them"] * bool(lines) + lines
    roofs = next((one.facts["roofs"] for one in found if "roofs" in one.facts), None)
    if roofs:
        flop, read = roofs["flop_per_s"] / 1e12, roofs["bytes_per_s"] / 1e9
        clock = f", multiplying at {roofs['sm_clock_mhz']} MHz" if roofs.get("sm_clock_mhz") else ""
        yield f"\nmeasured at most: {flop:.2f} TFLOP/s in float32, {read:.0f} GB/s read from memory{clock}"
        yield from _of_peak(found, roofs["flop_per_s"])


def _of_sites(what: str, rows: Mapping[str, tuple[Rows, Rows]]) -> Iterator[str]:
    """``rows``: site -> those in which TVM's best is looked for, and those for cuDNN's."""
    told: set[str] = set()
    for key, words in CLOCKS.items():
        pairs = {}
        for site, (ours, theirs) in rows.items():
            our, their = _best(ours, "tvm", key), _best(theirs, "cudnn", key)
            if our and their and _have((*ours, *theirs), key) and not (key == "median_s" and site in told):
                pairs[site] = our, their
        if pairs:
            yield f"\n{what}, site: cuDNN's best over TVM's best, {words}"
            for site, (our, their) in pairs.items():
                yield f"  {site}: {their[0] / our[0]:.2f}  (tvm {our[1]}, cudnn {their[1]})"
            mean = math.exp(sum(math.log(their[0] / our[0]) for our, their in pairs.values()) / len(pairs))
            yield f"  geometric mean of {len(pairs)}: {mean:.2f}"
            told.update(pairs)


def _of_networks(found: Sequence[Found]) -> Iterator[str]:
    for one in (x for x in found if "network" in x.facts):
        for name, rows in _others(one.rows).items():
            parts = []
            for key, words in (("median_s", "by the host's clock"), ("device_median_s", "by the GPU's")):
                ours, theirs = _best(one.rows, "tvm", key), _best(rows, rows[0]["backend"], key)
                if ours and theirs:
                    parts.append(f"{theirs[0] / ours[0]:.2f} {words} (tvm {ours[1]})")
            if parts:
                yield f"  {one.facts['network']} batch {one.facts['batch']}, {one.step}, {name}: {', '.join(parts)}"


def _others(rows: Rows) -> dict[str, list[Mapping[str, Any]]]:
    """The rows that a whole network of TVM's is held against, by name. cudnn's dozens of calls are none of them."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["backend"] not in ("tvm", "cudnn"):
            found.setdefault(row["framework"] if row["backend"] == "native" else row["backend"], []).append(row)
    return found


def _of_peak(found: Sequence[Found], peak: float) -> Iterator[str]:
    """The share of the peak that the kernels of GEMM reach, at each site and in whole networks."""
    for one in (x for x in found if x.facts.get("flop")):
        rows = [r for r in one.rows if r["backend"] == "tvm" and r["lowering"] == "gemm" and r["median_s"]]
        best = _best(rows, "tvm", "kernel_s")
        if best:
            yield f"  {one.step}: gemm at {one.facts['flop'] / best[0] / peak:.0%} of it"


def _have(rows: Rows, key: str) -> bool:
    """Whether all rows of TVM and cuDNN that were timed have this time: else the fastest may be one that has it not."""
    return all(r.get(key) for r in rows if r["median_s"] and r["backend"] in ("tvm", "cudnn"))


def _best(rows: Rows, backend: str, key: str = "median_s") -> tuple[float, str] | None:
    """Seconds and lowering of the fastest verified row that has this time."""
    good = [(r[key], r["lowering"]) for r in rows if r["backend"] == backend and r["median_s"] and r.get(key)]
    return min(good, default=None)


def fastest(rows: Rows, backend: str) -> str | None:
    """The lowering of its fastest verified row, by the first of :data:`CLOCKS` that all rows have."""
    key = next((key for key in CLOCKS if _have(rows, key)), "median_s")
    best = _best(rows, backend, key)
    return best and best[1]


def complete(found: Sequence[Found]) -> bool:
    """Whether every step came to its end."""
    return all(one.state == DONE for one in found)


def stopped(found: Sequence[Found]) -> bool:
    """Whether someone wanted it to end."""
    return any(one.reason == INTERRUPTED for one in found)
