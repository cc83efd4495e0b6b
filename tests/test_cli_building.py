"""The commands that take xframe to another machine, and what ``devices`` says of GPUs."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.test_nvml import driver, library  # noqa: F401  # fixtures
from xframe import available, cli, files
from xframe.gpucheck import check, machine
from xframe.gpucheck.journal import CUT, DONE, INTERRUPTED, Found
from xframe.prebuilt import build, folder
from xframe.prebuilt.folder import Entry
from xframe.types import ConvSite, Plan, SiteRecord
from xframe.worker import wire

SITE = ConvSite(1, 3, (8, 8), 4, (3, 3))


@pytest.fixture
def xframe(capsys):
    """Runs a command here; gives its exit code, stdout and stderr."""

    def call(*args):
        code = cli.main([str(a) for a in args])
        return (code, *capsys.readouterr())

    return call


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("build", "--lowering", "strassen"), "unknown lowering 'strassen'"),
        (("build", "--framework", "torchh"), "unknown framework 'torchh'"),
        (("build", "--batch", "0"), "--batch 0 makes no sense"),
        (("gpu-check", "--minutes", "0"), "--minutes 0 makes no sense"),
        (("gpu-check", "--device", "cpu"), "--device cpu: this checks GPUs"),
        (("gpu-check", "--device", "cuda:a"), "unknown device 'cuda:a'"),
        (("gpu-check", "--batch", "0"), "--batch 0 makes no sense"),
        (("gpu-check", "--device", "cuda:0,1", "--archive", "a"), "--archive a is one file, and --device cuda:0,1"),
        (("gpu-check", "--prebuilt", "no-such-folder", "--pack", "pieces"), "holds no compiled networks"),
    ],
)
def test_what_makes_no_sense_is_refused(xframe, args, words):
    code, _, err = xframe(*args)
    assert code == 2
    assert words in err


def test_build_says_what_was_compiled_and_what_not(xframe, monkeypatch, tmp_path):
    asked = {}

    def made(model, framework, batches, labels, target, output, fallback, sites, progress):
        asked.update(vars(), progress=None)
        return [
            Entry("good", model, framework, 1, Plan("gemm")),
            Entry("bad", model, framework, 1, Plan(), reason="no"),
        ]

    (tmp_path / "good").mkdir()
    site = SiteRecord(SITE, "conv1", "gemm", "gemm", "implicit", None, "tuned, schedules/nvidia-h200-sm90/m-b1/gemm")
    sites = wire.plain([site, replace(site, name="conv2", schedule="template")])
    (tmp_path / "good" / "meta.json").write_text(json.dumps({"sites": sites}))
    monkeypatch.setattr(build, "build", made)
    code, out, err = xframe("build", "--batch", "1,16", "--target", "sm_80", "--lowering", "gemm,auto", "-o", tmp_path)
    assert (code, out.splitlines()) == (
        0,
        ["good: compiled", "  conv1: tuned, schedules/nvidia-h200-sm90/m-b1/gemm", "bad: no"],
    )
    assert "1 of 2 compiled for sm_80" in err
    assert (asked["batches"], asked["labels"], asked["framework"]) == ((1, 16), ("gemm", "auto"), "pytorch")
    assert asked["sites"]
    monkeypatch.setattr(build, "build", lambda *args, **_: [Entry("bad", "m", None, 1, Plan(), reason="no")])
    assert xframe("build", "-o", tmp_path)[0] == 1


def test_a_check_prints_and_keeps_its_summary(xframe, monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "facts", lambda: {"gpus": None, "why": "no driver"})
    monkeypatch.setattr(machine, "devices", lambda: 0)
    code, out, _ = xframe("gpu-check", "-o", tmp_path / "found", "--batch", "2")
    assert code == 1
    assert out.startswith("GPU        none: no driver\n")
    assert "network batch 2: skipped (no GPU)" in out
    assert (tmp_path / "found" / "summary.txt").read_text() == out
    monkeypatch.setattr(check, "check", lambda *_: [Found("machine", DONE, facts={"gpus": [{"name": "H200"}]})])
    code, out, _ = xframe("gpu-check", "-o", tmp_path / "found")
    assert (code, out.splitlines()[0]) == (0, "GPU        H200")


def test_several_gpus_are_checked_one_after_another_until_someone_stops_it(xframe, monkeypatch, tmp_path):
    asked = []

    def checked(settings, journal, progress):
        asked.append((settings.device, settings.minutes, journal.folder))
        assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID", "what is asked of cuda:1 in this process is of that GPU"
        journal.folder.mkdir(parents=True, exist_ok=True)
        return [Found("machine", DONE, facts={"gpus": [{"name": settings.device}]}), *more]

    monkeypatch.setattr(check, "check", checked)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "")  # so that it is put back
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    more = []
    code, out, _ = xframe("gpu-check", "-o", tmp_path, "--device", "cuda:0,1", "--minutes", "4")
    assert asked == [("cuda:0", 2.0, tmp_path / "cuda-0"), ("cuda:1", 2.0, tmp_path / "cuda-1")]
    assert out.startswith("cuda:0\nGPU        cuda:0")
    assert "\ncuda:1\nGPU        cuda:1" in out
    assert code == 0
    more = [Found("roofs", CUT, INTERRUPTED)]
    assert xframe("gpu-check", "-o", tmp_path, "--device", "cuda:0,1")[0] == 1
    assert len(asked) == 3


def test_where_nothing_can_be_cached_the_folder_of_the_check_has_a_cache(xframe, monkeypatch, tmp_path):
    """Else every export failed, and with them all rows but the native ones."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XFRAME_HOME", str(tmp_path / "file" / "home"))
    homes = []
    monkeypatch.setattr(check, "check", lambda *_: homes.append(files.home()) or [])
    _, _, err = xframe("gpu-check", "-o", tmp_path / "found")
    assert homes == [tmp_path / "found" / "cache"]
    assert f"can't write to the folder {tmp_path / 'file' / 'home'}" in err
    assert "$XFRAME_HOME names another" in err


