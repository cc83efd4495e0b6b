"""What each lowering does, and its error against float64, predicted and measured, as a page of the documentation.

python benchmarks/errors.py > docs/errors.md
"""

import argparse
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("TVM_BIND_THREADS", "0")

import numpy as np
import tvm

from xframe import environment, registry
from xframe.equivalence import kernels
from xframe.lowering.stage import Epilogue
from xframe.lowering.target import Cpu
from xframe.lowering.variants import Variant
from xframe.types import ERROR_BUDGET, ConvSite

KERNELS, CHANNELS, IMAGES = (3, 5, 7), (16, 256), 4
#: One of each kind of convolution, for the table of what is done.
KINDS = {
    "1x1": ConvSite(1, 64, (28, 28), 64, (1, 1)),
    "1x1, stride 2": ConvSite(1, 64, (28, 28), 64, (1, 1), (2, 2)),
    "3x3, 5x5, 7x7": ConvSite(1, 64, (28, 28), 64, (3, 3), pads=(1,) * 4),
    "3x3, asymmetric padding": ConvSite(1, 64, (28, 28), 64, (3, 3), pads=(0, 0, 1, 1)),
    "1x7 or 7x1": ConvSite(1, 64, (28, 28), 64, (1, 7)),
    "3x3, stride 2": ConvSite(1, 64, (28, 28), 64, (3, 3), (2, 2)),
    "11x11, stride 4": ConvSite(1, 3, (224, 224), 64, (11, 11), (4, 4)),
    "11x11": ConvSite(1, 64, (28, 28), 64, (11, 11)),
    "3x3, dilation 2": ConvSite(1, 64, (28, 28), 64, (3, 3), dilation=(2, 2)),
    "3x3, 2 groups": ConvSite(1, 64, (28, 28), 64, (3, 3), groups=2),
    "3x3 depthwise, stride 1": ConvSite(1, 64, (28, 28), 64, (3, 3), groups=64),
    "3x3 depthwise, stride 2": ConvSite(1, 64, (28, 28), 64, (3, 3), (2, 2), groups=64),
}
DONE = """# The lowerings: what they do, and their errors

Written by `python benchmarks/errors.py > docs/errors.md`; do not edit.

Images may be NCHW or NHWC, of any size, with any channels. What a lowering refuses, it refuses in these words, and
`--fallback` says what runs there.
"""
HEAD = """## Errors

An error is the largest deviation of an output from float64, relative to the RMS of the layer's output. **predicted**
is what `--error-budget` is held against: `Z u sqrt((11/6 length growth^2 + 6) / 3)` with Z = 8 deviations and
u = 2^-24. `length` is the number of terms that are summed one after another, and `growth` the factor by which a
Winograd transform enlarges rounding errors (`xframe.equivalence.bounds.predicted`, `xframe.lowering.winograd.growth`).
**measured** is the largest of {images} images of {hw} pixels with {out} random filters: weights N(0, 1/K), images
N(0, 1) or what a ReLU leaves of them.

A prediction is meant never to be exceeded, so it is some times the measured error. A variant whose prediction is above
the budget is not used; the default budget, {budget:g}, leaves all of them.

Run on `{target}`, {cpu}.
"""


@dataclass(frozen=True)
class Row:
    """One variant at one site, with the largest error of the images of its batch."""

    site: ConvSite
    lowering: str
    detail: str
    predicted: float
    measured: float


