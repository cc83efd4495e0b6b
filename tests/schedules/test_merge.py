"""Merged logs keep the best record of each kernel, and where it is from."""

from dataclasses import replace

import pytest

from tests.schedules.logs import DEVICE, OTHER, entry, log, saved, task
from xframe.schedules.log import META, LogError, read
from xframe.schedules.merge import merge, place, update


def test_the_larger_gain_wins_with_its_provenance():
    slow, fast = entry(gain=1.2, session="a", seed=1), entry(gain=1.3, session="b", transferred="net-b16")
    assert merge(log(slow), log(fast)) == log(fast)
    assert merge(log(fast), log(slow)) == log(fast)


def test_what_counts_is_the_gain_and_not_the_time():
    """Another machine of the same kind may be slower in all things."""
    fast = entry(gain=1.2)
    slow = entry(gain=1.3, seconds=(3e-3,), baseline=(3.9e-3,))
    assert merge(log(fast), log(slow)).entries[task()] == slow


def test_of_equals_the_first_stays():
    assert merge(log(entry(session="a")), log(entry(session="b"))).entries[task()].session == "a"


def test_kernels_of_both_are_there():
    merged = merge(log(entry()), log(entry(task(OTHER))))
    assert merged == log(entry(), entry(task(OTHER)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tvm": "0.1"}, "different versions of TVM .* and 0.1"),
        ({"target": "llvm"}, "different targets"),
        ({"passes": "00"}, "different pass lists"),
        ({"device": replace(DEVICE, model="2")}, "different devices .*model 2"),
    ],
)
def test_logs_that_do_not_belong_together_are_refused(tmp_path, change, words):
    with pytest.raises(LogError, match=words):
        merge(log(), log(**change))
    saved(tmp_path)
    with pytest.raises(LogError, match=f"nothing is merged into .*{words}"):
        update(tmp_path, log(entry(gain=9), **change))
    assert read(tmp_path) == log()


def test_a_log_is_updated_on_the_disk(tmp_path):
    folder = tmp_path / "log"
    update(folder, log(entry()))
    assert update(folder, log(entry(task(OTHER)))) == read(folder) == log(entry(), entry(task(OTHER)))


def test_a_broken_log_is_not_overwritten(tmp_path):
    saved(tmp_path)
    (tmp_path / META).write_text("{")
    with pytest.raises(LogError, match=r"nothing is merged into .*not whole JSON"):
        update(tmp_path, log())
    assert (tmp_path / META).read_text() == "{"


def test_where_a_log_belongs(tmp_path):
    assert (
        place(tmp_path, tmp_path / "x" / "net-b16" / "direct", log()) == tmp_path / DEVICE.slug / "net-b16" / "direct"
    )


@pytest.mark.parametrize("names", [("net", "direct"), ("net-b1", "gemm"), ("net-b1", ".."), ("..", "direct")])
def test_a_log_in_a_folder_of_another_name_is_refused(tmp_path, names):
    with pytest.raises(LogError, match="not named as the folder of a log is"):
        place(tmp_path, tmp_path.joinpath(*names), log())
