"""The worker process and the host's handle on it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import fakes
import numpy as np
import pytest

from xframe import errors, neutral
from xframe.registry import FRAMEWORKS
from xframe.types import Artifact, ModelSpec, Plan, TensorInfo, layer
from xframe.worker import wire
from xframe.worker.host import Worker, settle, worker_environment

SPEC = ModelSpec("tiny", (3, 4, 4), (layer("relu1", "relu"),))
pytestmark = pytest.mark.usefixtures("started")
FEED = np.arange(48, dtype="float32").reshape(1, 3, 4, 4)


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(fakes.__file__).parent))


@pytest.fixture
def worker():
    with Worker(1) as w:
        yield w


@pytest.fixture
def opened(worker, tmp_path):
    """Opens a fake in the worker."""

    def open_fake(name):
        weights = tmp_path / "weights.npz"
        np.savez(weights, w=np.ones(3, "float32"))
        fields = {"device": "cpu", "batch": 1, "threads": 1, "options": {}, "spec": SPEC.to_json(), "weights": weights}
        return worker.call("open", 30, runner="native", plugin=[name, "fakes:" + name, [], "none", ""], **fields)

    return open_fake


def gone(pid):
    """Has the process ended (or is it a zombie that its new parent has yet to reap)?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except OSError:
        return True


def test_open_run_time_fetch_profile(worker, opened):
    reply = opened("Fine")
    assert set(reply["seconds"]) == {"import", "build", "compile"}
    assert reply["seconds"]["compile"] == 0.25
    assert reply["environment"]["threads_seen"] == "1"
    assert reply["notes"] == ["a fake"]
    assert wire.sites_of(reply["sites"]) == fakes.Executable.sites
    outputs, ran = worker.run([FEED], 30)
    assert np.array_equal(outputs[0], 3 * FEED)
    assert ran["first_s"] > 0
    timed = worker.call("time", 30, min_samples=4, min_seconds=0.0, max_seconds=1.0, noise=10.0)
    assert len(timed["seconds"]) == 4
    assert all(s >= fakes.Executable.pause for s in timed["seconds"])
    assert np.array_equal(worker.fetch(30)[0], 3 * FEED)
    reply = worker.call("profile", 30, passes=3)
    profiles = wire.profiles_of(reply["profiles"])
    assert len(profiles) == 3
    assert len(reply["plain"]) >= 2 * 3
    assert profiles[0].kernels[0].site == fakes.SITE
    assert all(s >= fakes.Executable.pause for s in reply["plain"])


def test_peak_memory_is_the_workers_own_not_its_parents():
    ballast = np.ones(50_000_000)  # 400 MB here, none there
    row = ["n", "fakes:Nhwc", [], "", ""]
    fields = {"device": "cpu", "batch": 1, "threads": 1, "options": {}, "plan": Plan(), "artifact": None}
    with Worker(1) as heavy:
        reply = heavy.call("open", 30, runner="backend", plugin=row, **fields)
    assert 10 << 20 < reply["peak_bytes"] < ballast.nbytes


def test_noise_on_file_descriptor_1_is_no_reply(worker, opened):
    opened("Noisy")
    outputs, reply = worker.run([FEED], 30)
    assert "noise" not in reply
    assert np.array_equal(outputs[0], 3 * FEED)
    assert "noise from Python" in worker.log()


def test_layout_is_converted_outside(worker):
    nhwc = TensorInfo("x", (1, 4, 5, 3), "float32", "NHWC")
    artifact = Artifact("a.onnx", "", "m", "fake", "1", 17, (nhwc,), (nhwc,), ())
    row = ["nhwc", "fakes:Nhwc", [], "none", ""]
    fields = {"device": "cpu", "batch": 1, "threads": 1, "options": {}, "artifact": artifact, "plan": Plan()}
    worker.call("open", 30, runner="backend", plugin=row, **fields)
    feed = np.random.default_rng(0).standard_normal((1, 3, 4, 5)).astype("float32")
    outputs, _ = worker.run([feed], 30)
    assert np.array_equal(outputs[0], feed + np.array([0, 100, 200], "float32").reshape(1, 3, 1, 1))
    with pytest.raises(errors.XframeError, match="1 inputs, there are 2 arrays"):
        worker.run([feed, feed], 30)


def test_only_a_step_as_long_as_the_cap_goes_without_warm_up(worker, opened):
    opened("Slow")
    worker.run([FEED], 30)
    visit = {"min_samples": 1, "min_seconds": 0.0, "noise": 1.0}
    assert worker.call("time", 30, max_seconds=0.15, **visit)["warmups"] == 0
    assert worker.call("time", 30, max_seconds=9.0, **visit)["warmups"] == 1


