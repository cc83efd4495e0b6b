"""Registered networks of frameworks that run in environments of their own, checked through their workers."""

import sys
from pathlib import Path

import numpy as np
import pytest
from small_models import DIFFERENT, EQUIVALENT, said

from tests.worker import fakes
from xframe import environments, exports, launch, zoo
from xframe.check.api import check_equivalence
from xframe.check.isolated import Isolated
from xframe.check.subjects import expand
from xframe.equivalence.result import State
from xframe.errors import Unavailable, Unsupported, WorkerDied
from xframe.registry import FRAMEWORKS, Row

#: Differentiated by every framework, and small.
MODEL = """
from xframe.types import ModelSpec, layer

SPEC = ModelSpec("small", (3, 9, 7), (
    layer("conv1", "conv", out=4, kernel=3, pads=1, stride=2), layer("relu1", "relu"),
    layer("pool1", "maxpool", kernel=2), layer("norm1", "lrn", size=3, alpha=0.5, beta=0.75, bias=2.0),
    layer("conv2", "conv", out=6, kernel=1, groups=2),
    layer("flatten", "flatten"), layer("fc", "fc", out=5),
))
"""
LEVELS = ("signature", "normal form", "numerics", "gradients")


@pytest.fixture
def small(monkeypatch, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "small.py").write_text(MODEL)
    monkeypatch.setenv("XFRAME_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("XFRAME_HOME", str(tmp_path / "home"))
    return zoo.spec("small")


@pytest.fixture
def fake(monkeypatch, small):
    """Registers a fake as a framework whose environment is this interpreter's; the live network."""

    def register(name):
        variables = {"PYTHONPATH": str(Path(fakes.__file__).parent)}
        monkeypatch.setattr(launch.environments, "find", lambda _: environments.Built(sys.executable, variables))
        monkeypatch.setattr(exports.recipes, "digest", lambda _: "pins")
        monkeypatch.setitem(FRAMEWORKS, "fake", Row("fakes:" + name, (), "", opt_in=True, environment="old"))
        return Isolated("fake", small, zoo.weights_file(small), 1)

    return register


def test_they_are_equivalent_to_pytorch_and_so_are_their_gradients(small):
    """All that are built, in one check, which exports and differentiates PyTorch's once."""
    pytest.importorskip("torch")
    names, missing = ["pytorch"], []
    for name, row in FRAMEWORKS.items():
        if row.environment:
            try:
                environments.find(row.environment)
                names.append(name)
            except Unavailable as e:
                missing.append(str(e))
    subjects = [f"small@{name}" for name in names]
    if len(subjects) > 1:
        check = check_equivalence(subjects, levels=LEVELS, runners=("native", "ort"), count=1)
        assert check.state is EQUIVALENT, said(check)
        assert [c.name for c in check.comparisons] == subjects[1:]
        assert all([v.state for v in c.levels] == [State.EQUIVALENT] * 4 for c in check.comparisons)
        assert [(r.subject, r.state) for r in check.runs if r.runner == "native"] == [
            (subject, State.EQUIVALENT) for subject in subjects
        ]
    if missing:
        pytest.skip("; ".join(missing))


def test_one_worker_runs_and_differentiates_and_ends_with_its_owner(fake):
    live = fake("Isolated")
    assert live.kind == "fake network"
    assert live.shapes() == [(1, 3, 9, 7)]
    x = np.ones((1, 3, 9, 7), np.float32)
    np.testing.assert_array_equal(live.run([x])[0], 3 * x)
    worker = live._worker
    live.place({"scale": np.ones(1, np.float32)})
    inputs, weights = live.gradients([x], [2 * x])
    np.testing.assert_array_equal(inputs[0], 6 * x)
    np.testing.assert_array_equal(weights["scale (changed)"], [2 * x.size])  # no weight of the spec is of that name
    np.testing.assert_array_equal(live.run([2 * x])[0], 6 * x)
    assert live._worker is worker
    assert not worker.dead
    del live
    assert worker.dead
    assert not Path(worker.place("")).exists()


def test_after_a_crash_there_is_another_worker(fake):
    live = fake("Crash")
    x = np.ones((1, 3, 9, 7), np.float32)
    for _ in range(2):
        with pytest.raises(WorkerDied, match="killed by SIGABRT"):
            live.run([x])


def test_what_natively_is_something_else_is_told(fake):
    """Its export is the product that it computes, with another number of outputs than the spec: held against itself."""
    fake("Isolated")
    check = check_equivalence(["small@fake"], runners=("native",), count=1)
    assert [(r.runner, r.state) for r in check.runs] == [("native", State.EQUIVALENT)]
    fake("Shifted")
    check = check_equivalence(["small@fake"], runners=("native",), count=1)
    assert check.state is DIFFERENT, said(check)


def test_it_exports_as_a_registered_model_only(fake):
    with pytest.raises(Unsupported, match="exported as a registered model: small@fake"):
        fake("Isolated").export([])


def test_all_stands_for_every_framework(small):
    every = expand(["small@all"])
    assert every[:6] == [f"small@{f}" for f in ("pytorch", "tensorflow", "jax", "caffe", "cntk", "theano")]
    assert expand(["small:ALL", "x.onnx"]) == ["small:ALL", "x.onnx"]
    assert expand(["x.onnx", "small:all"]) == ["x.onnx", *every]
    assert expand(["nothing@all"]) == ["nothing@all"]
    assert expand(["small"]) == every[:3]
