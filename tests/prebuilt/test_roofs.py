"""The roofs of a GPU: kernels that compute what is known, on the CPU; and what is said where they do not."""

import numpy as np
import pytest

pytest.importorskip("tvm")

from tests.cuda_on_cpu.fixtures import cuda_on_cpu  # noqa: F401
from tests.lowering.on_cuda import HOPPER
from tests.prebuilt.rehearsal import roofs_of
from xframe.errors import XframeError
from xframe.prebuilt import roofs
from xframe.prebuilt.roofs import SUMS, WIDTH, Work

SMALL = Work(threads=200, depth=24, reads=16)  # one block is partly filled


def test_the_work_is_what_the_kernels_do(cuda_on_cpu):  # noqa: F811
    made = roofs.module(SMALL)
    g = np.random.default_rng(0)
    x, y = g.standard_normal((2, 200), dtype=np.float32)
    start = g.standard_normal((SUMS, 200), dtype=np.float32)
    (sums,) = cuda_on_cpu.run(made["peak"], [x / 2, y, start])
    right = start.astype(float)
    for _ in range(SMALL.depth):
        right = right * (x / 2) + y
    np.testing.assert_allclose(sums, right, rtol=1e-4, atol=1e-4)
    block = g.standard_normal((16, 200 * WIDTH), dtype=np.float32)
    (total,) = cuda_on_cpu.run(made["read"], [block])
    np.testing.assert_allclose(total, block.reshape(16, 200, WIDTH).sum((0, 2)), rtol=1e-4, atol=1e-4)
    assert (SMALL.flop, SMALL.bytes) == (2 * 200 * SUMS * 24, block.nbytes)


def test_a_whole_gpu_reads_more_than_its_caches_hold():
    work = roofs.filling(HOPPER)
    assert work.threads == 132 * 2048
    assert work.bytes > 10 * (50 << 20)
    assert work.depth <= 1 << 24


def test_what_is_compiled_is_measured_and_checked(cuda_on_cpu, tmp_path):  # noqa: F811
    found, error = cuda_on_cpu.call(roofs_of, tmp_path, Work(threads=32, depth=8, reads=8))
    assert min(found["flop_per_s"], found["bytes_per_s"]) > 0
    assert error == "the sums of peak are [8.], and should be 9"


def test_a_measuring_that_fails_says_what_it_said(tmp_path):
    with pytest.raises(XframeError, match=r"the roofs of cuda can't be measured: .*"):
        roofs.measured(tmp_path / "roofs.so", "cuda")
