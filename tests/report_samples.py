"""Made-up results for the tests of reports: AlexNet under three frameworks, a backend and two lowerings."""

import math
from dataclasses import replace

import numpy as np

from xframe.results import LayerWork, Level, Machine, Measurement, Run
from xframe.store import SCHEMA
from xframe.types import Artifact, Case, ConvSite, Kernel, Outcome, Plan, Profile, Span

#: Every place of a page that shows a text from outside gets this one in a test.
EVIL = "</script><script>alert(1)</script>\"'&<img src=x onerror=alert(2)><!-- %{x} \x1b[2J"
PIXELS = {"conv1": (3, 224, 64, 11, 4, 2), "conv2": (64, 27, 192, 5, 1, 2), "conv3": (192, 13, 384, 3, 1, 1),
          "conv4": (384, 13, 256, 3, 1, 1), "conv5": (256, 13, 256, 3, 1, 1)}  # fmt: skip
FCS = {"fc6": (9216, 4096), "fc7": (4096, 4096), "fc8": (4096, 1000)}
MACHINE = Machine(216e9, (Level("L2", 1 << 20, 160e9), Level("L3", 32 << 20, 55e9), Level("memory", math.inf, 26e9)))


def sites(batch=1):
    """Layer -> its convolution."""
    return {
        name: ConvSite(batch, c, (hw, hw), out, (k, k), (s, s), (p, p, p, p))
        for name, (c, hw, out, k, s, p) in PIXELS.items()
    }


def layers(batch=1):
    found = []
    for name, s in sites(batch).items():
        image = 4 * batch * (s.in_channels * math.prod(s.in_hw) + s.out_channels * math.prod(s.out_hw))
        found.append(LayerWork(name, "conv", s, s.flop, image, 4 * s.out_channels * s.reduction))
    found.append(LayerWork("pool5", "pool", None, 0, 4 * batch * 256 * (13 * 13 + 6 * 6)))
    found += [LayerWork(n, "fc", None, 2 * batch * a * b, 4 * batch * (a + b), 4 * a * b) for n, (a, b) in FCS.items()]
    return tuple(found)


def profile(rng, batch, slow, overhead, algorithm="direct", nodes=""):
    """One pass: kernels at a share of the machine's speed, gaps, a reorder, a pool; ``nodes``: prefix of layers."""
    at, kernels, host = 0.2e-3 + overhead / 2, [], [Span("step", 0.0, 0.15e-3, "python")]
    for work in layers(batch):
        roof = max(work.flop / MACHINE.flop_per_s, (work.image_bytes + work.weight_bytes) / 26e9)
        seconds = roof * slow * float(rng.normal(1.25, 0.01))
        name = f"{algorithm}_{work.kind}" if work.kind == "conv" else f"{work.kind}_f32"
        used = algorithm if work.kind == "conv" else ""
        kernels.append(Kernel(name, at, at + seconds, work.site, "product", work.kind, nodes + work.name, used))
        host.append(Span("enqueue", at - 1e-6, at + 1e-6, "dispatch"))
        at += seconds + overhead / 20
        if work.name == "conv2":
            kernels.append(Kernel("reorder", at, at + 0.2e-3, None, "", "layout", nodes + "conv2"))
            at += 0.2e-3
    return Profile(at + 0.1e-3, tuple(kernels), tuple(host), 0.05e-3)


def row(
    rng, framework, runner="native", label="auto", slow=1.0, overhead=1e-3, batch=1, options=(), profiled=True, **more
):
    """An OK row with samples about its profile's wall time."""
    found = sites(batch)
    plan = Plan(label, tuple((s, label) for s in found.values())) if runner == "tvm" else Plan()
    artifact = None
    if runner != "native":
        artifact = Artifact("a.onnx", "ab" * 32, "alexnet", framework, "1", 18, (), (), tuple(found.items()))
    case = Case("alexnet", framework, runner, plan, "cpu", batch, 2, artifact, options=options)
    passes = tuple(
        profile(
            rng,
            batch,
            slow,
            overhead,
            label if runner == "tvm" else "brgconv:avx512",
            "" if runner == "native" else "node_",
        )
        for _ in range(3)
    )
    wall = passes[0].wall - 0.05e-3
    rounds = tuple(tuple((wall * rng.lognormal(0, 0.01, 20)).tolist()) for _ in range(5))
    plain = tuple((wall * rng.lognormal(0, 0.01, 6)).tolist())
    fields = {
        "environment": {"threads": 2},
        "seconds": {"compile": 1.25},
        "error": 1.2e-6,
        "error_bound": 1e-5,
        "error_ratio": 0.12,
        "peak_bytes": 900_000_000,
    }
    if profiled:
        fields.update(profiles=passes, plain=plain)
    return Measurement(case, Outcome.OK, rounds=rounds, **{**fields, **more})


def ablation(rng, batch):
    """The switches of pytorch: one helps, one does not, one fails."""

    def about(step, **changed):
        return {"environment": {"ablation": {"set": batch, "step": step, "changed": changed}}, "profiled": False}

    good = row(rng, "pytorch", slow=1.0, batch=batch, options=(("layout", "channels_last"),),
               **about("alone", layout="channels_last"))  # fmt: skip
    bad = row(rng, "pytorch", slow=1.9, batch=batch, options=(("mkldnn", "off"),), **about("alone", mkldnn="off"))
    default = row(rng, "pytorch", slow=1.3, batch=batch, **about("default"))
    dead = replace(bad, outcome=Outcome.UNAVAILABLE, reason="no compiler", rounds=(), **{
        "environment": about("alone", compile="on")["environment"],
    })  # fmt: skip
    again = row(
        rng, "pytorch", slow=1.0, batch=batch, options=good.case.options, **about("together", layout="channels_last")
    )
    return [default, good, bad, dead, again]


def failed(framework, label, outcome, reason, batch=1, **more):
    return Measurement(Case("alexnet", framework, "tvm", Plan(label), "cpu", batch, 2), outcome, reason, **more)


def run(batches=(1,), **more):
    """A whole result, the same each time."""
    rng = np.random.default_rng(0)
    rows = []
    for b in batches:
        rows += [
            row(rng, "pytorch", slow=1.3, overhead=1.5e-3, batch=b, notes=("other processes took 3 % of the CPUs",)),
            row(rng, "tensorflow", slow=1.1, overhead=0.8e-3, batch=b),
            row(rng, "jax", slow=1.6, overhead=0.5e-3, batch=b),
            row(rng, "pytorch", "ort", slow=1.15, overhead=0.2e-3, batch=b),
            row(rng, "pytorch", "tvm", "direct", slow=1.4, overhead=0.1e-3, batch=b),
            row(rng, "pytorch", "tvm", "winograd", slow=0.9, overhead=0.1e-3, batch=b),
            failed("pytorch", "fft", Outcome.UNSUPPORTED, "fft can't do conv1: its stride is 4", b),
            failed("jax", "gemm", Outcome.MISMATCH, "output fc8 at [0, 4] is 0.4979, expected -0.5020", b,
                   rounds=((0.02, 0.03),)),
        ]  # fmt: skip
        rows += ablation(rng, b)
    facts = {"cpu": "Some CPU", "versions": {"torch": "2.13.0", "jax": None}, "cpus_allowed": [0, 1],
             "request": {"model": "alexnet"}}  # fmt: skip
    return Run(SCHEMA, "2026-01-01T00:00:00+00:00", ("xframe", "explain", "--model", "alexnet"), facts, tuple(rows),
               **{"machines": {2: MACHINE}, "layers": {b: layers(b) for b in batches}, **more})  # fmt: skip
