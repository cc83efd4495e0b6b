"""The ONNX Runtime backend on small graphs."""

import itertools
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.lowering import zoo
from xframe import artifact
from xframe.backends import ort
from xframe.backends.ort_session import Settings
from xframe.errors import Unsupported, XframeError
from xframe.types import OPTIMIZATIONS, ConvSite, Plan

AUTO = Plan()
SHAPE = (1, 3, 9, 9)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """conv 3x3 - relu - conv 3x3 (two groups) - add."""
    rng = np.random.default_rng(0)
    weights = {"w1": rng.standard_normal((8, 3, 3, 3)), "w2": rng.standard_normal((16, 4, 3, 3))}
    inits = [numpy_helper.from_array(w.astype("float32"), n) for n, w in weights.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="c1", pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"], name="r1"),
        helper.make_node("Conv", ["b", "w2"], ["c"], name="c2", group=2),
        helper.make_node("Add", ["c", "c"], ["y"], name="add"),
    ]
    path = tmp_path_factory.mktemp("ort") / "m.onnx"
    save(nodes, path, SHAPE, (1, 16, 7, 7), inits)
    return artifact.load(path)


def save(nodes, path, in_shape, out_shape, inits=(), **opsets):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, in_shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, out_shape)],
        list(inits),
    )
    imports = [helper.make_opsetid("", 17), *(helper.make_opsetid(d, v) for d, v in opsets.items())]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=9), path)


@pytest.mark.parametrize("label", [*OPTIMIZATIONS, "auto"])
def test_a_plans_label_is_the_optimisation_level(model, label):
    built = ort.OnnxRuntime().compile(model, Plan(label), "cpu", 1)
    wanted = "DISABLE_ALL" if label == "disabled" else f"ENABLE_{'ALL' if label == 'auto' else label.upper()}"
    assert built.environment["optimization_level"] == f"ORT_{wanted}"
    built.bind([feed(0)])
    built.step()
    kernels = {k.name.split()[0] for k in built.profile(1)[0].kernels}
    assert ("Relu" in kernels) == (label in ("disabled", "basic"))  # else it is in the convolution
    built.close()


@pytest.fixture
def executable(model):
    built = ort.OnnxRuntime().compile(model, AUTO, "cpu", 1)
    yield built
    built.close()


def feed(seed):
    return np.random.default_rng(seed).standard_normal(SHAPE).astype("float32")


