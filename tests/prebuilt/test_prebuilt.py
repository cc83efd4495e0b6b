"""Networks compiled into a folder, run from it without a compiler, and packed."""

import io
import json
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace

import numpy as np
import pytest

from tests.test_comparison import QUICK
from xframe import registry, zoo
from xframe.backends import tvm_driverless
from xframe.equivalence.reference import Judged
from xframe.errors import UsageError, XframeError
from xframe.measure import measure
from xframe.prebuilt import build, folder, jobs, pack
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
    entries = build.build("tiny", "pytorch", (2,), ("gemm", "fft"), target, where, None, progress=told.append)
    assert [e.name for e in entries] == ["tiny-b2-gemm", "tiny-b2-fft"]
    assert not entries[0].reason
    assert "fft refuses" in entries[1].reason  # a kernel no wider than its stride
    assert told[-1].startswith("tiny-b2-fft: compile for llvm")
    _, (kept, _) = folder.read(where)
    row = registry.BACKENDS["tvm"]
    moved = where.rename(tmp_path / "elsewhere")
    with jobs.running(moved):
        (measured,) = measure([jobs.job(moved, kept, "cpu")], QUICK)
    assert (measured.outcome, measured.reason) == (Outcome.OK, "")
    assert {s.selected for s in measured.sites} == {"gemm"}
    assert registry.BACKENDS["tvm"] == row
    with pytest.raises(XframeError, match="makes other inputs of its seeds"):
        jobs.job(moved, replace(kept, digest="0"), "cpu")


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
    command = ["build", "--model", "tiny", "--lowering", "gemm", "--target", "sm_90", "-o", str(tmp_path / "built")]
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


def test_what_travels_is_cut_into_pieces_that_make_the_whole_again(tmp_path, monkeypatch):
    built = tmp_path / "built"
    (built / "parameters").mkdir(parents=True)
    data = np.random.default_rng(0).bytes(50000)
    (built / "parameters" / "w").write_bytes(data)
    monkeypatch.setattr(pack, "NEEDED", ("markdown-it-py", "no-such-distribution"))
    monkeypatch.setattr(pack, "RUNTIME", ())
    files = pack.pack(built, tmp_path / "out", piece=20000)
    *pieces, script = files
    assert script.name == "gpu_check.sh"
    assert len(pieces) > 3
    assert all(p.stat().st_size == 20000 for p in pieces[:-1])
    whole = io.BytesIO(b"".join(p.read_bytes() for p in pieces))
    with tarfile.open(fileobj=whole, mode="r:gz") as tar:
        names = tar.getnames()
        assert tar.extractfile("packed/built/parameters/w").read() == data
    assert {"packed/scripts/gpu_check.py", "packed/xframe/types.py", "packed/models/alexnet.py"} <= set(names)
    assert "packed/mdurl/__init__.py" in names  # which markdown-it-py requires
    assert not any("__pycache__" in n for n in names)
    assert ("packed/lib/libcudart.so.13" in names) == (pack.cuda_runtime() is not None)
    assert len(pack.pack(built, tmp_path / "out", piece=1 << 30)) == 2
    assert len(list((tmp_path / "out").iterdir())) == 2


def test_tvm_travels_without_its_compiler():
    pytest.importorskip("tvm")
    names = {name for _, name in pack._distribution("apache-tvm")}
    assert "tvm/lib/libtvm_runtime.so" in names or any(n.startswith("tvm/lib/libtvm_runtime") for n in names)
    assert not any("libtvm_compiler" in n for n in names)


def test_the_packed_check_runs(tmp_path, monkeypatch):
    """Unpacked elsewhere it starts, and says what is missing; nothing of this checkout is used."""
    built = tmp_path / "built"
    built.mkdir()
    folder.write(built, "sm_90", [Entry("tiny-b1-gemm", "tiny", None, 1, Plan("gemm"), reason="made up")])
    monkeypatch.setattr(pack, "RUNTIME", ())  # it would take half a minute, and nothing here runs by it
    pack.pack(built, tmp_path / "out")
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    script = (tmp_path / "out" / "gpu_check.sh").read_text()
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    assert f" {python} " in script
    (tmp_path / "out" / "gpu_check.sh").write_text(script.replace(f" {python} ", f" {sys.executable} -S "))
    command = ["sh", str(tmp_path / "out" / "gpu_check.sh"), "-o", str(tmp_path / "found")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert "GPU" in done.stdout, done.stderr
    assert "prebuilt batch 1" in done.stdout
    assert json.loads((tmp_path / "found" / "machine" / "step.json").read_text())["state"] == "done"
