"""Logs of GPUs: by what the driver tells of them, found for plans on them, and for nothing else."""

import json
from dataclasses import replace

import pytest

from tests.schedules.logs import DEVICE, SITE, entry, saved, task
from xframe import cli, nvml, planning
from xframe.errors import Unavailable
from xframe.schedules import device, find, log, software
from xframe.schedules.device import Identity
from xframe.types import Plan

FACTS = [
    {"name": "NVIDIA H100 80GB HBM3", "arch": "sm_90", "cores": 16896, "uuid": "GPU-1"},
    {"name": "NVIDIA H200", "arch": "sm_90", "cores": 16896, "uuid": "GPU-2"},
    {"name": "NVIDIA H200", "arch": "sm_90", "cores": 16896, "uuid": "GPU-3"},
]
PLAN = Plan("direct", ((SITE, "direct"),))
HOPPER = "cuda -arch=sm_90"


@pytest.fixture(autouse=True)
def gpus(monkeypatch):
    """Three GPUs of two kinds."""
    monkeypatch.setattr(nvml, "gpus", lambda: FACTS)


@pytest.fixture
def root(tmp_path):
    """Writes logs of GPUs below it: ``root(Identity, entry, ...)``; ``root.path``."""

    def make(of, *entries, at="net-b1/direct", **changes):
        found = [replace(e, tile=(128, 64)) for e in entries or (entry(task(threads=132)),)]
        return saved(root_path / of.slug / at, *found, **{"device": of, "target": HOPPER, **changes})

    root_path = make.path = tmp_path / "schedules"
    return make


def test_each_kind_of_gpu_has_an_identity_of_its_own():
    first, second, third = (device.identity(f"cuda:{n}") for n in range(3))
    assert second.slug == "nvidia-h200-sm90"
    assert (second.kind, second.family, second.cores, second.words) == ("cuda", "sm_90", 16896, "NVIDIA H200 (sm_90)")
    assert second == third
    assert device.identity("cuda") == first
    assert second.differs(first) == "NVIDIA H100 80GB HBM3 (sm_90) rather than NVIDIA H200 (sm_90)"
    assert device.here() == {"cpu": device.identity(), "cuda:0": first, "cuda:1": second, "cuda:2": third}
    assert Identity.from_json(json.loads(json.dumps(second.to_json()))) == second


def test_a_gpu_that_is_not_there_has_none(monkeypatch):
    with pytest.raises(Unavailable, match="device cuda:3 was asked for, and the driver tells of 3 GPUs here"):
        device.identity("cuda:3")

    def none():
        raise Unavailable("no NVIDIA driver")

    monkeypatch.setattr(nvml, "gpus", none)
    with pytest.raises(Unavailable, match="no NVIDIA driver"):
        device.identity("cuda")
    assert device.here() == {"cpu": device.identity()}


def test_what_a_gpu_was_driven_and_compiled_with_is_told(root, monkeypatch):
    monkeypatch.setattr(software, "cuda", lambda: {"driver": "580.12", "compiler": "nvcc 13.0.88"})
    made = log.Log.here(HOPPER, [entry(task(threads=132))], device.identity("cuda"))
    folder = root.path / "one"
    log.write(folder, made)
    assert log.read(folder).software == {"driver": "580.12", "compiler": "nvcc 13.0.88"}
    assert log.Log.here("llvm").software == {}
    assert '"software"' not in (saved(root.path / "cpu") / log.META).read_text()


@pytest.mark.parametrize("software", [{"driver": "1\n2"}, {"other": "1"}, ["driver"], {"driver": 580}])
def test_software_that_is_none_is_refused(root, software):
    from tests.schedules.logs import forged

    folder = root(device.identity("cuda"), software={"driver": "580.12"})
    forged(folder, lambda meta: meta.update(software=software))
    with pytest.raises(log.LogError, match="software"):
        log.read(folder)


