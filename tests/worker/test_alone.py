"""Frameworks can't be imported within the block, and can be again after it."""

import importlib
import sys
import types

import pytest

from xframe.registry import FRAMEWORKS, Row
from xframe.worker.alone import without_frameworks


@pytest.fixture
def frameworks(monkeypatch, tmp_path):
    """Two: ``wanted_here`` was imported before, ``unwanted_here`` can be."""
    (tmp_path / "unwanted_here.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "wanted_here", types.ModuleType("wanted_here"))
    monkeypatch.setitem(FRAMEWORKS, "fake", Row("fakes:Fine", ("wanted_here", "unwanted_here"), "none"))
    yield
    sys.modules.pop("unwanted_here", None)


def test_only_what_was_imported_before_can_be(frameworks):
    with without_frameworks():
        importlib.import_module("wanted_here")
        with pytest.raises(ImportError, match="unwanted_here"):
            importlib.import_module("unwanted_here")
    importlib.import_module("unwanted_here")
    with without_frameworks():
        importlib.import_module("unwanted_here")


def test_an_error_inside_opens_the_way_again(frameworks):
    with pytest.raises(ZeroDivisionError), without_frameworks():
        1 / 0  # noqa: B018
    importlib.import_module("unwanted_here")
