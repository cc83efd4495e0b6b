"""A device's identity tells its kind from others, and nothing else."""

import json
import re
from dataclasses import replace

import pytest

from tests.schedules.logs import DEVICE
from xframe import environment
from xframe.schedules.device import Identity, identity
from xframe.schedules.untrusted import LogError

AMD = {"vendor_id": "AuthenticAMD", "cpu family": "26", "model": "2", "model name": "AMD EPYC"}
INTEL = {
    "vendor_id": "GenuineIntel",
    "cpu family": "6",
    "model": "143",
    "model name": "Intel(R) Xeon(R) Platinum 8480C",
}
ARM = {"CPU implementer": "0x41", "CPU architecture": "8", "CPU part": "0xd4f"}
MACHINES = {
    "zen 5": {**AMD, "flags": "fpu avx avx2 fma avx512f"},
    "zen 4": {**AMD, "cpu family": "25", "model": "17", "flags": "fpu avx avx2 fma avx512f"},
    "zen 5 without avx512": {**AMD, "flags": "fpu avx avx2 fma"},
    "xeon": {**INTEL, "flags": "fpu avx avx2 fma avx512f avx512vl"},
    "arm": {**ARM, "Features": "fp asimd sve"},
    "unknown": {},
}


@pytest.fixture
def machine(monkeypatch):
    """Makes this machine another one; gives its identity."""

    def make(name, caches=None, cpus=None):
        monkeypatch.setattr(environment, "cpuinfo", lambda: dict(MACHINES[name]))
        monkeypatch.setattr(environment, "cache_bytes", lambda: caches or {1: 48 << 10, 2: 1 << 20})
        monkeypatch.setattr(environment, "allowed_cpus", lambda: cpus or [0, 1])
        return identity()

    return make


def test_machines_are_told_apart_in_slug_and_words(machine):
    found = {name: machine(name) for name in MACHINES}
    assert len({i.slug for i in found.values()}) == len(found)
    for name, one in found.items():
        for other_name, other in found.items():
            assert (one.differs(other) is None) == (name == other_name)


@pytest.mark.parametrize("name", MACHINES)
def test_an_identity_survives_json(machine, name):
    one = machine(name)
    assert Identity.from_json(json.loads(json.dumps(one.to_json()))) == one


def test_this_machine():
    one = identity()
    assert Identity.from_json(json.loads(json.dumps(one.to_json()))) == one
    assert one.differs(identity()) is None


def test_a_slug(machine):
    assert machine("zen 5").slug == "amd-epyc-avx512-f26m2"
    assert machine("xeon").slug == "intel-xeon-platinum-8480c-avx512-f6m143"


def test_where_a_process_may_run_is_no_other_device(machine):
    assert machine("zen 5", cpus=[0]) == machine("zen 5", cpus=[0, 1, 2, 3])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"family": "9"}, r"Acme One \(family 9, model 1\) rather than Acme One \(family 7, model 1\)"),
        ({"features": ("avx", "avx2", "sse2")}, r"vector instructions \+sse2 -fma"),
        ({"caches": (("L1", 48 << 10),)}, "caches of 48 KiB L1 rather than 32 KiB L1, 1024 KiB L2"),
        ({"kind": "cuda"}, "Acme One"),
    ],
)
def test_how_devices_differ_is_told(change, words):
    assert re.search(words, DEVICE.differs(replace(DEVICE, **change)))


@pytest.mark.parametrize("change", [{"cores": 64}, {"name": "Acme One Pro"}, {"slug": "another"}])
def test_what_does_not_make_another_kind_of_device(change):
    assert DEVICE.differs(replace(DEVICE, **change)) is None


@pytest.mark.parametrize(
    "change",
    [
        {"slug": "Upper"}, {"slug": "a/b"}, {"slug": ".."}, {"slug": ""}, {"slug": "x" * 81}, {"cores": 0},
        {"cores": "2"}, {"features": "avx"}, {"features": ["a b"]}, {"features": ["avx"] * 101}, {"caches": {"L1": -1}},
        {"caches": {"x": 1}}, {"name": None}, {"name": "two\nlines"}, {"family": "\x1b"},
    ],
)  # fmt: skip
def test_an_identity_of_nonsense_is_refused(change):
    with pytest.raises(LogError, match="the device"):
        Identity.from_json({**DEVICE.to_json(), **change})


def test_what_a_newer_kernel_tells_of_the_same_processor_is_no_other_device(machine, monkeypatch):
    before = machine("zen 5")
    monkeypatch.setitem(
        MACHINES, "zen 5", {**MACHINES["zen 5"], "flags": MACHINES["zen 5"]["flags"] + " avx_vnni amx_tile"}
    )
    assert machine("zen 5") == before
