"""Every registered lowering over a grid of convolutions, against float64, with the bound of its own algorithm."""

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx import helper

from tests.lowering import zoo
from tests.lowering.networks import HOST, build, conv_data, conv_network, conv_node, everywhere, network, run, usual
from xframe import artifact, planning, registry
from xframe.environment import cpu_device
from xframe.equivalence.reference import Reference
from xframe.equivalence.verdict import judge
from xframe.errors import Unsupported
from xframe.lowering import fused as fused_stages
from xframe.lowering.stage import Epilogue
from xframe.types import ConvSite, ModelSpec, layer

LOWERINGS = registry.defaults(registry.LOWERINGS)
ROOT = Path(__file__).resolve().parents[2]


def reference(site: ConvSite, weight, bias, relu) -> Reference:
    conv = layer(
        "conv", "conv", out=site.out_channels, kernel=site.kernel, stride=site.stride, pads=site.pads,
        dilation=site.dilation, groups=site.groups,
    )  # fmt: skip
    layers = (conv, layer("relu", "relu")) if relu else (conv,)
    return Reference.of_spec(
        ModelSpec("one", (site.in_channels, *site.in_hw), layers), {"conv.weight": weight, "conv.bias": bias}
    )


def check(site: ConvSite, lowering: str, relu: bool = False, seed: int = 0, made=build) -> None:
    """Compile (by ``made``) and run the site under the lowering, and judge the output by the lowering's own bound."""
    x, w, b = conv_data(site, seed)
    built = made(conv_network(site, w, b, relu), everywhere(lowering, site))
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
    square(2, 24, 9, 24, 5, pad=2, groups=24),
    square(3, 5, 4, 5, 7, pad=3, groups=5),
    square(1, 16, 15, 16, 3, pad=2, dilation=2),
    ConvSite(1, 16, (9, 9), 16, (1, 7), (1, 1), (0, 3, 0, 3)),
    ConvSite(1, 16, (12, 9), 16, (7, 1), (1, 1), (3, 0, 3, 0)),
    ConvSite(1, 8, (10, 10), 8, (3, 3), (2, 2), (0, 0, 1, 1)),
    ConvSite(1, 20, (14, 14), 20, (3, 3), (2, 2), (0, 0, 1, 1), (1, 1), 20),
    ConvSite(1, 12, (13, 13), 12, (3, 3), (1, 1), (2, 2, 2, 2), (2, 2), 12),
    ConvSite(1, 6, (9, 9), 12, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 6),
    ConvSite(2, 20, (13, 10), 17, (3, 3), (1, 1), (0, 1, 2, 1)),
    ConvSite(1, 16, (12, 12), 24, (5, 5), (1, 1), (4, 3, 1, 0), (2, 2)),
]


def light_sites() -> list[ConvSite]:
    """Every convolution of the networks that ship with ``onnx``, cut down; those that then are equal, once.

    Images are cut to some 10 pixels at the same remainder of their stride, channels to 16 a group, or 20 where they are
    no whole vectors.
    """

    def cut(n: int) -> int:
        return min(n, 20 if n % 16 else 16)

    def small(s: ConvSite) -> ConvSite:
        c, o, groups = s.in_channels // s.groups, s.out_channels // s.groups, s.groups
        groups = cut(groups) if c == o == 1 else groups
        size = tuple(min(n, max(8, 2 * s.kernel[0]) + n % s.stride[0]) for n in s.in_hw)
        return replace(s, in_channels=cut(c) * groups, out_channels=cut(o) * groups, groups=groups, in_hw=size)

    found = (small(s) for name in zoo.NAMES for _, s in artifact.load(zoo.path(name)).conv_sites)
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_sites_of_real_networks(lowering, layout):
    """Side by side in one graph, which compiles faster: those of the shipped networks over NCHW images, the others over
    NHWC ones, as TensorFlow exports them. What is not done is refused in words. Winograd's are compiled as for users:
    its straight-line code is what LLVM changes most."""
    every = light_sites() if layout == "NCHW" else REAL
    made = usual if (lowering, layout) == ("winograd", "NCHW") else build
    refusals = {s: registry.load(registry.LOWERINGS, lowering).refuses(s, cpu_device()) for s in every}
    assert all(why is None or len(why.split()) > 3 for why in refusals.values())
    sites = [s for s, why in refusals.items() if why is None]
    assert sites if lowering in ("winograd", "fft") else sites == every
    nodes, feeds, outputs, constants = [], {}, {}, {}
    for i, site in enumerate(sites):
        feeds[f"x{i}"], constants[f"w{i}"], constants[f"b{i}"] = conv_data(site, i)
        image = f"x{i}"
        if layout == "NHWC":
            feeds[image], image = feeds[image].transpose(0, 2, 3, 1), f"t{i}"
            nodes.append(helper.make_node("Transpose", [f"x{i}"], [image], perm=[0, 3, 1, 2]))
        nodes += [conv_node(site, image, f"w{i}", f"b{i}", f"c{i}"), helper.make_node("Relu", [f"c{i}"], [f"y{i}"])]
        outputs[f"y{i}"] = (site.batch, site.out_channels, *site.out_hw)
    model = network(nodes, {name: x.shape for name, x in feeds.items()}, outputs, constants)
    built = made(model, everywhere(lowering, *sites))
    assert [(s.site, s.selected) for s in built.sites] == [(s, lowering) for s in sites]
    for i, (record, y) in enumerate(zip(built.sites, run(built, list(feeds.values())), strict=True)):
        x, w, b = conv_data(record.site, i)
        verdict = judge([y], reference(record.site, w, b, True).evaluate([x], {record.site: record.rounding}))
        assert verdict.ok, f"{record.site.key}: {verdict.reason}"
        assert verdict.ratio < 0.9, "the bound leaves no room"


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    "site",
    [
        square(1, 32, 40, 40, 3, pad=1),
        square(3, 5, 23, 70, 5, pad=2),
        ConvSite(2, 3, (31, 29), 24, (7, 5), (2, 2), (3, 2, 2, 1)),
    ],
    ids=lambda s: s.key,
)
@pytest.mark.parametrize("lowering", ["winograd", "fft"])
def test_in_one_kernel_and_in_three(lowering, site, fused, monkeypatch):
    monkeypatch.setattr(fused_stages, "pays", lambda *_: fused)
    check(site, lowering, relu=True)


