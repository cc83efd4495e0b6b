"""The compile table: what is read of ptxas' report, and of kernels that nvcc compiles where there is one."""

import json
import shutil
import sys

import pytest

from benchmarks import cuda_compile, ptxas
from benchmarks.ptxas import Journal, Kernel
from xframe.errors import Unavailable, XframeError
from xframe.lowering.cuda import compiler

REPORT = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first_kernel' for 'sm_80'
ptxas info    : Function properties for first_kernel
    48 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 48 bytes cumulative stack size, 2048 bytes smem, 376 bytes cmem[0]
ptxas info    : Compiling entry function 'second_kernel' for 'sm_80'
ptxas info    : Function properties for second_kernel
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers, 364 bytes cmem[0]
"""
PLAIN = 'extern "C" __global__ void __launch_bounds__(64) k(float* __restrict__ x) {\n  x[threadIdx.x] = 1.0f;\n}\n'

needs_nvcc = pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not on the PATH")


def test_a_report_is_read_kernel_by_kernel():
    first, second = ptxas.parsed(REPORT)
    assert first == Kernel("first_kernel", "sm_80", 0, 255, 2048, 48, 12, 16)
    assert second == Kernel("second_kernel", "sm_80", 0, 12, 0, 0, 0, 0)
    assert (first.spills, second.spills) == (True, False)


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "warps"),
    [
        (256, 32, 0, 64),  # all of them
        (256, 255, 0, 8),  # registers: one block
        (256, 65, 0, 24),  # 72 of them are handed out: three blocks
        (128, 16, 48 << 10, 12),  # shared memory: three blocks
        (32, 16, 0, 32),  # blocks
        (1024, 33, 0, 32),
    ],
)
def test_warps_are_those_that_there_is_room_for(threads, registers, shared, warps):
    assert Kernel("k", "sm_80", threads, registers, shared, 0, 0, 0).warps == warps


@needs_nvcc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_nvcc_compiles_what_tvm_generates(arch):
    pytest.importorskip("tvm")
    from tests.cuda_on_cpu import kernels, shim

    func, target = kernels.matmul(64, 48, 64), shim.target(arch)
    text, illegal = cuda_compile.generated(lambda: shim.compiled(shim.as_module(func), target))
    (kernel,) = ptxas.compiled(text, arch)
    assert (kernel.name, kernel.arch, kernel.threads, kernel.shared) == ("main_kernel", arch, 256, 2048)
    assert 8 < kernel.registers < 64
    assert not kernel.spills
    assert illegal == []


@needs_nvcc
def test_a_spill_is_seen():
    sums = "\n".join(f"float s{i} = x[{i}] * x[t + {i}];" for i in range(200))
    uses = " + ".join(f"s{i} * x[t * 3 + {i}]" for i in range(200))
    text = (
        'extern "C" __global__ void __launch_bounds__(1024) k(float* x) {\n'
        f"int t = threadIdx.x;\n{sums}\n__syncthreads();\nx[t] = {uses};\n}}\n"
    )
    (kernel,) = ptxas.compiled(text, "sm_80")
    assert kernel.spills


@needs_nvcc
def test_kernels_are_in_the_order_of_the_text():
    text = PLAIN + PLAIN.replace(" k(", " j(") + PLAIN.replace(" k(", " l(")
    assert [k.name for k in ptxas.compiled(text, "sm_90")] == ["k", "j", "l"]


@needs_nvcc
def test_what_nvcc_refuses_is_an_error():
    with pytest.raises(XframeError, match=r"nvcc refuses the kernels for sm_80: .*no_such_type"):
        ptxas.compiled(PLAIN.replace("1.0f", "no_such_type()"), "sm_80")


def test_nvcc_is_told_what_tvm_tells_it(monkeypatch, tmp_path):
    """But for fast math, which it is told by neither, and what the kernels do not depend on."""
    nvcc = pytest.importorskip("tvm.support.nvcc")
    target = pytest.importorskip("tvm").target.Target({"kind": "cuda", "arch": "sm_80"})
    told = tmp_path / "told"
    (tmp_path / "nvcc").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {told}\nexit 1\n')
    (tmp_path / "nvcc").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(RuntimeError), target, compiler.exact():
        nvcc.tvm_callback_cuda_compile(PLAIN)
    by_tvm = told.read_text().splitlines()
    with pytest.raises(XframeError):
        ptxas.compiled(PLAIN, "sm_80")
    ours = told.read_text().splitlines()
    assert "--use_fast_math" not in by_tvm
    (options,) = (o for o in by_tvm if o.startswith("--ptxas-options="))
    assert options.split(",")[1] == f"--register-usage-level={compiler.REGISTER_LEVEL}"
    assert set(compiler.OPTIONS) <= set(ours) & set(by_tvm)
    assert {o.partition(",--warn")[0] for o in by_tvm if "math" in o or "ptxas" in o} == {
        o for o in ours if "math" in o or "ptxas" in o
    }


@needs_nvcc
def test_what_is_in_the_journal_is_not_compiled_again(monkeypatch, tmp_path):
    path = tmp_path / "journal"
    (first,) = ptxas.compiled(PLAIN, "sm_80", Journal(path))
    with path.open("a") as out:
        out.write('["cut o')
    monkeypatch.setattr(shutil, "which", lambda name: None)
    again = ptxas.compiled(PLAIN.replace(" k(", " other("), "sm_80", Journal(path))
    assert [(k.name, k.threads, k.registers, k.code) for k in again] == [("other", 64, first.registers, first.code)]
    with pytest.raises(Unavailable):
        ptxas.compiled(PLAIN.replace("1.0f", "2.0f"), "sm_80", Journal(path))
    with pytest.raises(Unavailable):
        ptxas.compiled(PLAIN, "sm_90", Journal(path))


def test_without_nvcc_it_is_unavailable(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(Unavailable, match="nvcc is not on the PATH"):
        ptxas.compiled(PLAIN, "sm_80")


def test_too_much_shared_memory_is_not_legal():
    pytest.importorskip("tvm")
    from tests.cuda_on_cpu import kernels, shim

    func = kernels.staged(20000, scope="shared")
    _, illegal = cuda_compile.generated(lambda: shim.compiled(shim.as_module(func), shim.target()))
    assert illegal == ["main"]


@pytest.fixture
def printed(monkeypatch, capsys):
    """Exit code and output for kernels of which one may spill, or be illegal."""

    def run(*options, **changes):
        row = {"model": "m", "batch": 1, "lowering": "gemm", "name": "k", "arch": "sm_80", "threads": 64, "code": "c"}
        row |= {
            "registers": 20,
            "shared": 0,
            "stack": 0,
            "spill_stores": 0,
            "spill_loads": 0,
            "warps": 64,
            "legal": True,
        }
        monkeypatch.setattr(cuda_compile, "kernels", lambda *_: [row, row | changes])
        monkeypatch.setattr(
            sys, "argv", ["cuda_compile.py", "--model", "m", "--lowering", "gemm", "--arch", "sm_80", *options]
        )
        return cuda_compile.main(), capsys.readouterr().out.splitlines()

    return run


def test_rows_and_exit_code(printed):
    code, lines = printed()
    assert code == 0
    assert len(lines) == 2
    assert lines[0].endswith("64 warps")
    code, lines = printed(spill_stores=8)
    assert code == 1
    assert lines[1].endswith("spills 8 + 0 bytes")
    code, lines = printed("--json", legal=False)
    assert code == 1
    assert json.loads(lines[1])["legal"] is False
    code, lines = printed("--markdown", spill_loads=4)
    assert code == 1
    assert lines[0] == "2 kernels of 1 networks; 1 are different."
    assert lines[4] == "| m | 1 | gemm | sm_80 | 2 | 20 | 0 | 64 | 0 | 4 | all |"
    assert lines[-1] == "| k | 64 20 0 64, spills 4 |"


def test_a_journal_is_printed_as_far_as_it_is_of_these_sources(monkeypatch, capsys, tmp_path):
    made = []

    def make(model, batch, lowering, arch, journal):
        made.append(batch)
        (k,) = [Kernel("k", arch, 64, 20, 0, 0, 0, 0, f"code{batch}")]
        labels = {"model": model, "batch": batch, "lowering": lowering, "warps": 64, "legal": True}
        return [labels | vars(k)]

    def run(*options):
        monkeypatch.setattr(sys, "argv", ["cuda_compile.py", "--journal", str(tmp_path / "journal"), *options])
        code = cuda_compile.main()
        return code, capsys.readouterr().out.splitlines()

    monkeypatch.setattr(cuda_compile, "_made", make)
    monkeypatch.setattr(cuda_compile, "identity", lambda: "old")
    run("--model", "m", "--batch", "8", "--lowering", "gemm", "--arch", "sm_80")
    monkeypatch.setattr(cuda_compile, "identity", lambda: "new")
    for batches in ("1", "1,2"):
        run("--model", "m", "--batch", batches, "--lowering", "gemm", "--arch", "sm_80")
    assert made == [8, 1, 2]
    code, lines = run("--markdown")
    assert code == 0
    assert lines[0] == "2 kernels of 2 networks; 2 are different."
    assert lines[-3:] == ["| kernel | 1, sm_80 | 2, sm_80 |", "| --- | --- | --- |", "| k | 64 20 0 64 | 64 20 0 64 |"]
    with pytest.raises(SystemExit):
        run()
