"""TVM's part for GPUs, on machines that lack what it needs."""

import ctypes
from types import SimpleNamespace

import pytest

pytest.importorskip("tvm")

from xframe import nvidia
from xframe.errors import Unavailable
from xframe.lowering import tvm_runtime


@pytest.fixture
def loader(monkeypatch):
    """``loaded``: what was asked for, in order; TVM's part for GPUs misses ``missing``."""
    seen = SimpleNamespace(loaded=[], missing="")

    def library(path, mode=0):
        name = path.rpartition("/")[2]
        seen.loaded.append(name)
        if "cuda" in name and seen.missing:
            raise OSError(f"{seen.missing}: cannot open shared object file: No such file or directory")
        return name

    def runtime(name):
        seen.loaded.append(name)
        if "libcudart" in seen.missing:
            raise Unavailable("it does not load")

    monkeypatch.setattr(ctypes, "CDLL", library)
    monkeypatch.setattr(nvidia, "load", runtime)
    return seen


def test_a_cpu_needs_nothing_of_nvidias(loader):
    tvm_runtime.load()
    assert not any("cuda" in name for name in loader.loaded)


def test_cudas_runtime_is_loaded_from_wherever_it_is_before_what_needs_it(loader):
    tvm_runtime.load(cuda=True)
    assert loader.loaded[-2:] == ["cudart", "libtvm_runtime_cuda.so"]


@pytest.mark.parametrize(
    ("missing", "remedy"),
    [
        ("libcudart.so.13", r"\(libcudart\.so\.13: cannot open .*\): pip install 'nvidia-cuda-runtime>=13'$"),
        ("libcuda.so.1", r"\(libcuda\.so\.1: cannot open .*\): it needs an NVIDIA GPU and its driver$"),
    ],
)
def test_what_is_missing_is_said_with_what_brings_it(loader, missing, remedy):
    loader.missing = missing
    with pytest.raises(Unavailable, match=remedy):
        tvm_runtime.load(cuda=True)