def test_a_backend_runs_without_any_framework(worker):
    fields = {"device": "cpu", "batch": 1, "threads": 1, "options": {}, "artifact": None, "plan": Plan()}
    reply = worker.call("open", 30, runner="backend", plugin=["n", "fakes:Alone", [], "", ""], **fields)
    assert reply["notes"] == [f"{row.needs[0]} does not import" for row in FRAMEWORKS.values()]


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("Refuses", errors.Unsupported, "no dilation here"),
        ("Unfaithful", errors.NotHonoured, "something else ran"),
        ("CrashInBuild", errors.WorkerDied, "died in open: exit code 3"),
        ("Missing", errors.XframeError, "AttributeError"),
    ],
)
def test_errors_in_open_keep_their_class(opened, name, error, words):
    with pytest.raises(error, match=words):
        opened(name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Crash", r"died in run: killed by SIGABRT \(its last words: about to abort\)"),
        ("Killed", "killed by SIGKILL: out of memory\\?"),
        ("BadAlloc", "died in run: out of memory .*bad_alloc"),
    ],
)
def test_a_death_is_put_into_words(worker, opened, name, words):
    opened(name)
    with pytest.raises(errors.WorkerDied, match=words):
        worker.run([FEED], 30)
    with pytest.raises(errors.WorkerDied, match="after its end"):
        worker.call("profile", 30, passes=1)


def test_python_errors_are_one_line_and_the_traceback_is_in_the_log(worker, opened):
    opened("PluginError")
    with pytest.raises(errors.XframeError) as e:
        worker.run([FEED], 30)
    assert str(e.value) == "ValueError: first line"
    assert "Traceback" in worker.log()
    with pytest.raises(errors.XframeError, match="first line"):
        worker.call("profile", 30, passes=1)  # it lives on


def test_memory_error_says_so(worker, opened):
    opened("OutOfMemory")
    with pytest.raises(errors.XframeError, match="out of memory: MemoryError"):
        worker.run([FEED], 30)


def test_a_hang_ends_at_its_limit(worker, opened):
    opened("Hang")
    with pytest.raises(errors.WorkerTimeout, match=r"run did not finish within 1 s .*waiting for a lock"):
        worker.run([FEED], 1)
    assert gone(worker.pid)


def test_what_a_dead_worker_started_dies_too(worker, opened, monkeypatch, tmp_path):
    pid_file = tmp_path / "pid"
    monkeypatch.setenv("FAKE_PID_FILE", str(pid_file))
    with Worker(1) as other:
        fields = {
            "device": "cpu",
            "batch": 1,
            "threads": 1,
            "options": {},
            "spec": SPEC.to_json(),
            "weights": tmp_path / "w.npz",
        }
        np.savez(tmp_path / "w.npz", w=np.ones(1))
        other.call("open", 30, runner="native", plugin=["o", "fakes:Orphan", [], "none", ""], **fields)
        with pytest.raises(errors.WorkerDied, match="exit code 7"):
            other.run([FEED], 30)
    for _ in range(100):
        if gone(int(pid_file.read_text())):
            break
        time.sleep(0.05)
    assert gone(int(pid_file.read_text()))


@pytest.fixture
def network(tmp_path):
    """The fields of a command about a network, for the fake ``name``."""
    weights = tmp_path / "network.npz"
    np.savez(weights, w=np.ones(3, "float32"))

    def fields(name):
        row = [name, "fakes:" + name, [], "none", ""]
        return {"plugin": row, "spec": SPEC.to_json(), "weights": weights, "batch": 1}

    return fields


def test_gradients(worker, network):
    cotangent = np.ones_like(FEED)
    found = worker.gradients([FEED], [cotangent], 30, **network("Isolated"))
    assert list(found) == ["scale", "input"]
    np.testing.assert_array_equal(found["scale"], [FEED.sum()])
    np.testing.assert_array_equal(found["input"], 3 * cotangent)
    with pytest.raises(errors.Unsupported, match="gradients of Fine can't be asked for"):
        worker.gradients([FEED], [cotangent], 30, **network("Fine"))


