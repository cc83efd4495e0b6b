"""The trace of a step on a GPU as XLA's profiler writes it, made by hand: an XSpace, as the bytes of its protobuf.

TensorFlow and JAX read such bytes by code of their own. Names of planes, lines, events and stats are those that
OpenXLA's collector of CUPTI's records gives them; text in a stat is the name of a stat, as there.
"""

import itertools
import struct

#: What CUPTI tells of a kernel, of a copy and of a setting of memory, besides the times.
KERNEL = {"kernel_details": "regs:32 static_shared:0 dynamic_shared:0 grid:8,1,1 block:128,1,1 occ_pct:100"}
KERNEL |= {"theoretical_occupancy_pct": 100.0, "occupancy_min_grid_size": 132, "occupancy_suggested_block_size": 1024}
COPY = {"memcpy_details": "kind_src:pinned kind_dst:device size:2688 dest:0 async:1"}
SET = {"Memset_details": "kind:device num_bytes:64 async:1"}


def record(name, start, end, details=KERNEL, **stats):
    """What ran on a stream, in microseconds."""
    return name, start, end, {"correlation_id": int(start * 10), "context_id": "$$1", **details, **stats}


def space(planes, begin=1000):
    """``planes``: name -> line -> its events, each ``(name, start, end, stats)`` in microseconds from the beginning of
    the lines, which is ``begin`` nanoseconds."""
    return b"".join(_field(1, _plane(name, lines, begin)) for name, lines in planes.items())


def _plane(name, lines, begin):
    events, stats = {}, {}

    def number(table, key):
        return table.setdefault(key, len(table) + 1)

    def stat(key, value):
        kinds = {str: 7, float: 2, int: 4}
        found = number(stats, value) if isinstance(value, str) else value
        return _field(1, number(stats, key)) + _field(kinds[type(value)], found)

    out = _field(2, name)
    for line, (title, found) in enumerate(lines.items(), start=7):
        body = _field(1, line) + _field(2, title) + _field(3, begin)
        for event, start, end, told in found:
            one = (
                _field(1, number(events, event)) + _field(2, round(start * 1e6)) + _field(3, round((end - start) * 1e6))
            )
            body += _field(4, one + b"".join(_field(4, stat(*x)) for x in told.items()))
        out += _field(3, body)
    for at, table in ((4, events), (5, stats)):
        for key, value in table.items():
            out += _field(at, _field(1, value) + _field(2, _field(1, value) + _field(2, key)))
    return out


def _field(number, value):
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    if isinstance(value, float):
        return _varint(number << 3 | 1) + struct.pack("<d", value)
    text = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(text)) + text


def _varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def derived(kernels):
    """The lines that tools make of the kernels' own, which must not be counted again; and CUPTI's others."""
    ran = [x for x in kernels if x[3].keys() & {"kernel_details"}]
    first, last = min(x[1] for x in ran), max(x[2] for x in ran)
    repeated = {key: [(x[3].get(key, x[0]), x[1], x[2], {"group_id": 1}) for x in ran] for key in ("hlo_op", "tf_op")}
    return {
        "Steps": [("1", first, last, {"group_id": 1, "step_name": "1"})],
        "XLA Modules": [("jit_run(4)", first, last, {"program_id": 4})],
        "XLA Ops": repeated["hlo_op"],
        "Framework Ops": repeated["tf_op"],
        "Framework Name Scope": repeated["tf_op"],
        "Launch Stats": [(x[0], x[1], x[2], {"kernel_launch": 1}) for x in ran],
        "CUPTI overhead": [("BUFFER_FLUSH", first, last, {})],
        "_counters_": [("power_mw", first, first, {"power_mw": 321.0})],
    }


def host(mark, *events):
    """The host's plane: the marked step of 100 us, in which it launches and waits. ``events``: more of its thread."""
    call = {"device_id": 0, "correlation_id": 1010, "context_id": "$$1"}
    return {
        "python3": [
            (mark, 100.0, 200.0, {}),
            *events,
            ("cuLaunchKernel", 101.5, 101.9, call),
            ("cuMemcpyHtoDAsync_v2", 102.0, 102.5, {**call, **COPY}),
            ("cuMemAlloc_v2", 102.5, 103.0, {**call, "memalloc_details": "kind:device num_bytes:64"}),
            ("cuStreamSynchronize", 130.0, 195.0, call),
        ]
    }


def step(streams, mark, *events):
    """The XSpace of a step whose GPU ran ``streams`` (line -> records), and of one before it."""
    before = [(n, start - 90, end - 90, stats) for n, start, end, stats in itertools.chain(*streams.values())]
    lines = {name: list(found) for name, found in streams.items()}
    lines[next(iter(lines))] += before
    return space(
        {
            "/host:CPU": host(mark, *events),
            "/host:metadata": {},
            "/device:GPU:0": {**lines, **derived([*itertools.chain(*streams.values()), *before])},
            "/device:GPU:1": {},
            "Task Environment": {},
        }
    )


def told(kernels):
    """What a test looks at."""
    return [(k.name.partition("<")[0], k.kind, k.layer, k.algorithm.partition("<")[0]) for k in kernels]
