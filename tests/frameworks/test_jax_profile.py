"""What ran in a step of JAX, and its switches."""

from types import SimpleNamespace

import numpy as np
import profiled
import pytest
import xspaces
from float64 import close
from gpu_step import HLO, NET, OF_XLA, SCUDNN, XLA
from nets import EVERY, SMALL, TRAPS
from test_frameworks import case

from xframe import registry, zoo
from xframe.errors import Unsupported, XframeError

jax = pytest.importorskip("jax")
from xframe.frameworks import cupti, jax_eager, jax_profile, traces, xla  # noqa: E402
from xframe.frameworks import jax as framework  # noqa: E402
from xframe.frameworks.traces import Event  # noqa: E402

COST = jax_profile.cost_of_an_event


@pytest.fixture(autouse=True)
def rate(monkeypatch):
    """What an event costs is not measured here, where others run."""
    monkeypatch.setattr(jax_profile, "cost_of_an_event", lambda device: 1e-7)


def built(spec, options=None):
    return profiled.built(framework.Jax(), spec, options)


def check(profile, spec):
    profiled.check(profile, spec)
    assert all(k.algorithm for k in profile.kernels if k.kind == "conv")


def test_each_layer_is_told():
    network = built(EVERY)
    profiles = network.profile(2)
    assert len(profiles) == 2
    for profile in profiles:
        check(profile, EVERY)
    assert {"pool", "norm", "softmax"} <= {k.kind for k in profiles[0].kernels}
    assert {"python", "dispatch"} <= {s.kind for s in profiles[0].host}
    close(network.fetch()[0], case(EVERY)[2])


@pytest.mark.parametrize("spec", [EVERY, *TRAPS.values()], ids=lambda s: s.name)
def test_channels_first(spec):
    network = built(spec, {"layout": "NCHW"})
    assert network.environment["layout"] == "NCHW"


def test_channels_first_is_in_the_program_and_its_profile():
    network = built(SMALL, {"layout": "NCHW"})
    assert " transpose(" in network._run.as_text() or "transpose" in network._run.as_text()
    check(network.profile(1)[0], SMALL)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_without_jit_each_operation_is_a_program_of_a_layer(layout):
    network = built(EVERY, {"jit": "off", "layout": layout})
    assert not hasattr(network._run, "as_text")
    for profile in network.profile(2):
        check(profile, EVERY)
        assert {"pool", "norm", "softmax", "activation"} <= {k.kind for k in profile.kernels}
        idle = {x.name for x in EVERY.layers if x.op in ("dropout", "flatten")}
        assert {x.name for x in EVERY.layers} - {k.layer for k in profile.kernels} <= idle
        assert {"python", "dispatch"} <= {s.kind for s in profile.host}
    close(network.fetch()[0], case(EVERY)[2])


def test_layers_share_a_program_in_the_order_in_which_they_ask_for_it():
    def run(number, start, op="add.1"):
        return Event(op, start, start + 1, "pool", {"hlo_op": op, "program_id": 4, "run_id": number})

    def placed(*events):
        return [e.stats[xla.WORK] for e in jax_eager._placed(list(events), {4: ["first", "second"]})]

    # The second was quicker, as nothing keeps it from being where it does not read the first.
    assert placed(run(8, 0.0), run(7, 1.0), run(7, 2.0, "end")) == ["4/second/add.1", "4/first/add.1", "4/first/end"]
    with pytest.raises(XframeError, match="other programs"):
        placed(run(7, 0.0))


def test_without_jit_flags_of_programs_are_refused():
    with pytest.raises(Unsupported, match="use jit=on"):
        built(SMALL, {"jit": "off", "fast_math": "on"})


def test_precision_reaches_the_products():
    def text(options):
        return built(SMALL, options)._run.as_text()

    assert "operand_precision={highest,highest}" in text({})
    assert "operand_precision={highest,highest}" not in text({"matmul_precision": "default"})


def test_ynnpack_leaves_the_program():
    assert "__ynn_fusion" in built(EVERY)._run.as_text()
    assert "__ynn_fusion" not in built(EVERY, {"ynnpack": "off"})._run.as_text()


