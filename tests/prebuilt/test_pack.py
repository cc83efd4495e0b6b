"""What travels: all that is needed and nothing that can be made there, in pieces that make the whole again."""

import io
import json
import os
import subprocess
import sys
import tarfile

import numpy as np
import pytest

from tests.prebuilt import wheels
from xframe import zoo
from xframe.backends import tvm_parameters
from xframe.errors import UsageError
from xframe.prebuilt import distributions, folder, pack, pieces, seeds
from xframe.prebuilt.folder import Entry
from xframe.types import Plan

#: What a packed check needs and tests have already.
THERE = ("numpy", "onnx", "typer", "rich")
MINE = """
from xframe.types import ModelSpec, layer

SPEC = ModelSpec("mine", (1, 4, 4), (layer("conv1", "conv", out=2, kernel=3),))
"""
OWN = f"cp3{sys.version_info.minor}"


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """No more of xframe than a script, and nothing of TVM."""
    monkeypatch.setattr(pack, "OWN", ("scripts",))
    monkeypatch.setattr(pack, "RUNTIME", ())
    monkeypatch.setattr(pieces, "PRESET", 0)
    monkeypatch.setattr(pack.importlib.util, "find_spec", lambda name: name)


@pytest.fixture
def built(tmp_path):
    """A folder with a network that could not be made, one weight of the model's and one that nobody knows."""
    where = tmp_path / "built"
    (where / folder.PARAMETERS).mkdir(parents=True)
    folder.write(where, "sm_90", [Entry("alexnet-b1-gemm", "alexnet", None, 1, Plan("gemm"), reason="made up")])
    return where


def unpacked(paths):
    """Names in the archive, and the archive."""
    parts = [p for p in paths if pieces.NAME in p.name]
    tar = tarfile.open(fileobj=io.BytesIO(b"".join(p.read_bytes() for p in parts)), mode="r:xz")  # noqa: SIM115
    return set(tar.getnames()), tar


def test_what_travels_is_cut_into_pieces_that_make_the_whole_again(built, tmp_path, monkeypatch):
    data = np.random.default_rng(0).bytes(1_200_000)
    (built / "parameters" / "w").write_bytes(data)
    monkeypatch.setattr(seeds, "recipes", lambda built, models: {})
    monkeypatch.setattr(pack, "NEEDED", ("markdown-it-py", "no-such-distribution"))
    (tmp_path / "libcudart.so.13.1").write_bytes(b"runtime")
    monkeypatch.setattr(pack, "cuda_runtime", lambda: tmp_path / "libcudart.so.13.1")
    paths = pack.pack(tmp_path / "out", built, piece=1)
    parts = [p for p in paths if pieces.NAME in p.name]
    assert [p.stat().st_size for p in parts[:-1]] == [1 << 20]
    assert [p.name for p in paths[2:]] == ["gpu_check.sh", "gpu_check.py", "gpu_check.json"]
    names, tar = unpacked(paths)
    assert tar.extractfile("built/parameters/w").read() == data
    assert {"scripts/gpu_check.py", "built/manifest.json", "packages/mdurl/mdurl/__init__.py"} <= names
    assert not any("__pycache__" in n for n in names)
    assert tar.extractfile("lib/libcudart.so.13").read() == b"runtime"
    about = json.loads((tmp_path / "out" / "gpu_check.json").read_text())
    assert (about["python"], list(about["pieces"])) == (distributions.HERE, [p.name for p in parts])
    again = pack.pack(tmp_path / "out", built, without=["mdurl"])
    assert len(list((tmp_path / "out").iterdir())) == len(again) == 4
    assert not any("mdurl" in n for n in unpacked(again)[0])


