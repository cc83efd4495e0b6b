"""Exports are made once, in a worker, and made again when anything they depend on changes."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from xframe import environments, exports, files, launch
from xframe.errors import ModelError, Unavailable, Unsupported, UsageError, XframeError
from xframe.registry import FRAMEWORKS, Row
from xframe.types import ModelSpec, layer

SPEC = ModelSpec("tiny", (3, 4, 4), (layer("relu1", "relu"),))


@pytest.fixture
def weights(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "worker"))
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "worker"))
    monkeypatch.setenv("XFRAME_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FAKE_COUNT_FILE", str(tmp_path / "count"))
    monkeypatch.setitem(FRAMEWORKS, "exports", Row("fakes:Exports", (), "none", ("alias",)))
    monkeypatch.setitem(FRAMEWORKS, "fails", Row("fakes:ExportFails", (), "none"))
    path = tmp_path / "weights.npz"
    np.savez(path, w=np.ones(3, "float32"))
    return path


@pytest.fixture
def isolated(weights, monkeypatch):
    """Registers a fake that has an environment of its own, which is this interpreter's."""
    variables = {"PYTHONPATH": str(Path(__file__).parent / "worker")}
    monkeypatch.setattr(launch.environments, "find", lambda name: environments.Built(sys.executable, variables))
    monkeypatch.setattr(exports.recipes, "digest", lambda name: "pins")

    def register(name):
        monkeypatch.setitem(FRAMEWORKS, "isolated", Row("fakes:" + name, (), "", environment="old"))

    return register


def test_a_neutral_graph_is_written_as_onnx_and_kept(weights, isolated):
    isolated("Isolated")
    made, seconds, cached = exports.export("isolated", SPEC, weights, 2, 1)
    assert (made.model, made.framework, made.opset, made.inputs[0].layout) == ("tiny", "isolated", 17, "NCHW")
    assert made.inputs[0].shape == (2, 3, 4, 4)
    assert seconds > 0
    assert not cached
    assert exports.export("isolated", SPEC, weights, 2, 1) == (made, 0.0, True)


def test_an_old_file_is_written_as_one_of_today(weights, isolated):
    isolated("Old")
    made, _, _ = exports.export("isolated", SPEC, weights, 3, 1)
    assert (made.opset, made.inputs[0].name, made.outputs[0].name) == (17, "input", "output")
    assert made.outputs[0].shape == (3, 3, 4, 4)


def test_a_graph_that_is_not_valid_leaves_nothing(weights, isolated):
    isolated("NoGraph")
    with pytest.raises(ModelError, match=r"the export of tiny is not valid ONNX: .*NoSuchOperator"):
        exports.export("isolated", SPEC, weights, 1, 1)
    assert not (files.home() / "exports").exists()


def test_exports_of_an_environment_depend_on_its_pins(weights, isolated, monkeypatch):
    isolated("Isolated")
    first = exports.key("isolated", SPEC, weights, 1)
    monkeypatch.setattr(exports.recipes, "digest", lambda name: "other pins")
    assert exports.key("isolated", SPEC, weights, 1) != first


def test_where_an_environment_is_not_built_an_export_says_what_to_run(weights, isolated, monkeypatch):
    isolated("Isolated")
    monkeypatch.undo()
    monkeypatch.setenv("XFRAME_ENVIRONMENTS", str(weights.parent))
    with pytest.raises(Unavailable, match="run xframe env create caffe"):
        exports.export("caffe", SPEC, weights, 1, 1)


@pytest.mark.parametrize(("batch", "found"), [(None, 7), (2, 2)])
def test_files_of_a_frameworks_own_are_converted(weights, isolated, tmp_path, batch, found):
    isolated("Isolated")
    (tmp_path / "net.shape").write_text("[3, 5]")
    made = exports.convert("isolated", [tmp_path / "net.shape"], tmp_path / "out" / "net.onnx", batch)
    assert made.path == str(tmp_path / "out" / "net.onnx")
    assert (made.model, made.framework, made.inputs[0].shape) == ("net", "isolated", (found, 3, 5))
    with pytest.raises(XframeError, match="FileNotFoundError"):
        exports.convert("isolated", [tmp_path / "missing"], tmp_path / "other.onnx")
    assert not (tmp_path / "other.onnx").exists()


