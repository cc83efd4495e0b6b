"""Forced plans compiled for a GPU, and run on the CPU: what the process with the device is asked to do."""

import os
from collections.abc import Sequence

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax, tirx

from xframe import artifact
from xframe.backends.tvm import Tvm
from xframe.lowering import pipeline
from xframe.lowering.cuda import compiler, threads
from xframe.lowering.cuda.target import Gpu
from xframe.lowering.stage import Stage
from xframe.types import Plan, SiteRecord
from xframe.worker.device_clock import GATED, DeviceClock

AMPERE, HOPPER = Gpu.named("sm_80"), Gpu.named("sm_90")


def outputs(model: bytes, plan: Plan, feeds: list[np.ndarray], gpu: Gpu) -> tuple[list[np.ndarray], list[SiteRecord]]:
    """What the network computes under the plan where there is a device, and what stands in the compiled module."""
    built = pipeline.build(onnx.load_from_string(model), plan, gpu)
    device = tvm.cuda(0)
    machine = relax.VirtualMachine(built.executable, device, memory_cfg="naive")
    given = [tvm.runtime.tensor(np.array(x, order="C"), device) for x in [*feeds, *built.parameters]]
    out = machine["main"](*given)
    return [y.numpy() for y in ([out] if isinstance(out, tvm.runtime.Tensor) else out)], built.sites


def stepped(home: str, path: str, plan: Plan, images: list[np.ndarray], device: str):
    """What the TVM backend computes of ``images`` where there is a device: outputs, sites, target, and whether it was
    compiled now."""
    os.environ["XFRAME_HOME"] = home
    compiler.check = lambda: None  # the device of the tests needs neither nvcc nor NVRTC
    executable = Tvm().compile(artifact.load(path), plan, device, 1)
    outputs = []
    for image in images:
        executable.bind([image])
        executable.step()
        executable.sync()
        outputs.append(executable.fetch())
    compiled = "compile" in executable.seconds
    assert executable.environment["tf32"] is any(name == "gemm_tf32" for _, name in plan.lowerings)
    (profile,) = executable.profile(1)
    seen = {k.site for k in profile.kernels if k.kind == "conv"}
    assert not plan.lowerings or seen == {site for site, _ in plan.lowerings}
    assert all(0 <= k.start <= k.end <= profile.wall for k in profile.kernels)
    assert profile.note == ""
    clock = DeviceClock(0)
    whole, how = clock.read(executable.step, executable.sync, 1e-3, 1, 0.0)
    clock.close()
    assert how == GATED
    kernels = sum(k.end - k.start for k in profile.kernels)  # a device that is played has its own time, for both alike
    assert kernels == pytest.approx(whole[0], abs=1e-6 * (2 + 2 * len(profile.kernels)))
    executable.close()
    return outputs, executable.sites, executable.environment["target"], compiled


def kernel(stage: Stage, chosen: dict[str, int] | None = None) -> tirx.PrimFunc:
    """The stage's kernel, its template with ``chosen`` knobs."""
    return threads.bound(stage.scheduled() if stage.schedule is None else stage.templated(chosen)[0].mod["main"])


def module(stages: Sequence[Stage]) -> tvm.IRModule:
    """Their kernels as one module, each named after its role."""
    names = [f"{stage.role}{number}" for number, stage in enumerate(stages)]
    return tvm.IRModule({n: kernel(s).with_attr("global_symbol", n) for n, s in zip(names, stages, strict=True)})
