"""What ran in a step of TensorFlow, and its switches."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import profiled
import pytest
import xspaces
from float64 import close
from gpu_step import GRAPH, HLO, LAYERS, NET, OF_GRAPH, OF_XLA, SCUDNN, XLA
from nets import EVERY, SMALL, TRAPS
from test_frameworks import case

from xframe import registry, zoo
from xframe.errors import NotHonoured, Unsupported, XframeError
from xframe.frameworks import onednn, traces
from xframe.frameworks.traces import Event
from xframe.types import Kernel

tensorflow = pytest.importorskip("xframe.frameworks.tensorflow", exc_type=ImportError)
from xframe.frameworks import tensorflow_profile  # noqa: E402

COST = tensorflow_profile.cost_of_an_event


@pytest.fixture(autouse=True)
def rate(monkeypatch):
    """What an event costs is not measured here, where others run."""
    monkeypatch.setattr(tensorflow_profile, "cost_of_an_event", lambda device: 1e-7)


def built(spec, options=None):
    return profiled.built(tensorflow.TensorFlow(), spec, options)


@pytest.fixture
def silent(monkeypatch):
    """Without the process that asks oneDNN, which takes seconds."""
    monkeypatch.setattr(tensorflow_profile, "asked", lambda *_: [])


def check(profile, spec, algorithms=False):
    """As of any profile; and nothing is outside of the step, or there twice."""
    profiled.check(profile, spec)
    assert all(k.end <= profile.wall * 1.01 for k in profile.kernels)
    found = [k for k in profile.kernels if k.kind == "conv"]
    assert sorted(k.layer for k in found) == sorted(zoo.sites(spec, 2))
    assert all(k.algorithm for k in found) or not algorithms
    assert sorted(k.layer for k in profile.kernels if k.kind == "fc") == [x.name for x in spec.layers if x.op == "fc"]


def test_each_layer_is_told():
    network = built(EVERY)
    profiles = network.profile(2)
    assert len(profiles) == 2
    for profile in profiles:
        check(profile, EVERY, algorithms=True)
    kinds = {k.kind for k in profiles[0].kernels}
    assert {"conv", "fc", "pool", "norm", "softmax"} <= kinds
    assert {"python", "dispatch"} <= {s.kind for s in profiles[0].host}
    close(network.fetch()[0], case(EVERY)[2])


def test_a_fused_node_is_the_layer_that_computes():
    """Grappler gives a fused node the name of its last part."""
    events = [
        Event("small/conv/Conv2D:Conv2D", 0, 1, "t"),
        Event("relu/Relu:_FusedConv2D", 1, 2, "t"),
        Event("fc/BiasAdd:_FusedMatMul", 2, 3, "t"),
        Event("relu/Const:Const", 3, 4, "t"),
        Event("ExecutorPropagateOutputs", 3, 4, "t"),
    ]
    layers = {x.name: x.name for x in SMALL.layers}
    kernels, others = tensorflow_profile.kernels(events[1:], layers, SMALL, 2)
    assert [(k.kind, k.layer) for k in kernels] == [("conv", "conv"), ("fc", "fc")]
    assert kernels[0].site == zoo.sites(SMALL, 2)["conv"]
    assert kernels[0].algorithm == "eigen spatial convolution"
    assert [e.name for e in others] == ["relu/Const:Const", "ExecutorPropagateOutputs"]


def test_reorders_inside_an_operator_are_split_out():
    site = zoo.sites(SMALL, 2)["conv"]
    line = (
        "onednn_verbose,v1,primitive,exec,cpu,{},{},forward_inference,src:f32::blocked:acdb::f0,,alg:convolution_direct,"
        "{},{}\n"
    )
    problem = "mb2_ic3oc4_ih8oh4kh3sh2dh0ph1_iw7ow4kw3sw2dw0pw1"
    said = onednn.parse(
        line.format("reorder", "jit:uni", "4x3x3x3", "1.0")
        + line.format("convolution", "brgconv:avx512_core", problem, "3.0")
        + line.format("reorder", "jit:uni", "4x3x3x3", "9.0")
    )
    run = [
        Kernel("a:_MklNativeConv2D", 2.0, 6.0, site, "", "conv", "conv"),
        Kernel("b", 6.0, 7.0, None, "", "pool", "p"),
    ]
    told = tensorflow_profile.told(run, said)
    assert [(k.kind, k.start, k.end, k.algorithm) for k in told] == [
        ("layout", 2.0, 3.0, ""),
        ("conv", 3.0, 6.0, "brgconv:avx512_core"),
        ("pool", 6.0, 7.0, ""),
    ]


@pytest.mark.parametrize("weights", ["constants", "arguments"])
def test_weights_are_where_they_should_be(weights, silent):
    network = built(SMALL, {"weights": weights})
    assert len(network._run.captured_inputs) == (0 if weights == "constants" else len(zoo.tensors(SMALL)))
    check(network.profile(1)[0], SMALL)


def test_xla_compiles_it():
    network = built(EVERY, {"xla": "on"})
    assert network.environment["xla"] is True
    (profile,) = network.profile(1)
    check(profile, EVERY)
    assert not any(":" in k.name for k in profile.kernels)  # instructions, not nodes


@pytest.mark.parametrize("spec", [EVERY, SMALL, *TRAPS.values()], ids=lambda s: s.name)
def test_channels_first_is_so_or_refused_in_words(spec):
    if not tensorflow._onednn() and any(x.op in ("conv", "maxpool", "avgpool") for x in spec.layers):
        with pytest.raises(Unsupported, match="use data_format=NHWC"):
            built(spec, {"data_format": "NCHW"})
        return
    network = built(spec, {"data_format": "NCHW"})
    assert network.environment["layout"] == "NCHW"
    nodes = network._run.graph.as_graph_def().node
    assert {n.attr["data_format"].s for n in nodes if n.op == "Conv2D"} <= {b"NCHW"}


def test_a_profile_of_channels_first(silent):
    if not tensorflow._onednn():
        pytest.skip("TensorFlow has no kernels for it here")
    check(built(SMALL, {"data_format": "NCHW"}).profile(1)[0], SMALL)


def test_the_other_onednn_is_not_honoured():
    other = "off" if tensorflow._onednn() else "on"
    with pytest.raises(NotHonoured, match=f"onednn={other}"):
        tensorflow.TensorFlow().build(SMALL, zoo.weights(SMALL), "cpu", 2, 2, {"onednn": other})


CODE = """
import sys
import numpy as np
from nets import EVERY
from xframe import zoo
from xframe.frameworks.tensorflow import TensorFlow