def test_what_is_no_onnx_model_is_left_to_the_host(worker, network):
    raw = worker.place("raw")
    reply = worker.call("export", 30, path="", raw=raw, **network("Isolated"))
    assert reply["form"] == "graph"
    assert reply["stamps"] == {
        "model": "tiny", "framework": "Isolated", "framework_version": "1.0", "layout": "NCHW"
    }  # fmt: skip
    assert neutral.load(raw).inputs == (("input", (1, 3, 4, 4)),)
    assert worker.call("export", 30, path="", raw=raw, **network("Old"))["form"] == "bytes"
    assert Path(raw).read_bytes().count(b"Relu") == 1


def test_only_some_have_files_of_their_own(worker, network):
    fields = {"files": [], "batch": None, "model": "m", "path": "", "raw": worker.place("raw")}
    with pytest.raises(errors.Unsupported, match="Fine has no files of its own"):
        worker.call("convert", 30, plugin=network("Fine")["plugin"], **fields)


def test_what_is_opened_takes_the_place_of_what_was_open(worker, opened):
    opened("ClosesLoudly")
    opened("Fine")
    assert "closed, and told so" in worker.log()
    assert np.array_equal(worker.run([FEED], 30)[0][0], 3 * FEED)


@pytest.mark.parametrize("error", [errors.UsageError, errors.ModelError, errors.Unavailable, errors.Mismatch])
def test_errors_keep_their_class_between_processes(error):
    found = errors.by_kind(error.__name__, "why")
    assert type(found) is error
    assert str(found) == "why"
    assert type(errors.by_kind("Outcome", "why")) is errors.XframeError
    assert type(errors.by_kind("NoSuchClass", "why")) is errors.XframeError


def test_order_and_names_of_commands_are_checked(worker):
    with pytest.raises(errors.XframeError, match="before anything was opened"):
        worker.fetch(30)
    with pytest.raises(errors.XframeError, match="no command 'handle'"):
        worker.call("handle", 30)


def test_missing_module_and_missing_interpreter_are_unavailable(worker):
    fields = {"device": "cpu", "batch": 1, "threads": 1, "options": {}, "runner": "native"}
    with pytest.raises(errors.Unavailable, match=r"pip install 'xframe-eval\[cafe\]'"):
        worker.call("open", 30, plugin=["caffe", "fakes:Fine", ["no_such_module_here"], "cafe", ""], **fields)
    with pytest.raises(errors.Unavailable, match="can't start a worker with /no/such/python"):
        Worker(1, python="/no/such/python")


def test_worker_is_pinned_before_anything_is_imported():
    cpu = max(os.sched_getaffinity(0))
    with Worker(1, cpus=[cpu]) as w:
        w.call("open", 30, runner="backend", plugin=["n", "fakes:Nhwc", [], "", ""], device="cpu", batch=1, threads=1,
               options={}, plan=Plan(), artifact=None)  # fmt: skip
        assert os.sched_getaffinity(w.pid) == {cpu}


def test_environment_pins_all_alike_and_drops_what_does_not(monkeypatch):
    monkeypatch.setenv("OMP_PROC_BIND", "close")
    monkeypatch.setenv("XLA_FLAGS", "--mine")
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "true")
    env = worker_environment(3)
    assert {env[n + "_NUM_THREADS"] for n in ("OMP", "OPENBLAS", "MKL", "TVM")} == {"3"}
    assert "OMP_PROC_BIND" not in env
    assert env["TVM_BIND_THREADS"] == "0"
    assert env["XLA_FLAGS"].startswith("--mine ")
    assert "intra_op_parallelism_threads=3" in env["XLA_FLAGS"]
    assert env["CUDA_VISIBLE_DEVICES"] == "-1"
    assert worker_environment(1, "cuda:0").get("CUDA_VISIBLE_DEVICES") == os.environ.get("CUDA_VISIBLE_DEVICES")
    assert not {"NVIDIA_TF32_OVERRIDE"} & {*env, *worker_environment(1, "cuda:0")}
    assert worker_environment(1, "cuda:0")["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false", "others are open beside it"
    assert worker_environment(1, "cuda:0")["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"


def test_worker_ends_when_its_host_is_gone(opened, worker):
    opened("Fine")
    worker._requests.close()
    assert worker._process.wait(timeout=10) == 1
    worker.kill()


def test_close_twice_and_after_death_is_fine():
    w = Worker(1)
    folder = Path(w._folder)
    w.kill()
    w.close()
    w.close()
    assert not folder.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_settle_sees_a_spinning_process():
    assert settle([])
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
    ) as spinning:
        spinning.stdout.readline()
        try:
            assert not settle([spinning.pid])
        finally:
            spinning.kill()
    assert settle([spinning.pid])