def test_outputs_are_those_of_a_plain_session(executable, model):
    plain = onnxruntime.InferenceSession(model.path, providers=["CPUExecutionProvider"])
    for seed in (1, 2):
        x = feed(seed)
        executable.bind([x])
        executable.step()
        executable.sync()
        (y,) = executable.fetch()
        np.testing.assert_allclose(y, plain.run(None, {"x": x})[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", zoo.NAMES)
def test_real_networks_give_the_output_shipped_beside_them(name):
    loaded = artifact.load(zoo.path(name))
    built = ort.OnnxRuntime().compile(loaded, AUTO, "cpu", 2)
    built.bind([np.random.default_rng(0).standard_normal(i.shape, dtype=np.float32) for i in loaded.inputs])
    built.step()
    built.sync()
    np.testing.assert_allclose(built.fetch()[0], zoo.expected(name), rtol=1e-3, atol=1e-6)
    built.close()


def test_feeds_are_copied_and_outputs_are_copies(executable):
    x = feed(1)
    executable.bind([x])
    x[:] = 0  # what the caller does with its array later is its own affair
    executable.step()
    (first,) = executable.fetch()
    assert np.abs(first).max() > 0
    kept = first.copy()
    executable.bind([feed(2)])
    executable.step()
    assert np.array_equal(first, kept)


def test_environment_says_what_ran(executable):
    facts = executable.environment
    assert facts["providers"] == ["CPUExecutionProvider"]
    assert facts["intra_op_threads"] == 1
    assert facts["onnxruntime"] == onnxruntime.__version__
    assert tuple(executable.sites) == ()


def test_profile_joins_convolutions_to_sites(executable, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    executable.bind([feed(1)])
    kernels = executable.profile(1)[0].kernels
    assert [k.site for k in kernels if k.site] == [site for _, site in model.conv_sites]
    assert all(0 <= k.start <= k.end for k in kernels)
    assert all(a.end <= b.start + 1e-6 for a, b in itertools.pairwise(kernels))
    assert any(k.name.startswith("Add") for k in kernels)
    assert list(tmp_path.iterdir()) == []


def test_the_timed_session_is_made_anew_with_each_profile(executable, monkeypatch):
    made, opened = [], Settings.open
    monkeypatch.setattr(Settings, "open", lambda *args: made.append(opened(*args)) or made[-1])
    executable.bind([feed(1)])
    executable.step()
    (before,) = executable.fetch()
    executable.profile(2)
    (after,) = executable.fetch()
    assert np.array_equal(after, before)
    profiled, timed = (bound.session.get_session_options().enable_profiling for bound in made)
    assert (profiled, timed) == (True, False)
    executable.bind([feed(2)])
    executable.step()
    assert np.array_equal(made[1].fetch()[0], executable.fetch()[0])
    assert not np.array_equal(executable.fetch()[0], before)


@pytest.mark.parametrize("opens", [0, 1], ids=["the one that profiles", "the new one"])
def test_where_a_session_can_not_be_opened_the_timed_one_stays(executable, monkeypatch, opens):
    given, opened = [opens], Settings.open

    def sparing(*args):
        if not given[0]:
            raise XframeError("no room")
        given[0] -= 1
        return opened(*args)

    executable.bind([feed(1)])
    executable.step()
    (before,) = executable.fetch()
    timed = executable._bound
    monkeypatch.setattr(Settings, "open", sparing)
    with pytest.raises(XframeError, match="no room"):
        executable.profile(1)
    assert executable._bound is timed
    executable.step()
    assert np.array_equal(executable.fetch()[0], before)


def test_profile_before_bind_is_refused(executable):
    with pytest.raises(XframeError, match="after bind"):
        executable.profile(1)


def test_wrong_number_of_feeds(executable):
    with pytest.raises(XframeError, match="has inputs x; 2 were given"):
        executable.bind([feed(1), feed(2)])


@pytest.mark.parametrize("plan", [Plan("winograd"), Plan("auto", ((ConvSite(1, 3, (9, 9), 8, (3, 3)), "gemm"),))])
def test_forced_lowerings_are_refused(model, plan):
    with pytest.raises(Unsupported, match="picks its convolution algorithm itself and has no switch"):
        ort.OnnxRuntime().compile(model, plan, "cpu", 1)


def test_a_level_can_be_a_switch_and_a_plans_label_comes_first(model):
    built = ort.OnnxRuntime().compile(model, AUTO, "cpu", 1, {"graph_optimization_level": "basic"})
    assert built.environment["optimization_level"] == "ORT_ENABLE_BASIC"
    built.close()
    built = ort.OnnxRuntime().compile(model, Plan("disabled"), "cpu", 1, {"graph_optimization_level": "basic"})
    assert built.environment["optimization_level"] == "ORT_DISABLE_ALL"
    built.close()


def test_unknown_operator_is_one_line(model, tmp_path, capfd):
    path = tmp_path / "odd.onnx"
    save([helper.make_node("Mystery", ["x"], ["y"], domain="odd")], path, SHAPE, SHAPE, odd=1)
    with pytest.raises(Unsupported) as e:
        ort.OnnxRuntime().compile(replace(model, path=str(path)), AUTO, "cpu", 1)
    assert "Mystery" in str(e.value)
    assert "\n" not in str(e.value)
    assert capfd.readouterr() == ("", "")


def test_broken_file_fails_in_words(model, tmp_path):
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"not a model")
    with pytest.raises(XframeError, match="can't load"):
        ort.OnnxRuntime().compile(replace(model, path=str(path)), AUTO, "cpu", 1)
