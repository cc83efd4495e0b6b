"""Tuning on a GPU, one that tests/cuda_on_cpu plays: its own processes build, run and judge; logs are of that GPU."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("tvm")

from tests.cuda_on_cpu.fixtures import cuda_on_cpu  # noqa: F401
from tests.tuning import gpu, planted
from tests.tuning.gpu import GPU
from xframe import artifact, cli, nvml, planning
from xframe.lowering.target import Gpu
from xframe.registry import LOWERINGS, Row
from xframe.schedules import find, log
from xframe.tuning import build, cuda, runner
from xframe.tuning.points import CRASHED, FAILED, OK, WRONG, Point
from xframe.types import ConvSite, Device

SITE = ConvSite(1, 6, (6, 6), 16, (3, 3), pads=(1, 1, 1, 1))
TUNED = ("gemm", "direct", "gemm_tf32")
ON_GPU = Device("acme", "cuda", "Acme GPU", "sm_80", 64)


@pytest.fixture
def device(cuda_on_cpu, monkeypatch, tmp_path):  # noqa: F811
    """This machine has one GPU, which TVM finds in the processes that tuning starts."""
    for name, value in gpu.environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    facts = {"name": "Acme GPU", "arch": "sm_80", "cores": 64, "uuid": "GPU-0"}
    monkeypatch.setattr(nvml, "gpus", lambda: [facts])
    monkeypatch.setattr(Gpu, "of_device", staticmethod(lambda index: GPU))
    monkeypatch.setenv("XFRAME_HOME", str(tmp_path / "home"))
    return cuda_on_cpu


@pytest.fixture
def network(tmp_path):
    """The file of one convolution, and what it computes of an image: (path, weights)."""
    shape = (SITE.out_channels, SITE.in_channels, *SITE.kernel)
    weight = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], "conv1", pads=list(SITE.pads))],
        "conv",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, SITE.in_channels, *SITE.in_hw])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, SITE.out_channels, *SITE.out_hw])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "conv.onnx")
    return tmp_path / "conv.onnx"


def test_the_whole_way_and_back(device, network, tmp_path, capsys, monkeypatch):
    for name in gpu.POOR:
        monkeypatch.setitem(LOWERINGS, name, LOWERINGS[name])
    gpu.poor()
    out = tmp_path / "logs"
    args = ["--model", str(network), "--lowering", ",".join(TUNED), "--strategy", "replay", "--trials", "6"]
    assert cli.main(["tune", *args, "--device", "cuda", "--workers", "1", "-o", str(out), "--json"]) == 0
    *rows, total = map(json.loads, capsys.readouterr().out.splitlines())
    assert [(r["lowering"], r["device"], r["failures"]) for r in rows] == [(name, "cuda", {}) for name in TUNED]
    assert [r["verdict"] for r in rows] == ["tuned"] * 3, [r["reason"] for r in rows]
    assert {Path(p).parts[-3] for p in total["logs"]} == {"acme-gpu-sm80"}

    written = [log.read(folder) for folder in find.folders(out)]
    assert [w.device for w in written] == [gpu.IDENTITY] * 3
    assert {(w.target, w.software["compiler"]) for w in written} == {("cuda -arch=sm_80", "nvcc 13.0.1")}

    sites = [site for _, site in artifact.load(str(network)).conv_sites]
    image = np.random.default_rng(1).standard_normal((1, SITE.in_channels, *SITE.in_hw), dtype=np.float32)
    outputs = []
    for lowering in TUNED:
        plan = planning.Schedules(str(out), device="cuda").tuned(planning.plan(lowering, sites, ON_GPU), 2)
        given = str(tmp_path / "home"), str(network), plan, [image], "cuda"
        (got,), (site,), *_ = device.call(gpu.stepped, *given)
        assert site.schedule == f"tuned, logs/acme-gpu-sm80/conv-b1/{lowering}"
        outputs += got
    gemm, direct, rounded = outputs
    assert np.allclose(gemm, direct, atol=1e-4)
    assert np.allclose(gemm, rounded, atol=0.05), "each factor of 54 products is rounded to 11 bits"

    assert cli.main(["schedules", "prune", str(out), "--dry-run"]) == 0
    assert capsys.readouterr().out == "0 records would be dropped\n"
    monkeypatch.setattr(nvml, "gpus", lambda: [{"name": "Other GPU", "arch": "sm_80", "cores": 64}])
    logs = planning.Schedules(str(out), device="cuda")
    assert logs.tuned(plan, 2).tuned == ()
    assert "Acme GPU (sm_80) rather than Other GPU (sm_80)" in logs.notes(plan, 2)[0]


def test_a_bad_candidate_costs_itself_alone(device, monkeypatch):
    monkeypatch.setitem(LOWERINGS, "trapped", Row("tests.tuning.gpu:Trapped", (), ""))
    of = planted.task("trapped", SITE, cpu=GPU)
    made = runner.LocalRunner(GPU, 1, device="cuda")
    try:
        found = [made.submit(of, Point((1, columns))).result() for columns in (gpu.WRONG, gpu.ASTRAY, gpu.GREEDY)]
        tile = build.tiles(of, GPU)[0]
        good = made.submit(of, Point((tile.rows, tile.vectors), (("buffers", 1),))).result()
    finally:
        made.close()
    assert [t.outcome for t in (*found, good)] == [WRONG, CRASHED, FAILED, OK], [*found, good]
    wrong, astray, greedy = (t.reason for t in found)
    assert "times the bound" in wrong
    assert "running the candidate ended its process: exit code 86" in astray
    assert "candidate is not legal on this GPU" in greedy
    assert good.seconds == good.baseline


@pytest.mark.parametrize(
    ("calls", "waits", "missed", "note"), [(10, False, 0, ""), (500, False, 2, ""), (10, True, 5, cuda.UNGATED)]
)
def test_a_reading_counts_if_everything_was_asked_for_behind_a_closed_gate(cuda_on_cpu, calls, waits, missed, note):  # noqa: F811
    """Each call of the device that is played takes the host a microsecond, and the gate is held for 200 at first."""
    readings, told = cuda_on_cpu.call(gpu.watched, calls, waits)
    assert (readings[:-1], told) == ([None] * missed, note)
    assert readings[-1] == 1 if not waits else readings[-1] > 10_000, "nanoseconds: copies take no time there"


def test_what_leaves_the_gpu_unusable_ends_the_process(monkeypatch, capfd):
    ended = []

    class Bench:
        def measure(self, built):
            raise RuntimeError("an illegal memory access was encountered")

        def usable(self):
            return not ended

    monkeypatch.setattr(runner, "_bench", lambda *_: Bench())
    monkeypatch.setattr(runner.os, "_exit", ended.append)
    with pytest.raises(RuntimeError, match="illegal"):
        runner._measure(None, GPU, "cuda")
    assert ended == []
    Bench.usable = lambda self: False
    with pytest.raises(RuntimeError, match="illegal"):
        runner._measure(None, GPU, "cuda")
    assert ended == [1]
    assert "an illegal memory access was encountered" in capfd.readouterr().err
