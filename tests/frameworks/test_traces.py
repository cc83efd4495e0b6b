"""Events of a trace: the marked step, what the host did, what the profiler costs."""

import pytest

from xframe.errors import XframeError
from xframe.frameworks import traces
from xframe.frameworks.traces import Event


def test_a_step_is_what_began_inside_its_mark():
    events = [
        Event("before", 0.5, 1.5, "main"),
        Event("inner", 3.0, 3.5, "other"),
        Event(traces.MARK, 1.0, 5.0, "main"),
        Event("outer", 2.0, 4.0, "main"),
        Event("after", 5.5, 6.0, "main"),
    ]
    wall, thread, inside = traces.step(events)
    assert (wall, thread) == (4.0, "main")
    assert [(e.name, e.start, e.end) for e in inside] == [("outer", 1.0, 3.0), ("inner", 2.0, 2.5)]


def test_a_trace_without_its_step_is_refused():
    with pytest.raises(XframeError, match="has 1 events and not that of the step"):
        traces.step([Event("x", 0.0, 1.0, "main")])


@pytest.mark.parametrize(("seconds", "before"), [(1.0, 1), (traces.WARM / 2.5, 3), (0.0, traces.STEPS)])
def test_the_last_run_is_marked_of_as_many_as_it_takes_to_be_warm(monkeypatch, seconds, before):
    log, times = [], iter(range(10))
    monkeypatch.setattr(traces, "perf_counter", lambda: seconds * next(times))

    class Mark:
        def __init__(self, name):
            log.append(name)

        def __enter__(self):
            log.append("in")

        def __exit__(self, *_):
            log.append("out")

    def record(function):
        log.append("on")
        function()
        log.append("off")
        return [Event("x", 0.0, 1.0, "main")]

    assert len(traces.marked(lambda: log.append("run"), record, Mark)) == 1
    assert log == ["on", *["run"] * before, traces.MARK, "in", "run", "out", "off"]


def test_the_host_s_time_is_told_apart():
    events = [
        Event("Execute", 1.0, 4.0, "main"),
        Event("AllocateOutput", 1.5, 2.0, "main"),
        Event("TransferToDevice", 2.0, 2.5, "other"),
        Event("WaitForAll", 4.0, 8.0, "main"),
        Event("instant", 3.0, 3.0, "other"),
        Event("ThreadpoolListener::Record", 3.0, 3.0, "main", {"_p": 7}),
        Event("ThreadpoolListener::StartRegion", 3.5, 3.5, "other", {"_c": 7}),
        Event("run", 8.0, 8.5, "main", {"tf_function_call": "concrete"}),
    ]
    spans = traces.spans(events, 10.0, "main", ("WaitFor",))
    assert [(s.name, s.kind, s.start, s.end) for s in spans] == [
        ("Execute", "dispatch", 1.0, 4.0),
        ("AllocateOutput", "allocation", 1.5, 2.0),
        ("TransferToDevice", "copy", 2.0, 2.5),
        ("thread wake-up", "wake-up", 3.0, 3.5),
        ("run", "python", 8.0, 8.5),
        ("call", "python", 0.0, 1.0),
        ("return", "python", 8.5, 10.0),
    ]


def test_the_cost_of_an_event_is_what_recording_adds(monkeypatch):
    """A recorder that makes every call 2 ms longer, for four events each."""
    extra, now = 0.0, 0.0
    monkeypatch.setattr(traces, "perf_counter", lambda: now)

    def run():
        nonlocal now
        now += 0.001 + extra

    def record(function):
        nonlocal extra
        extra = 0.002
        function()
        extra = 0.0
        return [Event("x", 0.0, 1.0, "main")] * (4 * traces.CALLS)

    assert traces.seconds_per_event(run, record) == pytest.approx(0.0005)


def test_no_events_cost_nothing():
    assert traces.seconds_per_event(lambda: None, lambda f: f() or []) == 0.0