def layer(kernel: int, channels: int) -> ConvSite:
    return ConvSite(IMAGES, channels, (28, 28), 32, (kernel, kernel), pads=(kernel // 2,) * 4)


def data(site: ConvSite) -> tuple[np.ndarray, np.ndarray]:
    """(images, weight) of a random layer, float32; every second image is what a ReLU leaves."""
    g = np.random.default_rng(0)
    x = g.standard_normal((site.batch, site.in_channels, *site.in_hw), dtype=np.float32)
    w = g.standard_normal((site.out_channels, site.in_channels // site.groups, *site.kernel), dtype=np.float32)
    x[1::2] = np.maximum(x[1::2], 0)
    return x, w / np.float32(math.sqrt(site.reduction))


def output(lowering, variant: Variant, images: np.ndarray, weight: np.ndarray, cpu: Cpu) -> np.ndarray:
    """What the variant makes of ``images``, NCHW: its stages compiled and run one by one."""
    site, y = variant.site, images
    for stage in lowering.define(variant, weight, Epilogue(np.zeros(site.out_channels, np.float32)), "NCHW", cpu):
        out = tvm.runtime.tensor(np.empty(stage.shape, np.float32))
        shape = tuple(int(n) for n in stage.func.params[0].shape)
        module = tvm.compile(tvm.IRModule({"main": stage.scheduled()}), target=cpu.tvm)
        module["main"](*map(tvm.runtime.tensor, (y.reshape(shape), *stage.constants)), out)
        y = out.numpy()
    return y.reshape(site.batch, *site.out_hw, site.out_channels).transpose(0, 3, 1, 2)


def rows(site: ConvSite, cpu: Cpu) -> Iterator[Row]:
    """Every variant of every lowering that does not refuse the site."""
    images, weight = data(site)
    window = kernels.Window(site.kernel, site.stride, site.pads, site.dilation)
    exact = kernels.conv(images.astype(np.float64), weight, window, site.groups)
    rms = np.sqrt(np.square(exact).mean(axis=(1, 2, 3)))
    for name in registry.LOWERINGS:
        lowering = registry.load(registry.LOWERINGS, name)
        if lowering.refuses(site, environment.cpu_device()) is None:
            for variant in lowering.variants(site):
                print(f"{site.key} {name} {variant.detail}", file=sys.stderr)
                errors = np.abs(output(lowering, variant, images, weight, cpu) - exact).max(axis=(1, 2, 3))
                yield Row(site, name, variant.detail, variant.error, float((errors / rms).max()))


def table(shapes: list[list[Row]]) -> Iterator[str]:
    """A Markdown table of layers with one kernel: a line for each variant, a group of columns for each shape."""
    titles = [f"{s[0].site.in_channels} channels: predicted | measured | times" for s in shapes]
    yield f"| lowering | variant | {' | '.join(titles)} |"
    yield "| --- " * (2 + 3 * len(shapes)) + "|"
    for same in zip(*shapes, strict=True):
        cells = [f"{r.predicted:.1e} | {r.measured:.1e} | {r.predicted / r.measured:.1f}" for r in same]
        yield f"| {same[0].lowering} | {same[0].detail} | {' | '.join(cells)} |"


def done() -> Iterator[str]:
    """A Markdown table of what each lowering says to each of :data:`KINDS`."""
    lowerings = {name: registry.load(registry.LOWERINGS, name) for name in registry.defaults(registry.LOWERINGS)}
    yield f"| convolution | {' | '.join(lowerings)} |"
    yield "| --- " * (1 + len(lowerings)) + "|"
    for kind, site in KINDS.items():
        answers = [lowering.refuses(site, environment.cpu_device()) or "yes" for lowering in lowerings.values()]
        yield f"| {kind} | {' | '.join(answers)} |"


def main() -> int:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    cpu = Cpu.host(len(environment.allowed_cpus()))
    print(DONE)
    print("\n".join(done()), end="\n\n")
    some = layer(KERNELS[0], CHANNELS[0])
    facts = {"target": cpu.text, "cpu": environment.cpu_device().name, "out": some.out_channels}
    size = "x".join(map(str, some.in_hw))
    print(HEAD.format(images=IMAGES, budget=ERROR_BUDGET, hw=size, **facts))
    for kernel in KERNELS:
        print(f"### {kernel}x{kernel}\n")
        shapes = [list(rows(layer(kernel, channels), cpu)) for channels in CHANNELS]
        print("\n".join(table(shapes)), flush=True)
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
