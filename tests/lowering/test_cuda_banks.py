"""What the threads of a warp access of shared memory at once lies in different banks: counted, as the kernels run."""

import math
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import tvm

from tests.cuda_on_cpu import real, server, shim, trace
from tests.cuda_on_cpu.fixtures import cuda_on_cpu  # noqa: F401  # a fixture
from tests.lowering.networks import conv_data
from tests.lowering.on_cuda import AMPERE
from xframe import registry
from xframe.lowering.dense import dense_stages
from xframe.lowering.stage import Epilogue, Stage, Tile
from xframe.types import ConvSite

SQUARE = ConvSite(1, 16, (16, 8), 128, (3, 3), (1, 1), (1, 1, 1, 1))
#: Lowering, variant and site: a matrix that is made in shared memory, one that is there, and what is read in another
#: order; of complex values, too.
PRODUCTS = {
    "implicit": ("gemm", "implicit", SQUARE),
    "im2col": ("gemm", "im2col", ConvSite(1, 16, (16, 8), 128, (1, 3), (1, 1), (0, 1, 0, 1))),
    "winograd": ("winograd", "F(2,3)", SQUARE),
    "fft": ("fft", "4x4 tiles", SQUARE),
}
TILES = ((32, 32), (32, 64), (64, 128), (128, 64), (128, 128))


def stage(name: str, tile: tuple[int, int]) -> Stage:
    lowering, detail, site = PRODUCTS[name]
    _, weight, bias = conv_data(site, 0)
    found = registry.load(registry.LOWERINGS, lowering)
    variant = next(v for v in found.variants(site) if v.detail == detail)
    stages = found.define(replace(variant, tile=Tile(*tile, 1)), weight, Epilogue(bias, math.inf), "NHWC", AMPERE)
    return next(s for s in stages if s.role == "product")


def _direct(site: ConvSite) -> list[Stage]:
    return [s for s in real.convolution("direct", site) if s.role == "product"]


def _transforms(site: ConvSite) -> list[Stage]:
    return [s for s in real.convolution("fft", site, "14x14 image") if s.role in ("input", "output")]


def _dense(rows: int) -> list[Stage]:
    g = np.random.default_rng(0)
    weight, bias = (g.standard_normal(s, dtype=np.float32) for s in ((512, 256), (256,)))
    return dense_stages(rows, weight, bias, math.inf, AMPERE)


#: Other kernels that keep values in shared memory, at sites like those of AlexNet.
OTHERS = {
    "direct 3x3": lambda: _direct(ConvSite(1, 16, (13, 13), 64, (3, 3), (1, 1), (1, 1, 1, 1))),
    "direct 5x5": lambda: _direct(ConvSite(1, 8, (14, 14), 64, (5, 5), (1, 1), (2, 2, 2, 2))),
    "direct 11x11": lambda: _direct(ConvSite(1, 3, (56, 56), 32, (11, 11), (4, 4), (2, 2, 2, 2))),
    "transforms of fft": lambda: _transforms(ConvSite(1, 16, (13, 13), 32, (3, 3), (1, 1), (1, 1, 1, 1))),
    **{f"fully connected, {rows} rows": partial(_dense, rows) for rows in (1, 16, 128)},
}


def counted(*arguments) -> dict[int, Counter[tuple[int, int]]]:
    """In the process with the device: turns of the banks, by kind of access."""
    run = shim.loaded(*arguments)
    server.runtime().shim_trace()
    run()
    accesses = trace.taken(server.runtime())
    return {kind: trace.turns(accesses, kind, width=16) for kind in (trace.READ, trace.WRITE)}


def turns(cuda_on_cpu, one: Stage, chosen: dict[str, int] | None = None) -> dict[int, tuple[int, int]]:  # noqa: F811
    """By kind of access: turns of the banks that a kernel takes in all, and would take without conflicts."""
    func, inputs = real.made(one, chosen)
    module = tvm.ir.save_json(shim.as_module(func))
    found = cuda_on_cpu.call(counted, module, "main", inputs, AMPERE.tvm.export(), {})
    return {
        kind: tuple(sum(pair[i] * often for pair, often in of.items()) for i in (0, 1)) for kind, of in found.items()
    }


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("tile", TILES, ids=lambda t: f"{t[0]}x{t[1]}")
def test_a_product_has_no_conflicts_of_banks(cuda_on_cpu, name, tile):  # noqa: F811
    one = stage(name, tile)
    for threads in one.templated()[1].space["column_threads"]:
        for kind, (took, least) in turns(cuda_on_cpu, one, {"column_threads": threads}).items():
            assert took == least > 0, (threads, kind)


@pytest.mark.parametrize("name", OTHERS)
def test_other_kernels_have_few(cuda_on_cpu, name):  # noqa: F811
    """The last values of a row that is no multiple of what a warp brings at once; and in a direct convolution, where
    the threads of a warp are at two places of the image, some pixels of these."""
    most = 1.1 if name.startswith("direct") else 1.02
    for one in OTHERS[name]():
        for kind, (took, least) in turns(cuda_on_cpu, one).items():
            assert 0 < least <= took <= most * least, (one.role, kind, took, least)
