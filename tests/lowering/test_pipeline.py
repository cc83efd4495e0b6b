"""The proof that a plan was honoured, and the faults that it must catch."""

import math

import numpy as np
import pytest
from onnx import helper

from tests.lowering.networks import HOST, conv_data, conv_network, everywhere, network, run
from xframe.errors import NotHonoured, Unsupported
from xframe.lowering import graph, pipeline
from xframe.lowering.direct import Direct
from xframe.lowering.fft import Fft
from xframe.lowering.gemm import Gemm
from xframe.lowering.stage import Epilogue
from xframe.lowering.winograd import Winograd
from xframe.types import ConvSite, Plan

SITE = ConvSite(1, 16, (9, 9), 24, (3, 3), (1, 1), (1, 1, 1, 1))


@pytest.fixture
def model():
    _, w, b = conv_data(SITE, 0)
    return conv_network(SITE, w, b, relu=True)


def test_what_was_planned_is_in_the_module(model):
    mod, parameters, sites = pipeline.forced(model, everywhere("winograd", SITE), HOST)
    names = {v.name_hint for v in mod.functions} - {"main", "transpose"}
    assert names == {f"conv1_winograd_{role}" for role in ("pad", "input", "product", "output")}
    assert [(s.requested, s.selected) for s in sites] == [("winograd", "winograd")]
    assert sum(p.nbytes for p in parameters) > 16 * 24 * 9 * 4


def test_a_lowering_that_silently_does_another_is_caught(model, monkeypatch):
    """Planted: Winograd's kernels are marked as what they really are, direct ones."""
    marked = graph.prepared

    def lying(stage, attrs):
        return marked(stage, {**attrs, graph.LOWERING: "direct"})

    monkeypatch.setattr(graph, "prepared", lying)
    with pytest.raises(NotHonoured, match=r"winograd was forced at .* has direct there"):
        pipeline.forced(model, everywhere("winograd", SITE), HOST)


@pytest.mark.parametrize(("claimed", "real"), [(Winograd, Direct), (Fft, Gemm), (Gemm, Direct), (Direct, Winograd)])
def test_a_label_proves_nothing(model, monkeypatch, claimed, real):
    """Planted: a lowering that does another one's computation under its own name."""
    monkeypatch.setattr(claimed, "define", lambda self, v, *args: real().define(real().variants(v.site)[0], *args))
    with pytest.raises(NotHonoured, match=f"{claimed.name} was forced at .* the kernels there have"):
        pipeline.forced(model, everywhere(claimed.name, SITE), HOST)


def test_a_site_that_disappears_is_caught(model):
    other = ConvSite(1, 16, (9, 9), 24, (5, 5))
    with pytest.raises(NotHonoured, match="nothing that belongs to it"):
        pipeline.forced(model, everywhere("direct", SITE, other), HOST)


def test_a_kernel_that_nobody_calls_proves_nothing(model):
    mod, _, sites = pipeline.forced(model, everywhere("direct", SITE), HOST)
    stripped = mod.clone() if hasattr(mod, "clone") else mod
    for var, func in list(stripped.functions_items()):
        if var.name_hint != "main":
            stripped[var] = func.without_attr(graph.LOWERING).without_attr(graph.SITE)
    stripped["conv9_direct_product"] = mod["main"]
    with pytest.raises(NotHonoured):
        pipeline.prove(stripped, everywhere("direct", SITE), sites)


def test_a_site_that_the_plan_forgot(model):
    other = ConvSite(1, 16, (9, 9), 24, (5, 5))
    with pytest.raises(Unsupported, match="names no lowering"):
        pipeline.forced(model, everywhere("direct", other), HOST)


def test_a_refusing_lowering_is_asked_again():
    strided = ConvSite(1, 16, (9, 9), 24, (3, 3), (3, 3))
    _, w, b = conv_data(strided, 0)
    with pytest.raises(Unsupported, match="stride"):
        pipeline.forced(conv_network(strided, w, b, False), everywhere("winograd", strided), HOST)


def test_algorithms_are_what_they_say():
    """Structure, not names: a column matrix only in gemm, as many products as the transform has frequencies."""
    _, w, b = conv_data(SITE, 0)
    for variant in Winograd().variants(SITE):
        stages = {s.role: s for s in Winograd().define(variant, w, Epilogue(b, math.inf), "NHWC", HOST)}
        m = int(variant.detail[2])
        assert stages["product"].shape[0] == (m + 2) ** 2
        assert variant.rounding.growth > 1
        assert variant.rounding.reach == (m - 1, m - 1)
    (variant,) = Direct().variants(SITE)
    assert "column" not in str(Direct().define(variant, w, Epilogue(b, math.inf), "NHWC", HOST)[-1].scheduled())


def test_stock_lifts_its_weights_and_agrees(model):
    x, _, _ = conv_data(SITE, 0)
    stock = pipeline.build(model, Plan(), HOST)
    ours = pipeline.build(model, everywhere("direct", SITE), HOST)
    assert sum(p.size for p in stock.parameters) >= 16 * 24 * 9
    np.testing.assert_allclose(run(stock, [x])[0], run(ours, [x])[0], atol=1e-4)


def test_what_the_stock_frontend_refuses_is_said_with_its_operator():
    """One operator that it lacks, and one that it has, but not over four dimensions."""
    lacking = [helper.make_node("Det", ["x"], ["y"])]
    with pytest.raises(Unsupported, match="Det"):
        pipeline.stock(network(lacking, {"x": (1, 2, 2)}, {"y": (1,)}, {}), HOST)
    pooling = [helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2] * 4)]
    with pytest.raises(Unsupported, match="MaxPool"):
        pipeline.stock(network(pooling, {"x": (1, 1, 2, 2, 2, 2)}, {"y": (1, 1, 1, 1, 1, 1)}, {}), HOST)


def test_one_pass_list_leaves_nothing_unscheduled():
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3]),
        helper.make_node("Sigmoid", ["c"], ["s"]),
        helper.make_node("Mul", ["c", "s"], ["m"]),
        helper.make_node("GlobalAveragePool", ["m"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Softmax", ["f"], ["y"], axis=1),
    ]
    site = ConvSite(1, 16, (6, 8), 32, (3, 3))
    _, w, _ = conv_data(site, 0)
    model = network(nodes, {"x": (1, 16, 6, 8)}, {"y": (1, 32)}, {"w": w})
    mod, _, _ = pipeline.forced(model, everywhere("direct", site), HOST)
    kernels = [f for v, f in mod.functions_items() if v.name_hint != "main"]
    assert all("tirx.is_scheduled" in f.attrs for f in kernels)
    assert sum("T.parallel" in f.script() for f in kernels) >= len(kernels) - 1
