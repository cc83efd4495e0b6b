"""What every registered backend must do, whichever it is."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from onnx import helper

from xframe import artifact, registry, zoo
from xframe.equivalence.reference import Reference
from xframe.equivalence.verdict import judge
from xframe.errors import Unavailable, Unsupported, UsageError, XframeError
from xframe.types import HOST, KINDS, Plan
from xframe.worker import wire

AUTO = Plan()


@pytest.fixture(params=[name for name, row in registry.BACKENDS.items() if "cpu" in row.devices])
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
    for fact in (executable.sites, executable.seconds, executable.environment, executable.notes):
        json.dumps(wire.plain(fact))
    assert isinstance(backend.version, str)
    assert backend.version
    executable.close()


def test_its_profiles_tell_what_ran_within_the_pass(backend, model):
    executable = backend.compile(model, AUTO, "cpu", 1)
    executable.bind([zoo.inputs(i.shape, 0) for i in model.inputs])
    executable.step()
    before = executable.fetch()
    profiles = executable.profile(3)
    assert len(profiles) == 3
    for profile in profiles:
        kernels = sorted(profile.kernels, key=lambda k: k.start)
        assert all(0 <= x.start <= x.end <= profile.wall for x in (*kernels, *profile.host))
        assert all(a.end <= b.start for a, b in pairwise(kernels))  # one thread runs them
        assert {k.kind for k in kernels} <= {"", *KINDS}
        assert {s.kind for s in profile.host} <= set(HOST)
        assert math.isfinite(profile.cost)
        convolutions = [(k.layer, k.site) for k in kernels if k.kind == "conv"]
        assert list(dict.fromkeys(convolutions)) == list(model.conv_sites)
        assert {k.layer for k in kernels} <= {"", "conv1", "relu1", "conv2", "pool"}
        assert "pool" in {k.kind for k in kernels}
    assert [[k.name for k in p.kernels] for p in profiles] == [[k.name for k in profiles[0].kernels]] * 3
    assert wire.profiles_of(json.loads(json.dumps(wire.plain(profiles)))) == tuple(profiles)
    executable.step()
    assert np.array_equal(executable.fetch()[0], before[0])
    executable.close()


def test_a_profile_needs_inputs(backend, model):
    executable = backend.compile(model, AUTO, "cpu", 1)
    with pytest.raises(XframeError, match="after bind"):
        executable.profile(1)


def test_its_switches_leave_the_values_right_or_are_refused_in_words(backend, model, request):
    refused = {}
    feed = [zoo.inputs(i.shape, 0) for i in model.inputs]
    expected = Reference.of_onnx(model).evaluate(feed)
    for switch in registry.BACKENDS[request.node.callspec.params["backend"]].switches:
        for value in switch.values[1:] if "cpu" in switch.devices else ():
            try:
                executable = backend.compile(model, AUTO, "cpu", 1, {switch.name: value})
            except Unsupported as e:
                refused[f"{switch.name}={value}"] = str(e)
                continue
            executable.bind(feed)
            executable.step()
            executable.sync()
            verdict = judge(executable.fetch(), expected)
            assert verdict.ok, f"{switch.name}={value}: {verdict.reason}"
            executable.close()
    assert all(what in words for what, words in refused.items())


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
