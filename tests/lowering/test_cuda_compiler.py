"""How CUDA text is compiled: what it says in the end, and what nvcc and NVRTC are told."""

import os
import sys
import types

import pytest
from tvm import s_tir, te

from tests.cuda_on_cpu import shim
from tests.lowering.on_cuda import AMPERE
from xframe.errors import Unavailable
from xframe.lowering.cuda import compiler
from xframe.lowering.cuda.generic import spread


def test_functions_are_exact():
    text = compiler.finished("y = __expf(x) + __powf(a, 2.0f) + __ldg(p) + my__expf(x);")
    assert text == "y = expf(x) + powf(a, 2.0f) + __ldg(p) + my__expf(x);"


def test_the_compiler_is_given_exact_functions():
    x = te.placeholder((64,), name="x")
    sch = s_tir.Schedule(te.create_prim_func([x, te.compute((64,), lambda i: te.exp(x[i]), name="y")]))
    spread(sch, sch.get_sblock("y"), AMPERE)
    text = shim.cuda_text(sch.mod["main"], target=AMPERE.tvm)
    assert " expf(" in text
    assert "__expf(" not in text


def test_kernels_that_keep_tiles_ask_for_one_block():
    head = 'extern "C" __global__ void __launch_bounds__(64) '
    text = f"{head}tiled(float* x);\n{head}plain(float* x);\n"
    text += f"{head}tiled(float* x) {{\n  __shared__ float s[4];\n}}\n{head}plain(float* x) {{\n}}\n"
    assert compiler.finished(text) == text.replace("(64) tiled", "(64, 1) tiled")


@pytest.fixture
def nvrtc(monkeypatch):
    """A stand-in for NVRTC where there is no nvcc: the options that it was told."""
    told = []
    module = types.ModuleType("cuda.bindings.nvrtc")
    module.nvrtcCompileProgram = lambda program, count, options: told.append((program, count, options))
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: module)
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", module)
    return module, told


def test_nvrtc_is_not_told_to_use_fast_math(nvrtc, monkeypatch):
    module, told = nvrtc
    own = module.nvrtcCompileProgram
    monkeypatch.setenv("TVM_CUDA_PTXAS_REG_LEVEL", "7")
    monkeypatch.delenv("TVM_CUDA_COMPILE_MODE", raising=False)
    with compiler.exact():
        module.nvrtcCompileProgram("a", 3, [b"-I/x", b"--use_fast_math", b"-lineinfo"])
        assert os.environ["TVM_CUDA_COMPILE_MODE"] == "nvrtc"
        assert os.environ["TVM_CUDA_PTXAS_REG_LEVEL"] == str(compiler.REGISTER_LEVEL)
    assert told == [("a", 2, [b"-I/x", b"-lineinfo"])]
    assert module.nvrtcCompileProgram is own
    assert os.environ["TVM_CUDA_PTXAS_REG_LEVEL"] == "7"
    assert "TVM_CUDA_COMPILE_MODE" not in os.environ


def test_nvrtc_alone_will_do(nvrtc):
    compiler.check()


def test_without_a_compiler_for_it(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Unavailable, match="pip install cuda-bindings"):
        compiler.check()
