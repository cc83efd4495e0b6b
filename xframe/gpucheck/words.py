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
from xframe.registry import LOWERINGS
from xframe.types import Outcome
from xframe.worker.device_clock import UNGATED

Rows = Sequence[Mapping[str, Any]]
#: Key of a row's time -> what it is of, at a convolution. The last is told where there is no other.
CLOCKS = {
    "device_median_s": "whole rows by the GPU's clock (cuDNN's has the bias, ReLU and any change of layout as calls of"
    " their own)",
    "kernel_s": "the convolution's kernels alone (cuDNN's without bias and ReLU, which TVM's have)",
    "median_s": "whole rows by the host's clock",
}
#: The rows of cuDNN among which its best is, as each is the fastest of many by its own measurement.
VENDORS_BEST = ("auto", "graph_fastest", "graph_nhwc")
#: Lowerings that compute something else than what they would be held against.
_ROUNDED = frozenset(name for name, row in LOWERINGS.items() if row.products)
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
    again = {one.facts["site"]: one.rows for one in found if one.facts.get("tuned")}
    tuned = {name: rows for name, rows in again.items() if _best(rows, "tvm")}
    yield from _of_sites("untuned", sites)
    if any(name in tuned for name in sites):
        what = f"tuned at {', '.join(tuned)}"
        yield from _of_sites(what, {name: (*tuned.get(name, ()), *rows) for name, rows in sites.items()})
    lines = list(_of_networks(found))
    yield from ["\nwhole network: the time of others over that of TVM's best beside them"] * bool(lines) + lines
    roofs = next((one.facts["roofs"] for one in found if "roofs" in one.facts), None)
    if roofs:
        flop, read = roofs["flop_per_s"] / 1e12, roofs["bytes_per_s"] / 1e9
        clock = f", multiplying at {roofs['sm_clock_mhz']} MHz" if roofs.get("sm_clock_mhz") else ""
        yield f"\nmeasured at most: {flop:.2f} TFLOP/s in float32, {read:.0f} GB/s read from memory{clock}"
        yield from _of_peak(found, roofs["flop_per_s"])


def _of_sites(what: str, sites: Mapping[str, Rows]) -> Iterator[str]:
    """TVM's best and cuDNN's among the rows of each site; what cuDNN's best may lack is told with it."""
    told: set[str] = set()
    for key, words in CLOCKS.items():
        pairs = {}
        for site, rows in sites.items():
            our, their = _best(rows, "tvm", key), _best(rows, "cudnn", key)
            if our and their and _have(rows, key) and not (key == "median_s" and site in told):
                pairs[site] = our, their
        if pairs:
            yield f"\n{what}, site: cuDNN's best over TVM's best, {words}"
            for site, (our, their) in pairs.items():
                timed = {r["lowering"] for r in sites[site] if r["backend"] == "cudnn" and r["median_s"]}
                lacking = ", ".join(name for name in VENDORS_BEST if name not in timed)
                without = f"; without cuDNN's {lacking}" if lacking else ""
                yield f"  {site}: {their[0] / our[0]:.2f}  (tvm {our[1]}, cudnn {their[1]}{without})"
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
    """The share of the peak that the kernels of GEMM reach, at each site and in whole networks; at a site whose row has
    no profile the whole row's, which is no more."""
    for one in (x for x in found if x.facts.get("flop")):
        rows = [r for r in one.rows if r["lowering"] == "gemm"]
        if best := _best(rows, "tvm", "kernel_s"):
            yield f"  {one.step}: gemm at {one.facts['flop'] / best[0] / peak:.0%} of it"
        elif "site" in one.facts and (best := _best(rows, "tvm", "device_median_s")):
            yield f"  {one.step}: gemm at {one.facts['flop'] / best[0] / peak:.0%} of it at least, by the whole row"


def _have(rows: Rows, key: str) -> bool:
    """Whether all rows of TVM and cuDNN that were timed have this time: else the fastest may be one that has it not."""
    return all(r.get(key) for r in rows if r["median_s"] and r["backend"] in ("tvm", "cudnn"))


def _best(rows: Rows, backend: str, key: str = "median_s") -> tuple[float, str] | None:
    """Seconds and lowering of the fastest verified row that has this time, and whose products are float32."""
    good = [
        (r[key], r["lowering"])
        for r in rows
        if r["backend"] == backend and r["median_s"] and r.get(key) and r["lowering"] not in _ROUNDED
    ]
    return min(good, default=None)


def fastest(rows: Rows, backend: str) -> str | None:
    """The lowering of its fastest verified row, by the first of :data:`CLOCKS` that all rows have."""
    key = next((key for key in CLOCKS if _have(rows, key)), "median_s")
    best = _best(rows, backend, key)
    return best and best[1]


def complete(found: Sequence[Found]) -> bool:
    """Whether every step came to its end, and all that it could time is timed."""
    return all(one.state == DONE for one in found)


def exit_code(found: Sequence[Found]) -> int:
    """The gravest row decides, as in a comparison: 3 for wrong outputs, 4 for what was not honoured; else 1 where
    something is missing."""
    outcomes = {row["outcome"] for one in found for row in one.rows}
    grave = {Outcome.MISMATCH.value: 3, Outcome.NOT_HONOURED.value: 4}
    return next((code for outcome, code in grave.items() if outcome in outcomes), int(not complete(found)))


def stopped(found: Sequence[Found]) -> bool:
    """Whether someone wanted it to end."""
    return any(one.reason == INTERRUPTED for one in found)