def test_fast_math_is_another_arithmetic():
    """Its flag changes the machine code, which nothing shows: the last bits of powers and exponentials do."""
    plain, fast = (built(EVERY, options).fetch()[0] for options in ({}, {"fast_math": "on"}))
    assert not np.array_equal(plain, fast)


def test_every_switch_of_the_row_is_known():
    switches = {s.name: s.values for s in registry.FRAMEWORKS["jax"].switches}
    assert set(switches) == {"jit", "matmul_precision", "layout", *(option for option, _ in framework.FLAGS)}
    for name, values in switches.items():
        for value in values[1:]:
            built(SMALL, {name: value})


def test_the_caller_is_woken_after_the_last_kernel(monkeypatch):
    mark, done = traces.MARK, {"hlo_op": "dot"}
    events = [
        Event(mark, 1.0, 9.0, "main"),
        Event("CommonPjRtBuffer::Await", 2.0, 2.0, "main", {"_p": 3}),
        Event("dot", 3.0, 7.0, "pool", done),
        Event("CommonPjRtBuffer::Await", 8.0, 8.5, "main", {"_c": 3}),
    ]
    monkeypatch.setattr(jax_profile, "record", lambda run: events)
    hlo = "ENTRY %main (x: f32[2,3]) -> f32[2,5] {\n  ROOT %dot = f32[2,5]{1,0} dot(%x, %x)\n}\n"
    kernels = jax_profile.of_program(SMALL, 2, hlo)
    (profile,) = jax_profile.Profiler(lambda: None, kernels, SimpleNamespace(platform="cpu")).passes(1)
    assert [(k.name, k.start, k.end) for k in profile.kernels] == [("dot", 2.0, 6.0)]
    assert ("thread wake-up", 6.0, 7.0, "wake-up") in [(s.name, s.start, s.end, s.kind) for s in profile.host]


def traced(monkeypatch, *traces):
    """The profiler's traces are these, one after the other, and then the last again and again."""
    left = list(traces)

    def record(function):
        function()
        data = left.pop(0) if len(left) > 1 else left[0]
        return jax_profile.read(jax.profiler.ProfileData.from_serialized_xspace(data))

    monkeypatch.setattr(jax_profile, "record", record)


def gpu(*texts):
    """A GPU whose client keeps programs of these texts."""
    programs = [SimpleNamespace(hlo_modules=lambda t=t: [SimpleNamespace(to_string=lambda: t)]) for t in texts]
    return SimpleNamespace(platform="gpu", client=SimpleNamespace(live_executables=lambda: programs))


def test_on_a_gpu_its_kernels_are_those_of_the_step(monkeypatch):
    pjit = ("PjitFunction(run)", 100.5, 104.0, {})
    traced(monkeypatch, xspaces.step(XLA, traces.MARK, pjit))
    kernels = jax_profile.of_program(NET, 1, HLO, gpu=True)
    (profile,) = jax_profile.Profiler(lambda: None, kernels, gpu()).passes(1)
    assert xspaces.told(profile.kernels) == OF_XLA
    assert all(0 <= k.start <= k.end <= profile.wall for k in profile.kernels)
    assert sum(k.end - k.start for k in profile.kernels) == pytest.approx(46e-6)
    assert {s.name: s.kind for s in profile.host} == {
        "PjitFunction(run)": "dispatch", "cuLaunchKernel": "dispatch", "cuMemcpyHtoDAsync_v2": "copy",
        "cuMemAlloc_v2": "allocation", "call": "python", "return": "python", "step": "python",
    }  # fmt: skip


def test_kernels_of_a_graph_that_nobody_knows_are_said_to_be(monkeypatch):
    graph = {line: [(*r[:3], {k: v for k, v in r[3].items() if k != "hlo_op"}) for r in rs] for line, rs in XLA.items()}
    traced(monkeypatch, xspaces.step(graph, traces.MARK))
    kernels = jax_profile.of_program(NET, 1, HLO, gpu=True)
    (profile,) = jax_profile.Profiler(lambda: None, kernels, gpu()).passes(1)
    assert profile.note == cupti.NOBODYS
    assert len(profile.kernels) == len(OF_XLA)


