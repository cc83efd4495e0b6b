"""Comparing on GPUs: several of them, and a runner that has algorithms of its own."""

from dataclasses import replace

import pytest

from tests import fake_nvidia
from tests.test_comparison import TINY
from tests.test_nvml import driver, library  # noqa: F401  # fixtures
from xframe import ablation, environment, explain, planning, registry, store
from xframe.analysis.labels import algorithms
from xframe.comparison import Request, compare, devices
from xframe.errors import UsageError
from xframe.report import page_rows
from xframe.worker.host import worker_environment

OWN = algorithms("cudnn", by_default=True)


@pytest.fixture
def cudnn(plugins, monkeypatch):
    plugins(pytorch="Honest", tvm="Honest")
    row = registry.BACKENDS["cudnn"]._replace(where="fake_plugins:Honest")
    monkeypatch.setitem(registry.BACKENDS, "cudnn", row)


def test_devices_are_named_alone_or_together():
    assert devices("cpu") == ("cpu",)
    assert devices("cuda") == ("cuda",)
    assert devices("cuda:1,0,1") == ("cuda:1", "cuda:0")


@pytest.mark.parametrize("text", ["gpu", "cpu:0", "cuda:", "cuda:0,", "cuda:a", "cuda:0 1", ""])
def test_what_is_no_device_is_refused(text):
    with pytest.raises(UsageError, match=r"unknown device .*cuda:<number>,<number>"):
        Request("alexnet", device=text).resolved()


def test_gpus_are_measured_one_after_another(cudnn):
    told = []
    asked = replace(TINY, runners=("native",), device="cuda:1,0", batches=(1, 2))
    run = compare(asked, told.append)
    assert [(m.case.device, m.case.batch, m.outcome.value) for m in run.measurements] == [
        ("cuda:1", 1, "OK"), ("cuda:1", 2, "OK"), ("cuda:0", 1, "OK"), ("cuda:0", 2, "OK"),
    ]  # fmt: skip
    assert sum("float64 reference" in line for line in told) == 4


def test_rows_tell_how_the_gpu_was(cudnn, driver):  # noqa: F811
    driver.fake_reasons(0x4)
    asked = replace(TINY, runners=("native",), device="cuda:1")
    (row,) = compare(asked).measurements
    assert [s["sm_clock_mhz"] for s in row.environment["gpu_states"]] == [1980] * len(row.rounds)
    assert any("held its clocks down (software power cap) after 2 of 2 visits" in n for n in row.notes)
    driver.fake_reasons(1)
    (row,) = compare(replace(asked, device="cuda:2")).measurements
    assert row.environment["gpu_states"] == [None, None]
    assert not any("clocks" in n for n in row.notes)
    (row,) = compare(replace(asked, device="cpu")).measurements
    assert not {"gpu", "gpu_states"} & set(row.environment)
    assert environment.throttled({"reasons": ["idle"]}) == set()


