"""What the threads of a warp read of shared memory at once lies in different banks: counted, as the kernels run."""

import math
from collections import Counter
from dataclasses import replace

import pytest
import tvm

from tests.cuda_on_cpu import real, server, shim, trace
from tests.cuda_on_cpu.fixtures import cuda_on_cpu  # noqa: F401  # a fixture
from tests.lowering.networks import conv_data
from tests.lowering.on_cuda import AMPERE
from xframe import registry
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


def counted(*arguments) -> dict[int, Counter[tuple[int, int]]]:
    """In the process with the device: turns of the banks, by kind of access."""
    run = shim.loaded(*arguments)
    server.runtime().shim_trace()
    run()
    accesses = trace.taken(server.runtime())
    return {kind: trace.turns(accesses, kind, width=16) for kind in (trace.READ, trace.WRITE)}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("tile", TILES, ids=lambda t: f"{t[0]}x{t[1]}")
def test_a_product_has_no_conflicts_of_banks(cuda_on_cpu, name, tile):  # noqa: F811
    one = stage(name, tile)
    for threads in one.templated()[1].space["column_threads"]:
        func, inputs = real.made(one, {"column_threads": threads})
        module = tvm.ir.save_json(shim.as_module(func))
        found = cuda_on_cpu.call(counted, module, "main", inputs, AMPERE.tvm.export(), {})
        assert all(len(turns) > 0 and all(took == least for took, least in turns) for turns in found.values()), threads
