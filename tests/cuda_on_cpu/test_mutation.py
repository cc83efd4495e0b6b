"""What mutants there are of a text, what becomes of them, and of those of real kernels a sample."""

import numpy as np
import pytest

pytest.importorskip("tvm")

from tests.cuda_on_cpu import cuda_text, kernels, mutation, real, trace
from tests.cuda_on_cpu.mutation import NEVER, ORDERED, RESULTS, SAME, SURVIVED
from tests.lowering.on_cuda import AMPERE

HEAD = 'extern "C" __global__ void main_kernel(float* A_ptr, float* B_ptr) {\n'
#: A text with each kind of place, and what is put in it.
BODY = """\
  for (int i = 0; i < 7; ++i) {
    if ((3 <= i) && ((i * 2) < 12)) {
      A_ptr[min(i, 5)] = B_ptr[max(0, (i - 1))] + f(i, 4);
      for (int k = 0; k < (min(3, i) - 1); ++k) {
        __syncthreads();
"""


def test_every_place_is_one_of_a_text():
    text, found = mutation.mutants("#if 1 < 2)\n" + HEAD + BODY)
    assert text.count("\n") == (HEAD + BODY).count("\n") + 1
    assert text.startswith("#if 1 < 2)\n" + HEAD)
    for changed in (
        "i < ShimBound{7, 0}; ++i",
        "(ShimBound{3, 1} <= i) && ((i * 2) < ShimBound{12, 2})",
        "A_ptr[min(i, ShimBound{5, 3})] = B_ptr[max(ShimBound{0, 4}, (i - 1))] + f(i, 4)",
        "k < ShimBound{(min(ShimBound{3, 5}, i) - 1), 7}; ++k",
        "if (shim_kept(6)) __syncthreads();",
    ):
        assert changed in text
    assert [(m.number, m.by) for m in found] == [
        *((n, by) for n in range(6) for by in (-1, 1)), (6, 0), (7, -1), (7, 1)
    ]  # fmt: skip
    assert [m.what for m in found if m.number in (6, 1)][::2] == [
        "line 4: 3 -1: if ((3 <= i) && ((i * 2) < 12)) {",
        "line 7: __syncthreads(); removed: __syncthreads();",
    ]


def body_of(func):
    text = cuda_text(func)
    return text, text.index("{", text.rindex('extern "C" __global__')) + 1


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("if (i < 50) B_ptr[i] = 1; if (i < 300) B_ptr[i + 64] = 2;", {NEVER, "wrong numbers"}),
        ("for (int k = 0; k < 1; ++k) if (k < 1) B_ptr[i] = A_ptr[i];", {SAME, "wrong numbers"}),
        ("__shared__ float s[32]; s[threadIdx.x] = i; __syncthreads(); B_ptr[i] = s[threadIdx.x];", {ORDERED}),
        ("__shared__ float s[32]; s[threadIdx.x] = i; __syncthreads(); B_ptr[i] = s[0];", {"Race"}),
        # One of two barriers is enough, and either.
        (
            "__shared__ float s[32]; s[threadIdx.x] = i;\n__syncthreads();\n__syncthreads();\nB_ptr[i] = s[0];",
            {ORDERED},
        ),
        # What is one word more in an array that has room is read by nobody.
        ("__shared__ float s[99]; for (int k = 0; k < 2; ++k) s[threadIdx.x * 3 + k] = i;"
         " B_ptr[i] = s[threadIdx.x * 3];", {RESULTS}),
        # A difference that is smaller than what is noticed, and there.
        ("float x = i + 1; for (int k = 0; k < 2; ++k) x += 1e-5f * k; B_ptr[i] = x;", {SURVIVED}),
    ],
)  # fmt: skip
def test_what_becomes_of_a_mutant(cuda_on_cpu, monkeypatch, body, expected):
    func = kernels.scaled(250)
    text, start = body_of(func)
    whole = f"{text[:start]}\nint i = blockIdx.x * 32 + threadIdx.x;{body}\n}}\n"
    monkeypatch.setattr(mutation, "cuda_text", lambda *_, **__: whole)
    found = {v.how for v in mutation.judged(cuda_on_cpu, func, [kernels.values(250)])}
    assert found >= expected
    assert (SURVIVED in found) == (SURVIVED in expected)


