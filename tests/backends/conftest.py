"""The stand-ins for NVIDIA's libraries that tests of several files share."""

import ctypes
from types import SimpleNamespace

import pytest

from tests import fake_nvidia
from xframe import artifact
from xframe.backends import cudnn_device, cudnn_graph_convolution, cudnn_library
from xframe.errors import Unavailable


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    return fake_nvidia.built("backends/fake_cudnn.cpp", tmp_path_factory.mktemp("fake"))


@pytest.fixture(scope="session")
def cupti_library(tmp_path_factory):
    return fake_nvidia.built("backends/fake_cupti.cpp", tmp_path_factory.mktemp("fake"))


@pytest.fixture
def fake(built, monkeypatch):
    library = fake_nvidia.loaded(built, fake_log=ctypes.c_char_p, fake_live=ctypes.c_size_t)
    library.fake_reset()
    monkeypatch.setattr(cudnn_library, "load", lambda name: ctypes.CDLL(str(built)))
    monkeypatch.setattr(cudnn_device, "GATE_BYTES", 8192)
    compilers = []

    def compiler(name):
        compilers.append(name)
        raise Unavailable(f"no {name}")

    monkeypatch.setattr(cudnn_graph_convolution, "load", compiler)
    before = library.fake_live()
    yield SimpleNamespace(
        fail=lambda name, status: library.fake_fail(name.encode(), status),
        limit=lambda size: library.fake_limit(ctypes.c_size_t(size)),
        devices=lambda n: library.fake_devices(ctypes.c_size_t(n)),
        version=lambda n: library.fake_version(ctypes.c_size_t(n)),
        gate=lambda n: library.fake_gate(ctypes.c_size_t(n)),
        log=lambda: library.fake_log().decode().splitlines(),
        live=lambda: library.fake_live() - before,
        compilers=compilers,
    )
    assert library.fake_live() == before, "something was not freed"


@pytest.fixture
def model(convnet):
    return artifact.load(convnet(batch=2))
