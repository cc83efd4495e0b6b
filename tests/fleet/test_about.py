"""What a server says of itself, read back; what can't be read, and what is not what it should be, refused in words."""

import json
from dataclasses import replace

import pytest

from xframe.fleet.about import About, Refused, here
from xframe.lowering.target import Cpu
from xframe.schedules import device

CPU = Cpu.host(1)


@pytest.fixture(scope="module")
def about():
    return here(1)


def test_it_is_read_as_it_was_written(about):
    assert About.from_json(about.to_json()) == about
    assert about.identity == device.identity()
    assert about.target == CPU.text
    about.check("here", about.identity, CPU)
    about.check("here", None, CPU)


@pytest.mark.parametrize(
    "change",
    [
        {"identity": {}},
        {"identity": None},
        {"instructions": "avx2"},
        {"instructions": [1]},
        {"processor": 7},
        {"threads": 0},
        {"threads": True},
        {"threads": "2"},
        {"tvm": None},
        {"sources": 1},
    ],
)
def test_what_can_not_be_read(about, change):
    text = json.dumps({**json.loads(about.to_json()), **change})
    with pytest.raises(Refused, match="does not say what it is in a way that can be read"):
        About.from_json(text)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", "{}", " " * 100_000])
def test_what_is_nothing_like_it(text):
    with pytest.raises(Refused, match="does not say what it is in a way that can be read"):
        About.from_json(text)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("family", "99", "family 99"),
        ("features", ("avx2",), "vector instructions"),
        ("caches", (("L1", 1024),), "caches of 1 KiB L1"),
    ],
)
def test_another_device_is_refused(about, field, value, words):
    other = replace(about, identity=replace(about.identity, **{field: value}))
    with pytest.raises(Refused, match=f"calls itself zen, but is not the device that .* should be: .*{words}"):
        other.check("zen", about.identity, CPU)


def test_more_or_fewer_cores_are_the_same_device(about):
    replace(about, identity=replace(about.identity, cores=999)).check("zen", about.identity, CPU)


def test_what_it_can_not_run_is_refused(about):
    with pytest.raises(Refused, match=r"has TVM 0\.1"):
        replace(about, tvm="0.1").check("zen", None, CPU)
    with pytest.raises(Refused, match="has another version of xframe"):
        replace(about, sources="0").check("zen", None, CPU)
    with pytest.raises(Refused, match="1 threads at most, and 2 are asked for"):
        about.check("zen", None, Cpu.host(2))
    with pytest.raises(Refused, match=r"lacks instructions of the target .*: .*avx.*; give --target 'llvm -mcpu="):
        replace(about, instructions=()).check("zen", None, replace(CPU, text="llvm -mcpu=haswell"))
