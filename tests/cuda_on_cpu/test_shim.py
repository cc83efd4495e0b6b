"""The shim computes what the kernels compute, and notices each thing that is broken in them."""

import numpy as np
import pytest

pytest.importorskip("tvm")

from tests.cuda_on_cpu import cuda_text, kernels, mutation
from tests.cuda_on_cpu.errors import KernelError
from tests.cuda_on_cpu.server import ORDERS

A, B, ROWS = kernels.values(70, 48), kernels.values(48, 50, seed=1), kernels.values(3, 512)
#: Each a kernel, its inputs, and what it must give.
SAMPLES = {
    "matmul": lambda: (kernels.matmul(70, 48, 50), (A, B), A @ B),
    "matmul in dynamic shared memory": lambda: (kernels.matmul(70, 48, 50, scope="shared.dyn"), (A, B), A @ B),
    "pipelined matmul": lambda: (kernels.matmul(64, 48, 32, pipelined=True), (A[:64], B[:, :32]), A[:64] @ B[:, :32]),
    "vectorised": lambda: (kernels.scaled(1000), (ROWS.ravel()[:1000],), ROWS.ravel()[:1000] * 2),
    "shuffles in a warp": lambda: (kernels.row_sums(3, 512), (ROWS,), ROWS.sum(1)),
    "shuffles and shared memory": lambda: (kernels.row_sums(3, 512, 128), (ROWS,), ROWS.sum(1)),
    "a block of less than a warp": lambda: (kernels.row_sums(3, 512, 8), (ROWS,), ROWS.sum(1)),
}


@pytest.fixture(params=SAMPLES)
def sample(request):
    return SAMPLES[request.param]()


def close(got, expected):
    return np.allclose(got, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("order", ORDERS)
def test_right_results_in_every_order(cuda_on_cpu, sample, order):
    func, inputs, expected = sample
    (got,) = cuda_on_cpu.run(func, inputs, order=order)
    assert close(got, expected)


def noticed(shim, func, inputs, expected, text, order):
    try:
        (got,) = shim.run(func, inputs, order=order, text=text)
    except KernelError:
        return True
    return not close(got, expected)


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_each_removed_barrier_is_noticed(cuda_on_cpu, sample, order):
    text = cuda_text(sample[0])
    mutants = mutation.without_barriers(text)
    missed = [what for what, mutant in mutants if not noticed(cuda_on_cpu, *sample, mutant, order)]
    # TVM has one barrier too many: a thread reads what it has written itself.
    assert [what for what in missed if "red_result_ptr" not in following(what, text, 2)] == []


def test_each_bound_off_by_one_is_noticed(cuda_on_cpu, sample):
    text = cuda_text(sample[0])
    mutants = mutation.bounds_off_by_one(text)
    missed = [what for what, mutant in mutants if not noticed(cuda_on_cpu, *sample, mutant, "forward")]
    # A thread that sets registers to zero that it never uses breaks nothing.
    zeroes = "C_local_ptr[((i_2_init * 2) + j_2_init)] = 0x0p+0f/*0.000000e+00*/;"
    assert [what for what in missed if following(what, text, 1) != zeroes] == []


def test_each_bound_too_small_is_noticed(cuda_on_cpu):
    sample = SAMPLES["matmul"]()
    mutants = mutation.bounds_off_by_one(cuda_text(sample[0]), by=-1)
    assert [what for what, mutant in mutants if not noticed(cuda_on_cpu, *sample, mutant, "forward")] == []


def following(what, text, lines):
    """The line of ``text`` that is ``lines`` behind the one that a mutant changed."""
    return text.splitlines()[int(what.split()[1].rstrip(":")) - 1 + lines].strip()
