"""What ran in a step of JAX, and its switches."""

import numpy as np
import profiled
import pytest
from float64 import close
from nets import EVERY, SMALL, TRAPS
from test_frameworks import case

from xframe import registry
from xframe.errors import Unsupported, XframeError

jax = pytest.importorskip("jax")
from xframe.frameworks import jax as framework  # noqa: E402
from xframe.frameworks import jax_eager, jax_profile, traces, xla  # noqa: E402
from xframe.frameworks.traces import Event  # noqa: E402


@pytest.fixture(autouse=True)
def rate(monkeypatch):
    """What an event costs is not measured here, where others run."""
    monkeypatch.setattr(jax_profile, "cost_of_an_event", lambda: 1e-7)


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
    (profile,) = jax_profile.Profiler(lambda: None, jax_profile.of_program(SMALL, 2, hlo)).passes(1)
    assert [(k.name, k.start, k.end) for k in profile.kernels] == [("dot", 2.0, 6.0)]
    assert ("thread wake-up", 6.0, 7.0, "dispatch") in [(s.name, s.start, s.end, s.kind) for s in profile.host]
