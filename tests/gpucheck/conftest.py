"""What the tests of a check share: a GPU that is there in word alone, and small settings."""

import pytest

from tests.test_comparison import QUICK
from xframe.gpucheck import machine
from xframe.gpucheck.settings import Settings


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(machine, "devices", lambda: 1)
    monkeypatch.setattr(machine, "facts", lambda: {"why": "", "gpus": [{"name": "H200"}]})


@pytest.fixture
def settings():
    """Of the model ``tiny`` at batch 1, as changed."""
    return lambda **changed: Settings(budget=QUICK, **{"model": "tiny", "batches": (1,), **changed})
