"""Frameworks that do as told, for the tests of the worker and of measuring: each misbehaves in one way."""

import dataclasses
import importlib
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np

from xframe import neutral
from xframe.errors import NotHonoured, Unsupported
from xframe.protocols import DEFAULTS
from xframe.registry import FRAMEWORKS
from xframe.types import ConvSite, Kernel, Profile, Rounding, SiteRecord, Span
from xframe.worker import device_clock, session

# In the worker that imports this: its steps take what they are told, so a few beside the profiled ones will do.
session.PLAIN_SECONDS = 0.01

SITE = ConvSite(1, 3, (4, 4), 8, (3, 3))
SCALE = 3.0


def expected(feeds):
    """What every honest fake computes."""
    return [np.asarray(feeds[0]) * SCALE]


class Executable:
    notes = ("a fake",)
    sites = (SiteRecord(SITE, "conv1", None, "direct", "tile 4", Rounding(27, 2.0, (1, 1))),)
    pause = 0.0005

    def __init__(self):
        self.seconds = {"compile": 0.25}
        self.environment = {"fake": "1.0", "threads_seen": os.environ.get("OMP_NUM_THREADS")}
        self.steps = 0

    def bind(self, feeds):
        self.feeds = [np.array(f) for f in feeds]

    def step(self):
        self.steps += 1
        time.sleep(self.pause)
        self.out = self.compute()

    def compute(self):
        return expected(self.feeds)

    def sync(self):
        pass

    def fetch(self):
        return self.out

    def profile(self, passes):
        kernels = (Kernel("conv1_direct", 0.0, 1e-3, SITE, kind="conv"), Kernel("copy", 1e-3, 1.5e-3))
        return [Profile(2e-3, kernels, (Span("call", 0.0, 2e-3, "python"),), 1e-5)] * passes

    def close(self):
        pass


class Fine:
    version = "1.0"
    layout = "NCHW"
    executable = Executable

    def build(self, spec, weights, device, batch, threads, options=DEFAULTS):
        return self.executable()


def fake(**members):
    """A framework whose executable has other members."""
    return type("Fake", (Fine,), {"executable": type("Fake", (Executable,), members)})


def _abort(self, *_):
    print("about to abort", file=sys.stderr, flush=True)
    os.abort()


def _bad_alloc(self):
    os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n")
    os.abort()


def _memory_error(self):
    raise MemoryError("cannot allocate an array")


def _plugin_error(self):
    raise ValueError("first line\nsecond line")


def _hang(self):
    print("waiting for a lock", file=sys.stderr, flush=True)
    time.sleep(1000)


def _orphan_and_die(self):
    child = subprocess.Popen(["sleep", "1000"])
    with open(os.environ["FAKE_PID_FILE"], "w") as f:
        f.write(str(child.pid))
    os._exit(7)


def _noise(self):
    os.write(1, b'{"ok": true, "noise": 1}\n')
    print("noise from Python")
    return expected(self.feeds)


def _noted(self, passes):
    return [dataclasses.replace(p, note="planted") for p in Executable.profile(self, passes)]


def _not_honoured(self, passes):
    raise NotHonoured("no kernel of it ran")


def _stale(self):
    return [np.full(self.feeds[0].shape, 5.0)]


def _frozen(self):
    """Right until it has run often, then what it last computed, whatever the input."""
    self.cached = expected(self.feeds) if self.steps < 10 else self.cached
    return self.cached


def _late(self):
    """Right for the first steps, then wrong: a race, an optimisation that kicks in."""
    return expected(self.feeds) if self.steps < 6 else [expected(self.feeds)[0] + 1]


Crash = fake(compute=_abort)
BadAlloc = fake(compute=_bad_alloc)
OutOfMemory = fake(compute=_memory_error)
PluginError = fake(compute=_plugin_error)
Killed = fake(compute=lambda self: os.kill(os.getpid(), signal.SIGKILL))
Hang = fake(compute=_hang)
Orphan = fake(compute=_orphan_and_die)
Noisy = fake(compute=_noise)
NaN = fake(compute=lambda self: [expected(self.feeds)[0] * np.nan])
Stale = fake(compute=_stale)
Frozen = fake(compute=_frozen)
Late = fake(compute=_late)
Slow = fake(pause=0.2)
ClosesLoudly = fake(close=lambda self: print("closed, and told so"))
BadProfile = fake(profile=_abort)
Noted = fake(profile=_noted)
OtherKernels = fake(profile=_not_honoured)


class Options(Fine):
    """Its environment tells the options that it was given."""

    def build(self, spec, weights, device, batch, threads, options=DEFAULTS):
        made = self.executable()
        seen = {"options": dict(options), "mode": os.environ.get("FAKE_MODE"), "flags": os.environ.get("FAKE_FLAGS")}
        made.environment = {**made.environment, **seen}
        return made


