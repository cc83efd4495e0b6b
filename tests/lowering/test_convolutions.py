"""Every registered lowering over a grid of convolutions, against float64, with the bound of its own algorithm."""

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.lowering.networks import HOST, conv_data, conv_network, everywhere, run
from xframe import planning, registry
from xframe.environment import cpu_device
from xframe.equivalence.reference import Reference
from xframe.equivalence.verdict import judge
from xframe.errors import Unsupported
from xframe.lowering import pipeline
from xframe.lowering.target import Cpu
from xframe.types import ConvSite, ModelSpec, layer

LOWERINGS = list(registry.LOWERINGS)


def reference(site: ConvSite, weight, bias, relu) -> Reference:
    conv = layer(
        "conv", "conv", out=site.out_channels, kernel=site.kernel, stride=site.stride, pads=site.pads,
        dilation=site.dilation, groups=site.groups,
    )  # fmt: skip
    layers = (conv, layer("relu", "relu")) if relu else (conv,)
    return Reference.of_spec(
        ModelSpec("one", (site.in_channels, *site.in_hw), layers), {"conv.weight": weight, "conv.bias": bias}
    )


def check(site: ConvSite, lowering: str, relu: bool = False, seed: int = 0, cpu: Cpu = HOST) -> None:
    """Compile and run the site under the lowering, and judge the output by the lowering's own bound."""
    x, w, b = conv_data(site, seed)
    built = pipeline.build(conv_network(site, w, b, relu), everywhere(lowering, site), cpu)
    assert [(s.site, s.selected) for s in built.sites] == [(site, lowering)]
    roundings = {s.site: s.rounding for s in built.sites}
    verdict = judge(run(built, [x]), reference(site, w, b, relu).evaluate([x], roundings))
    assert verdict.ok, verdict.reason
    assert verdict.ratio < 0.9, "the bound leaves no room"


@st.composite
def sites(draw):
    kernel = draw(st.tuples(*[st.sampled_from([1, 2, 3, 4, 5, 7, 11])] * 2))
    stride, dilation = draw(st.sampled_from([1, 1, 1, 2, 3, 4])), draw(st.sampled_from([1, 1, 1, 2]))
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    per_group = draw(st.sampled_from([1, 2, 3, 5, 16, 19]))
    out = draw(st.sampled_from([1, 2, 5, 16, 17, 40]))
    pads = draw(st.tuples(*[st.integers(0, 3)] * 4))
    h, w = draw(st.tuples(st.integers(3, 19), st.integers(3, 19)))
    batch = draw(st.integers(1, 5))
    site = ConvSite(
        batch, per_group * groups, (h, w), out * groups, kernel, (stride, stride), pads, (dilation, dilation), groups
    )
    assume(min(site.out_hw) >= 1)
    return site


@pytest.mark.parametrize("lowering", LOWERINGS)
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(site=sites(), relu=st.booleans(), seed=st.integers(0, 99))
def test_grid(lowering, site, relu, seed):
    reason = registry.load(registry.LOWERINGS, lowering).refuses(site, cpu_device())
    if reason:
        assert len(reason.split()) > 3
        with pytest.raises(Unsupported, match="--fallback"):
            planning.plan(lowering, [site], cpu_device())
        return
    check(site, lowering, relu, seed)


def square(batch, c, hw, out, k, pad=0, stride=1, dilation=1, groups=1):
    return ConvSite(batch, c, (hw, hw), out, (k, k), (stride, stride), (pad,) * 4, (dilation, dilation), groups)


#: What real networks have: strided first layers, 3x3 of several sizes, pointwise, grouped, depthwise, dilated, tall.
REAL = [
    square(1, 3, 32, 24, 11, pad=2, stride=4),
    square(2, 8, 23, 24, 7, pad=3, stride=2),
    square(2, 16, 27, 32, 5, pad=2),
    square(1, 32, 13, 48, 3, pad=1),
    square(3, 32, 13, 48, 3, pad=1),
    square(1, 24, 14, 40, 1),
    square(1, 24, 14, 40, 1, stride=2),
    square(1, 32, 13, 32, 3, pad=1, groups=2),
    square(1, 24, 14, 40, 3, pad=1, stride=2),
    square(1, 40, 14, 40, 3, pad=1, groups=40),
    square(1, 20, 14, 20, 3, pad=1, stride=2, groups=20),
    square(1, 16, 15, 16, 3, pad=2, dilation=2),
    ConvSite(1, 16, (9, 9), 16, (1, 7), (1, 1), (0, 3, 0, 3)),
    ConvSite(1, 16, (12, 9), 16, (7, 1), (1, 1), (3, 0, 3, 0)),
    ConvSite(1, 8, (10, 10), 8, (3, 3), (2, 2), (0, 0, 1, 1)),
]


@pytest.mark.parametrize("site", REAL, ids=lambda s: s.key)
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_sites_of_real_networks(lowering, site):
    if registry.load(registry.LOWERINGS, lowering).refuses(site, cpu_device()):
        pytest.skip("refused: see test_refusals")
    check(site, lowering, relu=True)


@pytest.mark.parametrize(
    ("lowering", "site", "word"),
    [
        ("winograd", square(1, 3, 32, 8, 3, stride=3), "stride"),
        ("winograd", square(1, 3, 32, 8, 3, dilation=2), "dilation"),
        ("winograd", square(1, 4, 32, 8, 3, groups=2), "groups"),
        ("winograd", square(1, 3, 32, 8, 1), "1x1"),
        ("winograd", square(1, 3, 32, 8, 11), "11x11"),
        ("fft", square(1, 3, 32, 8, 3, stride=3), "stride"),
        ("fft", square(1, 3, 32, 8, 3, dilation=2), "dilation"),
        ("fft", square(1, 4, 32, 8, 3, groups=4), "groups"),
        ("fft", square(1, 3, 32, 8, 1), "1x1"),
    ],
)
def test_refusals(lowering, site, word):
    assert word in registry.load(registry.LOWERINGS, lowering).refuses(site, cpu_device())


@pytest.mark.parametrize("lowering", ["winograd", "fft"])
def test_the_bound_is_local(lowering):
    """Beside a bright region a dark one keeps its own, much smaller bound, as far as tiles do not mix the two."""
    site = square(1, 16, 32, 16, 3)
    x, w, b = conv_data(site, 0)
    x[..., :16] *= 1e-4
    b[:] = 0
    built = pipeline.build(conv_network(site, w, b, False), everywhere(lowering, site), HOST)
    (record,) = built.sites
    (exact,) = reference(site, w, b, False).evaluate([x], {site: record.rounding})
    dark = 14 - 2 * record.rounding.reach[1]
    if dark > 0:
        assert exact.bound[..., :dark].max() < 1e-2 * exact.bound[..., 20:].max()
    verdict = judge(run(built, [x]), [exact])
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_the_same_bits_twice(lowering):
    site = square(2, 16, 13, 24, 3, pad=1)
    x, w, b = conv_data(site, 0)
    built = pipeline.build(conv_network(site, w, b, True), everywhere(lowering, site), HOST)
    first, second = run(built, [x]), run(built, [x])
    assert np.array_equal(first[0], second[0])
