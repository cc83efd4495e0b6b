"""Networks compiled into a folder, and run from it without a compiler."""

import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import onnx
import pytest

from tests.test_comparison import QUICK
from xframe import registry, zoo
from xframe.backends import tvm_driverless
from xframe.equivalence.reference import Judged
from xframe.errors import UsageError, XframeError
from xframe.measure import measure
from xframe.prebuilt import build, convolution, folder, jobs
from xframe.prebuilt.folder import Entry
from xframe.types import Artifact, Outcome, Plan


def test_what_is_expected_is_kept_to_the_bit(tmp_path):
    judged = [[Judged("y:0", np.arange(3.0) / 7, np.ones(3) * 1e-9)], [Judged("y:0", -np.arange(3.0), np.ones(3))]]
    folder.save_expected(tmp_path / "e.npz", judged)
    back = folder.load_expected(tmp_path / "e.npz")
    assert [[(j.name, *j.value, *j.bound) for j in outputs] for outputs in back] == [
        [(j.name, *j.value, *j.bound) for j in outputs] for outputs in judged
    ]


@pytest.mark.parametrize("text", ["", "{}", '{"schema": 7, "target": "x", "entries": []}', "[]"])
def test_another_folder_is_refused(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(UsageError, match=r"holds no compiled networks .*xframe build -o"):
        folder.read(tmp_path)


def test_what_was_not_made_or_has_other_inputs_is_said(tmp_path):
    entry = Entry("tiny-b1-fft", "tiny", "pytorch", 1, Plan("fft"), reason="FFT refuses it")
    folder.write(tmp_path, "sm_90", [entry])
    target, (back,) = folder.read(tmp_path)
    assert (target, back) == ("sm_90", entry)
    with pytest.raises(XframeError, match="tiny-b1-fft was not compiled: FFT refuses it"):
        jobs.job(tmp_path, back, "cpu")


def test_a_network_runs_from_its_folder_alone(plugins, tmp_path):
    """Compiled for a CPU here, as its code can be run: the way is the same."""
    pytest.importorskip("tvm")
    from tvm.target import codegen

    plugins(pytorch="Honest")
    target, where = f"llvm -mcpu={codegen.llvm_get_system_cpu()}", tmp_path / "built"
    told = []
    entries = build.build("tiny", "pytorch", (10,), ("gemm", "fft"), target, where, None, progress=told.append)
    assert [e.name for e in entries if "gemm" in e.name] == [
        *("tiny-b10-gemm", "tiny-conv1-b10-gemm", "tiny-conv2-b10-gemm")
    ]
    assert not any(e.reason for e in entries if e.plan.label == "gemm")
    assert "fft refuses" in next(
        e.reason for e in entries if e.name == "tiny-b10-fft"
    )  # a kernel no wider than its stride
    assert told[-1].startswith("tiny-conv2-b10-fft: compile for llvm")
    _, kept = folder.read(where)
    assert {j.value.shape for feed in folder.load_expected(where / kept[0].name / folder.EXPECTED) for j in feed} == {
        (folder.IMAGES, 5)
    }
    assert kept == entries
    network, site = (next(e for e in kept if e.name == name) for name in ("tiny-b10-gemm", "tiny-conv2-b10-gemm"))
    assert (network.site, site.site, site.framework) == ("", "conv2", None)
    row = registry.BACKENDS["tvm"]
    moved = where.rename(tmp_path / "elsewhere")
    assert not onnx.load(moved / network.artifact.path).graph.initializer
    with jobs.running(moved):
        path = convolution.write(zoo.spec("tiny"), "conv2", 10, tmp_path / "conv2.onnx")
        ready = [jobs.job(moved, network, "cpu"), jobs.job(moved, site, "cpu", judged=jobs.of_site(path, 10))]
        measured = list(measure(ready, QUICK))
    assert [(m.outcome, m.reason) for m in measured] == [(Outcome.OK, "")] * 2
    for one, layers in zip(measured, (["conv1", "conv2"], ["conv2"]), strict=True):
        assert {s.selected for s in one.sites} == {"gemm"}
        assert not any("no profile" in note for note in one.notes)
        ran = dict.fromkeys(k.layer for k in one.profiles[0].kernels if k.kind == "conv")
        assert list(ran) == [name for name, _ in one.case.artifact.conv_sites]
        assert len(ran) == len(layers)
    assert registry.BACKENDS["tvm"] == row
    with pytest.raises(XframeError, match="makes other inputs of its seeds"):
        jobs.job(moved, replace(network, digest="0"), "cpu")


def test_code_for_a_gpu_is_machine_code(plugins, tmp_path):
    """In a process of its own: a stand-in for the driver stays loaded."""
    pytest.importorskip("tvm")
    if shutil.which("nvcc") is None:
        pytest.skip("compiling for a GPU needs nvcc, and there is none here")
    plugins()
    code = (
        "import sys; from xframe import registry; from xframe.cli import main;"
        "registry.FRAMEWORKS['pytorch'] = registry.Row('fake_plugins:Honest', (), 'x');"
        "sys.exit(main(sys.argv[1:]))"
    )
    command = ["build", "--model", "tiny", "--no-sites", "--lowering", "gemm", "--target", "sm_90"]
    command += ["-o", str(tmp_path / "built")]
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True)
    assert done.stdout.strip() == "tiny-b1-gemm: compiled", done.stderr
    library = tmp_path / "built" / "tiny-b1-gemm" / "lib.so"
    tvm_driverless.check(library)
    assert b"__global__" not in library.read_bytes()


def test_text_instead_of_code_is_not_let_through(tmp_path):
    (tmp_path / "lib.so").write_bytes(b"\x7fELF\x02\x01\x01\x00 __global__ void kernel()")
    with pytest.raises(XframeError, match="holds no machine code of a GPU"):
        tvm_driverless.check(tmp_path / "lib.so")


def test_wrong_outputs_are_found_by_what_the_folder_says(tmp_path):
    entry = Entry(
        "t",
        "tiny",
        None,
        1,
        Plan(),
        Artifact("t/x.onnx", "", "tiny", None, None, 17, (), (), ()),
        ((((1, 2), 0),),) * 2,
    )
    feeds = [[zoo.inputs((1, 2), 0)]] * 2
    entry = replace(entry, digest=folder.digest(feeds))
    (tmp_path / "t").mkdir()
    want = Judged("y", np.ones((1, 2)), np.full((1, 2), 1e-6))
    folder.save_expected(tmp_path / "t" / folder.EXPECTED, [[want], [want]])
    job = jobs.job(tmp_path, entry, "cpu")
    right, wrong = np.ones((1, 2), np.float32), np.array([[1, 1.1]], np.float32)
    assert job.judge([[right], [right]], ()).ok
    assert not job.judge([[right], [wrong]], ()).ok
    assert not job.judge([[wrong], [right]], ()).ok
    assert not job.inputs_matter
    with pytest.raises(XframeError, match="nothing is there"):
        jobs.job(tmp_path, replace(entry, artifact=None), "cpu")