path, *options = sys.argv[1:]
network = TensorFlow().build(EVERY, zoo.weights(EVERY), "cpu", 2, 2, dict(o.split("=") for o in options))
network.bind([zoo.inputs((2, *EVERY.input), 1)])
network.step()
network.sync()
np.save(path, network.fetch()[0])
print(sorted({k.algorithm for k in network.profile(1)[0].kernels if k.site}))
print(network.environment["onednn"], network.environment["inter_op_threads"])
"""


def test_every_op_and_switches_of_a_process_the_other_way_than_by_default(tmp_path):
    """With the variables of the registry row, in a process as a worker is. With oneDNN or without: each CPU has one as
    its default, as the other tests run it, and the other is a surprise on another machine."""
    default = tensorflow._onednn()
    options = {"onednn": "off" if default else "on", "inter_op_threads": "2"}
    variables = registry.variables(registry.FRAMEWORKS, "tensorflow", options.items(), "cpu")
    environment = {**os.environ, **variables, "TF_CPP_MIN_LOG_LEVEL": "3"}
    path = tmp_path / "y.npy"
    command = [sys.executable, "-c", CODE, str(path), *(f"{name}={value}" for name, value in options.items())]
    done = subprocess.run(command, cwd=Path(__file__).parent, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    close(np.load(path), case(EVERY)[2])
    *_, algorithms, found = done.stdout.splitlines()
    assert ("eigen" in algorithms) == default
    assert found == f"{not default} 2"


def test_other_switches_of_a_process_are_refused():
    built(SMALL)
    with pytest.raises(NotHonoured, match="inter_op_threads=2"):
        tensorflow.TensorFlow().build(SMALL, zoo.weights(SMALL), "cpu", 2, 2, {"inter_op_threads": "2"})


def test_every_switch_of_the_row_is_tested():
    switches = {s.name for s in registry.FRAMEWORKS["tensorflow"].switches}
    assert switches == {"onednn", "xla", "data_format", "weights", "inter_op_threads"}


def test_what_onednn_said_is_kept_for_the_same_network_and_settings(monkeypatch, tmp_path):
    monkeypatch.setenv("XFRAME_HOME", str(tmp_path))
    line = (
        "onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx2,forward_inference,src:f32::blocked:acdb::f0,,,mb1,{}"
    )
    calls = []

    def said(request):
        calls.append(request)
        return [line.format(ms) for ms in (1, 2, 9)]

    monkeypatch.setattr(tensorflow_profile, "_said", said)
    for threads in (2, 2, 1):
        (primitive,) = tensorflow_profile.asked(SMALL, 2, threads, {})
        assert (primitive.implementation, primitive.seconds) == ("jit:avx2", 2e-3)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    tensorflow_profile.asked(SMALL, 2, 2, {})
    assert [(c["threads"], c["batch"]) for c in calls] == [(2, 2), (1, 2), (2, 2)]


def test_a_process_that_fails_is_told(monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(XframeError, match="asking oneDNN for its algorithms failed: exit code 1"):
        tensorflow_profile.asked(SMALL, 2, 2, {})


def test_scopes_of_odd_names(silent):
    from xframe.types import ModelSpec, layer

    spec = ModelSpec(
        "odd", (3, 8, 7), (layer("a b/c", "conv", out=4, kernel=3), layer("x", "relu"), layer("_y", "relu"))
    )
    network = built(spec)
    assert set(network._layers.values()) == {"a b/c", "x", "_y"}
    check(network.profile(1)[0], spec)


def test_padding_and_scaling_belong_to_their_layer(silent):
    spec = TRAPS["average at the rim"]
    check(built(spec).profile(1)[0], spec)


def traced(monkeypatch, data):
    """The profiler's trace is this one."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    def record(function):
        function()
        return tensorflow_profile.read(xplane_pb2.XSpace.FromString(data))

    monkeypatch.setattr(tensorflow_profile, "record", record)


