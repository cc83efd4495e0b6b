"""Each fault that a kernel can have, in kernels written for it, and what is no fault."""

import os

import numpy as np
import pytest

pytest.importorskip("tvm")

from tests.cuda_on_cpu import cuda_text, errors, kernels, mutation, target

#: Two blocks of 32 threads, over two buffers of 250 floats.
FUNC, INPUT = kernels.scaled(250), kernels.values(250)
INDEX = "int i = blockIdx.x * 32 + threadIdx.x;"


@pytest.fixture
def kernel(cuda_on_cpu):
    """Runs a kernel of this body, with parameters ``A_ptr`` and ``B_ptr``."""
    text = cuda_text(FUNC)
    head = text[: text.index("{", text.rindex('extern "C" __global__')) + 1]

    def run(body, **options):
        (result,) = cuda_on_cpu.run(FUNC, [INPUT], text=f"{head}\n{body}\n}}\n", **options)
        return result

    return run


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (
            "B_ptr[i] = A_ptr[i + 187];",
            errors.OutOfBounds,
            r"reads 4 bytes that end 4 bytes behind A, which has 1000 b",
        ),
        ("B_ptr[i] = A_ptr[i - 1];", errors.OutOfBounds, "reads 4 bytes that begin 4 bytes before A"),
        ("B_ptr[i * 4] = 0;", errors.OutOfBounds, "writes 4 bytes that end 12 bytes behind B"),
        ("B_ptr[-i] = 0;", errors.OutOfBounds, "writes 4 bytes that begin 4 bytes before B"),
        (
            "*(float4*)(B_ptr + i * 4) = make_float4(0, 0, 0, 0);",
            errors.OutOfBounds,
            "writes 16 bytes that end 8 bytes",
        ),
        ("B_ptr[i] = *(float*)nullptr;", errors.OutOfBounds, "at no memory of the device"),
        ("float x[4]; x[i] = A_ptr[i]; B_ptr[i] = x[i];", errors.OutOfBounds, r"element 4 of a 'float \[4\]'"),
        ("__shared__ float s[4]; s[i] = 1;", errors.OutOfBounds, r"element 4 of a 'float \[4\]'"),
        (
            "__shared__ float s[4]; *(s + i) = 1;",
            errors.OutOfBounds,
            "end 4 bytes behind shared memory s, which has 16",
        ),
        ("float x[90000]; x[i] = A_ptr[i]; *(volatile float*)x = 1;", errors.OutOfBounds, "more local memory than"),
        ("*(float4*)B_ptr = *(float4*)(A_ptr + i);", errors.Misaligned, "address % 16 = 4 for a"),
        ("*(float2*)(B_ptr + i * 3) = make_float2(0, 0);", errors.Misaligned, "address % 8 = 4 for a"),
        ("B_ptr[i] += A_ptr[i];", errors.Uninitialised, "reads byte 0 of B, which nothing has written"),
        ("__shared__ float s[32]; B_ptr[i] = s[0];", errors.Uninitialised, "byte 0 of shared memory s"),
        ("B_ptr[0] = A_ptr[i];", errors.Race, "writes byte 0 of B, which thread 0 of the block wrote"),
        ("B_ptr[i] = 1; A_ptr[i] = B_ptr[i / 2];", errors.Race, "reads byte 0 of B"),
        ("B_ptr[i % 32] = blockIdx.x;", errors.Race, "writes byte 0 of B, which a thread of another block wrote"),
        ("if (!blockIdx.x) A_ptr[i] = 1; else B_ptr[i] = A_ptr[i - 32];", errors.Race, "a thread of another block"),
        ("if (blockIdx.x) A_ptr[i - 32] = 1; else B_ptr[i] = A_ptr[i];", errors.Race, "another block read"),
        ("if (i % 2) __syncthreads();", errors.Divergence, r"thread \(0, 0, 0\) has returned"),
        ("if (i % 2)\n__syncthreads();\nelse\n__syncthreads();", errors.Divergence, r"of line \d+, thread .* of line"),
        ("if (i % 2) __syncwarp();", errors.Divergence, "for lane 0 of its warp, which does not come"),
        ("if (i > 3) B_ptr[i] = __shfl_sync(~0u, i, 0);", errors.Divergence, "for lane 0 of its warp"),
    ],
)
def test_a_fault_is_named(kernel, body, error, message):
    with pytest.raises(error, match=message) as raised:
        kernel(INDEX + body)
    assert str(raised.value).startswith("kernel main_kernel, thread (")


def test_a_fault_names_its_line(kernel):
    with pytest.raises(errors.Race, match=r"\(line \d+: B_ptr\[0\] = A_ptr\[i\]; // here\)"):
        kernel(f"{INDEX}\n\nB_ptr[0] = A_ptr[i]; // here")


