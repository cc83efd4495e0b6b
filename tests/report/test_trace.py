"""The trace: that it is what Perfetto and chrome://tracing open, and has what was seen."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from tests import report_samples as samples
from tests.report.chrome_format import problems
from xframe.report.trace import trace
from xframe.types import Kernel, Profile, Span


def events(run):
    content = json.loads(trace(run))
    assert problems(content) == []
    return content["traceEvents"]


@pytest.fixture(scope="module")
def shown():
    return events(samples.run())


def _of(events, phase):
    return next(e for e in events if e["ph"] == phase)


#: What would keep a viewer from showing a trace as it is meant, and what the check says of it.
SPOILED = {
    "seconds": (lambda t: [e.update(ts=e["ts"] / 1e6) for e in t["traceEvents"] if e["ph"] == "X"], "crosses the end"),
    "no phase": (lambda t: t["traceEvents"][0].pop("ph"), "phase None"),
    "a phase of its own": (lambda t: _of(t["traceEvents"], "X").update(ph="B"), "phase 'B'"),
    "a number as text": (lambda t: _of(t["traceEvents"], "X").update(tid="kernel"), "tid is 'kernel'"),
    "no duration": (lambda t: _of(t["traceEvents"], "X").pop("dur"), "dur is None"),
    "backwards": (lambda t: _of(t["traceEvents"], "X").update(dur=-1.0), "it ends before it begins"),
    "metadata without its argument": (lambda t: _of(t["traceEvents"], "M").update(args={}), "process_name with {}"),
    "metadata nobody knows": (lambda t: _of(t["traceEvents"], "M").update(name="title"), "unknown metadata title"),
    "a track without a name": (lambda t: _of(t["traceEvents"], "X").update(tid=77), "thread 1/77 has no name"),
    "a unit that there is not": (lambda t: t.update(displayTimeUnit="us"), "displayTimeUnit is neither"),
}


@pytest.mark.parametrize("how", SPOILED)
def test_the_check_finds_what_is_wrong(how):
    content = json.loads(trace(samples.run()))
    spoil, what = SPOILED[how]
    spoil(content)
    assert any(what in problem for problem in problems(content))


def test_times_are_microseconds(shown):
    (m, *_) = samples.run().measurements
    steps = [e for e in shown if e["pid"] == 1 and e.get("cat") == "framework"]
    assert [e["dur"] for e in steps] == pytest.approx([p.wall * 1e6 for p in m.profiles])
    assert steps[0]["ts"] == 0.0


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
    tracks = {e["args"]["name"] for e in shown if e["name"] == "thread_name"}
    assert {
        "kernel",
        "kernel 2",
        "host 2",
    } <= tracks  # where no two cross, as ``events`` has seen


def test_no_profiles_no_events():
    assert events(replace(samples.run(), measurements=samples.run().measurements[6:8])) == []
