"""PyTorch with one lie each. It is asked for like any framework, and all but the lie is the real one.

A lie sits in the ``forward`` of a module, so it is in every step, timed or profiled, and clocks itself
(:class:`~xframe.selftest.ledger.Ledger`). It is repeated so often that it takes :data:`SHARE` of an honest step: a
number that is found before anything is timed, and kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import torch

from xframe import zoo
from xframe.frameworks.pytorch import PyTorch
from xframe.protocols import DEFAULTS
from xframe.selftest.ledger import Ledger, least
from xframe.types import ModelSpec

#: Of an honest step: as much as frameworks differ by. Two processes of the same framework differ too, AlexNet's fully
#: connected layers by a tenth, depending on the pages that their weights got: a small lie can't be told from that.
SHARE = 1.0
#: Seconds of one turn of the busy loop, and of the sleep, which the system makes longer by some tens of microseconds.
SPIN, NAP = 1e-4, 1e-3
#: Elements of one tensor of the storm. 64 MB are above what any malloc keeps: each goes to the system and back.
LARGE = 1 << 24
#: Layers without weights: none of their kernels is one of a convolution.
PLAIN = ("relu", "relu6", "maxpool", "avgpool")


class Planted(PyTorch):
    """Base of the lies that take time."""

    share = SHARE
    after = False  # of the module's own work, rather than before it

    def where(self, spec: ModelSpec) -> str:
        """The layer that lies; empty for the whole network, before its first layer."""
        raise NotImplementedError

    def once(self, module: Any, x: Any) -> Any:
        """One turn of the lie, given the module and its input; what the module shall be given instead."""
        raise NotImplementedError

    def build(
        self,
        spec: ModelSpec,
        weights: Mapping[str, Any],
        device: str,
        batch: int,
        threads: int,
        options: Mapping[str, str] = DEFAULTS,
    ) -> Any:
        """As PyTorch's, with the lie in it. ``environment`` names the layer and the file of the ledger."""
        network: Any = super().build(spec, weights, device, batch, threads, options)
        layer, ledger = self.where(spec), Ledger()
        self._plant(network, network._module.get_submodule(layer), ledger)
        network.environment = {**network.environment, "planted_layer": layer, "planted_file": ledger.path}
        return network

    def _plant(self, network: Any, module: Any, ledger: Ledger) -> None:
        turns = 0
        bind, profile, close = network.bind, network.profile, network.close

        def lie(x: Any) -> Any:
            with ledger.clocked():
                for _ in range(turns):
                    x = self.once(module, x)
            return x

        def forward(x: Any) -> Any:
            if not self.after:
                return type(module).forward(module, lie(x))
            y = type(module).forward(module, x)
            lie(x)
            return y

        def step() -> float:
            start = time.perf_counter()
            network.step()
            network.sync()
            return time.perf_counter() - start

        def turn() -> float:
            step()
            return ledger.plain[-1]

        def first_bind(feeds: list[Any]) -> None:
            nonlocal turns
            network.bind = bind
            bind(feeds)
            honest = least(step)
            turns = 1
            for _ in range(3):  # what is done again is warm, and takes less
                turns = max(1, round(turns * self.share * honest / least(turn)))
            ledger.clear()

        def profiled(passes: int) -> Any:
            with ledger.under_a_profiler():
                return profile(passes)

        def closed() -> None:
            ledger.write()
            close()

        module.forward = forward
        network.bind, network.profile, network.close = first_bind, profiled, closed


class SpinInDispatch(Planted):
    """Is busy with nothing before the first layer."""

    def where(self, spec: ModelSpec) -> str:
        return ""

    def once(self, module: Any, x: Any) -> Any:
        end = time.perf_counter() + SPIN
        while time.perf_counter() < end:
            pass
        return x


class SleepInDispatch(SpinInDispatch):
    """Sleeps before the first layer: unlike the busy loop it leaves its CPU to others, and the threads of kernels too
    may fall asleep meanwhile."""

    def once(self, module: Any, x: Any) -> Any:
        time.sleep(NAP)
        return x


class SlowKernel(Planted):
    """Computes the largest convolution again, and drops the result.

    Without oneDNN, which would bring image and weights into blocks of its own first: that would be a change of layout.
    """

    after = True  # its weights are then as cold as those of an honest row when they are first read

    def where(self, spec: ModelSpec) -> str:
        sites = zoo.sites(spec, 1)
        return max(sites, key=lambda layer: sites[layer].flop)

    def once(self, module: Any, x: Any) -> Any:
        onednn: Any = torch.backends.mkldnn
        kept, onednn.enabled = onednn.enabled, False
        try:
            type(module).forward(module, x)
        finally:
            onednn.enabled = kept
        return x


class NeedlessTranspose(Planted):
    """Brings an image into channels-last and back, before a layer that did not ask for it.

    Into two tensors that it keeps: what allocating them takes depends on where in the heap they come to lie, and with a
    profiler, which has memory too, that is elsewhere.
    """

    kept: tuple[Any, Any] | None = None

    def where(self, spec: ModelSpec) -> str:
        return _widest(spec)

    def once(self, module: Any, x: Any) -> Any:
        if self.kept is None or self.kept[1].shape != x.shape:
            self.kept = x.permute(0, 2, 3, 1).contiguous(), torch.empty_like(x)
        there, back = self.kept
        there.copy_(x.permute(0, 2, 3, 1))
        return back.copy_(there.permute(0, 3, 1, 2))


class AllocationStorm(Planted):
    """Makes large tensors and frees them, unused, between two layers."""

    def where(self, spec: ModelSpec) -> str:
        return _widest(spec)

    def once(self, module: Any, x: Any) -> Any:
        x.new_empty(LARGE)
        return x


class CachedOutput(PyTorch):
    """Computes once, and shows that output ever after."""

    def build(
        self,
        spec: ModelSpec,
        weights: Mapping[str, Any],
        device: str,
        batch: int,
        threads: int,
        options: Mapping[str, str] = DEFAULTS,
    ) -> Any:
        """As PyTorch's, with a step that works once."""
        network: Any = super().build(spec, weights, device, batch, threads, options)
        step = network.step

        def first_step() -> None:
            step()
            network.step = lambda: None

        network.step = first_step
        return network


def _widest(spec: ModelSpec) -> str:
    """The layer of :data:`PLAIN` that reads the largest image. Raises ValueError where there is none."""
    shapes, sources = zoo.shapes(spec, 1), spec.sources()
    images = [item for item in spec.layers if item.op in PLAIN and len(shapes[item.name]) == 4]
    return max(images, key=lambda item: math.prod(shapes[sources[item.name][0]])).name
