"""The networks that ship with the ``onnx`` package: their own expected outputs, and weights that mean something."""

import numpy as np
import onnx
import pytest

from tests.lowering import zoo
from tests.lowering.networks import HOST, run
from xframe import artifact, planning, registry
from xframe.environment import cpu_device
from xframe.equivalence.reference import Reference
from xframe.equivalence.verdict import judge
from xframe.lowering import pipeline


def planned(loaded, lowering):
    return planning.plan(lowering, [s for _, s in loaded.conv_sites], cpu_device(), fallback="direct")


@pytest.mark.parametrize("name", zoo.NAMES)
def test_shipped_output(name):
    loaded = artifact.load(zoo.path(name))
    built = pipeline.build(onnx.load(zoo.path(name)), planned(loaded, "gemm"), HOST)
    x = np.random.default_rng(0).standard_normal(loaded.inputs[0].shape, dtype=np.float32)
    got, want = run(built, [x])[0], zoo.expected(name)
    assert [s.site for s in built.sites] == [site for _, site in loaded.conv_sites]
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-6)


#: Each network under one of the transform algorithms, the sites that it refuses under direct.
MIXED = list(zip(zoo.NAMES, ["winograd", "fft"] * len(zoo.NAMES), strict=False))


@pytest.mark.parametrize(("name", "lowering"), MIXED)
def test_within_its_bound_with_random_weights(tmp_path, name, lowering):
    model = zoo.with_weights(name)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    loaded = artifact.load(path)
    plan = planned(loaded, lowering)
    built = pipeline.build(model, plan, HOST)
    assert {s.selected for s in built.sites} <= {lowering, "direct"}
    assert all(s.selected == plan[s.site] for s in built.sites)
    x = np.random.default_rng(1).standard_normal(loaded.inputs[0].shape, dtype=np.float32)
    judged = Reference.of_onnx(loaded).evaluate([x], {s.site: s.rounding for s in built.sites})
    verdict = judge(run(built, [x]), judged)
    assert verdict.ok, verdict.reason


def test_every_lowering_is_registered_under_its_name():
    for name in registry.LOWERINGS:
        assert registry.load(registry.LOWERINGS, name).name == name
