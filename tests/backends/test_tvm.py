from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.lowering.networks import conv_data, conv_network, network
from xframe import artifact, planning, registry
from xframe.environment import cpu_device
from xframe.errors import NotHonoured, Unavailable, UsageError, XframeError
from xframe.lowering import pipeline
from xframe.types import ConvSite, Plan, SiteRecord

SITE = ConvSite(1, 16, (9, 9), 24, (3, 3), (1, 1), (1, 1, 1, 1))


@pytest.fixture
def backend(tmp_path, monkeypatch):
    monkeypatch.setenv("XFRAME_HOME", str(tmp_path / "home"))
    return registry.load(registry.BACKENDS, "tvm")


@pytest.fixture
def loaded(tmp_path):
    _, w, b = conv_data(SITE, 0)
    onnx.save(conv_network(SITE, w, b, True), tmp_path / "m.onnx")
    return artifact.load(tmp_path / "m.onnx")


def forced(loaded, lowering):
    return planning.plan(lowering, [s for _, s in loaded.conv_sites], cpu_device())


def outputs(executable, x):
    executable.bind([x])
    executable.step()
    executable.sync()
    return executable.fetch()[0]


@pytest.mark.parametrize("lowering", ["auto", *registry.defaults(registry.LOWERINGS)])
def test_compiled_then_cached(backend, loaded, tmp_path, lowering):
    x, w, _ = conv_data(SITE, 1)
    first = backend.compile(loaded, forced(loaded, lowering), "cpu", 2)
    again = backend.compile(loaded, forced(loaded, lowering), "cpu", 2)
    assert "compile" in first.seconds
    assert "compile" not in again.seconds
    assert np.array_equal(outputs(first, x), outputs(again, x))
    (folder,) = (tmp_path / "home" / "compiled").iterdir()
    assert sum(f.stat().st_size for f in (tmp_path / "home" / "parameters").iterdir()) >= w.nbytes
    assert (folder / "lib.so").stat().st_size < (1 << 20)
    assert [s.selected for s in again.sites] == ([] if lowering == "auto" else [lowering])
    first.close()


@pytest.mark.parametrize("changes", [{"target": "llvm -mcpu=core-avx2"}, {"error_budget": 1e-5}])
def test_what_else_a_plan_says_is_compiled_apart(backend, loaded, changes):
    x, _, _ = conv_data(SITE, 1)
    plan = forced(loaded, "winograd")
    usual, other = (backend.compile(loaded, p, "cpu", 2) for p in (plan, replace(plan, **changes)))
    assert "compile" in other.seconds
    assert (other.sites[0].detail, other.notes) != (usual.sites[0].detail, usual.notes)
    np.testing.assert_allclose(outputs(other, x), outputs(usual, x), atol=1e-4)


def test_a_foreign_target_is_noted(backend, loaded):
    executable = backend.compile(loaded, replace(Plan(), target="llvm -mcpu=x86-64"), "cpu", 1)
    assert executable.environment["target"] == "llvm -mcpu=x86-64"
    assert any("compiled for 'llvm -mcpu=x86-64', not for this machine's own" in note for note in executable.notes)


def stored(tmp_path):
    return {f.name: f.stat().st_mtime_ns for f in (tmp_path / "home" / "parameters").iterdir()}


def test_plans_share_the_parameters_that_are_equal(backend, loaded, tmp_path):
    """Compiled for another number of threads the code is another, the weights are not."""
    backend.compile(loaded, forced(loaded, "direct"), "cpu", 2)
    first = stored(tmp_path)
    backend.compile(loaded, forced(loaded, "direct"), "cpu", 1)
    assert len(list((tmp_path / "home" / "compiled").iterdir())) == 2
    assert stored(tmp_path) == first
    backend.compile(loaded, forced(loaded, "winograd"), "cpu", 2)
    assert len(stored(tmp_path)) > len(first)


def test_missing_parameters_are_made_again_and_damaged_ones_refused(backend, loaded, tmp_path):
    x, _, _ = conv_data(SITE, 1)
    right = outputs(backend.compile(loaded, forced(loaded, "direct"), "cpu", 2), x)
    largest = max((tmp_path / "home" / "parameters").iterdir(), key=lambda f: f.stat().st_size)
    largest.unlink()
    again = backend.compile(loaded, forced(loaded, "direct"), "cpu", 2)
    assert "compile" in again.seconds
    assert np.array_equal(outputs(again, x), right)
    whole = largest.read_bytes()
    for damaged in (whole[:-4], whole + b"more"):
        largest.write_bytes(damaged)
        with pytest.raises(XframeError, match=f"{largest.name} is damaged"):
            backend.compile(loaded, forced(loaded, "direct"), "cpu", 2)


