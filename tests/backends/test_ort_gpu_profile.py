"""Profiling a session of ONNX Runtime in a process of its own: what it is given, what it gives back, how it ends."""

import json
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from xframe import artifact, zoo
from xframe.backends import ort_gpu_profile, ort_profile, ort_profiler_cost, profiler_cost
from xframe.backends.ort_gpu_profile import idle, profiles
from xframe.backends.ort_session import Settings
from xframe.errors import NotHonoured, Unavailable, XframeError
from xframe.jobs import Budget
from xframe.types import Kernel, Profile, Span

SETTINGS = Settings("m.onnx", 1, "cuda:1", "basic", {"prefer_nhwc": "on"})


@pytest.fixture
def loaded(convnet):
    return artifact.load(convnet())


@pytest.fixture
def feeds(loaded):
    return [zoo.inputs(i.shape, 0) for i in loaded.inputs]


def test_the_other_process_profiles_with_cupti_there(tmp_path, loaded, feeds, monkeypatch, cupti_library):
    """On a CPU, as there is no GPU; CUPTI is a stand-in, whose records are none."""
    shutil.copy(cupti_library, tmp_path / "libcupti.so.13")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    first, second = profiles(Settings(loaded.path, 1, "cpu"), loaded, feeds, 2)
    for profile in (first, second):
        assert [(k.layer, k.site) for k in profile.kernels if k.kind == "conv"] == list(loaded.conv_sites)
        assert profile.cost <= idle(profile)


def ending(monkeypatch, code=0, reply=None, log=b""):
    """What is started ends so. Gives the command and the job."""
    seen = {}

    def call(command, stdin, stdout, stderr, timeout):
        seen["limit"] = timeout
        if code is None:
            raise subprocess.TimeoutExpired(command, timeout)
        assert stdin == subprocess.DEVNULL
        place = Path(command[-1])
        seen.update(
            json.loads((place / "job.json").read_text()), module=command[-2], feeds=(place / "feeds.npz").exists()
        )
        if reply is not None:
            (place / "result.json").write_text(json.dumps(reply))
        stdout.write(log)
        return code

    monkeypatch.setattr(ort_gpu_profile.subprocess, "call", call)
    return seen


def test_it_is_given_the_settings_of_the_timed_session(monkeypatch, loaded, feeds):
    seen = ending(monkeypatch, reply={"profiles": []})
    assert profiles(SETTINGS, loaded, feeds, 3) == []
    assert Settings(**seen["settings"]) == SETTINGS
    assert (seen["module"], seen["passes"], seen["feeds"]) == ("xframe.backends.ort_gpu_profile", 3, True)


@pytest.mark.parametrize("error", [NotHonoured, Unavailable, XframeError])
def test_what_it_raises_is_raised_here(monkeypatch, loaded, feeds, error):
    ending(monkeypatch, reply={"kind": error.__name__, "reason": "no rights"})
    with pytest.raises(error, match=r"^no rights$") as raised:
        profiles(SETTINGS, loaded, feeds, 1)
    assert raised.type is error


@pytest.mark.parametrize(
    ("log", "words"),
    [(b"Traceback ...\nRuntimeError: out of memory\n", "RuntimeError: out of memory"), (b"", "it said nothing")],
)
def test_its_early_end_is_told_with_its_last_words(monkeypatch, loaded, feeds, log, words):
    ending(monkeypatch, code=-11, log=log)
    with pytest.raises(XframeError, match=rf"^the process that profiles ended with code -11: {words}$"):
        profiles(SETTINGS, loaded, feeds, 1)


def test_one_that_hangs_is_stopped_before_the_worker_is(monkeypatch, loaded, feeds):
    seen = ending(monkeypatch, code=None)
    with pytest.raises(XframeError, match="takes 2 profiled passes had not ended after 120 s and was stopped"):
        profiles(SETTINGS, loaded, feeds, 2)
    assert seen["limit"] < 2 * Budget().run_limit


def test_time_without_kernels_is_idle():
    kernels = tuple(Kernel("k", start, end) for start, end in [(1.0, 3.0), (2.0, 2.5), (2.5, 4.0), (6.0, 7.0)])
    assert idle(Profile(10.0, kernels)) == 6.0
    assert idle(Profile(10.0, ())) == 10.0


@pytest.mark.parametrize(("tells", "cost"), [(False, 2 * 1e-3 + 3 * 5e-3), (True, 2 * 1e-3)])
def test_profiling_costs_by_the_node_and_recording_by_the_kernel(monkeypatch, tells, cost):
    session = SimpleNamespace(open=lambda: SimpleNamespace(session=None))
    monkeypatch.setattr(ort_profiler_cost, "chain", lambda settings: session)
    monkeypatch.setattr(profiler_cost, "typical", lambda run: 0.0)
    monkeypatch.setattr(ort_gpu_profile, "Recorder", lambda: SimpleNamespace(close=lambda: None))

    def run(settings, recorder=None):
        """Seconds of the chain, without and with a recorder."""
        return (1e-3 if recorder is None else 6e-3) * ort_profiler_cost.NODES, tells

    monkeypatch.setattr(ort_gpu_profile, "_profiled", run)
    spans = [Span(name, 0.0, 1.0, "dispatch") for name in ("a_kernel_time", "b_kernel_time", "model_run")]
    kernels = tuple(Kernel("k", start, start + 1.0) for start in (1.0, 2.0, 3.0))
    monkeypatch.setattr(ort_profile, "taken", lambda *_: [Profile(10.0, kernels, tuple(spans))])
    (profile,) = ort_gpu_profile.taken(SETTINGS, None, [], 1)
    assert profile.cost == pytest.approx(cost)