def test_where_the_archive_can_not_go_is_told_before_anything_is_looked_at(xframe, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setattr(check, "check", lambda *_: pytest.fail("it looked at the machine"))
    code, _, err = xframe("gpu-check", "-o", tmp_path / "found", "--archive", tmp_path / "file" / "a.tar.gz")
    assert (code, f"can't write to the folder {tmp_path / 'file'}" in err) == (1, True)


def test_the_export_is_of_whom_one_names(xframe, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(check, "check", lambda settings, *_: asked.append(settings.framework) or [])
    xframe("gpu-check", "-o", tmp_path, "--framework", "jax")
    assert asked == ["jax"]
    assert xframe("gpu-check", "-o", tmp_path, "--framework", "jaxx")[0] == 2


def test_the_script_is_found_by_what_it_starts_wherever_it_is_called(tmp_path):
    code = "import os, runpy, subprocess, sys; sys.argv[1:] = ['--help']\n"
    code += "try: runpy.run_path(os.environ['SCRIPT'], run_name='__main__')\nexcept SystemExit: pass\n"
    code += "here = [sys.executable, '-S', '-c', 'import xframe; print(xframe.__file__)']\n"
    code += "print(subprocess.run(here, capture_output=True, text=True).stdout)"
    script = Path(__file__).parents[1] / "scripts" / "gpu_check.py"
    variables = {**os.environ, "SCRIPT": str(script), "PYTHONPATH": ""}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.stdout.splitlines()[-2:-1] == [str(script.parents[1] / "xframe" / "__init__.py")], done.stderr


def test_pack_takes_a_folder_of_compiled_networks(xframe, tmp_path):
    code, _, err = xframe("gpu-check", "--prebuilt", tmp_path, "--pack", tmp_path / "pieces")
    assert code == 2
    assert "holds no compiled networks" in err
    folder.write(tmp_path, "sm_90", [])
    assert not (tmp_path / "pieces").exists()


def test_devices_names_the_gpus(xframe, driver, monkeypatch):  # noqa: F811
    monkeypatch.setattr(available, "probe", lambda table: iter(()))
    code, out, _ = xframe("devices")
    assert code == 0
    assert "cuda:0     nvidia-h100: NVIDIA H100, sm_90, driver 580.12, now 123.4 W" in out
    assert "cuda:1     nvidia-h200" in out
