"""cuDNN's graph interface on the stand-in, which has engines of every kind: see ``fake_cudnn_graph.h``."""

import json

import numpy as np
import pytest
from onnx import helper

from tests.backends.test_cudnn import SITE, forced, network, right
from xframe import zoo
from xframe.analysis.algorithms import lowering
from xframe.backends import cudnn_device, cudnn_engines, cudnn_graph, cudnn_graph_convolution, cudnn_rounding
from xframe.backends.cudnn import Cudnn
from xframe.errors import Unsupported, XframeError
from xframe.types import ConvSite

FASTEST, NHWC, WINOGRAD, FFT, PLAIN = "graph_fastest", "graph_nhwc", "graph_winograd", "graph_fft", "graph_plain"


def compiled(model, name, **options):
    return Cudnn().compile(model, forced(model, name), "cuda", 1, options)


def ran(fake):
    """(engine, knob) of each convolution that ran, in their order."""
    rows = [dict(p.split("=") for p in line.split()[1:]) for line in fake.log() if line.startswith("graph engine")]
    return [(int(r["engine"]), int(r["knob"])) for r in rows]


def table(executable, site="conv1"):
    """(engine, *knobs) -> what the row tells of it."""
    rows = json.loads(json.dumps(executable.environment["algorithms"][site]))
    return {(row["engine"], *row["knobs"]): row for row in rows}


def test_the_fastest_engine_of_each_site_is_what_runs(fake, model):
    executable = compiled(model, FASTEST)
    right(executable, model)
    assert ran(fake)[-2:] == [(3, 0), (5, 1)]
    first, second = executable.sites
    assert (first.requested, first.selected, second.selected) == (FASTEST, WINOGRAD, PLAIN)
    assert first.detail == "cudnn graph engine 3: winograd, 4x4 tiles, workspace 512 bytes"
    assert second.detail == "cudnn graph engine 5: no transform, nondeterministic (k2=1), workspace 128 bytes"
    assert executable.environment["workspace_bytes"] == {"conv1": 512, "conv2": 128}
    (profile,) = executable.profile(1)
    words = [k.algorithm for k in profile.kernels if k.kind == "conv"]
    assert {k.name for k in profile.kernels if k.kind == "conv"} == {"cudnnBackendExecute"}
    assert words == [s.detail.partition(", workspace")[0] for s in executable.sites]
    assert [lowering(w) for w in words] == ["winograd", None]
    executable.close()


def test_the_compiler_of_engines_is_loaded_where_there_is_one(fake, model):
    """Some engines are compiled at run time; the others are there without it."""
    compiled(model, PLAIN).close()
    assert set(fake.compilers) == {"nvrtc"}


def test_a_row_has_all_that_was_measured_and_all_that_was_said(fake, model):
    executable = compiled(model, FASTEST)
    told = table(executable)
    seconds = {key: row["seconds"] for key, row in told.items() if row["seconds"] is not None}
    milliseconds = {
        (5, "k2=0"): 5,
        (5, "k2=1"): 3,
        (3,): 2,
        (0,): 6,
        (0, "k13=0"): 6,
        (0, "k13=2"): 5.5,
        (2,): 4,
        (7,): 7,
    }
    expected = {key: ms * 1e-3 for key, ms in milliseconds.items()}
    assert seconds == pytest.approx(expected, rel=1e-4)
    assert [key[0] for key in told] == [5, 1, 3, None, 0, 2, 4, 6, 7, 5, 0, 0, 0]  # the first of each before any second
    assert (told[None,]["source"], told[None,]["refused"][-24:]) == ("heuristics b", "no model for this device")
    assert (told[3,]["notes"], told[3,]["kind"]) == (["WINOGRAD", "WINOGRAD_TILE_4x4"], WINOGRAD)
    assert told[3,]["source"] == told[5, "k2=0"]["source"] == "heuristics a"
    assert (told[0,]["source"], told[2,]["source"], told[2,]["kind"]) == ("heuristics fallback", "its number", FFT)
    assert told[7,]["notes"] == ["STRICT_NAN_PROP", "note 12"]
    assert told[1,]["refused"] == "left out, as float32 is to stay float32: tensor cores"
    assert told[1,]["compiled_at_run_time"] is True
    assert told[4,]["refused"].endswith("(3007): CUDNN_STATUS_NOT_SUPPORTED_SHAPE, not for this architecture")
    assert (
        told[6,]["refused"]
        == "CUDNN_STATUS_NOT_SUPPORTED (3000): CUDNN_STATUS_NOT_SUPPORTED_SHAPE, no engine for this window"
    )
    assert (told[6,]["notes"], told[6,]["kind"]) == (None, None)
    assert told[0, "k13=2"]["source"] == cudnn_engines.BY_KNOBS
    assert told[0, "k13=4"]["refused"].endswith("no kernel has this tile")
    assert "3x3 window" in table(executable, "conv2")[3,]["refused"]
    executable.close()


