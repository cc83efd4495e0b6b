"""A worker runs where its plugin's environment is, and finds there nothing of what is installed here."""

import re
import shutil
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from tests.worker import fakes
from xframe import environments, launch
from xframe.environments.recipes import RECIPES
from xframe.errors import Unavailable, Unsupported, UsageError, XframeError
from xframe.jobs import Budget, Job
from xframe.measure import measure
from xframe.registry import BACKENDS, FRAMEWORKS, Row, Switch, variables
from xframe.types import Case, ModelSpec, Outcome, Plan, layer
from xframe.worker import host
from xframe.worker.host import plugin_row

FAKES = str(Path(fakes.__file__).parent)
SPEC = ModelSpec("tiny", (3, 4, 4), (layer("relu1", "relu"),))
FEEDS = [[np.random.default_rng(i).standard_normal((1, 3, 4, 4)).astype("float32")] for i in (0, 1)]
#: Of a fake that is run as if it had an environment of its own, which is this interpreter's.
SAME = environments.Built(sys.executable, {"PYTHONPATH": FAKES, "FAKE_LIBRARIES": "in {root}"})


class Right:
    ok, reason, ratio, error, bound = True, "", 0.0, 0.0, 1.0


def right(outputs, sites):
    for feed, got in zip(FEEDS, outputs, strict=True):
        np.testing.assert_array_equal(got[0], fakes.expected(feed)[0])
    return Right


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "weights.npz"
    np.savez(path, w=np.ones(1))
    return path


@pytest.fixture
def place(monkeypatch):
    """Registers fakes in an environment: one that is built, by name, or this interpreter as one."""

    def register(environment, *names, **row):
        built = SAME if environment == "none" else environments.find(environment)
        there = environments.Built(built.python, {**built.variables, "PYTHONPATH": FAKES, **SAME.variables})
        monkeypatch.setattr(launch.environments, "find", lambda name: there)
        for name in names:
            made = Row("fakes:" + name, (), "", environment=environment, **row)
            monkeypatch.setitem(FRAMEWORKS, name, made)

    return register


@pytest.fixture(params=["none", *RECIPES])
def environment(request):
    """This interpreter, and each environment that is built."""
    if request.param != "none":
        try:
            environments.find(request.param)
        except Unavailable as e:
            pytest.skip(str(e))
    return request.param


def opened(worker, name, weights):
    fields = {"device": "cpu", "batch": 1, "threads": 1, "options": {}, "spec": SPEC.to_json(), "weights": weights}
    return worker.call("open", 60, runner="native", plugin=plugin_row(FRAMEWORKS, name), **fields)