def test_a_plan_on_a_gpu_takes_the_log_of_its_kind(root):
    root(device.identity("cuda:1"), entry(task(threads=132), gain=1.1))
    root(device.identity("cuda:0"), entry(task(threads=132), gain=1.9))
    root(DEVICE, entry(task(threads=2)))
    found, notes = find.tuned(PLAN, device.identity("cuda:1"), None, [root.path])
    assert [t.origin for t in found] == ["schedules/nvidia-h200-sm90/net-b1/direct"]
    assert notes == []


def test_a_log_of_another_gpu_is_refused_unless_it_is_allowed(root):
    root(device.identity("cuda:0"))
    here = device.identity("cuda:1")
    found, (note,) = find.tuned(PLAN, here, None, [root.path])
    assert found == ()
    assert "is not used: it was tuned on another kind of device (NVIDIA H100 80GB HBM3 (sm_90) rather than" in note
    assert note.endswith("tune here, or pass --allow-foreign-log")
    (found,), (note,) = find.tuned(PLAN, here, None, [root.path], allow_foreign=True)
    assert found.origin.endswith("(a foreign log)")
    assert "is used although" in note


def test_a_gpu_of_another_size_has_other_kernels(root):
    root(replace(device.identity("cuda:0"), cores=6912))
    found, (note,) = find.tuned(PLAN, device.identity("cuda:1"), None, [root.path], allow_foreign=True)
    assert found == ()
    assert note.endswith("): tune here")


def test_logs_of_gpus_are_nothing_to_a_cpu_nor_the_other_way_round(root):
    root(device.identity("cuda:0"), entry(task(threads=2)))
    assert find.tuned(PLAN, DEVICE, 2, [root.path], allow_foreign=True) == ((), [])
    saved(root.path / "cpu/net-b1/direct", entry(task(threads=132)))
    assert len(find.tuned(PLAN, device.identity("cuda:0"), None, [root.path])[0]) == 1


def test_code_for_an_architecture_takes_what_any_gpu_of_it_has(root):
    root(device.identity("cuda:0"), entry(task(threads=132), gain=1.2))
    root(device.identity("cuda:1"), entry(task(threads=132), gain=1.4))
    other = replace(device.identity("cuda:0"), slug="a100", family="sm_80")
    root(other, entry(task(threads=132), gain=1.9), target="cuda -arch=sm_80")
    schedules = planning.Schedules(str(root.path), device="sm_90")
    (found,) = schedules.tuned(PLAN, 132).tuned
    assert found.origin == "schedules/nvidia-h200-sm90/net-b1/direct"
    assert schedules.tuned(PLAN, 114).tuned == ()


def test_plans_on_a_gpu_do_not_ask_how_many_threads_the_host_has(root):
    root(device.identity("cuda:1"))
    logs = planning.Schedules(str(root.path), device="cuda:1")
    assert len(logs.tuned(PLAN, 2).tuned) == 1
    assert logs.notes(PLAN, 2) == ()
    assert planning.Schedules(str(root.path), device="cuda:7").notes(PLAN, 2) == ()
    (note,) = planning.Schedules(str(root.path)).notes(PLAN, 2)
    assert "is for this machine and a kernel of this plan" in note


def test_the_commands_tell_of_them(root, monkeypatch, capsys):
    folder = root(device.identity("cuda:1"), software={"driver": "580.12", "compiler": "nvcc 13.0"})
    assert cli.main(["schedules", "list", str(root.path), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["usable"], row["device"], row["software"]["driver"]) == (True, "nvidia-h200-sm90", "580.12")
    assert cli.main(["schedules", "show", str(root.path)]) == 0
    assert "NVIDIA H200 (sm_90), TVM" in (out := capsys.readouterr().out)
    assert f"{HOPPER}, driver 580.12, compiler nvcc 13.0\nusable here" in out
    assert cli.main(["schedules", "merge", str(folder), "--into", str(root.path / "all")]) == 0
    assert log.read(root.path / "all/nvidia-h200-sm90/net-b1/direct").software["compiler"] == "nvcc 13.0"
    capsys.readouterr()
    monkeypatch.setattr(nvml, "gpus", list)
    assert cli.main(["schedules", "list", str(folder), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["reason"].endswith("(NVIDIA H200 (sm_90)), and there is none of that kind here")