@pytest.mark.parametrize(("name", "engine"), [(WINOGRAD, 3), (FFT, 2)])
def test_a_kind_is_refused_with_what_was_said_of_each_engine(fake, model, name, engine):
    """conv2 has a stride of three, which neither transform can do."""
    with pytest.raises(Unsupported, match=rf"refuses {name} at 1 of 2 .*none of its 8 engines is {name}") as refused:
        compiled(model, name)
    assert "of another kind, graph_plain" in str(refused.value)
    assert f"{engine}" in str(refused.value)
    assert fake.live() == 0
    executable = compiled(model, name, fallback=PLAIN)
    right(executable, model)
    assert ran(fake)[-2:] == [(engine, 0), (5, 1)]
    assert [s.selected for s in executable.sites] == [name, PLAIN]
    refused = executable.environment["refusals"]["conv2"]
    assert "of another kind, graph_plain" in refused
    brief = f"none of its 8 engines is {name} and can do it"
    assert refused.startswith(f"{brief} (")
    assert f"conv2: graph_plain, because cuDNN refuses {name}: {brief}" in executable.notes
    executable.close()


def test_the_legacy_interface_may_be_the_fallback_and_the_other_way_round(fake, model):
    for name, other, selected in ((FFT, "gemm", [FFT, "gemm"]), ("fft", PLAIN, ["fft", PLAIN])):
        executable = compiled(model, name, fallback=other)
        right(executable, model)
        assert [s.selected for s in executable.sites] == selected
        executable.close()


def test_tensor_cores_are_used_where_they_are_allowed(fake, model):
    executable = compiled(model, FASTEST, use_tf32="on")
    right(executable, model)
    assert ran(fake)[-2:] == [(1, 0), (1, 0)]
    assert executable.sites[0].detail.startswith("cudnn graph engine 1: no transform, tensor cores")
    assert {s.rounding.operands for s in executable.sites} == {2.0**-11}
    executable.close()


def test_what_is_let_in_has_a_bound_and_what_has_none_stays_out():
    for note in cudnn_engines.NARROW:
        engine = cudnn_engines.Engine(1, "its number", notes=(note,))
        assert engine.barred(tf32=False).startswith("left out, as float32 is to stay float32: ")
        assert bool(engine.barred(tf32=True)) == (cudnn_rounding.of_notes((note,), SITE).operands == 0), note
    for note in (cudnn_engines.INPUTS, cudnn_engines.SUMS):  # also beside tensor cores
        assert cudnn_engines.Engine(1, "its number", notes=("TENSOR_CORE", note)).barred(tf32=True), note
    assert cudnn_engines.Engine(1, "its number", notes=("NONDETERMINISTIC",)).barred(tf32=False) == ""


def test_an_engine_that_was_timed_without_a_gate_says_so(fake, model, monkeypatch):
    for longest, gated in ((80, True), (40, False)):
        monkeypatch.setattr(cudnn_device, "GATE_LONGEST", longest)
        fake.gate(41)
        executable = compiled(model, PLAIN)
        timed = [row["gated"] for row in table(executable).values() if row["seconds"]]
        assert timed
        assert set(timed) == {gated}
        assert table(executable)[4,]["gated"] is None
        executable.close()


@pytest.mark.parametrize(
    ("limit", "value", "words"),
    [("MOST", 1, "1 others were measured"), ("WITHIN", 0.0, "0 s went into the 1 before")],
)
def test_a_search_ends_after_so_many_and_after_so_long(fake, model, monkeypatch, limit, value, words):
    """Not before one has run, however long that took."""
    monkeypatch.setattr(cudnn_graph_convolution, limit, value)
    executable = compiled(model, FASTEST)
    assert {key for key, row in table(executable).items() if row["seconds"]} == {(5, "k2=0")}
    assert table(executable)[0,]["refused"] == f"left out: {words}"
    executable.close()


