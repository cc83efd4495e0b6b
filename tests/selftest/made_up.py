"""Rows of a framework that does not exist: profiles by a clock that is set by hand, honest or with a lie in them."""

import json
import math

import numpy as np

from xframe.results import LayerWork, Measurement, Run
from xframe.selftest.attribution import HONEST, TWINS
from xframe.types import Case, ConvSite, Kernel, Outcome, Plan, Profile, Span

CONV1 = ConvSite(1, 3, (16, 16), 8, (3, 3))
CONV2 = ConvSite(1, 8, (14, 14), 8, (3, 3))
LAYERS = (
    LayerWork("conv1", "conv", CONV1, 1e6, 1000, 100),
    LayerWork("relu1", "activation", None, 0.0, 0),
    LayerWork("conv2", "conv", CONV2, 1e6, 1000, 100),
    LayerWork("fc", "fc", None, 1e6, 1000, 1000),
)
#: Kernels of a pass in order, seconds; between them the host is busy for GAP, before them for CALL.
KERNELS = (("conv1", "conv", CONV1, 1e-3), ("relu1", "activation", None, 1e-4), ("conv2", "conv", CONV2, 2e-3),
           ("fc", "fc", None, 1e-3))  # fmt: skip
CALL, GAP = 5e-5, 1e-5
#: What the profiler adds to a pass, as it knows itself.
COST = 2e-4
#: Of each time, from step to step.
NOISE = 0.005


def profile(rng, lie="", amount=0.0):
    """One pass. ``lie`` says where ``amount`` seconds are spent besides."""

    def about(seconds):
        return seconds * math.exp(rng.normal(0, NOISE))

    now, kernels, host = about(CALL), [], []
    now += amount if lie in ("spin", "sleep") else 0.0
    for name, kind, site, seconds in KERNELS:
        if name == "relu1" and lie == "transpose":
            kernels.append(Kernel("to", now, now + amount / 2, kind="layout", layer=name))
            kernels.append(Kernel("back", now + amount / 2, now + amount, kind="layout", layer=name))
            now += amount
        if name == "relu1" and lie == "allocation":
            host.append(Span("empty", now, now + 0.7 * amount, "allocation"))
            now += amount
        own = about(seconds) + (amount if (name, lie) == ("conv2", "kernel") else 0.0)
        kernels.append(Kernel(name, now, now + own, site, kind=kind, layer=name))
        now += own + about(GAP)
    return Profile(now + COST, tuple(kernels), tuple(host), COST)


def row(framework, seed, lie="", amount=0.0, lands="", planted_file=""):
    """A measurement; where a lie ``lands`` instead of its own place is for tests of misses."""
    rng = np.random.default_rng(seed)

    def wall():
        return profile(rng, lie, amount).wall - COST

    place = {"spin": "", "sleep": "", "kernel": "conv2"}.get(lie, "relu1")
    return Measurement(
        Case("made-up", framework, "native", Plan(), "cpu", 1, 1),
        Outcome.OK,
        rounds=tuple(tuple(wall() for _ in range(20)) for _ in range(5)),
        profiles=tuple(profile(rng, lands or lie, amount) for _ in range(15)),
        plain=tuple(wall() for _ in range(15)),
        environment={"planted_layer": place, "planted_file": str(planted_file)} if lie else {},
    )


def run(folder, lies, amount=5e-4, lands="", clocked=None):
    """Of the honest rows and those with these lies, each with what it clocked."""
    rows = [row(name, seed) for seed, name in enumerate((HONEST, *TWINS))]
    for seed, lie in enumerate(lies, len(rows)):
        path = folder / f"{lie}.json"
        path.write_text(json.dumps({"plain": [clocked or amount] * 9, "profiled": []}))
        rows.append(row(f"pytorch+{lie}", seed, lie, amount, lands, path))
    return Run(1, "now", (), {}, tuple(rows), {}, {1: LAYERS})
