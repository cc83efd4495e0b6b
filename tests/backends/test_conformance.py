"""What every registered backend must do, whichever it is."""

import json

import numpy as np
import pytest
from onnx import helper

from xframe import artifact, registry, zoo
from xframe.equivalence.reference import Reference
from xframe.equivalence.verdict import judge
from xframe.errors import Unavailable, Unsupported, UsageError, XframeError
from xframe.types import Plan
from xframe.worker import wire

AUTO = Plan()


@pytest.fixture(params=registry.BACKENDS)
def backend(request, monkeypatch, tmp_path):
    monkeypatch.setenv("XFRAME_HOME", str(tmp_path / "home"))
    try:
        return registry.load(registry.BACKENDS, request.param)
    except Unavailable as e:
        pytest.skip(str(e))


@pytest.fixture
def model(convnet):
    return artifact.load(convnet(batch=2))


def test_right_values_for_each_input_and_no_stale_ones(backend, model):
    executable = backend.compile(model, AUTO, "cpu", 1)
    reference, seen = Reference.of_onnx(model), []
    roundings = {s.site: s.rounding for s in executable.sites if s.rounding}
    for seed in (0, 1, 0):
        feed = [zoo.inputs(i.shape, seed) for i in model.inputs]
        executable.bind([x.copy() for x in feed])
        executable.step()
        executable.step()
        executable.sync()
        seen.append(executable.fetch())
        verdict = judge(seen[-1], reference.evaluate(feed, roundings))
        assert verdict.ok, verdict.reason
    assert not np.array_equal(seen[0][0], seen[1][0])
    assert np.array_equal(seen[0][0], seen[2][0])
    executable.close()


def test_what_is_fetched_is_the_callers_own(backend, model):
    executable = backend.compile(model, AUTO, "cpu", 1)
    feed = [zoo.inputs(i.shape, 0) for i in model.inputs]
    executable.bind(feed)
    executable.step()
    first = executable.fetch()
    kept = [y.copy() for y in first]
    for x in feed:
        x[...] = 0  # the caller's array is its own again after bind
    executable.step()
    assert all(np.array_equal(a, b) for a, b in zip(first, kept, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(executable.fetch(), kept, strict=True))
    executable.close()


def test_its_facts_can_be_written_down(backend, model):
    executable = backend.compile(model, AUTO, "cpu", 1)
    executable.bind([zoo.inputs(i.shape, 0) for i in model.inputs])
    executable.step()
    kernels = executable.profile(1)[0].kernels
    assert all(0 <= k.start <= k.end for k in kernels)
    assert {k.site for k in kernels} - {None} <= {s for _, s in model.conv_sites}
    for fact in (executable.sites, executable.seconds, executable.environment, executable.notes, kernels):
        json.dumps(wire.plain(fact))
    assert isinstance(backend.version, str)
    assert backend.version
    executable.close()


def test_a_forced_lowering_it_can_not_do_is_refused_in_words(backend, model):
    """The second convolution has stride 3, which Winograd refuses everywhere."""
    plan = Plan("winograd", tuple((site, "winograd") for _, site in model.conv_sites))
    with pytest.raises(Unsupported, match="winograd"):
        backend.compile(model, plan, "cpu", 1)


def test_a_device_that_is_not_there_is_refused_in_words(backend, model):
    with pytest.raises((Unavailable, Unsupported, UsageError), match="cuda"):
        backend.compile(model, AUTO, "cuda:99", 1)


def test_an_operator_it_lacks_is_an_error_that_names_it(backend, convnet):
    path = convnet(extra=[helper.make_node("Twist", ["c2"], ["t"], "twist", domain="nobody")])
    with pytest.raises(XframeError, match=r"Twist|twist"):
        backend.compile(artifact.load(path), AUTO, "cpu", 1)