def test_an_engine_with_more_settings_than_that_has_its_defaults(fake, model, monkeypatch):
    monkeypatch.setattr(cudnn_engines, "SETTINGS", 2)
    executable = compiled(model, FASTEST)
    assert [key for key in table(executable) if key[0] == 0] == [(0,)]
    executable.close()


def test_what_does_not_tell_its_knobs_has_its_defaults(fake, model, monkeypatch):
    monkeypatch.setitem(cudnn_graph.ATTRIBUTES, "ENGINE_KNOB_INFO", (1399, "BACKEND_DESCRIPTOR"))
    executable = compiled(model, FASTEST)
    assert table(executable)[0,]["seconds"] == pytest.approx(6e-3)
    executable.close()


def test_convolutions_that_are_alike_are_measured_once(fake, tmp_path):
    same = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"], "one", **same)]
    nodes.append(helper.make_node("Conv", ["a", "v"], ["y"], "two", **same))
    model = network(tmp_path, nodes, {"w": (3, 3, 3, 3), "v": (3, 3, 3, 3)}, (1, 3, 6, 6), (1, 3, 6, 6))
    executable = compiled(model, WINOGRAD)
    assert len(ran(fake)) == 1 + cudnn_graph_convolution.RUNS
    right(executable, model)
    assert list(executable.environment["algorithms"]) == ["one"]
    assert executable.sites[0].detail == executable.sites[1].detail
    executable.close()


def test_groups_dilation_and_uneven_padding_are_right(fake, tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "uneven", pads=[0, 1, 1, 2], strides=[2, 1]),
        helper.make_node("Conv", ["a", "g", "b"], ["c"], "groups", pads=[1, 1, 1, 1], group=2),
        helper.make_node("Conv", ["c", "d"], ["y"], "dilated", dilations=[2, 1], pads=[2, 0, 2, 0], strides=[1, 2]),
    ]
    weights = {"w": (4, 2, 2, 3), "g": (6, 2, 3, 3), "b": (6,), "d": (2, 6, 3, 2)}
    model = network(tmp_path, nodes, weights, (2, 2, 8, 7), (2, 2, 4, 4))
    executable = compiled(model, PLAIN)
    right(executable, model, 1)
    assert {engine for engine, _ in ran(fake)[-3:]} == {5}
    executable.close()


def test_a_step_may_be_one_graph_of_cuda(fake, model):
    executable = compiled(model, FASTEST, cuda_graph="on")
    for seed in (0, 1):
        right(executable, model, seed)
    assert ran(fake)[-2:] == [(3, 0), (5, 1)]
    executable.close()


def test_an_engine_without_memory_is_left_out(fake, model):
    fake.limit(1 << 19)
    executable = compiled(model, FASTEST)
    assert "out of memory" in table(executable)[7,]["refused"]
    executable.close()


@pytest.mark.parametrize("function", ["cudnnBackendExecute", "cudnnBackendFinalize", "cudnnBackendGetAttribute"])
def test_a_device_that_is_lost_is_an_error(fake, model, function):
    fake.fail(function, 5000)
    fake.fail("cudaStreamSynchronize", 700)
    with pytest.raises(XframeError, match=f"{function} failed: CUDNN_STATUS_EXECUTION_FAILED") as error:
        compiled(model, FASTEST, fallback="gemm")
    assert not isinstance(error.value, Unsupported)
    assert fake.live() == 0


@pytest.mark.parametrize("status", [4001, 1008, 5000])
def test_an_engine_that_can_not_be_had_costs_no_other_one(fake, model, status):
    fake.fail("cudnnBackendExecute", status)
    with pytest.raises(Unsupported, match=rf"none of its 8 engines is graph_fastest and can do it .*\({status}\)"):
        compiled(model, FASTEST)
    assert fake.live() == 0


def test_a_graph_that_is_refused_is_a_refusal(fake, model):
    fake.fail("cudnnBackendFinalize", 3001)
    with pytest.raises(Unsupported, match=r"refuses graph_plain at 2 of 2 .*\(3001\)"):
        compiled(model, PLAIN)
    assert fake.live() == 0


def test_an_error_in_a_step_is_raised(fake, model):
    executable = compiled(model, PLAIN)
    executable.bind([zoo.inputs(i.shape, 0) for i in model.inputs])
    fake.fail("cudnnBackendExecute", 5000)
    with pytest.raises(XframeError, match="cudnnBackendExecute failed"):
        executable.step()
    executable.close()