def test_its_interpreter_finds_this_package_and_nothing_else_of_here(environment, place, weights, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/of/this/interpreter")
    place(environment, "Isolated")
    with launch.worker(FRAMEWORKS, "Isolated", 2) as worker:
        reply = opened(worker, "Isolated", weights)
        outputs, _ = worker.run(FEEDS[0], 30)
    np.testing.assert_array_equal(outputs[0], fakes.expected(FEEDS[0])[0])
    told = reply["environment"]
    if environment == "none":
        assert told["python"] == sys.version.split()[0]
    else:
        assert told["python"].startswith(RECIPES[environment].pythons)
        here = {sysconfig.get_paths()["purelib"], str(host._PACKAGE.parent), str(Path.cwd())}
        assert not here & set(told["path"])
    assert FAKES in told["path"]
    assert "/of/this/interpreter" not in told["path"]
    assert told["threads_seen"] == "2"
    assert told["libraries"] == "in {root}"
    (alone,) = {p for p in told["path"] if p.endswith("/path")}
    assert not Path(alone).exists()  # gone with the worker


def test_crash_and_hang_are_outcomes_of_their_rows(environment, place, weights):
    names = ("Crash", "Fine", "Hang", "PluginError", "CrashInBuild")
    place(environment, *names)
    jobs = [
        Job(Case("tiny", name, "native", Plan(), "cpu", 1, 1), SPEC, weights, FEEDS, right) for name in names
    ]  # fmt: skip
    budget = Budget(rounds=1, min_samples=2, min_seconds=0.0, max_seconds=0.05, open_limit=60, run_limit=1, profile=0)
    found = {m.case.framework: m for m in measure(jobs, budget)}
    assert {name: m.outcome for name, m in found.items()} == {
        "Crash": Outcome.FAILED,
        "Fine": Outcome.OK,
        "Hang": Outcome.TIMEOUT,
        "PluginError": Outcome.FAILED,
        "CrashInBuild": Outcome.FAILED,
    }
    assert "killed by SIGABRT" in found["Crash"].reason
    assert "exit code 3" in found["CrashInBuild"].reason
    assert "ValueError: first line" in found["PluginError"].reason


def test_what_is_installed_beside_this_package_is_not_found(started, place, weights, tmp_path, monkeypatch):
    """As where xframe is installed: all packages of this interpreter are in the same folder."""
    installed = tmp_path / "site-packages"
    shutil.copytree(host._PACKAGE, installed / "xframe", ignore=shutil.ignore_patterns("__pycache__"))
    (installed / "numpy.py").write_text("raise ImportError('numpy of another interpreter')")
    monkeypatch.setattr(host, "_PACKAGE", installed / "xframe")
    place("none", "Isolated")
    with launch.worker(FRAMEWORKS, "Isolated", 1) as worker:
        told = opened(worker, "Isolated", weights)["environment"]
        assert str(installed) not in told["path"]
    monkeypatch.setitem(FRAMEWORKS, "Isolated", FRAMEWORKS["Isolated"]._replace(environment=""))
    with launch.worker(FRAMEWORKS, "Isolated", 1) as worker:
        with pytest.raises(XframeError, match="died in open"):
            opened(worker, "Isolated", weights)
        assert "numpy of another interpreter" in worker.log()  # so it would have been found


def test_switches_of_a_plugin_reach_its_environment(place, weights):
    place("none", "Options", switches=(Switch("mode", ("a", "b"), (("b", (("FAKE_MODE", "set"),)),)),))
    with launch.worker(FRAMEWORKS, "Options", 1, options=(("mode", "b"),)) as worker:
        assert opened(worker, "Options", weights)["environment"]["mode"] == "set"
    with pytest.raises(UsageError, match="the switch mode of Options can't be 'c'"):
        launch.worker(FRAMEWORKS, "Options", 1, options=(("mode", "c"),))


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
@pytest.mark.parametrize(
    ("table", "name", "switch"),
    [(t, n, s) for t in (FRAMEWORKS, BACKENDS) for n, row in t.items() for s in row.switches],
    ids=lambda x: x.name if isinstance(x, Switch) else x if isinstance(x, str) else "",
)
def test_a_switch_that_changes_nothing_on_a_device_is_refused_there_and_its_default_is_not(table, name, switch, device):
    default, *others = switch.values
    assert switch.devices
    variables(table, name, [(switch.name, default)], device)
    for value in others:
        if device.partition(":")[0] in switch.devices:
            variables(table, name, [(switch.name, value)], device)
            continue
        words = f"{switch.name}={value} was asked for on {device}: .* of {re.escape(name)} changes what runs on c"
        with pytest.raises(Unsupported, match=words):
            variables(table, name, [(switch.name, value)], device)


def test_what_is_of_a_cpu_alone_and_what_of_a_gpu():
    """Those of both have an effect on either: what the host does, or what runs on whatever device there is."""
    rows = {**FRAMEWORKS, **BACKENDS}
    only = {d: {f"{n} {s.name}" for n, row in rows.items() for s in row.switches if s.devices == (d,)}
            for d in ("cpu", "cuda")}  # fmt: skip
    assert only["cpu"] == {
        *(f"{n} {s}" for n in ("pytorch", "torch.compile") for s in ("omp_wait", "huge_pages")), "pytorch mkldnn",
        "tensorflow onednn", "jax fast_math", "jax ynnpack", "cntk mkl_cpu", "cntk cpueval_optimization",
        *(f"ort {s}" for s in ("cpu_mem_arena", "denormal_as_zero", "nchwc")),
    }  # fmt: skip
    assert only["cuda"] == {
        "pytorch cudnn_benchmark",
        *(f"ort {s}" for s in ("cudnn_conv_algo_search", "prefer_nhwc", "use_tf32", "cudnn_conv_use_max_workspace",
                               "enable_cuda_graph", "fuse_conv_bias", "gpu_mem_limit")),
    }  # fmt: skip


def test_an_environment_that_is_not_built_says_what_to_run(monkeypatch, tmp_path):
    monkeypatch.setenv("XFRAME_ENVIRONMENTS", str(tmp_path))
    for name, row in FRAMEWORKS.items():
        if row.environment:
            with pytest.raises(Unavailable, match=f"run xframe env create {row.environment}"):
                launch.worker(FRAMEWORKS, name, 1)
