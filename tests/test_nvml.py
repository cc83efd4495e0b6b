"""What NVIDIA's management library is asked, on a stand-in with two GPUs."""

import ctypes
import importlib.util
import re
from itertools import islice
from pathlib import Path

import pytest

from tests import fake_nvidia
from xframe import environment, nvml
from xframe.errors import Unavailable


def header():
    """``nvml.h``, which some packages bring; None where there is none."""
    for package, pattern in (("tensorflow", "include/**/nvml.h"), ("nvidia", "**/nvml.h")):
        spec = importlib.util.find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            for found in sorted(Path(folder).glob(pattern)):
                return found
    return next(iter(sorted(Path("/usr/local").glob("cuda*/include/nvml.h"))), None)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    found = header()
    flags = [f"-I{found.parent}"] if found else []
    return fake_nvidia.built("fake_nvml.cpp", tmp_path_factory.mktemp("nvml"), *flags)


@pytest.fixture
def driver(library, monkeypatch):
    monkeypatch.setattr(nvml, "LIBRARY", str(library))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    loaded = ctypes.CDLL(str(library))
    loaded.fake_reasons(ctypes.c_ulonglong(1))
    loaded.fake_broken(0)
    yield loaded
    assert loaded.fake_opened() == 0


def test_what_a_gpu_is(driver):
    first, second = nvml.gpus()
    assert first == {
        "name": "NVIDIA H100", "uuid": "GPU-1", "arch": "sm_90", "cores": 16896, "memory": 80 << 30,
        "power_limit_w": 700.0, "max_sm_clock_mhz": 1985, "max_memory_clock_mhz": 2624, "driver": "580.12",
    }  # fmt: skip
    assert second["name"] == "NVIDIA H200"


@pytest.mark.parametrize(
    ("visible", "names"),
    [("1", ["H200"]), ("1,0", ["H200", "H100"]), ("GPU-2", ["H200"]), ("", []), ("0,7,1", ["H100"]), ("-1", [])],
)
def test_the_gpus_are_those_that_cuda_shows(driver, monkeypatch, visible, names):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [g["name"].split()[1] for g in nvml.gpus()] == names


def test_how_it_is_now(driver):
    (state,) = islice(nvml.watch(0), 1)
    assert nvml.states() == [state, state]
    assert state == {
        "power_w": 123.4, "temperature_c": 41, "sm_clock_mhz": 1980, "memory_clock_mhz": 2619, "reasons": ["idle"],
    }  # fmt: skip
    assert not nvml.THROTTLING.intersection(state["reasons"])
    driver.fake_reasons(ctypes.c_ulonglong(0x44))
    (state,) = islice(nvml.watch(1), 1)
    assert state["reasons"] == ["software power cap", "hardware thermal slowdown"]
    assert nvml.THROTTLING.issuperset(state["reasons"])


def test_what_is_not_told_is_none(driver):
    driver.fake_broken(2)
    (facts, _), (state,) = nvml.gpus(), list(islice(nvml.watch(0), 1))
    assert (facts["arch"], facts["memory"], facts["name"]) == (None, None, "NVIDIA H100")
    assert set(state.values()) == {None}


def test_without_a_driver_there_is_no_gpu(driver, monkeypatch):
    assert list(nvml.watch(2)) == []
    driver.fake_broken(1)
    with pytest.raises(Unavailable, match=r"does not answer: Driver Not Loaded \(9\)"):
        nvml.gpus()
    monkeypatch.setattr(nvml, "LIBRARY", "libno_such_nvml.so.1")
    with pytest.raises(Unavailable, match="no NVIDIA driver"):
        nvml.gpus()
    assert list(nvml.watch(0)) == []


def test_results_have_them_with_a_slug_for_their_schedules(driver):
    device = environment.gpu_device(1)
    assert (device.slug, device.kind, device.arch, device.cores, device.index) == (
        "nvidia-h200",
        "cuda",
        "sm_90",
        16896,
        1,
    )
    facts = environment.capture()["gpus"]
    assert [f["name"] for f in facts] == ["NVIDIA H100", "NVIDIA H200"]
    assert facts[0]["now"]["power_w"] == 123.4
    assert environment.gpu_device(2).slug == "cuda"


def test_results_say_that_there_is_none(driver):
    driver.fake_broken(1)
    assert environment.capture()["gpus"] is None
    assert environment.gpu_device(0).name == "CUDA GPU"


def test_values_are_those_of_the_header():
    found = header()
    if found is None:
        pytest.skip("nvml.h is not installed")
    text = found.read_text(errors="replace")
    words = {
        "GpuIdle": 1, "ApplicationsClocksSetting": 2, "SwPowerCap": 4, "HwSlowdown": 8, "SyncBoost": 16,
        "SwThermalSlowdown": 32, "HwThermalSlowdown": 64, "HwPowerBrakeSlowdown": 128, "DisplayClockSetting": 256,
    }  # fmt: skip
    assert list(words.values()) == list(nvml.REASONS)
    for name, bit in words.items():
        value = re.search(rf"#define nvmlClocks(?:Event|Throttle)Reason{name}\s+(0x[0-9a-fA-F]+)LL", text)
        assert int(value[1], 16) == bit, name
    for name, key in (("SM", "sm"), ("MEM", "memory")):
        assert int(re.search(rf"NVML_CLOCK_{name}\s*=\s*(\d+)", text)[1]) == nvml.CLOCKS[key]
