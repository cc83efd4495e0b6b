"""What several parts of the tests share: a cache folder of their own, a tiny model, plugins that do as told.

They may run in several processes at a time, each with a cache of its own: a test must not depend on another one, nor on
having the machine to itself.
"""

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

# One thread of BLAS: the products here are small, and on a busy machine its spinning threads cost more than they give.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import hypothesis
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.forked import Forks
from xframe import environment
from xframe.environments import places
from xframe.registry import BACKENDS, FRAMEWORKS, LOWERINGS, Row
from xframe.tuning import child
from xframe.worker import host

HERE = Path(__file__).parent
# What a shell starts in the background ignores Ctrl-C, and so would all that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# A busy machine is no failure.
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")
TINY = """
from xframe.types import ModelSpec, layer

SPEC = ModelSpec("tiny", (3, 8, 8), (
    layer("conv1", "conv", out=4, kernel=3, pads=1), layer("relu1", "relu"),
    layer("conv2", "conv", out=4, kernel=3, stride=3), layer("flatten", "flatten"), layer("fc", "fc", out=5),
))
"""

#: Processes of ``-n auto`` at most, and the bytes of one: each holds every framework, and VGG-19 in float64.
PROCESSES, BYTES = 4, 4 << 30


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """``-n auto``: as many processes as there are CPUs for them, and memory."""
    free = environment.available_bytes()
    room = PROCESSES if free is None else free // BYTES
    return max(1, min(len(environment.allowed_cpus()), room, PROCESSES))


@pytest.fixture(autouse=True, scope="session")
def _cache(tmp_path_factory):
    """No test reads or writes the user's own cache; the environments that are built there are used as they are.

    Nor does one pull the plug: what is written need not have reached the disk.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setenv("XFRAME_ENVIRONMENTS", str(places.base()))
        patch.setenv("XFRAME_HOME", str(tmp_path_factory.mktemp("home")))
        if "CUDA_ON_CPU_CACHE" not in os.environ:  # what g++ makes is kept by what it is made from: once for all tests
            run = tmp_path_factory.getbasetemp()
            shared = run.parent if "PYTEST_XDIST_WORKER" in os.environ else run
            patch.setenv("CUDA_ON_CPU_CACHE", str(shared / "cuda_on_cpu"))
        yield


@pytest.fixture(autouse=True, scope="session")
def _schedules(tmp_path_factory):
    """No test depends on the schedule logs that are shipped."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XFRAME_SCHEDULES", str(tmp_path_factory.mktemp("schedules")))
        yield


def _starting_by(found, patch):
    """Workers, and processes that tune, are started by it, which is ``subprocess`` or stands in for that."""
    for module in (host, child):
        patch.setattr(module, "subprocess", found)


@pytest.fixture(autouse=True, scope="session")
def _forks():
    """They are forked: to start them would be most of what many tests wait for."""
    with Forks() as forks, pytest.MonkeyPatch.context() as patch:
        if sys.platform == "linux":
            _starting_by(forks, patch)
        yield


@pytest.fixture(scope="module")
def started():
    """In a module, or from a test of it on: they are started as users start them."""
    with pytest.MonkeyPatch.context() as patch:
        _starting_by(subprocess, patch)
        yield


@pytest.fixture(autouse=True, scope="module")
def _heap():
    """What lives longer than a module, every framework above all, is not looked at again as garbage is collected."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _registry():
    """What a test takes out of the registry's tables comes back to where it stood, not to their ends."""
    kept = [(table, dict(table)) for table in (FRAMEWORKS, BACKENDS, LOWERINGS)]
    yield
    for table, rows in kept:
        if list(table) != list(rows) and table == rows:
            table.clear()
            table.update(rows)


@pytest.fixture
def plugins(monkeypatch, tmp_path):
    """The model ``tiny``; ``use(table, name, class in fake_plugins)`` registers a fake under a name."""
    models = tmp_path / "models"
    models.mkdir()
    (models / "tiny.py").write_text(TINY)
    monkeypatch.setenv("XFRAME_MODELS", str(models))
    monkeypatch.setenv("XFRAME_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(HERE))  # for the workers
    monkeypatch.syspath_prepend(str(HERE))

    def use(**classes):
        for name, cls in classes.items():
            table = BACKENDS if name in ("ort", "tvm") else FRAMEWORKS
            needs = ("no_such_module",) if cls == "Missing" else ()
            monkeypatch.setitem(table, name, Row(f"fake_plugins:{cls}", needs, name, table[name].aliases))

    yield use
    sys.modules.pop("fake_plugins", None)


@pytest.fixture
def convnet(tmp_path):
    """Writes a small valid network to a file: conv, relu, conv, global pooling. Returns its path."""

    def make(name="net.onnx", batch=1, dtype=TensorProto.FLOAT, extra=(), shape=None):
        rng = np.random.default_rng(0)
        numpy_type = helper.tensor_dtype_to_np_dtype(dtype)
        weights = {"w1": (6, 3, 3, 3), "b1": (6,), "w2": (4, 6, 3, 3), "b2": (4,)}
        nodes = [
            helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
            helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], "conv2", strides=[3, 3]),
            *extra,
            helper.make_node("GlobalAveragePool", [extra[-1].output[0] if extra else "c2"], ["y"], "pool"),
        ]
        graph = helper.make_graph(
            nodes,
            "net",
            [helper.make_tensor_value_info("x", dtype, shape or [batch, 3, 12, 12])],
            [helper.make_tensor_value_info("y", dtype, [(shape or [batch])[0], 4, 1, 1])],
            [numpy_helper.from_array(rng.standard_normal(s).astype(numpy_type), n) for n, s in weights.items()],
        )
        domains = {n.domain for n in extra if n.domain}
        opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(d, 1) for d in domains)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        path = tmp_path / name
        onnx.save(model, path)
        return path

    return make
