"""The trace: what Perfetto and chrome://tracing need of each event, its tracks, and that events of a track nest."""

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest

from tests import report_samples as samples
from xframe.report.trace import trace
from xframe.types import Kernel, Profile, Span


def events(run):
    content = json.loads(trace(run))
    assert set(content) == {"traceEvents", "displayTimeUnit", "otherData"}
    return content["traceEvents"]


@pytest.fixture(scope="module")
def shown():
    return events(samples.run())


def test_events_have_what_the_format_asks_for(shown):
    assert {e["ph"] for e in shown} == {"M", "X"}
    for e in shown:
        assert isinstance(e["name"], str)
        assert type(e["pid"]) is type(e["tid"]) is int
        assert isinstance(e["args"], dict)
        if e["ph"] == "X":
            assert e["ts"] >= -1.0
            assert e["dur"] >= 0


def test_each_profiled_row_is_a_process_with_its_tracks_named(shown):
    names = {e["pid"]: e["args"]["name"] for e in shown if e["name"] == "process_name"}
    rows = samples.run().measurements
    assert set(names) == {i for i, m in enumerate(rows, 1) if m.profiles}
    assert names[1] == "1. pytorch, alexnet, batch 1, 2 threads"
    tracks = {e["args"]["name"]: e["tid"] for e in shown if e["name"] == "thread_name" and e["pid"] == 1}
    assert sorted(tracks, key=tracks.__getitem__) == ["framework", "host", "operator", "kernel"]
    used = {(e["pid"], e["tid"]) for e in shown if e["ph"] == "X"}
    assert used == {(e["pid"], e["tid"]) for e in shown if e["name"] == "thread_name"}


def test_kernels_are_where_they_ran_and_tell_what_they_are(shown):
    (m, *_) = samples.run().measurements
    kernels = [e for e in shown if e["pid"] == 1 and e["cat" if e["ph"] == "X" else "ph"] == "kernel"]
    assert len(kernels) == sum(len(p.kernels) for p in m.profiles)
    first, real = kernels[0], m.kernels[0]
    assert first["ts"] == pytest.approx(real.start * 1e6)
    assert first["dur"] == pytest.approx((real.end - real.start) * 1e6)
    assert first["args"] == {"pass": 1, "kind": "conv", "layer": "conv1", "site": real.site.key, "role": "product",
                             "algorithm": "brgconv:avx512"}  # fmt: skip
    steps = [e for e in shown if e["pid"] == 1 and e.get("cat") == "framework"]
    assert [e["name"] for e in steps] == [f"pytorch, pass {i}" for i in (1, 2, 3)]
    assert all(a["ts"] + a["dur"] < b["ts"] for a, b in pairwise(steps))
    operators = [e for e in shown if e["pid"] == 1 and e.get("cat") == "operator" and e["args"]["pass"] == 1]
    assert [e["name"] for e in operators] == ["conv1", "conv2", "conv3", "conv4", "conv5", "pool5", "fc6", "fc7", "fc8"]
    assert operators[1]["args"]["kernels"] == 2  # and its reorder


def test_events_of_one_track_never_cross():
    kernels = tuple(
        Kernel(f"k{i}", a, b, kind="fc") for i, (a, b) in enumerate([(0, 3), (1, 2), (2, 4), (2.5, 6), (3, 3)])
    )
    spans = (Span("outer", 0.0, 5.0, "python"), Span("inner", 1.0, 2.0, "dispatch"), Span("other", 4.0, 6.0, "copy"))
    run = samples.run()
    row = replace(run.measurements[0], profiles=(Profile(7.0, kernels, spans),))
    shown = events(replace(run, measurements=(row,)))
    lanes = defaultdict(list)
    for e in shown:
        if e["ph"] == "X":
            lanes[e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
    assert len(lanes) > 4
    for some in lanes.values():
        for i, (a, b) in enumerate(some):
            assert all(d <= a or c >= b or (a <= c and d <= b) or (c <= a and b <= d) for c, d in some[i + 1 :])


def test_no_profiles_no_events():
    assert events(replace(samples.run(), measurements=samples.run().measurements[6:8])) == []
