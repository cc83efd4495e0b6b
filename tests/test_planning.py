import json

import pytest

from xframe.environment import cpu_device
from xframe.errors import Unsupported, UsageError
from xframe.planning import plan
from xframe.types import ConvSite, Plan

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