def test_a_gpu_that_leaves_no_trace_is_told(monkeypatch):
    traced(monkeypatch, xspaces.space({"/host:CPU": xspaces.host(traces.MARK), "/device:GPU:0": {}}))
    with pytest.raises(XframeError, match="trace of jax has no kernel of a GPU"):
        jax_profile.Profiler(lambda: None, jax_profile.of_program(NET, 1, HLO, gpu=True), gpu()).passes(1)
    with pytest.raises(XframeError, match="trace of jax has no kernel of a GPU"):
        jax_eager.kernels(NET, 1, lambda mark: None, gpu())


EAGER = """\
HloModule jit_conv_general_dilated, is_scheduled=true

ENTRY %main.4 (x: f32[1,4,8,8], k: f32[4,4,3,3]) -> f32[1,4,8,8] {
  %x = f32[1,4,8,8]{3,2,1,0} parameter(0)
  %k = f32[4,4,3,3]{3,2,1,0} parameter(1)
  %cudnn-conv.1 = (f32[1,4,8,8]{3,2,1,0}, u8[0]{0}) custom-call(%x, %k), dim_labels=bf01_oi01->bf01, \
custom_call_target="__cudnn$convForward", metadata={op_name="jit(conv_general_dilated)/conv_general_dilated"}
  ROOT %get-tuple-element = f32[1,4,8,8]{3,2,1,0} get-tuple-element(%cudnn-conv.1), index=0
}
"""


def test_without_jit_kernels_of_a_gpu_have_the_layers_of_the_step_that_waited(monkeypatch):
    """Two layers of one program, whose convolution is a pair of kernels."""

    def pair(start):
        stats = {"hlo_op": "cudnn-conv.1", "hlo_module": "jit_conv_general_dilated", "program_id": 9}
        to_nhwc = "void cudnn::ops::nchwToNhwcKernel<float>"
        return [
            xspaces.record(to_nhwc, start, start + 1, **stats),
            xspaces.record(SCUDNN, start + 1, start + 9, **stats),
        ]

    def trace(first, second, *events):
        streams = {"Stream #13(Compute)": [*pair(first), *pair(second)]}
        return xspaces.space({"/host:CPU": xspaces.host(traces.MARK, *events), "/device:GPU:0": streams})

    marks = [(f"xframe.layer {name}", start, start + 20.0, {}) for name, start in (("conv", 105.0), ("wide", 130.0))]
    traced(monkeypatch, trace(110, 135, *marks), trace(110, 119))
    kernels = jax_eager.kernels(NET, 1, lambda mark: None, gpu("HloModule other,\n", EAGER))
    (profile,) = jax_profile.Profiler(lambda: None, kernels, gpu()).passes(1)
    assert [(k.kind, k.layer) for k in profile.kernels] == [
        ("layout", "conv"), ("conv", "conv"), ("layout", "wide"), ("conv", "wide")]  # fmt: skip
    sites = zoo.sites(NET, 1)
    assert [k.site for k in profile.kernels] == [None, sites["conv"], None, sites["wide"]]
    fewer = xspaces.space({"/host:CPU": xspaces.host(traces.MARK), "/device:GPU:0": {"Stream #13": pair(110)}})
    traced(monkeypatch, fewer)
    with pytest.raises(XframeError, match="other programs"):
        jax_profile.Profiler(lambda: None, kernels, gpu()).passes(1)


def test_a_network_on_a_gpu_is_profiled(monkeypatch):
    network = built(SMALL)
    monkeypatch.setattr(network, "_device", gpu())
    record = xspaces.record(SCUDNN, 110, 120, hlo_op="none of the program", hlo_module="jit_run")
    traced(monkeypatch, xspaces.step({"Stream #13(Compute)": [record]}, traces.MARK))
    (profile,) = network.profile(1)
    assert xspaces.told(profile.kernels) == [(SCUDNN, "", "", "")]


@pytest.mark.parametrize("gpu", [False, True])
def test_the_cost_of_an_event_is_of_kernels_that_no_graph_holds(gpu, monkeypatch):
    found = []
    monkeypatch.setattr(traces, "seconds_per_event", lambda run, record: found.extend(record(run)) or 1e-6)
    monkeypatch.setattr(jax_profile, "on_gpu", lambda device: gpu)
    assert COST(jax.devices("cpu")[0]) == 1e-6
    runs = {e.stats["run_id"] for e in found if {"hlo_op", "run_id"} <= e.stats.keys()}
    assert len(runs) == (100 if gpu else 1)
