"""Where NVIDIA's libraries are looked for, on a machine that has none of them."""

import ctypes
import importlib.util
from types import SimpleNamespace

import pytest

from xframe import nvidia
from xframe.errors import Unavailable


@pytest.fixture
def tried(monkeypatch, tmp_path):
    """What the loader was asked for, in order; ``there`` is the set of files that load."""
    asked = SimpleNamespace(places=[], there=set(), folder=tmp_path)

    def library(place, mode):
        asked.places.append(place)
        if place not in asked.there:
            raise OSError(f"{place}: cannot open shared object file")
        assert mode == ctypes.RTLD_GLOBAL
        return place

    monkeypatch.setattr(ctypes, "CDLL", library)
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    return asked


def test_packages_are_looked_into_after_the_loaders_own_places(tried):
    path = tried.folder / "cu13/lib/libcudart.so.13"
    path.parent.mkdir(parents=True)
    path.touch()
    tried.there = {str(path)}
    assert nvidia.load("cudart") == str(path)
    assert tried.places == ["libcudart.so.13", str(path)]


def test_an_older_one_is_taken_where_the_newest_is_nowhere(tried):
    tried.there = {"libcudart.so.12"}
    assert nvidia.load("cudart") == "libcudart.so.12"
    toolkit = [f"/usr/local/cuda/{folder}/libcudart.so.13" for folder in ("lib64", "extras/CUPTI/lib64")]
    assert tried.places[:-1] == ["libcudart.so.13", *toolkit]


def test_a_folder_that_came_along_is_the_last_place(tried, monkeypatch):
    monkeypatch.setenv("XFRAME_LIBRARIES", str(tried.folder))
    tried.there = {str(tried.folder / "libcudart.so.13"), "libcudart.so.12"}
    assert nvidia.load("cudart") == str(tried.folder / "libcudart.so.13")
    assert tried.places[0] == "libcudart.so.13"


def test_what_is_missing_is_named_with_what_brings_it(tried):
    with pytest.raises(Unavailable, match=r"libcudnn\.so\.9 is needed .*cannot open.*: pip install nvidia-cudnn-cu13,"):
        nvidia.load("cudnn")


def test_where_it_was_loaded_from_is_told_in_full(monkeypatch):
    """Of the C library, which the loader finds by its name."""
    monkeypatch.setitem(nvidia.FILES, "cudart", (("libc.so.6",), "nvidia-cuda-runtime"))
    found = nvidia.path("cudart")
    assert found.is_file()
    assert found.is_absolute()
    assert found.name.startswith("libc")
