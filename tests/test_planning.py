import json
import shutil
from dataclasses import replace

import pytest

from tests.schedule_logs import entry, put
from xframe.environment import cpu_device
from xframe.errors import Unsupported, UsageError
from xframe.planning import Schedules, plan
from xframe.schedules.device import identity
from xframe.types import ConvSite, Device, Plan

EASY = ConvSite(1, 16, (9, 9), 24, (3, 3))
STRIDED = ConvSite(1, 16, (9, 9), 24, (3, 3), (3, 3))


def test_auto_plans_nothing():
    assert plan("auto", [EASY, STRIDED], cpu_device()) == Plan("auto")


def test_best_is_still_to_be_found():
    found = plan("best", [EASY, STRIDED], cpu_device(), error_budget=1e-4, target="llvm")
    assert found == Plan("best", error_budget=1e-4, target="llvm")


def test_one_lowering_everywhere():
    made = plan("im2col", [EASY, STRIDED, EASY], cpu_device())
    assert made == Plan("gemm", ((EASY, "gemm"), (STRIDED, "gemm")))


def test_a_refusal_needs_a_fallback():
    with pytest.raises(Unsupported, match=r"refuses 1 of 2 .*stride 3x3.*--fallback"):
        plan("winograd", [EASY, STRIDED], cpu_device())


def test_the_fallback_is_recorded_with_its_reason():
    made = plan("winograd", [EASY, STRIDED], cpu_device(), fallback="gemm")
    assert dict(made.lowerings) == {EASY: "winograd", STRIDED: "gemm"}
    ((site, why),) = made.fallback
    assert site == STRIDED
    assert why.startswith("gemm, because winograd refuses: a 3x3 kernel at stride 3x3: no two")


def test_a_fallback_may_refuse_too():
    with pytest.raises(Unsupported, match="both winograd and its fallback fft"):
        plan("winograd", [STRIDED], cpu_device(), fallback="fft")


@pytest.mark.parametrize(("label", "fallback"), [("wingrad", None), ("winograd", "dirct")])
def test_unknown_names_get_close_ones(label, fallback):
    with pytest.raises(UsageError, match="did you mean"):
        plan(label, [STRIDED], cpu_device(), fallback)


def test_a_target_is_checked_before_anything_is_planned(tmp_path):
    assert plan("auto", [EASY], cpu_device(), target="llvm").target == "llvm"
    assert plan("gemm", [EASY], cpu_device(), target="llvm").target == "llvm"
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"lowerings": {EASY.key: "gemm"}, "target": "cuda"}))
    assert plan(str(path), [EASY], cpu_device(), target="llvm").target == "llvm"
    for label, target in (("auto", "cuda"), ("gemm", "llvm -mcpu=x"), (str(path), None)):
        with pytest.raises(UsageError, match="--target"):
            plan(label, [EASY], cpu_device(), target=target)


def test_a_target_is_one_of_the_device():
    """Of a GPU, or of a CPU; and where the GPU is known, its generation, as machine code is of one."""
    hopper = Device("nvidia-h200", "cuda", "NVIDIA H200", "sm_90", 132)
    for gpu in (hopper, replace(hopper, arch="")):
        assert plan("auto", [EASY], gpu, target="cuda -arch=sm_90").target == "cuda -arch=sm_90"
        with pytest.raises(UsageError, match="not the target of a GPU"):
            plan("gemm", [EASY], gpu, target="llvm")
    assert plan("auto", [EASY], replace(hopper, arch=""), target="sm_80").target == "sm_80"
    assert plan("auto", [EASY], replace(hopper, arch="sm_86"), target="sm_80").target == "sm_80"
    for arch in ("sm_90", "sm_75"):
        with pytest.raises(Unsupported, match=f"code for sm_80 does not run on NVIDIA H200, which is {arch}"):
            plan("auto", [EASY], replace(hopper, arch=arch), target="sm_80")
    with pytest.raises(UsageError, match="not the target of a CPU"):
        plan("auto", [EASY], cpu_device(), target="sm_90")


def test_a_file(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"label": "mine", "lowerings": {EASY.key: "winograd", STRIDED.key: "im2col"}}))
    made = plan(str(path), [EASY, STRIDED], cpu_device())
    assert made == Plan("mine", ((EASY, "winograd"), (STRIDED, "gemm")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not a plan"),
        ("[]", "is not a plan"),
        ('{"lowerings": {"nonsense": "gemm"}}', "not a convolution site"),
        ('{"lowerings": {}}', "names no lowering for"),
        (json.dumps({"lowerings": {EASY.key: "nothing"}}), "unknown lowering"),
        (None, "can't read the plan"),
    ],
)
def test_a_bad_file(tmp_path, text, message):
    path = tmp_path / "bad.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=message):
        plan(str(path), [EASY], cpu_device())


