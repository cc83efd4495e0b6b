"""What other lowerings would give: worked out by hand from rows made by hand."""

from dataclasses import replace

import pytest

from tests.analysis.profiles import MS, A, B, forced, measured, one_pass, run
from xframe.analysis.counterfactuals import Change, Costs, predicted, same_plan
from xframe.analysis.decomposition import groups
from xframe.types import Kernel, Outcome, Plan

NAMES = {A: "conv1", B: "conv2"}
DIRECT, GEMM, WINOGRAD = forced("direct", 5, 2), forced("gemm", 3, 4), forced("winograd", 1.5, 1)
TORCH = measured(one_pass(10.0, (A, 5.5, "jit:avx512_core"), (B, 4.5, "gemm:jit")))
BASE = {A: "direct", B: "gemm"}


def asked(measurement, lowerings, *others, base=BASE):
    """What is predicted for the first row."""
    rows = groups(run(measurement, *others))[0].rows
    costs = Costs(r for r in rows if r.case.plan.lowerings)
    row = next(r for r in rows if r.measurement is measurement)
    return predicted(row, "a question", lowerings, base, NAMES, costs)


def test_kernels_are_replaced_or_keep_their_quality():
    found = asked(TORCH, {A: "winograd"}, DIRECT, GEMM, WINOGRAD)
    assert found.changes == (Change("conv1", "direct", "winograd"),)
    assert found.predicted.seconds == pytest.approx((1.5 - 5) * MS)
    assert found.replaced.seconds == pytest.approx((1.5 - 5.5) * MS)
    assert (found.measured, found.outcome, found.notes) == (None, Outcome.OK, ())


def test_changes_at_several_sites_add_up():
    found = asked(TORCH, {A: "gemm", B: "winograd"}, DIRECT, GEMM, WINOGRAD)
    assert found.predicted.seconds == pytest.approx((3 - 5 + 1 - 4) * MS)
    assert found.replaced.seconds == pytest.approx((3 - 5.5 + 1 - 4.5) * MS)


def test_bringing_the_image_into_its_form_is_part_of_the_cost():
    one = WINOGRAD.profiles[0]
    pad = Kernel("pad", 10 * MS, 10.25 * MS, A, "pad", "layout")
    other = replace(WINOGRAD, profiles=(replace(one, kernels=(*one.kernels, pad)),))
    found = asked(TORCH, {A: "winograd"}, DIRECT, GEMM, other)
    assert found.predicted.seconds == pytest.approx((1.75 - 5) * MS)


def test_what_is_used_already_changes_nothing():
    found = asked(TORCH, {A: "direct", B: "direct"}, DIRECT, GEMM)
    assert found.changes == (Change("conv2", "gemm", "direct"),)
    assert found.predicted.seconds == pytest.approx((2 - 4) * MS)
    assert found.notes == ("pytorch uses what was asked for already at conv1",)


def test_what_no_row_shows_is_not_predicted():
    found = asked(TORCH, {A: "fft"}, DIRECT, GEMM)
    assert (found.predicted, found.replaced) == (None, None)
    assert found.notes == ("nothing is predicted, as no profiled row shows fft at conv1",)


def test_an_unknown_algorithm_is_stood_for_and_told():
    torch = measured(one_pass(10.0, (A, 5.5, "?"), (B, 4.5, "gemm:jit")))
    found = asked(torch, {A: "winograd"}, DIRECT, GEMM, WINOGRAD)
    assert found.changes == (Change("conv1", None, "winograd"),)
    assert found.predicted.seconds == pytest.approx((1.5 - 5) * MS)
    assert found.notes == ("in the executor direct stands for what pytorch uses at conv1",)


def test_kernels_that_are_not_seen_are_not_replaced():
    torch = measured(one_pass(10.0, (B, 4.5, "gemm:jit")))
    found = asked(torch, {A: "winograd"}, DIRECT, GEMM, WINOGRAD)
    assert found.replaced is None
    assert "pytorch does not show its kernels at conv1" in found.notes


def test_measured_is_the_other_plan_less_the_base():
    found = asked(TORCH, {A: "winograd"}, DIRECT, GEMM, WINOGRAD)
    base, other = forced("base", 1, 1, wall=8.0), forced("other", 1, 1, wall=6.5)
    done = found.compared(base, other)
    assert done.measured.seconds == pytest.approx(-1.5 * MS)
    assert done.to_json()["measured"]["seconds"] == done.measured.seconds
    failed = replace(other, outcome=Outcome.MISMATCH, reason="wrong")
    done = found.compared(base, failed)
    assert (done.measured, done.outcome) == (None, Outcome.MISMATCH)
    assert done.reason == "in the executor, what was asked for: wrong"


def test_the_row_of_a_plan_is_one_of_the_same_batch_and_threads():
    plan = {A: "direct", B: "direct"}
    assert same_plan([GEMM, DIRECT], TORCH.case, plan) is DIRECT
    assert same_plan([GEMM, replace(DIRECT, case=replace(DIRECT.case, batch=2))], TORCH.case, plan) is None
    assert same_plan([DIRECT], TORCH.case, {A: "direct", B: "gemm"}) is None
    other = replace(DIRECT, case=replace(DIRECT.case, plan=Plan("mine", ((B, "direct"), (A, "direct")))))
    assert same_plan([other], TORCH.case, plan) is other
