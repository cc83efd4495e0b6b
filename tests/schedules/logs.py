"""Logs to test with: well-formed ones, and forged ones whose digests are right although what they say is not."""

import copy
import hashlib
import json
from dataclasses import replace

from xframe.schedules import software
from xframe.schedules.device import Identity
from xframe.schedules.log import META, RECORDS, WORKLOADS, Entry, Log, _digest, write
from xframe.types import ConvSite

DEVICE = Identity(
    slug="acme-one-avx2-f7m1",
    kind="cpu",
    vendor="Acme",
    name="Acme One",
    family="7",
    model="1",
    features=("avx", "avx2", "fma"),
    caches=(("L1", 32 << 10), ("L2", 1 << 20)),
    cores=8,
)
TARGET = "llvm -mcpu=core-avx2"
SITE = ConvSite(1, 32, (14, 14), 64, (3, 3), pads=(1, 1, 1, 1))
OTHER = ConvSite(1, 64, (7, 7), 64, (3, 3), pads=(1, 1, 1, 1))
TRACE = [
    [["GetSBlock", [], ["product", "main"], ["b0"]], ["Annotate", ["b0", 1], ["xframe.fetch_ahead"], []]],
    [],
]


def task(site=SITE, lowering="direct", threads=2, detail="-"):
    return f"{site.key} {lowering} {detail} NCHW bias+relu t{threads}"


def record(trace=TRACE):
    return json.dumps([trace, [1e-3], {"kind": "llvm"}, [["TENSOR", "float32", [1, 32]]]])


def entry(name=None, gain=1.25, **changes):
    one = Entry(
        task=name or task(),
        tile=(6, 2),
        workload="0123456789abcdef",
        knobs={"unroll": 2, "steps": 16},
        space="template",
        seconds=(1.0e-3, 1.1e-3, 1.2e-3),
        baseline=(1.1e-3 * gain, 1.1e-3 * gain, 1.3e-3 * gain),
        share=0.25,
        flop=7.2e6,
        workload_line='["1234567890", "bW9kdWxl"]',
        record=record(),
        created="2026-12-01T08:00:00+00:00",
        seed=0,
        trials=64,
        session="s1",
        transferred=None,
        xframe="0.1.0",
    )
    return replace(one, **changes)


def log(*entries, **changes):
    found = Log(DEVICE, software.tvm_version(), TARGET, software.passes(), {e.task: e for e in entries or (entry(),)})
    return replace(found, **changes)


def saved(folder, *entries, **changes):
    """A log on the disk; returns its folder."""
    write(folder, log(*entries, **changes))
    return folder


def forged(folder, change):
    """The log in ``folder`` with its parsed ``meta.json`` changed in place by ``change(meta)``, and the digest made to
    fit. What is not JSON can be said as ``RAW:text``."""
    meta = json.loads((folder / META).read_text())
    change(meta)
    meta["files"] = {n: hashlib.sha256((folder / n).read_bytes()).hexdigest() for n in (WORKLOADS, RECORDS)}
    meta["digest"] = _digest(unraw({k: v for k, v in meta.items() if k != "digest"}))
    text = json.dumps(meta)
    while '"RAW:' in text:
        before, _, rest = text.partition('"RAW:')
        raw, _, after = rest.partition('"')
        text = before + raw + after
    (folder / META).write_text(text)
    return folder


def unraw(value):
    """What a JSON parser makes of ``RAW:`` words."""
    if isinstance(value, dict):
        return {k: unraw(v) for k, v in value.items()}
    if isinstance(value, list):
        return [unraw(v) for v in value]
    if isinstance(value, str) and value.startswith("RAW:"):
        try:
            return json.loads(value.removeprefix("RAW:"))
        except ValueError:  # too many digits
            return None
    return copy.deepcopy(value)


def relined(folder, name, change):
    """The log with the lines of a table changed by ``change(lines)``, and digests made to fit."""
    lines = (folder / name).read_text().splitlines()
    (folder / name).write_text("".join(f"{line}\n" for line in change(lines)))
    return forged(folder, lambda meta: None)


def retraced(folder, *instructions):
    """The log with other instructions in the trace of its first record."""

    def change(lines):
        number, one = json.loads(lines[0])
        one[0][0] = list(instructions)
        return [json.dumps([number, one]), *lines[1:]]

    return relined(folder, RECORDS, change)


#: The map of a layout, ``(m, k)`` to ``(k // 4, m, k % 4)``, as TVM writes it into a trace.
WHOLE = json.dumps(
    {
        "root_index": 12,
        "nodes": [
            {"type": "None"},
            {"type": "ir.PrimType", "data": {"span": 0, "dtype": "int32"}},
            {"type": "ffi.String", "data": "m"},
            {"type": "ir.Var", "data": {"span": 0, "ty": 1, "name": 2}},
            {"type": "ffi.String", "data": "k"},
            {"type": "ir.Var", "data": {"span": 0, "ty": 1, "name": 4}},
            {"type": "ffi.Array", "data": [3, 5]},
            {"type": "int", "data": 4},
            {"type": "ir.IntImm", "data": {"span": 0, "ty": 1, "value": 7}},
            {"type": "prim.FloorDiv", "data": {"span": 0, "ty": 1, "a": 5, "b": 8}},
            {"type": "prim.FloorMod", "data": {"span": 0, "ty": 1, "a": 5, "b": 8}},
            {"type": "ffi.Array", "data": [9, 3, 10]},
            {
                "type": "tirx.IndexMap",
                "data": {"initial_indices": 6, "final_indices": 11, "inverse_index_map": 0},
            },
        ],
        "metadata": {"tvm_version": "0.27.0"},
    }
)
