"""The short run of ``xframe tune`` in a check: what it keeps, and what it says."""

import subprocess
import sys

import pytest

from xframe.errors import XframeError
from xframe.gpucheck import tuning, words
from xframe.gpucheck.journal import DONE, Found, Journal


def tune(monkeypatch, tmp_path, settings, code):
    """The tuning step with ``code`` in the place of the command, given 16 s, of which 15 are to end in."""
    real = subprocess.Popen
    monkeypatch.setattr(
        tuning.subprocess, "Popen", lambda command, **how: real([sys.executable, "-c", code, *command], **how)
    )
    (tmp_path / "tuning").mkdir()
    return tuning.tuning(settings(), 128, 1.0).run(tmp_path / "tuning", 16)[1]


def test_tuning_writes_logs_beside_the_steps_and_keeps_them_when_its_time_is_over(
    monkeypatch, tmp_path, settings, plugins
):
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


def test_tuning_that_fails_says_what_it_said(monkeypatch, tmp_path, settings, plugins):
    with pytest.raises(XframeError, match=r"tune --model tiny .* ended with 3: no such GPU"):
        tune(monkeypatch, tmp_path, settings, "import sys; print('no such GPU'); sys.exit(3)")


def test_the_lowerings_that_were_fastest_somewhere_are_tuned(monkeypatch, tmp_path, settings, plugins):
    def found(name, **seconds):
        rows = [
            {"backend": "tvm", "lowering": how, "median_s": took, "device_median_s": took / 2, "kernel_s": None}
            for how, took in seconds.items()
        ]
        Journal(tmp_path).write(Found(f"site {name} batch 128", DONE, rows=tuple(rows)))

    found("conv1", gemm=2.0, fft=3.0, auto=1.0)
    found("conv2", gemm=2.0, winograd=1.0)
    command = tune(monkeypatch, tmp_path, settings, "")["command"]
    assert command[-2:] == ["--lowering", "gemm,winograd"]