def test_order_is_that_of_threads_and_blocks(kernel):
    for order, who in (("forward", r"thread \(0, 0, 0\) of block \(0, 0, 0\)"), ("reverse", r"thread \(31.*block \(1")):
        with pytest.raises(errors.OutOfBounds, match=who):
            kernel("B_ptr[1000] = 0;", order=order)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("if (i < 32) B_ptr[0] = 3;", 3),  # all write the same
        ("__shared__ float s[32]; s[31 - threadIdx.x] = i; __syncthreads(); if (i < 32) B_ptr[i] = s[i];", 31),
        # A warp's barrier orders what its own threads touch.
        ("__shared__ float s[32]; s[31 - threadIdx.x] = i; __syncwarp(); if (i < 32) B_ptr[i] = s[i];", 31),
        ("if (i < 1) { float x[2]; x[i] = A_ptr[i] * 0; B_ptr[0] = x[0]; }", 0),
        ("int s = __shfl_down_sync(~0u, i, 5); if (i < 1) B_ptr[i] = s;", 5),
        ("int s = __shfl_xor_sync(~0u, i, 9); if (i < 1) B_ptr[i] = s;", 9),
        ("int s = __shfl_up_sync(~0u, i, 2, 8); if (i == 13) B_ptr[0] = s;", 11),
        ("int s = __shfl_up_sync(~0u, i, 2, 8); if (i == 9) B_ptr[0] = s;", 9),
        ("if (i < 3) { int s = __shfl_sync(7, i, 2); if (i < 1) B_ptr[0] = s; }", 2),
        ("if (i < 1) B_ptr[0] = __ldg(A_ptr) * 0 + max(1.0f, min(2.0f, 3.0f));", 2),
    ],
)
def test_what_is_no_fault(kernel, body, expected):
    assert kernel(INDEX + body)[0] == expected


def test_two_warps_are_not_ordered_by_a_warps_barrier(cuda_on_cpu):
    text = cuda_text(kernels.scaled(256, 64))
    head = text[: text.index("{", text.rindex('extern "C" __global__')) + 1]
    body = "\n__shared__ float s[64]; s[63 - threadIdx.x] = 1; __syncwarp(); B_ptr[threadIdx.x] = s[threadIdx.x]; }\n"
    with pytest.raises(errors.Race, match="shared memory s"):
        cuda_on_cpu.run(kernels.scaled(256, 64), [kernels.values(256)], text=head + body)


def test_memory_without_a_value_is_no_number(kernel):
    assert np.isnan(kernel("B_ptr[threadIdx.x] = 1;")[40:]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("__launch_bounds__(32)", "__launch_bounds__(16)"), "blocks of 32 x 1 x 1 threads; its bound is 16"),
        (("B_ptr) {", "B_ptr) { __shared__ float s[12289]; s[0] = 0;"), "wants 49156 bytes of static"),
    ],
)
def test_limits_of_a_launch(cuda_on_cpu, change, message):
    text = cuda_text(FUNC).replace(*change)
    with pytest.raises(errors.BadLaunch, match=message):
        cuda_on_cpu.run(FUNC, [INPUT], text=text)


def test_dynamic_shared_memory_is_that_of_the_device(cuda_on_cpu):
    func, values = kernels.staged(50000), kernels.values(50000)
    assert (cuda_on_cpu.run(func, [values], target=target("sm_90"))[0] == values[::-1]).all()
    with pytest.raises(errors.BadLaunch, match="wants 200000 bytes of dynamic shared memory; sm_80 has 166912"):
        cuda_on_cpu.run(func, [values])


def test_what_is_not_known_is_refused_by_name(kernel):
    with pytest.raises(errors.Refused, match=r"inline PTX .*: mma\.sync\.aligned\.m16n8k8"):
        kernel('asm volatile("mma.sync.aligned.m16n8k8 ...");')
    with pytest.raises(errors.Refused, match=r"declares shared memory .*: __shared__ float s\[2\]\[2\];"):
        kernel("__shared__ float s[2][2];")
    with pytest.raises(errors.Refused, match="no_such_function"):
        kernel("no_such_function();")


def fails():
    raise ValueError("on purpose")


def test_a_process_that_fails_says_how_and_harms_no_other(cuda_on_cpu, kernel):
    assert kernel("B_ptr[0] = 1;")[0] == 1  # so that what all kernels need is there when seconds are counted
    with pytest.raises(errors.ChildFailed, match="ValueError: on purpose"):
        cuda_on_cpu.call(fails)
    with pytest.raises(errors.ChildFailed, match="SIGABRT"):
        cuda_on_cpu.call(os.abort)
    with pytest.raises(errors.ChildFailed, match="had not ended after 1 s of processor time"):
        kernel("for (volatile int i = 0; i < 1; ) {}", cpu_seconds=1)
    assert kernel("B_ptr[0] = 1;")[0] == 1


def test_asynchronous_copies(cuda_on_cpu):
    func, config = kernels.matmul(32, 24, 32, 8, "shared.dyn", pipelined="async"), {"tirx.use_async_copy": True}
    a, b = kernels.values(32, 24), kernels.values(24, 32)
    text = cuda_text(func, config=config)
    assert "cp.async" in text
    for order in ("forward", "reverse"):
        assert np.allclose(cuda_on_cpu.run(func, [a, b], config=config, order=order)[0], a @ b, atol=1e-4)
    removed = [v.how for v in mutation.judged(cuda_on_cpu, func, [a, b], config=config) if not v.mutant.by]
    assert len(removed) > 1
    assert set(removed) <= {"Race", "Uninitialised"}
