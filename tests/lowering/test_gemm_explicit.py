"""GEMM with its column matrix in memory, on a GPU."""

import numpy as np
import pytest

from tests.cuda_on_cpu import shim
from tests.cuda_on_cpu.fixtures import cuda_on_cpu  # noqa: F401
from tests.lowering import on_cuda
from tests.lowering.on_cuda import HOPPER
from tests.lowering.test_convolutions import square
from tests.lowering.test_cuda import ALEXNET, check
from xframe.environment import cpu_device
from xframe.lowering.gemm import ExplicitGemm, Gemm
from xframe.lowering.stage import Epilogue
from xframe.lowering.variants import choose
from xframe.types import ERROR_BUDGET, ConvSite, Device

GPU = Device("cuda", "cuda", "a GPU", "sm_90", 132)


def test_it_is_right(cuda_on_cpu):  # noqa: F811
    grouped = ConvSite(2, 8, (9, 7), 12, (3, 3), (2, 1), (0, 1, 2, 1), (1, 2), 2)
    check(cuda_on_cpu, "gemm_explicit", [*ALEXNET[1:3], grouped], "reverse", layouts=("NHWC",))


def kernels(lowering, site):
    weight = np.zeros((site.out_channels, site.in_channels, *site.kernel), np.float32)
    epilogue = Epilogue(np.zeros(site.out_channels, np.float32))
    stages = lowering.define(choose(lowering, site, HOPPER, ERROR_BUDGET), weight, epilogue, "NHWC", HOPPER)
    text = shim.cuda_text(on_cuda.module(stages), target=HOPPER.tvm)
    return text.split('extern "C"')[1:]


def test_the_column_matrix_is_in_memory_and_gemm_has_none():
    site = square(1, 16, 13, 24, 3)
    explicit = [k for k in kernels(ExplicitGemm(), site) if k.rstrip().endswith("}")]
    assert ["__shared__" in k for k in explicit] == [False, True]
    assert all("column_ptr" in k for k in explicit)
    assert not any("column_ptr" in k for k in kernels(Gemm(), site))


def test_it_is_for_gpus_and_for_matrices_that_indices_reach():
    site = square(128, 64, 224, 64, 3, pad=1)
    assert "32" not in (ExplicitGemm().refuses(square(1, 8, 9, 8, 3), GPU) or "")
    assert "3699376128 values" in ExplicitGemm().refuses(site, GPU)
    assert "on a CPU it is gemm itself" in ExplicitGemm().refuses(square(1, 8, 9, 8, 3), cpu_device())


@pytest.mark.parametrize("lowering", [Gemm(), ExplicitGemm()], ids=lambda low: low.name)
def test_what_is_chosen_on_a_gpu(lowering):
    assert choose(lowering, square(1, 16, 13, 24, 3), HOPPER, ERROR_BUDGET).detail == (
        "implicit" if lowering.name == "gemm" else "im2col"
    )
