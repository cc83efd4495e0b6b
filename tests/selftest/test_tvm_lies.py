"""Lies about what TVM ran, with a real compiler: the row must lose its outcome, an honest one not."""

import pytest

from xframe.measure import Budget
from xframe.selftest.attribution import Setting, attribution
from xframe.selftest.lies import LIES

QUICK = Budget(rounds=1, min_samples=2, min_seconds=0.01, max_seconds=0.1, profile=1)


@pytest.fixture
def tiny(plugins):
    """Exported without PyTorch."""
    plugins(pytorch="Honest")
    return Setting("tiny", threads=1, budget=QUICK)


def test_a_silent_fallback_and_a_site_that_was_not_honoured_are_found(tiny):
    stages = []
    fallback, unhonoured = attribution(tiny, ("fallback", "unhonoured"), stages.append)
    for found in (fallback, unhonoured):
        assert (found.ok, found.reason, found.found) == (True, "", "NOT_HONOURED")
    assert stages


def test_an_honest_backend_is_believed(tiny, monkeypatch):
    """So that the lies above are what is found, and nothing else."""
    monkeypatch.setitem(LIES, "fallback", LIES["fallback"]._replace(where="xframe.backends.tvm:Tvm"))
    (found,) = attribution(tiny, ("fallback",), lambda line: None)
    assert (found.ok, found.reason) == (False, "the row is OK: nothing was noticed")
