"""What a session shows: a bar in a terminal, lines elsewhere; kernels and failures in words."""

import io

import pytest

from tests.tuning.fake import task
from xframe.tuning.result import State
from xframe.tuning.terminal import Bar, failures, words


class Terminal(io.StringIO):
    def isatty(self):
        return True


STATES = [
    State(0, 40),
    State(1, 40, task(), "by hand", left_s=90.0),
    State(2, 40, task(), "searching", 1.05, 105e9, 100e9, 80.0),
    State(3, 40, task(), "searching", 1.05, 105e9, 100e9, 70.0),
    State(4, 40, task(), "searching", 1.25, 125e9, 100e9, 3661.0),
]


def shown(out):
    with Bar(out) as bar:
        for state in STATES:
            bar(state)
    return out.getvalue()


def test_elsewhere_a_line_is_written_when_something_is_better():
    kernel = "1 x 16x9x9 -> 32, 3x3 direct"
    assert shown(io.StringIO()).splitlines() == [
        "0 of 40 trials: begins",
        f"1 of 40 trials: {kernel}: by hand",
        f"2 of 40 trials: {kernel}: searching, best 1.05x, 105.0 GFLOP/s over 100.0 by hand",
        f"4 of 40 trials: {kernel}: searching, best 1.25x, 125.0 GFLOP/s over 100.0 by hand",
    ]


def test_in_a_terminal_there_is_a_bar_with_the_time_left(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    text = shown(Terminal())
    assert "4/40" in text
    assert "1:01:01 left" in text
    assert "best 1.25x, 125.0 GFLOP/s over 100.0 by hand" in text


@pytest.mark.parametrize(("counts", "text"), [({}, "-"), ({"WRONG": 1, "CRASHED": 2}, "CRASHED 2, WRONG 1")])
def test_failures_are_told_by_kind(counts, text):
    assert failures(counts) == text


def test_a_kernel_in_words_has_what_tells_it_from_others():
    assert words(task()) == "1 x 16x9x9 -> 32, 3x3 direct"
    assert words(task(lowering="winograd")).startswith("1 x 16x9x9 -> 32, 3x3 winograd F(")
