"""Backends for the tests of candidates: each evaluates the reference, and has one fault."""

import os
import time

import numpy as np
import onnx

from xframe.equivalence.graph import from_onnx, run
from xframe.equivalence.reference import OPERATORS
from xframe.errors import Unsupported, XframeError
from xframe.protocols import DEFAULTS


class Executable:
    """Evaluates its graph in float64 when it is bound; ``wrong`` replaces operators."""

    def __init__(self, graph, wrong=None):
        self.graph, self.operators = graph, {**OPERATORS, **(wrong or {})}
        self.sites, self.notes, self.environment, self.seconds = (), (), {}, {}

    def bind(self, feeds):
        self.feeds = dict(zip(self.graph.inputs, feeds, strict=True))

    def step(self):
        outputs = run(self.graph, self.feeds, self.operators, {})
        self.out = [q.real.astype(np.float32) for q in outputs]

    def sync(self):
        pass

    def fetch(self):
        return self.out

    def close(self):
        pass


class Honest:
    version = "1.0"

    def compile(self, artifact, plan, device, threads, options=DEFAULTS):
        return self.made(from_onnx(artifact), plan)

    def made(self, graph, plan):
        return Executable(graph)


def scaled(op, factor=1.01):
    """The operator with its results multiplied."""

    def wrong(node, args, roundings):
        return OPERATORS[op](node, args, roundings).moved(lambda a: a * factor)

    return {op: wrong}


class WrongPool(Honest):
    """Its max pooling is 1 % too large."""

    def made(self, graph, plan):
        return Executable(graph, scaled("MaxPool"))


class WrongFromExtended(Honest):
    def made(self, graph, plan):
        return Executable(graph, scaled("MaxPool") if plan.label in ("extended", "all") else None)


class WrongFusion(Honest):
    """Fuses the activation into the first convolution, and gets it wrong, unless its result is an output."""

    def made(self, graph, plan):
        made = {n.outputs[0] for n in graph.nodes if n.name == "conv1"} - set(graph.outputs)
        fused = [n for n in graph.nodes if n.op == "Relu" and n.inputs[0] in made]
        right = OPERATORS["Relu"]

        def relu(node, args, roundings):
            result = right(node, args, roundings)
            return result.moved(lambda a: a * 1.01) if node in fused else result

        return Executable(graph, {"Relu": relu})


class OneOutput(WrongPool):
    """It takes no network with several outputs."""

    def compile(self, artifact, plan, device, threads, options=DEFAULTS):
        if len(onnx.load(artifact.path).graph.output) > 1:
            raise Unsupported("networks with one output only")
        return super().compile(artifact, plan, device, threads, options)


class NaN(Honest):
    def made(self, graph, plan):
        return Executable(graph, scaled("MaxPool", np.nan))


class Refuses(Honest):
    def compile(self, artifact, plan, device, threads, options=DEFAULTS):
        raise Unsupported("no max pooling here")


class Fails(Honest):
    def compile(self, artifact, plan, device, threads, options=DEFAULTS):
        raise XframeError("the compiler broke")


class _Crashes(Executable):
    def step(self):
        os.abort()


class Crash(Honest):
    def made(self, graph, plan):
        return _Crashes(graph)


class _Hangs(Executable):
    def step(self):
        time.sleep(600)


class Hang(Honest):
    def made(self, graph, plan):
        return _Hangs(graph)