def test_outputs_follow_inputs_and_stay(backend, loaded):
    executable = backend.compile(loaded, forced(loaded, "direct"), "cpu", 2)
    a, b = (conv_data(SITE, seed)[0] for seed in (1, 2))
    first = outputs(executable, a)
    kept = first.copy()
    assert not np.array_equal(first, outputs(executable, b))
    assert np.array_equal(first, kept)


def test_profile_ties_kernels_to_their_site(backend, loaded):
    executable = backend.compile(loaded, forced(loaded, "winograd"), "cpu", 2)
    outputs(executable, conv_data(SITE, 1)[0])
    kernels = executable.profile(1)[0].kernels
    mine = [k for k in kernels if k.site == SITE]
    roles = ["pad", "input", "product", "output"]
    assert [k.name for k in mine] == [f"conv1_winograd_{r}" for r in roles]
    assert [k.role for k in mine] == roles
    assert [k.kind for k in mine] == ["layout", "conv", "conv", "conv"]
    assert {k.layer for k in mine} == {name for name, _ in loaded.conv_sites}
    assert [k.algorithm for k in mine] == ["", *[f"winograd {executable.sites[0].detail}"] * 3]
    assert all(0 <= a.start <= a.end <= b.start for a, b in pairwise(kernels))


def test_a_profile_leaves_no_trace(backend, loaded):
    executable = backend.compile(loaded, forced(loaded, "direct"), "cpu", 2)
    x = conv_data(SITE, 1)[0]
    before = outputs(executable, x)
    first, second = executable.profile(1)[0].kernels, executable.profile(1)[0].kernels
    assert [k.name for k in first] == [k.name for k in second]
    assert np.array_equal(executable.fetch()[0], before)
    seen = []
    executable._machine["set_instrument"](lambda *args: seen.append(args))
    executable.step()
    assert seen  # so that none seen below means none called
    executable.profile(1)
    seen.clear()
    executable.step()
    assert not seen


def test_profile_of_equal_convolutions(backend, tmp_path):
    """Their weights differ; their kernels are the same, and run twice."""
    site = ConvSite(1, 16, (7, 7), 16, (3, 3), (1, 1), (1, 1, 1, 1))
    x, v, _ = conv_data(site, 0)
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["c"], kernel_shape=[3, 3], pads=[1] * 4),
        helper.make_node("Conv", ["c", "w"], ["d"], kernel_shape=[3, 3], pads=[1] * 4),
        helper.make_node("Relu", ["d"], ["y"]),
        helper.make_node("Conv", ["d", "v"], ["z"], kernel_shape=[3, 3], pads=[1] * 4),
    ]
    shape = (1, 16, 7, 7)
    model = network(nodes, {"x": shape}, {"y": shape, "z": shape}, {"v": v, "w": conv_data(site, 1)[1]})
    onnx.save(model, tmp_path / "m.onnx")
    loaded = artifact.load(tmp_path / "m.onnx")
    executable = backend.compile(loaded, forced(loaded, "fft"), "cpu", 2)
    outputs(executable, x)
    products = [k for k in executable.profile(1)[0].kernels if k.site == site and k.name.endswith("product")]
    assert [k.layer for k in products] == ["c", "d", "z"]


def test_a_kernel_that_did_not_run_is_not_honoured(backend, loaded):
    """Planted: the executable says Winograd, the kernels that run are direct ones."""
    executable = backend.compile(loaded, forced(loaded, "direct"), "cpu", 2)
    executable.sites = (SiteRecord(SITE, "conv1", "winograd", "winograd"),)
    outputs(executable, conv_data(SITE, 1)[0])
    with pytest.raises(NotHonoured, match="conv1"):
        executable.profile(1)


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU here")
def test_without_a_gpu(backend, loaded):
    with pytest.raises(Unavailable, match=r"device cuda(:0)? was asked for|it needs an NVIDIA GPU and its driver"):
        backend.compile(loaded, Plan(), "cuda:0", 2)


def test_no_such_device(backend, loaded):
    with pytest.raises(UsageError, match="not on 'rocm'"):
        backend.compile(loaded, Plan(), "rocm", 2)


def test_no_linker(backend, loaded, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(Unavailable, match=r"C\+\+ compiler"):
        backend.compile(loaded, Plan(), "cpu", 2)


def test_a_cache_that_can_not_be_written(backend, loaded, tmp_path):
    (tmp_path / "home").write_text("in the way")
    with pytest.raises(XframeError, match="XFRAME_HOME"):
        backend.compile(loaded, forced(loaded, "direct"), "cpu", 2)


def test_a_failed_build_leaves_nothing(backend, loaded, tmp_path, monkeypatch):
    class Full:
        def export_library(self, path):
            Path(path).write_text("a part of it")
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("xframe.lowering.pipeline.build", lambda *_: pipeline.Built(Full(), [], [], []))
    with pytest.raises(XframeError, match="No space left"):
        backend.compile(loaded, forced(loaded, "direct"), "cpu", 2)
    assert not list((tmp_path / "home" / "compiled").iterdir())