def test_gpus_are_counted_as_the_driver_counts_them(monkeypatch):
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    assert worker_environment(1, "cuda:1")["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "CUDA_DEVICE_ORDER" not in worker_environment(1, "cpu")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    assert worker_environment(1, "cuda")["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


def test_what_looks_at_one_device_refuses_several():
    with pytest.raises(UsageError, match="one device is explained at a time"):
        explain.completed(replace(TINY, device="cuda:0,1"))
    with pytest.raises(UsageError, match="switches are tried on one device at a time"):
        ablation.ablate(replace(TINY, runners=("ort",), device="cuda:0,1"))


def test_an_algorithm_goes_to_each_runner_that_has_it(cudnn):
    asked = replace(
        TINY, runners=("tvm", "cudnn"), lowerings=("auto", "fft", "fft_tiling"), device="cuda", baseline=False
    )
    run = compare(asked)
    rows = [store.row(m) for m in run.measurements]
    assert [(r["backend"], r["lowering"]) for r in rows] == [
        ("tvm", "auto"), ("tvm", "fft"), ("cudnn", "auto"), ("cudnn", "fft"), ("cudnn", "fft_tiling"),
    ]  # fmt: skip
    forced = run.measurements[-1]
    assert {name for _, name in forced.case.plan.lowerings} == {"fft_tiling"}
    assert len(forced.case.plan.lowerings) == len(forced.case.artifact.conv_sites) == 2
    assert forced.case.options == ()
    assert page_rows.column(forced.case) == "cudnn fft_tiling"


def test_by_default_it_is_forced_to_each_with_a_fallback_that_works(cudnn):
    asked = replace(TINY, runners=("cudnn",), lowerings=None, device="cuda", baseline=False)
    assert asked.resolved().lowerings == (
        "auto",
        *registry.defaults(registry.LOWERINGS),
        *(n for n in OWN if n not in registry.LOWERINGS),
    )
    run = compare(asked)
    told = {m.case.plan.label: dict(m.case.options) for m in run.measurements}
    assert set(told) == {"auto", *OWN}
    assert told.pop("auto") == {}
    assert all(options == {"fallback": "implicit_gemm"} for options in told.values())


def test_the_whole_way_of_a_row_on_a_gpu(plugins, monkeypatch, tmp_path):
    """In its worker, on a stand-in for NVIDIA's libraries, which a loader finds under their names."""
    plugins(pytorch="Honest")
    built = fake_nvidia.built("backends/fake_cudnn.cpp", tmp_path)
    for name in ("libcudart.so.13", "libcublas.so.13", "libcudnn.so.9"):
        (tmp_path / name).symlink_to(built)  # one file, so one library
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    asked = replace(TINY, runners=("cudnn",), lowerings=("auto", "gemm", "winograd"), device="cuda", baseline=False)
    free, forced, refused = compare(asked).measurements
    assert (free.outcome, free.reason, forced.outcome, forced.reason) == ("OK", "", "OK", "")
    assert free.environment["cudnn"] == "9.27.0"
    assert [s.selected for s in free.sites] == ["winograd_nonfused", "implicit_precomp_gemm"]
    assert [s.selected for s in forced.sites] == ["gemm", "gemm"]
    (profile,) = forced.profiles
    assert [k.layer for k in profile.kernels if k.kind == "conv"] == [s.name for s in forced.sites]
    assert refused.outcome == "UNSUPPORTED"
    assert "refuses winograd at 1 of 2 convolutions" in refused.reason
    assert "CUDNN_STATUS_NOT_SUPPORTED" in refused.reason


def test_each_device_has_logs_of_its_own_and_they_are_for_tvm_alone(cudnn, monkeypatch):
    asked_for = []

    def looked_up(self, plan, threads):
        asked_for.append(self._device)
        return (), (f"logs of {self._device}",)

    monkeypatch.setattr(planning.Schedules, "_read", looked_up)
    asked = replace(TINY, runners=("tvm", "cudnn"), lowerings=("gemm",), baseline=False)
    rows = compare(replace(asked, device="cuda:0,1")).measurements
    assert asked_for == ["cuda:0", "cuda:1"]
    for row in rows:
        assert (f"logs of {row.case.device}" in row.notes) == (row.case.runner == "tvm")


def test_a_fallback_of_its_own_is_taken(cudnn):
    asked = replace(TINY, runners=("cudnn",), lowerings=("fft",), fallback="gemm", device="cuda", baseline=False)
    (row,) = compare(asked).measurements
    assert row.case.options == (("fallback", "gemm"),)


def test_what_no_runner_can_be_told_is_refused():
    with pytest.raises(UsageError, match="--lowering needs --backend cudnn for fft_tiling"):
        Request("alexnet", runners=("tvm",), lowerings=("gemm", "fft_tiling")).resolved()
    with pytest.raises(UsageError, match="--lowering needs --backend tvm for best"):
        Request("alexnet", runners=("cudnn",), lowerings=("best",)).resolved()
