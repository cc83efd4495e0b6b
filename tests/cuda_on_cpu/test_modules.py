"""Whole Relax modules, half precision and tensor cores under the shim; where it can't be had."""

import numpy as np
import pytest

pytest.importorskip("tvm")

from tvm import relax, s_tir, te

from tests.cuda_on_cpu import build, cuda_text, errors, kernels, shim, translation
from xframe.errors import Unavailable

ASYNC = {"tirx.use_async_copy": True}
#: A product of 16 x 48 and 48 x 16 on tensor cores, by one warp: INPUT as it is stored, KIND as it is multiplied.
TENSOR_CORES = """
#include <cuda.h>
#include <mma.h>
extern "C" __global__ void __launch_bounds__(32) main_kernel(INPUT* __restrict__ A_ptr, INPUT* __restrict__ B_ptr, float* C_ptr) {
  using namespace nvcuda;
  wmma::fragment<wmma::matrix_a, 16, 16, DEPTH, KIND, wmma::row_major> a[1];
  wmma::fragment<wmma::matrix_b, 16, 16, DEPTH, KIND, wmma::col_major> b[1];
  wmma::fragment<wmma::accumulator, 16, 16, DEPTH, float> c[1];
  wmma::fill_fragment(c[0], 0.0f);
  for (int k = 0; k < 48 / DEPTH; ++k) {
    wmma::load_matrix_sync(a[0], A_ptr + k * DEPTH, 48);
    wmma::load_matrix_sync(b[0], B_ptr + k * DEPTH, 48);
    wmma::mma_sync(c[0], a[0], b[0], c[0]);
  }
  wmma::store_matrix_sync(C_ptr, c[0], 16, wmma::mem_row_major);
}
"""  # noqa: E501


def test_a_relax_module_runs_in_the_virtual_machine(cuda_on_cpu):
    x, w = kernels.values(5, 24), kernels.values(24, 33, seed=1)
    builder = relax.BlockBuilder()
    with builder.function("main"):
        image, weight = (relax.Var(n, relax.TensorType(a.shape, "float32")) for n, a in (("x", x), ("w", w)))
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(image, weight))
            out = builder.emit_output(relax.Tuple([relax.op.nn.relu(product), relax.op.sum(product, axis=[1])]))
        builder.emit_func_output(out, [image, weight])
    for order in ("forward", "reverse"):
        first, second = cuda_on_cpu.run(builder.get(), [x, w], order=order)
        assert np.allclose(first, np.maximum(x @ w, 0), atol=1e-5)
        assert np.allclose(second, (x @ w).sum(1), atol=1e-4)


def product(dtype):
    """A product of 16 x 48 and 48 x 16, summed in float, by one warp."""
    a, b = te.placeholder((16, 48), dtype, name="A"), te.placeholder((16, 48), dtype, name="B")
    r = te.reduce_axis((0, 48), "r")
    c = te.compute((16, 16), lambda i, j: te.sum((a[i, r] * b[j, r]).astype("float32"), r), name="C")
    sch = s_tir.Schedule(te.create_prim_func([a, b, c]))
    block = sch.get_sblock("C")
    grid, thread, _ = sch.split(sch.fuse(*sch.get_loops(block)[:2]), [1, 32, None])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return sch.mod["main"]


def operands(dtype):
    return kernels.values(16, 48).astype(dtype), kernels.values(16, 48, seed=1).astype(dtype)


def test_half_precision_rounds_each_operation(cuda_on_cpu):
    a, b = operands("float16")
    (got,) = cuda_on_cpu.run(product("float16"), [a, b])
    assert np.allclose(got, (a[:, None] * b).astype("float32").sum(-1), atol=1e-5)
    assert not np.allclose(got, a.astype("float32") @ b.T.astype("float32"), atol=1e-5)


def tensor_cores(shim, dtype, kind, depth, change=("", "")):
    text = TENSOR_CORES.replace("INPUT", {"float16": "half", "float32": "float"}[dtype])
    text = text.replace("KIND", kind).replace("DEPTH", str(depth)).replace(*change)
    (got,) = shim.run(product(dtype), operands(dtype), text=text)
    return got


def tf32(x):
    return (x.view("int32") & ~0x1FFF).view("float32")


def test_tensor_cores_multiply_halves_and_tf32(cuda_on_cpu):
    a, b = (x.astype("float32") for x in operands("float16"))
    assert np.allclose(tensor_cores(cuda_on_cpu, "float16", "half", 16), a @ b.T, atol=1e-5)
    a, b = operands("float32")
    got = tensor_cores(cuda_on_cpu, "float32", "wmma::precision::tf32", 8)
    assert np.allclose(got, tf32(a) @ tf32(b).T, atol=1e-5)
    assert not np.allclose(got, a @ b.T, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (("A_ptr + k * 16, 48", "A_ptr + k * 16 + 8, 48"), errors.Misaligned),
        (("k < 48 / 16", "k < 64 / 16"), errors.OutOfBounds),
        (("wmma::mma_sync", "if (threadIdx.x) wmma::mma_sync"), errors.Divergence),
    ],
)
def test_faults_around_tensor_cores(cuda_on_cpu, change, error):
    with pytest.raises(error):
        tensor_cores(cuda_on_cpu, "float16", "half", 16, change)


def test_lines_keep_their_numbers():
    func = kernels.matmul(64, 48, 64, scope="shared.dyn", pipelined="async")
    lines = cuda_text(func, config=ASYNC).splitlines()
    code = translation.translated("\n".join(lines)).splitlines()
    last = max(i for i, line in enumerate(lines) if "__syncthreads" in line)
    assert code[last] == lines[last]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda p: p.setattr(build.shutil, "which", lambda name: None), "needs g\\+\\+, which is not on the PATH"),
        (lambda p: p.setattr(build, "_compiler", lambda: "9.4.0"), r"needs g\+\+ 12 or newer, here is 9\.4\.0"),
        (lambda p: p.setattr(build.platform, "machine", lambda: "aarch64"), "this is linux on aarch64"),
    ],
)
def test_where_it_can_not_be_had_it_says_why(monkeypatch, change, reason):
    build._compiler.cache_clear()
    change(monkeypatch)
    with pytest.raises(Unavailable, match=reason):
        shim.Shim()


def test_a_shim_that_was_closed_says_so(cuda_on_cpu):
    with shim.Shim() as mine:
        assert mine.call(max, 1, 2) == 2
    with pytest.raises(errors.ChildFailed, match="has ended"):
        mine.call(max, 1, 2)
    with pytest.raises(ValueError, match="order 'upwards': choose from forward, reverse, shuffled"):
        cuda_on_cpu.call(max, 1, 2, order="upwards")
