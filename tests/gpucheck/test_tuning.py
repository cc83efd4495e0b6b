"""The short run of ``xframe tune`` in a check: what it keeps, and what it says."""

import subprocess
import sys

import pytest

from xframe.errors import XframeError
from xframe.gpucheck import tuning, words
from xframe.gpucheck.journal import DONE, Found


def tune(monkeypatch, tmp_path, settings, code):
    """The tuning step with ``code`` in the place of the command, given 16 s, of which 15 are to end in."""
    real = subprocess.Popen
    monkeypatch.setattr(
        tuning.subprocess, "Popen", lambda command, **how: real([sys.executable, "-c", code, *command], **how)
    )
    (tmp_path / "tuning").mkdir()
    return tuning.tuning(settings(), 128, 1.0).run(tmp_path / "tuning", 16)[1]


def test_tuning_writes_logs_beside_the_steps_and_keeps_them_when_its_time_is_over(monkeypatch, tmp_path, settings):
    code = (
        "import pathlib, sys, time\nwhere = pathlib.Path(sys.argv[sys.argv.index('-o') + 1]) / 'gpu' / 'tiny-b128'\n"
        "where.mkdir(parents=True)\n(where / 'meta.json').touch()\nprint('kept one', flush=True)\ntime.sleep(60)"
    )
    facts = tune(monkeypatch, tmp_path, settings, code)
    assert facts["logs"] == ["gpu/tiny-b128"]
    assert facts["ended"] == "stopped after 1 s"
    assert "kept one" in facts["output"]
    assert facts["command"][-4:] == ["--trials", "64", "-o", str(tmp_path / "schedules")]
    assert "  log gpu/tiny-b128" in list(words.lines([Found("tuning", DONE, facts=facts)]))


def test_tuning_that_fails_says_what_it_said(monkeypatch, tmp_path, settings):
    with pytest.raises(XframeError, match=r"tune --model tiny .* ended with 3: no such GPU"):
        tune(monkeypatch, tmp_path, settings, "import sys; print('no such GPU'); sys.exit(3)")
