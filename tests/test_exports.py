"""Exports are made once, in a worker, and made again when anything they depend on changes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from xframe import exports, files, launch
from xframe.errors import Unsupported, UsageError
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
