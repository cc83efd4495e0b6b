"""The OpenVINO backend: its settings, its profile, what it can't do."""

import itertools
import subprocess
import sys

import onnx
import pytest

from tests.lowering import zoo as light
from xframe import artifact, registry, zoo
from xframe.equivalence.reference import Reference
from xframe.equivalence.verdict import judge
from xframe.errors import NotHonoured, XframeError
from xframe.types import Plan

backend = pytest.importorskip("xframe.backends.openvino", exc_type=ImportError)
OpenVino, openvino = backend.OpenVino, backend.ov


@pytest.fixture
def model(convnet):
    return artifact.load(convnet())


def test_it_is_opt_in():
    assert "openvino" in registry.BACKENDS
    assert "openvino" not in registry.defaults(registry.BACKENDS)


def test_nothing_is_reported_over_the_network():
    code = """
import os, sys
forks = []
os.register_at_fork(before=lambda: forks.append(1))
from xframe import registry
registry.load(registry.BACKENDS, "openvino")
import concurrent.futures.thread as pools
print(len(forks), len(pools._threads_queues), sys.modules["openvino_telemetry"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "0", "None"]


def test_environment_says_what_ran(model):
    built = OpenVino().compile(model, Plan(), "cpu", 1)
    facts = built.environment
    assert facts["openvino"].startswith(OpenVino.version)
    assert (facts["INFERENCE_PRECISION_HINT"], facts["INFERENCE_NUM_THREADS"], facts["NUM_STREAMS"]) == ("f32", 1, 1)
    built.close()


def test_other_settings_than_given_are_not_honoured(model, monkeypatch):
    """As where a build of it ignores one of them."""
    real = openvino.CompiledModel.get_property
    monkeypatch.setattr(
        openvino.CompiledModel, "get_property", lambda self, name: 7 if name == "NUM_STREAMS" else real(self, name)
    )
    with pytest.raises(NotHonoured, match="'NUM_STREAMS': 7"):
        OpenVino().compile(model, Plan(), "cpu", 1)


def test_profile_joins_convolutions_to_sites(model):
    built = OpenVino().compile(model, Plan(), "cpu", 1)
    with pytest.raises(XframeError, match="after bind"):
        built.profile(1)
    built.bind([zoo.inputs(i.shape, 0) for i in model.inputs])
    kernels = built.profile(1)[0].kernels
    assert [k.site for k in kernels if k.site] == [site for _, site in model.conv_sites]
    assert all(a.end == b.start for a, b in itertools.pairwise(kernels))
    built.close()


def test_a_wrong_number_of_feeds_is_said_in_words(model):
    built = OpenVino().compile(model, Plan(), "cpu", 1)
    with pytest.raises(XframeError, match="has inputs x; 0 were given"):
        built.bind([])
    built.close()


def test_a_real_network(tmp_path):
    onnx.save(light.with_weights("squeezenet"), tmp_path / "net.onnx")
    loaded = artifact.load(tmp_path / "net.onnx")
    built = OpenVino().compile(loaded, Plan(), "cpu", 2)
    feeds = [zoo.inputs(i.shape, 0) for i in loaded.inputs]
    built.bind(feeds)
    built.step()
    verdict = judge(built.fetch(), Reference.of_onnx(loaded).evaluate(feeds))
    assert verdict.ok, verdict.reason
    built.close()
