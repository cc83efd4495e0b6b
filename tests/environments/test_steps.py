"""What is done besides pip: CNTK's stand-in for MPI, Theano's settings."""

import configparser
import ctypes
import shutil
import signal
import subprocess
import sys

import pytest

from xframe.environments import places, recipes, running, steps
from xframe.errors import Unavailable

compiled = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler here")


@pytest.fixture
def run(tmp_path):
    with running.lock(tmp_path / "lock", print) as held:
        yield running.Commands("some", "can't build it", tmp_path / "log", held, lambda line: None)


def library(root, package):
    folder = root / "venv/lib/python3.6/site-packages" / package
    folder.mkdir(parents=True)
    return folder


@compiled
def test_the_stand_in_is_one_process(tmp_path, run):
    folder = library(tmp_path, "cntk/libs")
    steps.mpi_stub(tmp_path, run)
    loaded = ctypes.CDLL(str(folder / "libmpi.so.12"))
    number = ctypes.c_int(-1)
    assert loaded.MPI_Comm_size(None, ctypes.byref(number)) == 0
    assert number.value == 1
    assert loaded.MPI_Comm_rank(None, ctypes.byref(number)) == 0
    assert number.value == 0
    for other in ("libmpi_cxx.so.1", "libpython3.6m.so.1.0"):
        assert ctypes.CDLL(str(folder / other))._handle == loaded._handle


@compiled
def test_the_stand_in_refuses_to_talk(tmp_path, run):
    folder = library(tmp_path, "cntk/libs")
    steps.mpi_stub(tmp_path, run)
    code = f"import ctypes; ctypes.CDLL({str(folder / 'libmpi.so.12')!r}).MPI_Allreduce()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGABRT
    assert "CNTK called MPI_Allreduce: its MPI is a stand-in" in done.stderr


def test_without_a_compiler_it_takes_open_mpi(tmp_path, run, monkeypatch):
    folder = library(tmp_path, "cntk/libs")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    with pytest.raises(Unavailable, match=r"neither a C compiler .*apt install gcc.* nor Open MPI"):
        steps.mpi_stub(tmp_path, run)
    for name in ("mpi", "mpi_cxx"):
        (tmp_path / f"lib{name}.so.40").write_text("")
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: f"lib{name}.so.40")
    steps.mpi_stub(tmp_path, run)
    assert (folder / "libmpi.so.12").resolve() == tmp_path / "libmpi.so.40"
    assert (folder / "libmpi_cxx.so.1").resolve() == tmp_path / "libmpi_cxx.so.40"


def settings(root):
    parsed = configparser.ConfigParser()
    parsed.read(root / "theanorc")
    return parsed


def test_theano_is_pointed_at_the_blas_of_scipy(tmp_path, run, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    folder = library(tmp_path, "scipy.libs")
    with pytest.raises(Unavailable, match="no OpenBLAS in SciPy's wheel"):
        steps.theano_settings(tmp_path, run)
    (folder / "libopenblasp-r0-4128.3.18.so").write_text("")
    steps.theano_settings(tmp_path, run)
    flags = settings(tmp_path)["blas"]["ldflags"].split()
    assert flags == [f"-L{folder}", "-l:libopenblasp-r0-4128.3.18.so", f"-Wl,-rpath,{folder}"]
    assert settings(tmp_path)["global"]["base_compiledir"] == str(tmp_path / "compiled")


def test_theano_where_it_can_not_compile(tmp_path, run, monkeypatch):
    spaced = tmp_path / "a folder"
    (library(spaced, "scipy.libs") / "libopenblas.so").write_text("")
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(Unavailable, match="has a space in it: set XFRAME_HOME"):
        steps.theano_settings(spaced, run)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(Unavailable, match=r"compiles its kernels with g\+\+: apt install g\+\+"):
        steps.theano_settings(tmp_path, run)


def test_every_step_of_a_recipe_is_one():
    for name, recipe in recipes.RECIPES.items():
        assert set(recipe.steps) <= set(steps.STEPS), name
        assert all("{root}" not in text for text in places.variables(name).values())