class Clock:
    """In place of a GPU's clock: a step takes 2 ms there."""

    empty_s = 3e-6

    def __init__(self, index):
        if index == 9:
            raise Unsupported("there is no clock on this device")
        if index == 8:
            raise RuntimeError("a driver that nobody knows")

    def read(self, ask, sync, expected, count, longest):
        assert 0 < expected < longest
        ask()
        sync()
        return device_clock.Readings([2e-3] * count, device_clock.GATED)

    def close(self):
        pass


class OnGpu(Fine):
    """Its process has a clock of the device; the environment tells a GPU's name, as PyTorch's does."""

    def build(self, spec, weights, device, batch, threads, options=DEFAULTS):
        session.DeviceClock = Clock
        made = self.executable()
        made.environment = {**made.environment, "gpu": "Acme GPU"}
        return made


class CrashInBuild(Fine):
    def build(self, spec, weights, device, batch, threads, options=DEFAULTS):
        os._exit(3)


class HangInBuild(Fine):
    def build(self, spec, weights, device, batch, threads, options=DEFAULTS):
        time.sleep(1000)


class OnceFine(Fine):
    """Fails in every process after the first that finds the folder FAKE_ONCE empty."""

    def build(self, spec, weights, device, batch, threads, options=DEFAULTS):
        os.mkdir(os.path.join(os.environ["FAKE_ONCE"], "built"))
        return Fine.build(self, spec, weights, device, batch, threads, options)


class Refuses(Fine):
    def build(self, spec, weights, device, batch, threads, options=DEFAULTS):
        raise Unsupported("no dilation here")


class Unfaithful(Fine):
    def build(self, spec, weights, device, batch, threads, options=DEFAULTS):
        raise NotHonoured("something else ran")


class Nhwc:
    """A backend whose artifact is NHWC: its outputs are the inputs with 100 * channel added."""

    version = "1.0"

    def compile(self, artifact, plan, device, threads, options=DEFAULTS):
        def compute(self):
            return [self.feeds[0] + 100 * np.arange(self.feeds[0].shape[3], dtype="float32")]

        return type("Fake", (Executable,), {"compute": compute})()


class Exports(Fine):
    """Exports a Relu, and says in a file how often it did."""

    layout = "NCHW"

    def export(self, spec, weights, batch):
        from onnx import TensorProto, helper

        with open(os.environ["FAKE_COUNT_FILE"], "a") as f:
            f.write("x")
        shape = [batch, *spec.input]
        values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "xy"]
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], name="r")], "g", values[:1], values[1:])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


class Isolated(Fine):
    """What a framework in an environment of its own has: neutral graphs, files of its own, gradients."""

    layout = "NCHW"

    def build(self, spec, weights, device, batch, threads, options=DEFAULTS):
        made = super().build(spec, weights, device, batch, threads, options)
        made.environment = dict(made.environment, path=list(sys.path), libraries=os.environ.get("FAKE_LIBRARIES"))
        return made

    def export(self, spec, weights, batch):
        """A product with a constant, as :func:`expected` has it."""
        shape = (batch, *spec.input)
        node = neutral.Node("Mul", "scaled", ("input", "scale"), ("output",), {})
        ports = (("input", shape),), (("output", shape),)
        return neutral.Graph(spec.name, *ports, (node,), {"scale": np.full(1, SCALE, np.float32)})

    def convert(self, files, batch):
        """From a file with the shape of one image."""
        with open(files[0]) as f:
            spec = type("Spec", (), {"name": "given", "input": tuple(json.load(f))})
        return self.export(spec, {}, batch or 7)

    def gradients(self, spec, weights, batch, feeds, cotangents):
        return {"scale": np.sum(feeds[0] * cotangents[0], dtype=np.float32).reshape(1), "input": SCALE * cotangents[0]}


class Shifted(Isolated):
    """Computes something else than what it exports."""

    executable = type("Fake", (Executable,), {"compute": lambda self: [expected(self.feeds)[0] + 1]})


class Old(Isolated):
    """Its exports are files of an older day."""

    def export(self, spec, weights, batch):
        from onnx import TensorProto, helper

        shape = [1, *spec.input]
        values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "xy"]
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], name="r")], "g", values[:1], values[1:])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=4).SerializeToString()


class NoGraph(Isolated):
    def export(self, spec, weights, batch):
        graph = super().export(spec, weights, batch)
        return graph._replace(nodes=(graph.nodes[0]._replace(op="NoSuchOperator"),))


class ExportFails(Fine):
    def export(self, spec, weights, batch):
        raise Unsupported("lrn has no counterpart")


class Alone(Fine):
    """A backend whose notes tell which frameworks it could not import."""

    def compile(self, artifact, plan, device, threads, options=DEFAULTS):
        made, made.notes = self.executable(), []
        for row in FRAMEWORKS.values():
            try:
                importlib.import_module(row.needs[0])
            except ImportError:
                made.notes.append(f"{row.needs[0]} does not import")
        return made
