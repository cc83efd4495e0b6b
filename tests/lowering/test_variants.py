"""The error budget: what is predicted of each variant, what is chosen within a budget, and what that is worth."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.lowering.networks import HOST, conv_data, conv_network, everywhere, run
from xframe import planning, registry
from xframe.environment import cpu_device
from xframe.equivalence import kernels
from xframe.equivalence.bounds import predicted
from xframe.errors import Unsupported
from xframe.lowering import pipeline
from xframe.lowering.variants import choose, refusal
from xframe.types import ERROR_BUDGET, ConvSite, Plan, Rounding

LOWERINGS = {name: registry.load(registry.LOWERINGS, name) for name in registry.defaults(registry.LOWERINGS)}
#: How loose the prediction may be. It promises 8 deviations of a tile's worst output at twice the RMS of them all, each
#: rounding at its largest. Of 1000 to 100 000 outputs the largest error is some 4 to 6 deviations of a usual one (a
#: factor of 2 to 3), a number in the middle of its binade rounds by 1.4 times less, and most outputs of a tile are
#: better than its worst (by up to 4 in two dimensions). Taps that a strided kernel has not count, too.
LOOSE = 20.0
SITE = ConvSite(1, 64, (24, 24), 32, (3, 3), pads=(1,) * 4)


def relative_error(site: ConvSite, lowering: str, budget: float, seed: int, positive: bool) -> tuple[float, float]:
    """(largest error relative to the output's RMS, its prediction) of the variant that is chosen within ``budget``."""
    x, w, b = conv_data(site, seed)
    x = np.maximum(x, 0) if positive else x
    plan = planning.plan(lowering, [site], cpu_device(), error_budget=budget)
    built = pipeline.build(conv_network(site, w, 0 * b, False), plan, HOST)
    window = kernels.Window(site.kernel, site.stride, site.pads, site.dilation)
    exact = kernels.conv(x.astype(np.float64), w, window, site.groups)
    (record,) = built.sites
    error = np.abs(run(built, [x])[0] - exact).max()
    return error / math.sqrt(np.square(exact).mean()), predicted(record.rounding)


@st.composite
def sites(draw):
    kernel = draw(st.sampled_from([(1, 1), (2, 2), (3, 3), (3, 3), (5, 5), (1, 7), (3, 5), (7, 7)]))
    channels, out = draw(st.sampled_from([1, 3, 16, 50, 128])), draw(st.sampled_from([8, 17, 32]))
    size = draw(st.tuples(st.integers(12, 26), st.integers(12, 26)))
    batch, pads = draw(st.integers(1, 2)), draw(st.tuples(*[st.integers(0, 2)] * 4))
    site = ConvSite(batch, channels, size, out, kernel, draw(st.sampled_from([(1, 1), (1, 1), (2, 2)])), pads)
    assume(min(site.out_hw) >= 8)  # for an RMS of what random weights give, and a largest error of some samples
    return site


@settings(max_examples=16, suppress_health_check=list(HealthCheck))
@given(
    site=sites(), lowering=st.sampled_from(list(LOWERINGS)), exponent=st.floats(-6.2, -3.5),
    seed=st.integers(0, 99), positive=st.booleans(),
)  # fmt: skip
def test_a_budget_is_honoured(site, lowering, exponent, seed, positive):
    """Images of either sign, or as they come from a ReLU."""
    budget, chosen = 10.0**exponent, LOWERINGS[lowering]
    reason = refusal(chosen, site, cpu_device(), budget)
    if reason:
        assert chosen.refuses(site, cpu_device()) or all(v.error > budget for v in chosen.variants(site))
        with pytest.raises(Unsupported, match="--fallback"):
            planning.plan(lowering, [site], cpu_device(), error_budget=budget)
        return
    error, prediction = relative_error(site, lowering, budget, seed, positive)
    assert error <= prediction <= budget
    assert prediction <= LOOSE * error


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_each_lowering_at_its_loosest_and_at_its_tightest(lowering):
    """So that the test above can't pass by refusals."""
    errors = [v.error for v in LOWERINGS[lowering].variants(SITE)]
    for budget in {min(errors), ERROR_BUDGET}:
        error, prediction = relative_error(SITE, lowering, budget, 0, False)
        assert error <= prediction <= budget
        assert prediction <= LOOSE * error


def test_the_formula_is_the_documented_one():
    for length, growth in ((1, 1.0), (27, 1.0), (576, 12.5)):
        documented = 8 * 2.0**-24 * math.sqrt((11 / 6 * length * growth**2 + 6) / 3)
        assert predicted(Rounding(length, growth)) == pytest.approx(documented)


def test_a_tight_budget_takes_a_smaller_tile():
    winograd = LOWERINGS["winograd"]
    chosen = [choose(winograd, SITE, HOST, budget).detail for budget in (ERROR_BUDGET, 1e-5)]
    assert chosen[0] != chosen[1] == "F(2,3)"


def test_the_default_leaves_every_variant_to_6000_channels():
    for kernel in ((2, 2), (3, 3), (4, 4), (5, 5), (6, 6), (7, 7), (1, 7)):
        site = ConvSite(1, 6000, (32, 32), 64, kernel)
        for lowering in LOWERINGS.values():
            assert all(v.error <= ERROR_BUDGET for v in lowering.variants(site))


def test_a_lowering_without_a_variant_refuses_in_words_and_its_fallback_applies():
    with pytest.raises(Unsupported, match=r"most exact variant, F\(2,3\), may err by .*error budget is 1e-06"):
        planning.plan("winograd", [SITE], cpu_device(), error_budget=1e-6)
    with pytest.raises(Unsupported, match="both winograd and its fallback direct refuse"):
        planning.plan("winograd", [SITE], cpu_device(), "direct", error_budget=1e-6)
    plan = planning.plan("winograd", [SITE], cpu_device(), "fft", error_budget=4e-6)
    assert plan[SITE] == "fft"
    assert "error budget" in plan.fallback[0][1]
    assert Plan.from_json(plan.to_json()) == plan


def test_a_plan_is_asked_again_when_it_is_lowered():
    """A plan from a file may name what its own budget forbids."""
    _, w, b = conv_data(SITE, 0)
    plan = Plan("mine", everywhere("winograd", SITE).lowerings, error_budget=1e-6)
    with pytest.raises(Unsupported, match="error budget"):
        pipeline.forced(conv_network(SITE, w, b, False), plan, HOST)
