"""The TVM backend on a GPU, played by the CPU: where its tensors lie, and what it is compiled for."""

import numpy as np
import onnx
import pytest

from tests.cuda_on_cpu.fixtures import cuda_on_cpu  # noqa: F401
from tests.lowering.networks import conv_data, conv_network, everywhere
from tests.lowering.on_cuda import stepped
from tests.lowering.test_convolutions import reference
from xframe.backends import tvm_memory
from xframe.equivalence.verdict import judge
from xframe.errors import XframeError
from xframe.types import ConvSite, Plan

SITE = ConvSite(1, 6, (9, 9), 24, (3, 3), (1, 1), (1, 1, 1, 1))


@pytest.mark.parametrize("lowering", ["gemm", "winograd"])
def test_it_runs_there(cuda_on_cpu, tmp_path, lowering):  # noqa: F811
    _, w, b = conv_data(SITE, 0)
    onnx.save(conv_network(SITE, w, b, True), tmp_path / "m.onnx")
    images = [conv_data(SITE, seed)[0] for seed in (1, 2)]
    request = str(tmp_path / "home"), str(tmp_path / "m.onnx"), everywhere(lowering, SITE), images
    outputs, sites, target, compiled = cuda_on_cpu.call(stepped, *request, "cuda")
    assert ([s.selected for s in sites], target, compiled) == ([lowering], "cuda -arch=sm_80", True)
    for x, y in zip(images, outputs, strict=True):
        assert judge(y, reference(SITE, w, b, True).evaluate([x], {s.site: s.rounding for s in sites})).ok
    again, _, _, compiled = cuda_on_cpu.call(stepped, *request, "cuda:0")
    assert not compiled
    assert all(np.array_equal(a, b) for a, b in zip(again, outputs, strict=True))
    _, _, target, compiled = cuda_on_cpu.call(stepped, *request, "cuda:0", arch="sm_90")
    assert (target, compiled) == ("cuda -arch=sm_90", True)


def test_a_kernel_that_fails_says_how_to_learn_its_name():
    def wait(*_):
        raise RuntimeError("CUDA: an illegal memory access was encountered")

    memory = object.__new__(tvm_memory.Gpu)
    memory._wait, memory._device = wait, None
    with pytest.raises(
        XframeError, match=r"illegal memory access was encountered\): run again with CUDA_LAUNCH_BLOCKING=1"
    ):
        memory.sync()


def test_the_auto_plan_has_the_compilers_own_kernels(cuda_on_cpu, tmp_path):  # noqa: F811
    x, w, b = conv_data(SITE, 0)
    onnx.save(conv_network(SITE, w, b, True), tmp_path / "m.onnx")
    home, path = str(tmp_path / "home"), str(tmp_path / "m.onnx")
    ((y,), sites, _, _) = cuda_on_cpu.call(stepped, home, path, Plan(), [x], "cuda")
    assert not sites
    assert judge(y, reference(SITE, w, b, True).evaluate([x], {})).ok
