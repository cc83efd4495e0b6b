"""The check of a machine with a GPU: what it does without one, with little time, and when it is stopped."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.test_comparison import QUICK
from xframe import artifact, comparison, registry, zoo
from xframe.equivalence.reference import Reference
from xframe.errors import XframeError
from xframe.gpucheck import machine, steps, words
from xframe.gpucheck.journal import DONE, FAILED, SKIPPED, Found, Journal
from xframe.prebuilt import convolution

ROOT = Path(__file__).parents[2]


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(machine, "devices", lambda: 1)
    monkeypatch.setattr(machine, "facts", lambda probe: {"why": "", "gpus": [{"name": "H200"}]})


def settings(**changed):
    return steps.Settings(budget=QUICK, **{"model": "tiny", "batches": (1,), **changed})


def only(monkeypatch, **runs):
    """The check has these steps alone."""
    made = [steps.Step(name, 0.5, run) for name, run in runs.items()]
    monkeypatch.setattr(steps, "steps", lambda settings, progress: iter(made))


def states(found):
    return {f.step: f.state for f in found if f.step != "machine"}


def test_without_a_gpu_it_says_what_is_there_and_ends(monkeypatch, tmp_path, plugins):
    monkeypatch.setattr(machine, "devices", lambda: 0)
    monkeypatch.setattr(machine.available, "probe", lambda table: iter(()))
    found = steps.check(settings(), Journal(tmp_path), lambda line: None)
    assert set(states(found).values()) == {SKIPPED}
    assert list(states(found)) == [
        *("roofs", "network batch 1", "site conv1 batch 1", "site conv2 batch 1", "tuning"),
        *("tuned site conv1 batch 1", "tuned site conv2 batch 1"),
    ]
    text = "\n".join(words.lines(found))
    assert "GPU        none: no NVIDIA driver" in text
    assert "libraries  cudnn: missing" in text or "libraries  cudnn: /" in text
    assert not words.complete(found)


def test_what_was_done_is_not_done_again(gpu, monkeypatch, tmp_path):
    ran = []

    def good(place, limit):
        ran.append("good")
        return (), {"limit": limit}

    def bad(place, limit):
        ran.append("bad")
        raise XframeError("it broke")

    only(monkeypatch, good=good, bad=bad)
    for _ in range(2):
        found = steps.check(settings(minutes=1), Journal(tmp_path), lambda line: None)
    assert ran == ["good", "bad", "bad"]
    assert states(found) == {"good": DONE, "bad": FAILED}
    assert next(f for f in found if f.step == "good").facts["limit"] == pytest.approx(30, abs=1)
    assert next(f for f in found if f.step == "bad").reason == "it broke"


def test_a_step_that_breaks_costs_itself_alone(gpu, monkeypatch, tmp_path):
    def odd(place, limit):
        raise ZeroDivisionError("odd")

    only(monkeypatch, odd=odd, good=lambda place, limit: ((), {}))
    found = steps.check(settings(minutes=1), Journal(tmp_path), lambda line: None)
    assert states(found) == {"odd": FAILED, "good": DONE}


def test_without_time_a_step_is_not_begun(gpu, monkeypatch, tmp_path):
    only(monkeypatch, late=lambda place, limit: ((), {}))
    found = steps.check(settings(minutes=0.01), Journal(tmp_path), lambda line: None)
    assert states(found) == {"late": SKIPPED}
    assert "s were left" in found[-1].reason


STOPPED = """
import signal, sys, time
from pathlib import Path
from xframe import comparison
from xframe.gpucheck import machine, steps
from xframe.gpucheck.journal import Journal
from xframe.results import Run

place, how = Path(sys.argv[1]), sys.argv[2]


def slow(folder, limit):
    try:
        if how != "time":
            signal.raise_signal(getattr(signal, how))
        while True:
            time.sleep(0.001)
    except KeyboardInterrupt:
        raise comparison.Interrupted(Run(1, "now", [], {}, [])) from None


share = 0.001 if how == "time" else 0.5  # of a minute
made = [steps.Step("slow", share, slow), steps.Step("after", 0.5, lambda folder, limit: ((), {}))]
steps.steps = lambda settings, progress: iter(made)
machine.devices = lambda: 1
machine.facts = lambda probe: {}
before = [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGALRM)]
for found in steps.check(steps.Settings(minutes=1), Journal(place), lambda line: None):
    print(found.step, found.state, found.reason, sep=": ")