def test_notes_tell_how_an_engine_rounds():
    plain = cudnn_rounding.of_notes((), SITE)
    assert (plain.length, plain.growth, plain.operands) == (SITE.reduction, 1, 0)
    tiles = [cudnn_rounding.of_notes(("WINOGRAD", f"WINOGRAD_TILE_{n}x{n}"), SITE) for n in (4, 6)]
    assert [t.reach for t in tiles] == [(3, 3), (5, 5)]
    assert 1 < tiles[0].growth < tiles[1].growth
    assert cudnn_rounding.of_notes(("WINOGRAD",), SITE) == tiles[1]  # the worst
    wide = ConvSite(1, 64, (28, 28), 64, (5, 5), pads=(2, 2, 2, 2))
    for notes in (("WINOGRAD_TILE_13x13",), ("WINOGRAD",)):
        assert cudnn_rounding.of_notes(notes, wide) == cudnn_rounding.of_algorithm("winograd_nonfused", wide)
        assert cudnn_rounding.of_notes(notes, wide).reach == (8, 8)
    assert cudnn_rounding.of_notes(("FFT",), SITE) == cudnn_rounding.of_algorithm("fft", SITE)
    assert cudnn_rounding.of_notes(("TENSOR_CORE",), SITE).operands == 2.0**-11
    assert np.isclose(
        cudnn_rounding.of_notes(("WINOGRAD_TILE_4x4", "TENSOR_CORE"), SITE).operands, tiles[0].growth * 2.0**-11
    )


def test_with_channels_last_the_network_is_as_it_is_between_changes_of_layout(fake, model):
    executable = compiled(model, NHWC)
    for seed in (0, 1):
        right(executable, model, seed)
    steps = fake.log()[-len(executable.profile(1)[0].kernels) :]
    assert [line for line in steps if line.startswith("graph")] == [
        "graph engine=3 knob=0 last=1", "graph engine=5 knob=1 last=1",
    ]  # fmt: skip
    kernels = executable.profile(1)[0].kernels
    names = [(k.kind, k.role) for k in kernels if k.layer == "conv1"]
    assert names == [
        ("layout", "channels"), ("conv", "convolution"), ("layout", "channels"), ("elementwise", "bias")
    ]  # fmt: skip
    assert [k.algorithm for k in kernels if k.kind == "conv"] == [
        "cudnn graph engine 3, channels last: winograd, 4x4 tiles",
        "cudnn graph engine 5, channels last: no transform, nondeterministic (k2=1)",
    ]
    assert [s.selected for s in executable.sites] == [WINOGRAD, PLAIN]
    assert table(executable)[3,]["layout"] == "NHWC"
    executable.close()


def test_convolutions_that_are_alike_with_channels_last_have_their_own_weights(fake, tmp_path):
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"], "one", pads=[1, 1, 1, 1], group=2)]
    nodes.append(helper.make_node("Conv", ["a", "v"], ["y"], "two", pads=[1, 1, 1, 1], group=2))
    model = network(tmp_path, nodes, {"w": (4, 2, 3, 3), "v": (4, 2, 3, 3)}, (2, 4, 5, 6), (2, 4, 5, 6))
    executable = compiled(model, NHWC, cuda_graph="on")
    right(executable, model)
    assert list(executable.environment["algorithms"]) == ["one"]
    executable.close()


def test_no_memory_for_channels_last_is_a_refusal(fake, model):
    executable = compiled(model, PLAIN)
    executable.close()
    fake.limit(executable.environment["device_bytes"] + 100)
    with pytest.raises(Unsupported, match=r"refuses graph_nhwc at 2 of 2 .*out of memory"):
        compiled(model, NHWC)
    assert fake.live() == 0


def test_what_is_slow_is_not_run_again(fake, model, monkeypatch):
    """Engine 7 takes 7 ms, where one of 2 ms was seen at conv1, and none below 5 ms at conv2."""
    monkeypatch.setattr(cudnn_graph_convolution, "LONG", 0.0)
    executable = compiled(model, FASTEST)
    often = 1 + cudnn_graph_convolution.RUNS
    assert [engine for engine, _ in ran(fake)].count(7) == 2 + often
    executable.close()


def test_the_lowering_of_a_kind_is_told_from_its_name():
    assert [lowering(name) for name in (FASTEST, NHWC, PLAIN, WINOGRAD, FFT)] == [
        *(None, None, None, "winograd", "fft")
    ]
