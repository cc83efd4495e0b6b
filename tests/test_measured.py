"""What is kept of a row while it is measured."""

import pytest

from xframe.measured import Row
from xframe.worker.device_clock import GATED, UNGATED


def reply(how, *seconds):
    return {"device_seconds": list(seconds), "device_clock": {"how": how, "empty_s": 2e-6}}


@pytest.mark.parametrize(
    ("replies", "rounds"),
    [
        ([reply(GATED, 1e-3), reply(GATED, 2e-3)], [(1e-3,), (2e-3,)]),
        ([reply(UNGATED, 3e-3), reply(UNGATED, 4e-3)], [(3e-3,), (4e-3,)]),
        ([reply(GATED, 1e-3), reply(UNGATED, 3e-3), reply(UNGATED, 3e-3)], [(1e-3,), (), ()]),
        ([reply(UNGATED, 3e-3), reply(GATED, 1e-3), reply(UNGATED, 3e-3)], [(), (1e-3,), ()]),
    ],
)
def test_no_times_with_the_gaps_of_the_host_are_beside_times_without(replies, rounds):
    row = Row(None, None)
    for each in replies:
        row._keep_device_times(each)
    assert row.device_rounds == rounds
    both = len({each["device_clock"]["how"] for each in replies}) == 2
    assert row.facts["device_clock"]["how"] == (GATED if both else replies[0]["device_clock"]["how"])
    assert [UNGATED in note for note in row.notes] == [True] * both


def test_a_clock_that_stops_is_told_with_what_there_is_of_it():
    row = Row(None, None)
    row._keep_device_times({"no_device_time": "why"})
    assert row.notes == ["no times by the device's own clock: why"]
    row = Row(None, None)
    for each in (reply(GATED, 1e-3), {"no_device_time": "why"}, {"no_device_time": "why"}):
        row._keep_device_times(each)
    assert row.device_rounds == [(1e-3,), (), ()]
    assert row.notes == ["no more times by the device's own clock: why"]