@pytest.mark.parametrize("groups", [2, 5])
@pytest.mark.parametrize("site", [square(1, 32, 40, 40, 3, pad=1), square(3, 5, 23, 70, 5, pad=2)], ids=lambda s: s.key)
def test_in_groups(site, groups, monkeypatch):
    """All threads take one group of tiles after the other through the three steps."""
    monkeypatch.setattr(fused_stages, "pays", lambda *_: False)
    monkeypatch.setattr(fused_stages, "in_groups", lambda *_: groups)
    check(site, "winograd", relu=True)


def test_groups_are_for_spectra_that_would_pass_through_memory():
    cache = HOST.cache(3)
    weights = np.zeros((64, 1, 128, 128), np.float32)  # 4 MiB
    points = 4 * cache // (64 * 4 * 256)
    assert fused_stages.in_groups(weights, points // 2, 128, 128, HOST) == 1
    assert fused_stages.in_groups(weights, 2 * points, 128, 128, HOST) > 8
    assert fused_stages.in_groups(np.zeros(cache // 4, np.float32), 2 * points, 128, 128, HOST) == 1


def test_weights_are_fetched_ahead_where_they_are_read_seldom(monkeypatch):
    """By a product of few rows, not by one whose rows pass over its weights many times."""
    monkeypatch.setattr(fused_stages, "in_groups", lambda *_: 1)  # whatever caches this machine has
    lowering = registry.load(registry.LOWERINGS, "winograd")

    def product(site):
        _, w, b = conv_data(site, 0)
        stages = lowering.define(lowering.variants(site)[0], w, Epilogue(b), "NHWC", HOST)
        return str(next(s for s in stages if s.role == "product").scheduled())

    assert "llvm.prefetch" in product(square(1, 256, 9, 256, 3))
    assert "llvm.prefetch" not in product(square(8, 256, 63, 256, 3))


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
    built = build(conv_network(site, w, b, False), everywhere(lowering, site))
    (record,) = built.sites
    (exact,) = reference(site, w, b, False).evaluate([x], {site: record.rounding})
    dark = 14 - 2 * record.rounding.reach[1]
    if dark > 0:
        assert exact.bound[..., :dark].max() < 1e-2 * exact.bound[..., 20:].max()
    verdict = judge(run(built, [x]), [exact])
    assert verdict.ok, verdict.reason


def bits() -> list[str]:
    """A digest of each lowering's output, compiled anew and run twice on two threads."""
    site, found = square(2, 20, 14, 24, 3, pad=1), []
    x, w, b = conv_data(site, 0)
    for lowering in LOWERINGS:
        built = build(conv_network(site, w, b, True), everywhere(lowering, site))
        first, second = (hashlib.sha256(run(built, [x])[0]).hexdigest() for _ in range(2))
        assert first == second, lowering
        found.append(f"{lowering} {first}")
    return found


def test_the_same_bits_in_two_runs_and_in_two_processes():
    code = f"from xframe.worker.alone import without_frameworks as alone\nwith alone(): from {__name__} import bits"
    code += "\nprint(*bits(), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == bits()