def accesses(*events):
    """(block, thread, address, kind, value)"""
    made = np.zeros(len(events), trace.ACCESS)
    for place, (block, thread, address, kind, value) in zip(made, events, strict=True):
        place["block"], place["thread"], place["address"], place["kind"] = block, thread, address, kind
        place["bytes"], place["value"][0] = 4 if kind != trace.BARRIER else 0, value
    return made


def test_a_barrier_is_needed_where_another_thread_comes_behind_it():
    written, meet, read = (0, 1, 400, trace.WRITE, 7), (0, 0, 9, trace.BARRIER, 0), (0, 2, 400, trace.READ, 7)
    other = (0, 0, 10, trace.BARRIER, 0)
    assert not trace.ordered(accesses(written, meet, read), without=9)
    assert trace.ordered(accesses(written, meet, other, read), without=9)
    assert trace.ordered(accesses(written, meet, (0, 1, 400, trace.READ, 7)), without=9)
    assert trace.ordered(accesses(written, meet, (0, 2, 404, trace.READ, 7)), without=9)
    assert trace.ordered(accesses(written, meet, (1, 2, 400, trace.READ, 7)), without=9)
    assert trace.ordered(accesses((0, 1, 400, trace.READ, 7), meet, read), without=9)
    assert trace.ordered(accesses(written, meet, (0, 2, 400, trace.WRITE, 7)), without=9)
    assert not trace.ordered(accesses(written, meet, (0, 2, 400, trace.WRITE, 8)), without=9)


def test_words_of_one_bank_take_turns():
    """Threads that read every word, the same word, every other word, and every 32nd; then twice, in two warps."""
    kind = trace.READ | trace.SHARED

    def warp(step, first=0):
        return [(0, first + i, 4096 + 4 * step * i, kind, 0) for i in range(32)]

    assert trace.turns(accesses(*warp(1)), trace.READ) == {(1, 1): 1}
    assert trace.turns(accesses(*warp(0)), trace.READ) == {(1, 1): 1}
    assert trace.turns(accesses(*warp(2)), trace.READ) == {(2, 1): 1}
    assert trace.turns(accesses(*warp(32)), trace.READ) == {(32, 1): 1}
    assert trace.turns(accesses(*warp(2), *warp(2), *warp(1, 32)), trace.READ) == {(2, 1): 2, (1, 1): 1}
    assert trace.turns(accesses(*warp(4)), trace.READ, width=16) == {(4, 4): 1}
    assert trace.turns(accesses(*warp(8)), trace.READ, width=16) == {(8, 4): 1}
    assert trace.turns(accesses(*warp(1)), trace.WRITE) == {}
    assert trace.turns(accesses((0, 0, 4096, trace.READ, 0)), trace.READ) == {}


#: Of real kernels: one with barriers and partly filled blocks, and three without. All of them: ``real.py``.
CHEAP = ("direct 3x3", "pooling max", "pooling average", "lrn")


@pytest.mark.parametrize("kind", CHEAP)
def test_each_mutant_of_a_real_kernel_is_noticed_or_proved_to_be_none(cuda_on_cpu, kind):
    for make in real.kernels(kind).values():
        func, inputs = make()
        found = mutation.judged(cuda_on_cpu, func, inputs, target=AMPERE.tvm)
        assert any(v.noticed for v in found)
        assert [v.mutant.what for v in found if v.survived] == []
        removed = [v for v in found if not v.mutant.by]
        assert all(v.noticed or v.how == ORDERED for v in removed)