def count(weights):
    return len((weights.parent / "count").read_text())


def test_second_export_comes_from_the_cache(weights):
    first, seconds, cached = exports.export("exports", SPEC, weights, 2, 1)
    assert (first.model, first.framework, first.framework_version) == ("tiny", "exports", "1.0")
    assert first.inputs[0].shape == (2, 3, 4, 4)
    assert first.inputs[0].layout == "NCHW"
    assert seconds > 0
    assert not cached
    assert exports.export("alias", SPEC, weights, 2, 1) == (first, 0.0, True)
    assert count(weights) == 1
    assert Path(first.path).parent == files.home() / "exports"


def test_each_dependency_makes_another_export(weights, monkeypatch):
    keys = {exports.key("exports", SPEC, weights, 1), exports.key("exports", SPEC, weights, 2)}
    keys.add(exports.key("exports", replace(SPEC, seed=1), weights, 1))
    keys.add(exports.key("fails", SPEC, weights, 1))
    np.savez(weights, w=np.zeros(3, "float32"))
    keys.add(exports.key("exports", SPEC, weights, 1))
    monkeypatch.setitem(FRAMEWORKS, "exports", Row("fakes:Exports", ("numpy",), "none"))
    keys.add(exports.key("exports", SPEC, weights, 1))
    monkeypatch.setattr(exports, "_sources", lambda row: "changed")
    keys.add(exports.key("exports", SPEC, weights, 1))
    assert len(keys) == 7


def test_a_cached_export_is_not_parsed_again(weights, monkeypatch):
    first, _, _ = exports.export("exports", SPEC, weights, 1, 1)
    loaded = []
    whole = exports.artifact.load
    monkeypatch.setattr(exports.artifact, "load", lambda path: loaded.append(path) or whole(path))
    assert exports.export("exports", SPEC, weights, 1, 1) == (first, 0.0, True)
    assert not loaded


@pytest.mark.parametrize("description", [None, "", "{}", '{"sha256": "another"}', "[1]", "null"])
def test_a_description_of_something_else_is_not_believed(weights, description):
    first, _, _ = exports.export("exports", SPEC, weights, 1, 1)
    beside = Path(first.path).with_suffix(".json")
    if description is None:
        beside.unlink()
    else:
        beside.write_text(description)
    assert exports.export("exports", SPEC, weights, 1, 1) == (first, 0.0, True)
    assert beside.read_text() not in (description, "")
    assert count(weights) == 1


def test_several_are_made_at_once_and_come_in_any_order(weights, monkeypatch):
    for name in ("second", "third"):
        monkeypatch.setitem(FRAMEWORKS, name, Row("fakes:Exports", (), "none"))
    started = []

    class Recorded(launch.Worker):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            started.append(self)

    monkeypatch.setattr(launch, "Worker", Recorded)
    given = [exports.Export(name, SPEC, weights, 1, 1) for name in ("exports", "fails", "second", "third")]
    with exports.Exports(given) as under_way:
        assert len(started) == exports.AT_ONCE
        with pytest.raises(Unsupported, match="lrn has no counterpart"):
            under_way.result("fails")
        assert len(started) == exports.AT_ONCE + 1
        assert under_way.result("second")[0].framework == "second"
        assert not all(w.dead for w in started)
    assert len(started) == 4
    assert all(w.dead for w in started)


def test_broken_cache_is_made_again(weights, caplog):
    first, _, _ = exports.export("exports", SPEC, weights, 1, 1)
    Path(first.path).write_bytes(b"cut short")
    again, _, cached = exports.export("exports", SPEC, weights, 1, 1)
    assert again == first
    assert not cached
    assert "exporting again" in caplog.text
    assert count(weights) == 2


def test_refusal_comes_through_and_leaves_nothing(weights):
    with pytest.raises(Unsupported, match="lrn has no counterpart"):
        exports.export("fails", SPEC, weights, 1, 1)
    assert not (files.home() / "exports").exists()


def test_unknown_framework_has_close_names(weights):
    with pytest.raises(UsageError, match="did you mean"):
        exports.export("export", SPEC, weights, 1, 1)