#: As TensorFlow's bridge names operations.
BRIDGED = HLO.replace('op_name="jit(run)/', 'op_name="')
NODES = [("relu/Relu:_FusedConv2D", 101.0, 102.2, {}), ("fc/MatMul:MatMul", 103.0, 104.0, {})]


@pytest.mark.parametrize(("streams", "hlo", "want"), [(GRAPH, None, OF_GRAPH), (XLA, lambda: BRIDGED, OF_XLA)])
def test_on_a_gpu_its_kernels_are_those_of_the_step(streams, hlo, want, monkeypatch):
    traced(monkeypatch, xspaces.step(streams, traces.MARK, *NODES))
    profiler = tensorflow_profile.Profiler(NET, 1, lambda: None, LAYERS, hlo, None, "/GPU:0")
    (profile,) = profiler.passes(1)
    assert xspaces.told(profile.kernels) == want
    assert all(0 <= k.start <= k.end <= profile.wall for k in profile.kernels)
    records = sorted(x[1:3] for records in streams.values() for x in records)
    ran = sorted((k.start * 1e6 + 100, k.end * 1e6 + 100) for k in profile.kernels)
    assert ran == [pytest.approx(x) for x in records]
    assert profile.wall == pytest.approx(1e-4)
    assert {s.name: s.kind for s in profile.host} == {
        "relu/Relu:_FusedConv2D": "dispatch", "fc/MatMul:MatMul": "dispatch", "cuLaunchKernel": "dispatch",
        "cuMemcpyHtoDAsync_v2": "copy", "cuMemAlloc_v2": "allocation", "call": "python", "return": "python",
    }  # fmt: skip


def test_nodes_that_xla_did_not_compile_are_kernels_beside_it(monkeypatch):
    cast = xspaces.record("void Eigen::internal::EigenMetaKernel<float>", 102, 103, tf_op="soft/Cast:Cast")
    traced(monkeypatch, xspaces.step({**XLA, "Stream #99(Compute)": [cast]}, traces.MARK))
    profiler = tensorflow_profile.Profiler(NET, 1, lambda: None, LAYERS, lambda: BRIDGED, None, "/GPU:0")
    (profile,) = profiler.passes(1)
    assert xspaces.told(profile.kernels) == [("void Eigen::internal::EigenMetaKernel", "copy", "soft", ""), *OF_XLA]


def test_a_network_on_a_gpu_is_profiled_and_onednn_not_asked(monkeypatch):
    monkeypatch.setattr(tensorflow_profile, "asked", lambda *_: pytest.fail("oneDNN was asked"))
    network = built(SMALL)
    monkeypatch.setattr(network, "_device", "/GPU:0")
    record = xspaces.record(SCUDNN, 110, 120, tf_op="conv/Conv2D:Conv2D")
    traced(monkeypatch, xspaces.step({"Stream #21(Compute)": [record]}, traces.MARK))
    (profile,) = network.profile(1)
    (kernel,) = profile.kernels
    assert (kernel.layer, kernel.site, kernel.algorithm) == ("conv", zoo.sites(SMALL, 2)["conv"], SCUDNN)


def test_a_gpu_that_leaves_no_trace_is_told(monkeypatch):
    traced(monkeypatch, xspaces.space({"/host:CPU": xspaces.host(traces.MARK, *NODES), "/device:GPU:0": {}}))
    profiler = tensorflow_profile.Profiler(NET, 1, lambda: None, LAYERS, None, None, "/GPU:0")
    with pytest.raises(XframeError, match="trace of tensorflow has no kernel of a GPU"):
        profiler.passes(1)


def test_the_cost_of_an_event_is_of_nodes_that_do_not_fuse(monkeypatch):
    found = []
    monkeypatch.setattr(traces, "seconds_per_event", lambda run, record: found.extend(record(run)) or 1e-6)
    assert COST("/CPU:0") == 1e-6
    assert sum("Softmax" in e.name.partition(":")[2] for e in found) == 100
