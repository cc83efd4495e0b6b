"""The shim computes what the kernels compute, and notices each thing that is broken in them."""

import numpy as np
import pytest

pytest.importorskip("tvm")

from tests.cuda_on_cpu import kernels, mutation
from tests.cuda_on_cpu.server import ORDERS

A, B, ROWS = kernels.values(22, 24), kernels.values(24, 18, seed=1), kernels.values(3, 512)
#: Each a kernel, its inputs, and what it must give. Products: 2 x 2 blocks of two warps, some partly empty.
SAMPLES = {
    "matmul": lambda: (kernels.matmul(22, 24, 18, 8), (A, B), A @ B),
    "matmul in dynamic shared memory": lambda: (kernels.matmul(22, 24, 18, 8, "shared.dyn"), (A, B), A @ B),
    "pipelined matmul": lambda: (
        kernels.matmul(16, 24, 16, 8, pipelined=True),
        (A[:16], B[:, :16]),
        A[:16] @ B[:, :16],
    ),
    "vectorised": lambda: (kernels.scaled(1000), (ROWS.ravel()[:1000],), ROWS.ravel()[:1000] * 2),
    "shuffles in a warp": lambda: (kernels.row_sums(3, 512), (ROWS,), ROWS.sum(1)),
    "shuffles and shared memory": lambda: (kernels.row_sums(3, 512, 128), (ROWS,), ROWS.sum(1)),
    "a block of less than a warp": lambda: (kernels.row_sums(3, 512, 8), (ROWS,), ROWS.sum(1)),
}


@pytest.fixture(params=SAMPLES)
def sample(request):
    return SAMPLES[request.param]()


@pytest.mark.parametrize("order", ORDERS)
def test_right_results_in_every_order(cuda_on_cpu, sample, order):
    func, inputs, expected = sample
    (got,) = cuda_on_cpu.run(func, inputs, order=order)
    assert np.allclose(got, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_each_mutant_is_noticed_or_proved_to_be_none(cuda_on_cpu, sample):
    func, inputs, _ = sample
    found = mutation.judged(cuda_on_cpu, func, inputs)
    assert any(v.noticed for v in found)
    assert [v.mutant.what for v in found if v.survived] == []