TASK = f"{EASY.key} direct - NHWC bias+relu t2"
DIRECT = Plan("direct", ((EASY, "direct"), (STRIDED, "direct")))
OTHER = replace(identity(), name="Another CPU", model="99x")


@pytest.fixture
def logs(tmp_path, monkeypatch):
    """The folder of this machine's logs."""
    monkeypatch.setenv("XFRAME_SCHEDULES", str(tmp_path / "logs"))
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs"


def used(plan=DIRECT, threads=2, **given):
    """The tasks that have a record, and what is told."""
    schedules = Schedules(**given)
    return [t.task for t in schedules.tuned(plan, threads).tuned], list(schedules.notes(plan, threads))


def test_a_forced_plan_takes_the_records_of_this_machine(logs):
    put(logs, entry(TASK))
    assert used() == ([TASK], [])
    tuned = Schedules().tuned(DIRECT, 2)
    assert replace(tuned, tuned=()) == DIRECT
    assert tuned.tuned[0].origin.endswith("logs/device/net-b1/direct")
    assert Schedules().tuned(tuned, 2) == tuned


def test_no_record_is_for_other_threads_or_lowerings(logs):
    put(logs, entry(TASK))
    assert used(threads=1) == ([], [])
    assert used(Plan("fft", ((EASY, "fft"),))) == ([], [])


@pytest.mark.parametrize("label", ["auto", "best"])
def test_a_plan_that_leaves_the_choice_open_uses_no_log(logs, label):
    put(logs, entry(TASK))
    assert used(Plan(label)) == ([], [])
    assert used(Plan(label, target="llvm")) == ([], [])


def test_none_is_none(logs):
    put(logs, entry(TASK))
    assert used(where="none") == ([], [])


def test_a_target_uses_no_log_and_says_so(logs):
    put(logs, entry(TASK))
    tasks, (note,) = used(replace(DIRECT, target="llvm -mcpu=core-avx2"))
    assert tasks == []
    assert note.startswith("no schedule log is used with the target 'llvm -mcpu=core-avx2'")
    assert used(replace(DIRECT, target="llvm"), where="none") == ([], [])


def test_a_folder_takes_the_place_of_this_machines_logs(logs, tmp_path):
    folder = put(tmp_path / "mine", entry(TASK))
    assert used() == ([], [])
    assert used(where=str(tmp_path / "mine")) == used(where=str(folder)) == ([TASK], [])


def test_a_folder_without_a_record_for_the_plan_is_told(logs, tmp_path):
    (tmp_path / "empty").mkdir()
    tasks, (note,) = used(where=str(tmp_path / "empty"))
    assert (tasks, note) == (
        [], f"no schedule log in {tmp_path / 'empty'} is for this machine and a kernel of this plan",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"device": OTHER}, "it was tuned on another kind of device (Another CPU (family"),
        ({"tvm": "0.1"}, "it was tuned with TVM 0.1, and "),
        ({"passes": "0123"}, "it was tuned with another pass list (0123; "),
    ],
)
def test_a_log_that_is_foreign_or_stale_is_refused_in_words(logs, changes, words):
    put(logs, entry(TASK), **changes)
    tasks, (note,) = used()
    assert tasks == []
    assert "logs/device/net-b1/direct is not used" in note
    assert words in note


def test_a_foreign_log_is_used_where_that_is_allowed_and_told(logs):
    put(logs, entry(TASK), device=OTHER)
    tasks, (note,) = used(allow_foreign=True)
    assert tasks == [TASK]
    assert "is used although: it was tuned on another kind of device" in note


def test_a_broken_log_is_told_and_the_others_are_used(logs):
    broken = put(logs, entry(TASK))
    shutil.copytree(broken, logs / "device" / "other-b1" / "direct")
    (broken / "meta.json").write_text((broken / "meta.json").read_text()[:-20])
    tasks, (note,) = used()
    assert tasks == [TASK]
    assert f"the schedule log {broken} is refused" in note
    assert "cut short" in note


def test_equal_plans_get_equal_records_whatever_happens_to_the_logs(logs):
    put(logs, entry(TASK))
    schedules = Schedules()
    before = schedules.tuned(DIRECT, 2)
    shutil.rmtree(logs)
    assert schedules.tuned(replace(DIRECT, label="mine"), 2) == replace(before, label="mine")
    assert schedules.notes(before, 2) == ()
    assert used()[0] == []


def test_the_schedules_in_a_plan_file_are_not_taken(tmp_path):
    """They come from logs, which are checked."""
    path = tmp_path / "mine.json"
    tuned = {"task": TASK, "tile": [6, 2], "trace": "[[], []]", "workload": "0" * 16, "origin": "here"}
    path.write_text(json.dumps({"lowerings": {EASY.key: "direct"}, "tuned": [tuned]}))
    assert plan(str(path), [EASY], cpu_device()).tuned == ()
