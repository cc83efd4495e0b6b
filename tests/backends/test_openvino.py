"""The OpenVINO backend: its settings, its profile, what it can't do."""

import datetime
import itertools
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest

from tests.lowering import zoo as light
from xframe import artifact, registry, zoo
from xframe.backends.nodes import Nodes
from xframe.equivalence.reference import Reference
from xframe.equivalence.verdict import judge
from xframe.errors import NotHonoured, XframeError
from xframe.types import Plan

backend = pytest.importorskip("xframe.backends.openvino", exc_type=ImportError)
ROOT = Path(__file__).parents[2]
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


def test_a_signal_reaches_a_process_that_had_two_models(convnet):
    """Each core of OpenVINO sets an alternate stack for signals, then the one before it again, even if that is gone."""
    code = """
import signal, sys
from xframe import artifact
from xframe.backends.openvino import OpenVino
from xframe.types import Plan

built = [OpenVino().compile(artifact.load(sys.argv[1]), Plan(), "cpu", 1) for _ in range(2)]
while built:
    built.pop(0).close()
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""
    command = [sys.executable, "-c", code, str(convnet())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


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


@pytest.mark.parametrize(
    ("switch", "value", "name", "wanted"),
    [
        ("performance_hint", "throughput", "PERFORMANCE_HINT", "THROUGHPUT"),
        ("cpu_pinning", "on", "ENABLE_CPU_PINNING", True),
        ("denormal_as_zero", "on", "CPU_DENORMALS_OPTIMIZATION", True),
    ],
)
def test_a_switch_changes_its_property_alone(model, switch, value, name, wanted):
    usual, other = (
        OpenVino().compile(model, Plan(), "cpu", 1),
        OpenVino().compile(model, Plan(), "cpu", 1, {switch: value}),
    )
    assert other.environment[name] == wanted
    assert {k for k, v in usual.environment.items() if other.environment[k] != v} == {name}
    usual.close()
    other.close()


def test_its_switches_are_those_of_the_registry():
    assert {s.name: s.values for s in registry.BACKENDS["openvino"].switches} == {
        name: tuple(values) for name, (_, values) in backend._SWITCHES.items()
    }


def test_profile_lays_kernels_end_to_end(model):
    built = OpenVino().compile(model, Plan(), "cpu", 1)
    built.bind([zoo.inputs(i.shape, 0) for i in model.inputs])
    (profile,) = built.profile(1)
    assert profile.kernels[0].start == 0
    assert all(a.end == b.start for a, b in itertools.pairwise(profile.kernels))
    convolutions = [k for k in profile.kernels if k.kind == "conv"]
    assert [k.site for k in convolutions] == [site for _, site in model.conv_sites]
    assert all(k.algorithm and k.name.startswith(k.algorithm) for k in convolutions)
    built.close()


@pytest.mark.parametrize("micros", [(5, 5, 5), (0, 0, 0), (1, 0, 0), (0, 0, 1), (90, 3, 4), (10, 11, 12), (7, 0, 300)])
def test_the_last_run_is_told_from_rounded_means(micros):
    """To within the two microseconds that the rounding hides, and never below nothing."""
    two, three = (datetime.timedelta(microseconds=sum(micros[:n]) // n) for n in (2, 3))
    found = backend.last_of(3, two, three) * 1e6
    assert found >= 0
    assert abs(found - micros[2]) <= 2


def test_a_node_below_a_microsecond_is_told_and_takes_no_time(model):
    """OpenVINO says of it that it did not run, as it does of one that was fused into another."""
    status = openvino.ProfilingInfo.Status
    told = [
        ("x", "Parameter", "unknown_f32", status.NOT_RUN, 0),
        ("conv1", "Convolution", "jit_avx2_f32", status.EXECUTED, 8),
        ("relu1", "Relu", "undef", status.NOT_RUN, 0),
        ("conv2", "Convolution", "jit_avx2_f32", status.NOT_RUN, 0),
        ("pool", "AvgPool", "jit_avx2_f32", status.EXECUTED, 5),
    ]
    counts = [
        SimpleNamespace(
            node_name=name, node_type=kind, exec_type=by, status=ran, real_time=datetime.timedelta(microseconds=micros)
        )
        for name, kind, by, ran, micros in told
    ]
    built = OpenVino().compile(model, Plan(), "cpu", 1)
    kernels = built._kernels(counts, counts, Nodes.read(model.path))
    built.close()
    assert [k.layer for k in kernels] == ["conv1", "conv2", "pool"]
    assert [k.site for k in kernels] == [*(site for _, site in model.conv_sites), None]
    assert [k.end > k.start for k in kernels] == [True, False, True]


def test_nodes_that_add_up_to_more_than_the_pass_are_no_profile(model, monkeypatch):
    built = OpenVino().compile(model, Plan(), "cpu", 1)
    built.bind([zoo.inputs(i.shape, 0) for i in model.inputs])
    monkeypatch.setattr(backend, "last_of", lambda *_: 1000.0)
    with pytest.raises(XframeError, match="more than the pass"):
        built.profile(1)


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