def test_weights_of_the_model_stay_and_a_model_of_the_users_travels(built, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.setenv("XFRAME_MODELS", str(tmp_path))
    monkeypatch.setattr(pack, "NEEDED", ())
    folder.write(built, "sm_90", [Entry("mine-b1-gemm", "mine", None, 1, Plan("gemm"), reason="made up")])
    weight = np.ascontiguousarray(zoo.weights(zoo.spec("mine"))["conv1.weight"].transpose(2, 3, 1, 0))
    for name, array in {tvm_parameters.name(weight): weight, "other": weight + 1}.items():
        (built / "parameters" / name).write_bytes(array.tobytes())
    told = []
    names, tar = unpacked(pack.pack(tmp_path / "out", built, tell=told.append))
    assert {n for n in names if "parameters" in n} == {"built/parameters/other"}
    assert {"models/mine.py", "built/seeds.json"} <= names
    assert tvm_parameters.name(weight) in json.loads(tar.extractfile("built/seeds.json").read())
    assert any("1 parameters (0 MiB) are seeded weights" in line for line in told)


@pytest.mark.parametrize("installed", [True, False])
def test_what_lies_beside_an_installed_xframe_is_not_its_own(tmp_path, monkeypatch, installed):
    monkeypatch.setattr(pack, "OWN", ("xframe", "models"))
    within = "xframe/data/models/alexnet.py"
    for name in ("xframe/zoo.py", "models/alexnet.py", *([within] if installed else [])):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = {p.relative_to(tmp_path).as_posix() for p in pack.own(tmp_path)}
    assert found == {"xframe/zoo.py", within if installed else "models/alexnet.py"}


def test_a_runtime_that_is_not_here_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(pack, "NEEDED", ())
    monkeypatch.setattr(pack, "TUNING", ())
    monkeypatch.setattr(pack, "cuda_runtime", lambda: None)
    told = []
    names, _ = unpacked(pack.pack(tmp_path / "out", tell=told.append))
    assert told == ["libcudart.so.13 is not here, so it is not packed: TVM needs that of the other machine"]
    assert not any(n.startswith(("lib/", "built/")) for n in names)


def test_the_pieces_are_for_the_python_that_was_asked_for(tmp_path, monkeypatch):
    wheels.install(tmp_path / "site", "xf-own", f"{OWN}-{OWN}-linux_x86_64", "xf_own")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(pack, "NEEDED", ("xf-own",))
    monkeypatch.setattr(pack, "TUNING", ())

    def fetch(specs, python, folder):
        return [wheels.wheel(folder, "xf-own", "cp399-cp399-linux_x86_64", "xf_own")]

    monkeypatch.setattr(distributions, "fetch", fetch)
    *_, script, _, about = pack.pack(tmp_path / "out", python="3.99")
    assert json.loads(about.read_text())["python"] == "3.99"
    done = subprocess.run(["sh", str(script)], capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gpu_check: these pieces are for Python 3.99, and there is none on the PATH")


@pytest.mark.parametrize(("asked", "said"), [({"python": "3.9"}, "3.11 or later"), ({"piece": 0}, "at least 1 MiB")])
def test_what_makes_no_sense_is_said(tmp_path, asked, said):
    with pytest.raises(UsageError, match=said):
        pack.pack(tmp_path, **asked)


def test_nothing_stays_of_pieces_that_can_not_be_made(tmp_path, monkeypatch):
    def files(*_):
        yield tmp_path / "gone", "xf/gone"

    monkeypatch.setattr(distributions, "files", files)
    with pytest.raises(FileNotFoundError):
        pack.pack(tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_further_packages_come_before_those_of_the_machine(tmp_path, monkeypatch):
    """As where it has an ONNX Runtime without CUDA. What is packed anyway is packed once."""
    asked, names = [], []

    def fetch(specs, python, folder):
        asked.append((list(specs), python))
        folder.mkdir(exist_ok=True)
        return [wheels.wheel(folder, "Xf_Gpu", "py3-none-any", "xf", "there = 1\n")]

    monkeypatch.setattr(distributions, "fetch", fetch)
    monkeypatch.setattr(distributions, "files", lambda found, *_: names.extend(found) or ())
    monkeypatch.setattr(pack, "NEEDED", ("numpy", "onnx"))
    made = pack.pack(tmp_path / "out", more=["Xf.Gpu==1.0", "onnx"])
    assert asked == [(["Xf.Gpu==1.0", "onnx"], distributions.HERE)]
    assert "packages/xf-gpu/xf.py" in unpacked(made)[0]
    assert "onnx" not in names
    assert json.loads((tmp_path / "out" / "gpu_check.json").read_text())["ours"] == ["xf-gpu", "onnx"]


def test_compiling_travels_without_networks_alone(monkeypatch, tmp_path):
    """TVM with a compiled network goes without its compiler, which is most of it."""
    monkeypatch.setattr(pack, "RUNTIME", ("apache-tvm",))
    places = [f"apache-tvm/tvm/{p}" for p in ("lib/libtvm_compiler.so", "lib/libtvm_runtime.so", "include/a.h")]
    places += ["apache-tvm/tvm/3rdparty/b.h", "numpy/include/c.h"]
    monkeypatch.setattr(distributions, "files", lambda *_: (("", place) for place in places))
    monkeypatch.setattr(pack, "_compiled", lambda *_: ())
    whole, runtime = (
        [n.removeprefix("packages/") for _, n in pack.contents(built, "3.12", (), tmp_path, print) if "packages" in n]
        for built in (None, "built")
    )
    assert whole == [*places[:3], places[4]]
    assert runtime == [places[1], places[4]]


def without_frameworks(folder):
    """Where Python finds what ends at once when it is imported, instead of what takes seconds."""
    folder.mkdir()
    for name in ("torch", "tensorflow", "jax", "onnxruntime", "tvm"):
        (folder / f"{name}.py").write_text("raise ImportError('not here')\n")
    return folder


def test_the_packed_check_runs(built, tmp_path, monkeypatch):
    """Unpacked elsewhere it starts, and says what is missing, in the folder of whoever runs it."""
    monkeypatch.setattr(pack, "OWN", ("xframe", "models"))
    monkeypatch.setattr(pack, "NEEDED", ())
    pack.pack(tmp_path / "out", built, without=THERE)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHON": sys.executable}
    environment["PYTHONPATH"] = str(without_frameworks(tmp_path / "none"))
    command = ["sh", str(tmp_path / "out" / "gpu_check.sh"), "-o", "found"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "GPU        none" in done.stdout
    assert "prebuilt batch 1" in done.stdout
    assert json.loads((tmp_path / "found" / "machine" / "step.json").read_text())["state"] == "done"
    with tarfile.open(tmp_path / "found.tar.gz") as tar:
        assert {"found/summary.txt", "found/machine/step.json"} <= set(tar.getnames())
