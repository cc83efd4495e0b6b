"""What a check found, as text: printed at its end, and kept beside its steps."""

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
    """cuDNN's best algorithm at each site over TVM's best lowering there, in time, and the geometric mean."""
    pairs = []
    for one in found:
        if "site" in one.facts:
            best = {b: _best(one.rows, b) for b in ("tvm", "cudnn")}
            if all(best.values()):
                pairs.append((one.facts["site"], best["tvm"], best["cudnn"]))
    if pairs:
        yield "\nsite: cuDNN's best over TVM's best (above 1: TVM is faster)"
        for site, ours, theirs in pairs:
            assert ours is not None
            assert theirs is not None
            yield f"  {site}: {theirs[0] / ours[0]:.2f}  (tvm {ours[1]}, cudnn {theirs[1]})"
        mean = math.exp(sum(math.log(t[0] / o[0]) for _, o, t in pairs if o and t) / len(pairs))
        yield f"  geometric mean of {len(pairs)}: {mean:.2f}"


def _best(rows: Sequence[Mapping[str, Any]], backend: str) -> tuple[float, str] | None:
    """Seconds and lowering of the fastest verified row."""
    good = [(r["median_s"], r["lowering"]) for r in rows if r["backend"] == backend and r["median_s"]]
    return min(good, default=None)


def complete(found: Sequence[Found]) -> bool:
    """Whether every step came to its end."""
    return all(one.state == DONE for one in found)
