"""Profiled passes of Theano: the nodes of the compiled graph, each timed, with the layers that they are from."""

import time
from dataclasses import replace
from typing import Any, Callable, List

import theano
from theano.compile.mode import Mode, get_default_mode
from theano.gof.vm import VM_Linker

from xframe.frameworks.shapes import sites
from xframe.frameworks.theano_kinds import kind_of
from xframe.frameworks.theano_layers import Layers
from xframe.types import Kernel, ModelSpec, Profile, Span

#: Calls of the calibration.
_CALLS = 2000


def mode() -> Mode:
    """As Theano compiles by default, but that Python calls the nodes, in order, and not C."""
    linker = VM_Linker(use_cloop=False, lazy=False, allow_gc=theano.config.allow_gc)
    return Mode(linker=linker, optimizer=get_default_mode().provided_optimizer)


class Profiler:
    """Profiled passes of ``function``, which was compiled under :func:`mode`. ``algorithm``: of its convolutions."""

    def __init__(self, spec: ModelSpec, batch: int, function: Any, algorithm: str) -> None:
        machine = function.fn
        self._function = function
        self._times: List[float] = []
        machine.thunks = [_timed(thunk, self._times) for thunk in machine.thunks]
        layers, known = Layers(spec, function.maker.fgraph), sites(spec, batch)
        ops = {item.name: item.op for item in spec.layers}
        self._kernels: List[Kernel] = []
        for node in machine.nodes:
            layer = layers.of(node)
            kind = kind_of(type(node.op).__name__, ops.get(layer, ""))
            words = algorithm if kind == "conv" else ""
            site = known.get(layer) if kind == "conv" else None
            self._kernels.append(Kernel(str(node.op), 0.0, 0.0, site, "", kind, layer, words))
        self._cost = _cost() * len(self._kernels)

    def passes(self, count: int, warm: Callable[[], None]) -> List[Profile]:
        """So many profiled steps, each after one of its own that is not kept."""
        return [self._profile(warm) for _ in range(count)]

    def _profile(self, warm: Callable[[], None]) -> Profile:
        self._function()
        del self._times[:]
        start = time.perf_counter()
        self._function()
        wall = time.perf_counter() - start
        times = [t - start for t in self._times]
        kernels = [replace(k, start=a, end=b) for k, a, b in zip(self._kernels, times[::2], times[1::2])]
        return Profile(wall, tuple(kernels), (Span("step", 0.0, wall, "python"),), self._cost)


def _timed(thunk: Callable[[], Any], times: List[float], clock: Callable[[], float] = time.perf_counter) -> Any:
    def run() -> None:
        times.append(clock())
        thunk()
        times.append(clock())

    return run


def _cost() -> float:
    """Seconds that timing a node adds."""

    def nothing() -> None:
        pass

    def seconds(thunk: Callable[[], Any]) -> float:
        start = time.perf_counter()
        for _ in range(_CALLS):
            thunk()
        return (time.perf_counter() - start) / _CALLS

    return max(0.0, seconds(_timed(nothing, [])) - seconds(nothing))