assert [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGALRM)] == before
assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
"""


@pytest.mark.parametrize(
    ("how", "reason", "after"),
    [
        ("SIGTERM", "interrupted", "skipped: interrupted"),
        ("SIGALRM", "interrupted", "skipped: interrupted"),
        ("time", "after 0 s", "done: "),
    ],
)
def test_a_step_that_is_stopped_keeps_its_rows(tmp_path, how, reason, after):
    """By someone who wants the process to end, a stray alarm, or its own when its time is over.

    In a process of its own, whose main thread handles signals and which nothing else has changed.
    """
    command = [sys.executable, "-c", STOPPED, str(tmp_path), how]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["machine: done: ", f"slow: cut off: {reason}", f"after: {after}"], done.stderr
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "slow" / "run.json").exists()


def test_a_network_is_measured_in_every_runner_and_its_rows_are_told(gpu, monkeypatch, tmp_path, plugins):
    plugins(pytorch="Honest", tensorflow="Missing", jax="Missing", ort="Honest", tvm="Honest")
    monkeypatch.setitem(registry.BACKENDS, "cudnn", registry.BACKENDS["cudnn"]._replace(where="fake_plugins:Honest"))
    real, ran = steps.steps, ("network batch 1", "site conv1 batch 1")
    monkeypatch.setattr(steps, "steps", lambda s, p: (x for x in real(s, p) if x.name in ran))
    monkeypatch.setattr(comparison, "LOWERINGS", {n: registry.LOWERINGS[n] for n in ("gemm", "direct")})
    found = steps.check(settings(device="cpu", minutes=30, best=False), Journal(tmp_path), lambda line: None)
    assert set(states(found).values()) == {DONE}, [f.reason for f in found]
    network = next(f for f in found if f.step == "network batch 1")
    assert {r["backend"] for r in network.rows} == {"native", "ort", "tvm", "cudnn"}
    assert {r["outcome"] for r in network.rows if r["framework"] == "pytorch"} == {"OK"}
    text = "\n".join(words.lines(found))
    assert "geometric mean of 1" in text
    assert "pytorch native auto: OK" in text
    data = json.loads((tmp_path / "site-conv1-batch-1" / "step.json").read_text())
    assert (data["state"], data["facts"]["site"]) == (DONE, "conv1")


def test_each_convolution_of_a_network_is_a_file(plugins, tmp_path):
    """As it is in the network: behind another layer channels are last, and a ReLU follows where one does."""
    spec = zoo.spec("tiny")
    path = convolution.write(spec, "conv2", 3, tmp_path / "c.onnx")
    loaded = artifact.load(path)
    ((name, site),) = loaded.conv_sites
    assert (name, site.batch, site.in_channels, site.in_hw, site.stride) == ("conv2", 3, 4, (8, 8), (3, 3))
    assert loaded.inputs[0].shape == (3, 8, 8, 4)
    (out,) = Reference.of_onnx(loaded).evaluate([zoo.inputs(loaded.inputs[0].shape, 0)])
    assert 0.3 < np.std(out.value) < 3
    first = artifact.load(convolution.write(spec, "conv1", 1, tmp_path / "f.onnx"))
    assert first.inputs[0].shape == (1, *spec.input)
    for made, name in ((loaded, "conv2"), (first, "conv1")):
        follows = any(x.op == "relu" and name in spec.sources()[x.name] for x in spec.layers)
        assert ("Relu" in [n.op_type for n in onnx.load(made.path).graph.node]) == follows


def row(backend, lowering, seconds, kernels=None):
    return {"backend": backend, "lowering": lowering, "median_s": seconds, "kernel_s": kernels}


def test_ratios_are_of_the_best_verified_rows_of_a_site():
    rows = (row("tvm", "gemm", 2.0), row("tvm", "fft", None), row("tvm", "direct", 1.0), row("cudnn", "fft", 4.0))
    one = Found("a", DONE, rows=rows, facts={"site": "conv1"})
    other = replace(one, rows=(row("tvm", "gemm", 1.0), row("cudnn", "gemm", 1.0)), facts={"site": "conv2"})
    lines = list(words.ratios([one, other, replace(one, rows=rows[:2], facts={"site": "conv3"})]))
    assert "conv1: 4.00  (tvm direct, cudnn fft)" in lines[1]
    assert lines[-1].strip() == "geometric mean of 2: 2.00"
    assert list(words.ratios([])) == []


def test_kernels_are_compared_where_all_were_profiled():
    rows = (row("tvm", "gemm", 2.0, 1.0), row("tvm", "fft", 1.0, 3.0), row("cudnn", "gemm", 9.0, 1.5))
    one = Found("a", DONE, rows=rows, facts={"site": "conv1"})
    assert "conv1: 1.50  (tvm gemm, cudnn gemm)" in list(words.ratios([one]))[1]
    unprofiled = replace(one, rows=(*rows[:2], row("cudnn", "gemm", 9.0)))
    assert "conv1: 9.00  (tvm fft, cudnn gemm)" in list(words.ratios([unprofiled]))[1]


def test_tuned_kernels_the_whole_network_and_the_peak_have_ratios_of_their_own():
    site = Found("at c", DONE, rows=(row("tvm", "gemm", 4.0, 1.0), row("cudnn", "gemm", 2.0, 0.5)))
    site = replace(site, facts={"site": "c", "flop": 8e12})
    tuned = replace(site, rows=(row("tvm", "gemm", 1.0, 0.25),), facts={"site": "c", "tuned": True})
    network = Found("n", DONE, rows=(row("tvm", "best", 1.0), row("ort", "auto", 3.0)))
    network = replace(network, facts={"network": "alexnet", "batch": 128})
    roofs = Found("roofs", DONE, facts={"roofs": {"flop_per_s": 1e13, "bytes_per_s": 4.5e12}})
    text = "\n".join(words.ratios([site, tuned, network, roofs]))
    assert "untuned, site: cuDNN's best over TVM's best\n  c: 0.50" in text
    assert "tuned, site: cuDNN's best over TVM's best\n  c: 2.00" in text
    assert "alexnet batch 128: 3.00  (tvm best)" in text
    assert "measured at most: 10.00 TFLOP/s in float32, 4500 GB/s" in text
    assert "at c: gemm at 80% of it" in text
    unprofiled = replace(site, rows=(row("tvm", "gemm", 1.0),))
    assert "gemm at" not in "\n".join(words.ratios([unprofiled, roofs]))


def tune(monkeypatch, tmp_path, code):
    """The tuning step with ``code`` in the place of the command, given 21 s, of which 20 are to end in."""
    real = steps.subprocess.Popen
    monkeypatch.setattr(
        steps.subprocess, "Popen", lambda command, **how: real([sys.executable, "-c", code, *command], **how)
    )
    (tmp_path / "tuning").mkdir()
    return steps._tuning(settings(), 128, tmp_path / "tuning", 21)[1]


def test_tuning_writes_logs_beside_the_steps_and_keeps_them_when_its_time_is_over(monkeypatch, tmp_path):
    code = (
        "import pathlib, sys, time\nwhere = pathlib.Path(sys.argv[sys.argv.index('-o') + 1]) / 'gpu' / 'tiny-b128'\n"
        "where.mkdir(parents=True)\n(where / 'meta.json').touch()\nprint('kept one', flush=True)\ntime.sleep(60)"
    )
    facts = tune(monkeypatch, tmp_path, code)
    assert facts["logs"] == ["gpu/tiny-b128"]
    assert facts["ended"] == "stopped after 1 s"
    assert "kept one" in facts["output"]
    assert facts["command"][-4:] == ["--trials", "64", "-o", str(tmp_path / "schedules")]
    assert "  log gpu/tiny-b128" in list(words.lines([Found("tuning", DONE, facts=facts)]))


def test_tuning_that_fails_says_what_it_said(monkeypatch, tmp_path):
    with pytest.raises(XframeError, match=r"tune --model tiny .* ended with 3: no such GPU"):
        tune(monkeypatch, tmp_path, "import sys; print('no such GPU'); sys.exit(3)")


def test_a_step_file_that_is_cut_is_nothing(tmp_path):
    journal = Journal(tmp_path)
    journal.write(Found("a b", DONE, rows=({"x": 1},)))
    assert journal.known("a b").rows == ({"x": 1},)
    (tmp_path / "a-b" / "step.json").write_text("{")
    assert journal.known("a b") is None
    assert list(journal) == []
