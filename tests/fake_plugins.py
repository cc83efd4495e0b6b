"""Frameworks and backends for the tests of comparing: right by way of the reference, or wrong in one way each.

In a worker that imports this only their steps move the clock of the timing loop on, so that however busy the machine
is, they take what they say.
"""

import functools
import os
import sys
import time
from types import MappingProxyType

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from xframe.equivalence.reference import Reference
from xframe.errors import NotHonoured
from xframe.protocols import DEFAULTS
from xframe.types import Kernel, Profile, SiteRecord
from xframe.worker import session, timing


class Clock:
    """Nanoseconds; each lasting thing is up to 1 % longer than the one before, as none takes the same time twice."""

    now, count = 0, 0

    @classmethod
    def lasts(cls, seconds):
        cls.count += 1
        cls.now += int(seconds * 1e9 * (1 + cls.count * 7 % 11 / 1000))


if getattr(sys.modules["__main__"].__spec__, "name", "") == "xframe.worker.__main__":
    session.sample = functools.partial(timing.sample, clock=lambda: Clock.now)
    session.PLAIN_SECONDS = 0.01  # a few steps beside the profiled ones will do


class Executable:
    """Evaluates the reference when it is bound; ``step`` gives what was computed."""

    def __init__(self, reference, sites=()):
        self.reference, self.sites = reference, sites
        self.notes, self.environment, self.seconds = (), {}, {"compile": 0.01}

    def bind(self, feeds):
        self.right = [j.value.astype(np.float32) for j in self.reference.evaluate([np.array(f) for f in feeds])]

    def step(self):
        Clock.lasts(0.001)
        self.out = self.right

    def sync(self):
        pass

    def fetch(self):
        return self.out

    def profile(self, passes):
        kernels = [Kernel(f"kernel{i}", i * 1e-3, (i + 1) * 1e-3, s.site) for i, s in enumerate(self.sites)]
        return [Profile(len(kernels) * 1e-3, tuple(kernels))] * passes

    def close(self):
        pass


class Honest:
    """Both a framework and a backend."""

    version, layout = "1.0", "NCHW"
    executable = Executable

    def build(self, spec, weights, device, batch, threads, options=DEFAULTS):
        return self.executable(Reference.of_spec(spec, weights))

    def compile(self, artifact, plan, device, threads, options=DEFAULTS):
        sites = [SiteRecord(s, name, plan[s], plan[s]) for name, s in artifact.conv_sites]
        return self.executable(Reference.of_onnx(artifact), sites)

    def export(self, spec, weights, batch):
        nodes, before = [], "x"
        for item in spec.layers:
            names = [f"{item.name}.weight", f"{item.name}.bias"]
            if item.op == "conv":
                attrs = {"strides": item["stride"], "pads": item["pads"]}
                nodes.append(helper.make_node("Conv", [before, *names], [item.name], item.name, **attrs))
            elif item.op == "fc":
                nodes.append(helper.make_node("Gemm", [before, *names], [item.name], item.name, transB=1))
            else:
                op = {"relu": "Relu", "flatten": "Flatten"}[item.op]
                nodes.append(helper.make_node(op, [before], [item.name], item.name))
            before = item.name
        graph = helper.make_graph(
            nodes,
            spec.name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, *spec.input])],
            [helper.make_tensor_value_info(before, TensorProto.FLOAT, None)],
            [numpy_helper.from_array(np.asarray(w), n) for n, w in weights.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return onnx.shape_inference.infer_shapes(model)


class _Rests(Executable):
    def step(self):
        super().step()
        time.sleep(0.001)


class Resting(Honest):
    """Its steps take the time that they say, without using it: for what is seen of the machine meanwhile."""

    executable = _Rests


class Missing(Honest):
    """Its registry row needs a module that does not exist."""


class ExportFails(Honest):
    def export(self, spec, weights, batch):
        raise ValueError("no rule for this layer")


class _Crashes(Executable):
    def step(self):
        os.abort()


class Crash(Honest):
    executable = _Crashes


class _Hangs(Executable):
    def step(self):
        time.sleep(600)


class Hang(Honest):
    executable = _Hangs


class _Exhausts(Executable):
    def step(self):
        raise MemoryError("can't get 8 GiB")


class OutOfMemory(Honest):
    executable = _Exhausts


class _Wrong(Executable):
    def step(self):
        self.out = [y + 1 for y in self.right]


class Wrong(Honest):
    executable = _Wrong


class Unfaithful(Honest):
    def compile(self, artifact, plan, device, threads, options=DEFAULTS):
        raise NotHonoured("something else would have run")


class _Priced(Executable):
    """Its profile has what ``prices`` say, (kernels, conversion) of a lowering in seconds, and 5 ms of others."""

    prices = MappingProxyType({"gemm": (4e-3, 0), "direct": (3e-3, 0), "winograd": (1e-3, 5e-4), "fft": (1e-3, 3e-3)})

    def profile(self, passes):
        kernels, now = [Kernel("others", 0.0, 5e-3)], 5e-3
        for s in self.sites:
            for role, spent in zip(("product", "pad"), self.prices[s.requested], strict=True):
                kernels.append(Kernel(f"{s.name}_{role}", now, now + spent, s.site, role))
                now += spent
        return [Profile(now, tuple(kernels))] * passes


class Priced(Honest):
    executable = _Priced


class SlowWinograd(Honest):
    executable = type("_SlowWinograd", (_Priced,), {"prices": dict(_Priced.prices, winograd=(9e-3, 0))})


class DearConversion(Honest):
    executable = type("_DearConversion", (_Priced,), {"prices": dict(_Priced.prices, winograd=(1e-3, 9e-3))})


class WinogradIsWrong(Priced):
    """Wherever it is used."""

    def compile(self, artifact, plan, device, threads, options=DEFAULTS):
        made = super().compile(artifact, plan, device, threads, options)
        if "winograd" in dict(plan.lowerings).values():
            made.step = lambda: setattr(made, "out", [y + 1 for y in made.right])
        return made


class WinogradCrashes(Priced):
    def compile(self, artifact, plan, device, threads, options=DEFAULTS):
        if "winograd" in dict(plan.lowerings).values():
            os.abort()
        return super().compile(artifact, plan, device, threads, options)


class BestIsUnfaithful(Priced):
    """Honest under every plan but the one that the oracle made."""

    def compile(self, artifact, plan, device, threads, options=DEFAULTS):
        if plan.label == "best":
            raise NotHonoured("something else would have run")
        return super().compile(artifact, plan, device, threads, options)
