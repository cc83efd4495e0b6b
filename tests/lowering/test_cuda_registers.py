"""What a thread holds fits its registers: by the arithmetic of the schedules, and by what nvcc says of a sample."""

import itertools
import shutil

import numpy as np
import pytest
import tvm

from benchmarks import cuda_compile, ptxas
from tests.cuda_on_cpu import shim
from tests.lowering import on_cuda
from tests.lowering.on_cuda import AMPERE, HOPPER
from tests.lowering.test_convolutions import square
from xframe import geometry, registry, zoo
from xframe.lowering.cuda import direct, product
from xframe.lowering.cuda.target import Gpu
from xframe.lowering.dense import dense_stages
from xframe.lowering.pointwise import is_pointwise, pointwise_stage
from xframe.lowering.stage import Epilogue, Tile
from xframe.lowering.variants import choose
from xframe.types import ERROR_BUDGET


@pytest.mark.parametrize("gpu", [AMPERE, HOPPER], ids=lambda gpu: gpu.arch)
@pytest.mark.parametrize("parts", [1, 2])
def test_products_by_hand(gpu, parts):
    """Whatever tile a site gets, and whatever its reduction is."""
    tiles = {t for rows in (1, 2, 4, 8, 1000) for t in gpu.tiles(rows, 1000, parts)}
    assert len(tiles) > 10
    for (rows, columns), extent in itertools.product(tiles, (1, 2, 3, 6, 7, 11, 12, 16, 21, 27, 33, 48, 64, 96, 512)):
        tile = Tile(rows, columns, 1)
        for step in {n for n in (1, 2, 4) if extent % n == 0 and (parts == 1 or n == 1)}:
            (_, y), (_, x), (_, depth) = product._by_hand(extent, step, tile, parts, gpu)
            assert product.held(tile, y, x, depth, step, parts) <= gpu.room(y * x), (tile, extent, step)


@pytest.mark.parametrize("gpu", [AMPERE, HOPPER], ids=lambda gpu: gpu.arch)
@pytest.mark.parametrize("batch", [1, 16, 128])
def test_direct_convolutions_of_all_models_by_hand(gpu, batch):
    sites = {site for name in zoo.names() for site in geometry.sites(zoo.spec(name), batch).values()}
    sites = {s for s in sites if not is_pointwise(s) and s.groups == 1}
    assert len(sites) > 30
    for site in sites:
        row, columns = direct.tiles(site, gpu)[0]
        lines, along = direct.by_hand(site, row, columns, gpu), direct._along(row)
        threads = direct._threads(row, columns, lines)
        depth = max(d for d in direct._depths(site) if direct._fits(site, row, columns, lines, d, gpu))
        assert threads <= gpu.most_threads
        assert direct.held(site, along, columns, depth, threads) <= gpu.room(threads), site.key


def test_what_a_thread_of_a_product_holds():
    """By hand: 8 x 4 sums, 8 x 4 values of one side and 4 of the other, and 8 + 8 on their way, of each part."""
    assert product.held(Tile(64, 64, 1), 8, 16, 16, 4, 1) == 32 + 32 + 4 + 8 + 8
    assert product.held(Tile(64, 64, 1), 8, 16, 16, 1, 2) == 2 * (32 + 8 + 4) + 16 + 16


def test_what_a_thread_of_a_direct_convolution_holds():
    """13 outputs of 4 channels, the 15 x 4 pixels of their row, 4 weights, and one vector of the next row's."""
    assert direct.held(square(1, 192, 13, 384, 3, pad=1), 13, 32, 8, 208) == 52 + 60 + 4 + 4
    assert direct.held(square(1, 3, 224, 64, 11, pad=2, stride=4), 11, 64, 3, 176) == 44 + 11 + 4 + 12


@pytest.mark.parametrize("tile", [(64, 64), (128, 64), (64, 128), (128, 128)], ids=str)
def test_the_deepest_chunks_fit_shared_memory(tile):
    """As they are laid out there, whatever rows a thread has."""
    weight, site = np.zeros((128, 96, 1, 1), np.float32), square(1, 96, 16, 128, 1)
    one = pointwise_stage(site, weight, Epilogue(np.zeros(128, np.float32), np.inf), AMPERE, Tile(*tile, 1))
    space = one.templated()[1].space
    for rows, depth in itertools.product(space["row_threads"], space["depth"][-2:]):
        mod = tvm.IRModule({"main": on_cuda.kernel(one, {"row_threads": rows, "depth": depth})})
        _, illegal = cuda_compile.generated(lambda mod=mod: shim.compiled(mod, AMPERE.tvm))
        assert illegal == [], (rows, depth)


def test_registers_are_shared_by_the_threads_of_a_block():
    assert [AMPERE.room(n) for n in (1, 32, 256, 257, 512, 1024)] == [231, 231, 231, 200, 104, 40]


#: Where ptxas moved sums to memory, or arrays lay there, before the schedules and the compiler's options were as now.
SPILLED = [
    ("direct", square(16, 384, 13, 256, 3, pad=1)),
    ("direct", square(1, 192, 13, 384, 3, pad=1)),
    ("direct", square(16, 128, 56, 128, 3, pad=1, stride=2)),
    ("gemm", square(1, 256, 56, 512, 1, stride=2)),
    ("winograd", square(16, 3, 224, 64, 11, pad=2, stride=4)),
    ("fft", square(16, 64, 27, 192, 5, pad=2)),
]


@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not on the PATH")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_nvcc_keeps_all_in_registers(arch):
    gpu, stages = Gpu.named(arch), []
    for name, site in SPILLED:
        low = registry.load(registry.LOWERINGS, name)
        weight = np.zeros((site.out_channels, site.in_channels, *site.kernel), np.float32)
        bias = np.zeros(site.out_channels, np.float32)
        variant = choose(low, site, gpu, ERROR_BUDGET)
        stages += low.define(variant, weight, Epilogue(bias, np.inf), "NHWC", gpu)
    stages += dense_stages(16, np.zeros((1024, 1000), np.float32), np.zeros(1000, np.float32), None, gpu)
    text, illegal = cuda_compile.generated(lambda: shim.compiled(on_cuda.module(stages), gpu.tvm))
    assert illegal == []
    kernels = ptxas.compiled(text, arch)
    assert len(kernels) > len(stages)
    assert [k for k in kernels if k.spills or k.stack or k.shared > gpu.shared or k.threads > 1024] == []
