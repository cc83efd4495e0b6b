"""The best record of each kernel of a plan, and why a log is not used, in words."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

import xframe
from tests.schedules.logs import DEVICE, OTHER, SITE, TARGET, entry, saved, task
from xframe.schedules import find, software
from xframe.schedules.log import META, LogError
from xframe.types import Plan

PLAN = Plan("direct", ((SITE, "direct"), (OTHER, "direct")))
STRANGER = replace(DEVICE, slug="acme-two-avx2-f7m2", model="2")


@pytest.fixture
def root(tmp_path):
    """Writes logs below it: ``root(entry, ..., at="net-b1/direct", **changes of the log)``; ``root.path``."""

    def make(*entries, at="net-b1/direct", **changes):
        slug = changes.get("device", DEVICE).slug
        return saved(tmp_path / "schedules" / slug / at, *entries, **changes)

    make.path = tmp_path / "schedules"
    return make


def tuned(root, plan=PLAN, threads=2, **options):
    return find.tuned(plan, DEVICE, threads, [root.path], **options)


def test_a_record_is_found_with_its_log_in_words(root):
    one = entry()
    root(one)
    (found,), notes = tuned(root)
    assert notes == []
    assert (found.task, found.tile, found.trace, found.workload) == (one.task, one.tile, one.trace, one.workload)
    assert found.origin == f"schedules/{DEVICE.slug}/net-b1/direct"


def test_the_best_of_all_networks_is_taken(root):
    root(entry(gain=1.2), at="a-b1/direct")
    root(entry(gain=1.4), entry(task(OTHER)), at="b-b1/direct")
    root(entry(gain=1.3), at="c-b1/direct")
    found, notes = tuned(root)
    assert [(t.task, t.origin.split("/")[2]) for t in found] == sorted([(task(), "b-b1"), (task(OTHER), "b-b1")])
    assert notes == []


@pytest.mark.parametrize(
    "name", [task(replace(SITE, batch=2)), task(lowering="gemm"), task(threads=1), task(replace(SITE, stride=(2, 2)))]
)
def test_kernels_of_other_plans_are_left_out_without_a_word(root, name):
    root(entry(name))
    assert tuned(root) == ((), [])


def test_variants_of_a_kernel_are_all_there(root):
    """Only the compiler knows which of them the plan will have."""
    names = [task(detail="a"), task(detail="b"), task().replace("+relu", "+residual+relu")]
    root(*map(entry, names))
    assert {t.task for t in tuned(root)[0]} == set(names)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"device": STRANGER},
            r"another kind of device \(Acme One \(family 7, model 2\) .*--allow-foreign-log",
        ),
        ({"tvm": "0.1"}, "tuned with TVM 0.1, and .* is installed: tune anew"),
        ({"passes": "00"}, "another pass list .*: tune anew"),
    ],
)
def test_a_log_that_is_not_for_here_is_refused_in_words(root, change, words):
    folder = root(**change)
    found, (note,) = tuned(root)
    assert found == ()
    assert note.startswith(f"the schedule log {find.title(folder)} is not used: it was ")
    assert re.search(words, note)


def test_logs_that_are_refused_for_one_reason_are_one_sentence(root):
    for network in ("a", "b", "c"):
        root(at=f"{network}-b1/direct", device=STRANGER)
    _, (note,) = tuned(root)
    assert "a-b1/direct (and 2 more) is not used" in note


def test_a_refused_log_that_lacks_nothing_to_the_plan_is_not_told_of(root):
    root()
    root(device=STRANGER)
    assert len(tuned(root)[0]) == 1
    assert tuned(root)[1] == []


def test_a_foreign_log_is_used_on_demand_and_told_of(root):
    root(device=STRANGER)
    (found,), (note,) = tuned(root, allow_foreign=True)
    assert found.origin.endswith(" (a foreign log)")
    assert "is used although: it was tuned on another kind of device" in note


def test_own_records_go_before_foreign_ones(root):
    root(entry(gain=1.1))
    root(entry(gain=2.0), entry(task(OTHER)), device=STRANGER)
    found, _ = tuned(root, allow_foreign=True)
    assert {t.task: "foreign" in t.origin for t in found} == {task(): False, task(OTHER): True}


@pytest.mark.parametrize("change", [{"tvm": "0.1"}, {"passes": "00"}])
def test_a_stale_log_is_no_foreign_one(root, change):
    root(**change)
    found, notes = tuned(root, allow_foreign=True)
    assert found == ()
    assert len(notes) == 1


def test_a_broken_log_is_told_of_and_the_others_are_used(root):
    (root(at="broken-b1/direct") / META).write_text("{")
    root()
    found, (note,) = tuned(root)
    assert len(found) == 1
    assert "broken-b1/direct is refused: meta.json is not whole JSON" in note


def test_a_broken_log_of_another_lowering_is_not_told_of(root):
    (root(at="broken-b1/gemm") / META).write_text("{")
    assert tuned(root) == ((), [])


def test_without_tvm_nothing_is_used(root, monkeypatch):
    root()
    monkeypatch.setattr(software, "tvm_version", lambda: None)
    found, (note,) = tuned(root)
    assert found == ()
    assert "TVM is not installed here" in note


def test_a_plan_for_another_target_takes_its_own_logs(root):
    root()
    found, (note,) = tuned(root, replace(PLAN, target="llvm"))
    assert found == ()
    assert f"it is for the target {TARGET!r}, and the plan for 'llvm'" in note
    assert len(tuned(root, replace(PLAN, target=TARGET))[0]) == 1


def test_of_several_targets_this_machine_s_own_counts(root):
    from xframe.lowering.target import Cpu

    root(entry(gain=2.0), at="a-b1/direct")
    root(entry(gain=1.1), at="b-b1/direct", target=Cpu.host(2).text)
    if Cpu.host(2).text == TARGET:
        pytest.skip("this machine's target is the other one")
    (found,), _ = tuned(root)
    assert "b-b1" in found.origin


def test_no_folder_is_one_sentence(tmp_path):
    found, (note,) = find.tuned(PLAN, DEVICE, 2, [tmp_path / "absent"])
    assert found == ()
    assert note == f"there is no folder {tmp_path / 'absent'} of schedule logs"


def test_a_folder_that_can_not_be_listed_is_one_sentence(root, monkeypatch):
    folder = root()

    def fails(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", fails)
    found, (note,) = tuned(root)
    assert found == ()
    assert note.endswith("can't be read: Permission denied")
    assert str(folder) not in note


def test_a_link_among_the_logs_is_refused_not_entered(root):
    (root.path / DEVICE.slug).mkdir(parents=True)
    elsewhere = saved(root.path.with_name("elsewhere") / "direct")
    (root.path / DEVICE.slug / "direct").symlink_to(elsewhere)
    found, (note,) = tuned(root)
    assert found == ()
    assert "its folder is a symbolic link, which is not followed" in note


def test_logs_are_found_at_each_level(root):
    folder = root()
    for level in (folder, *folder.parents[:3]):
        assert find.folders(level) == [folder]
    (folder / "deeper").mkdir()
    (root.path / "a" / "b" / "c" / "d").mkdir(parents=True)
    (root.path / "a" / "b" / "c" / "d" / META).write_text("{}")
    assert find.folders(root.path) == [folder]
    with pytest.raises(LogError, match="there is no folder"):
        find.folders(folder / META)


def test_where_logs_are_looked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("XFRAME_SCHEDULES", f"{tmp_path}{os.pathsep}{tmp_path / 'b'}")
    assert find.roots() == [tmp_path, tmp_path / "b"]
    monkeypatch.delenv("XFRAME_SCHEDULES")
    assert find.roots() == [Path(xframe.__file__).parents[1] / "schedules"]
