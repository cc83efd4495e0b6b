"""The driver's calls, and gates, on a fake that plays a GPU in time that only the fake moves on."""

import ctypes
import importlib.util
import re
from pathlib import Path

import pytest

from tests.worker import gpu
from xframe.errors import Unavailable, XframeError
from xframe.worker import cuda_driver
from xframe.worker.cuda_driver import Driver, Gate


@pytest.fixture
def library():
    return gpu.Driver()


@pytest.fixture
def driver(library):
    made = Driver(1, library)
    with made.current():
        yield made
    made.close()
    assert (library.retained, library.pushed, library.events, list(library.streams)) == (0, 0, {}, [None])


def test_what_is_asked_for_behind_a_gate_begins_when_it_opens(driver, library):
    gate, begin, end = Gate(driver, hold=0.5, now=library.clock), driver.event(), driver.event()
    gate.shut()
    driver.record(begin, None)
    library.launch(2e-3)
    library.sleep(0.1)
    driver.record(end, None)
    assert gate.closed
    assert not driver.passed(begin)
    driver.wait(end)
    assert not gate.closed
    assert driver.between(begin, end) == pytest.approx(2e-3, abs=5e-6)
    assert driver.between(gate.opened, begin) == pytest.approx(0, abs=5e-6)


def test_a_gate_that_was_open_too_early_is_held_for_twice_as_long(driver, library):
    gate = Gate(driver, hold=1e-3, now=library.clock)
    closed = []
    for _ in range(3):
        gate.shut()
        library.sleep(3e-3)
        closed.append(gate.closed)
        assert gate.counts(closed[-1]) == closed[-1]
        library.wait()
    assert closed == [False, False, True]
    assert gate.gated


def test_a_host_that_was_held_up_once_makes_no_gate_longer_for_ever(driver, library):
    gate = Gate(driver, hold=1e-3, now=library.clock)

    def opens(busy):
        gate.shut()
        before = library.now
        library.sleep(busy)
        counted = gate.counts(gate.closed)
        library.wait()
        return counted, library.now - before

    assert opens(0.02)[0] is False
    while not (last := opens(1e-4))[0]:
        pass
    assert opens(1e-4) == (True, pytest.approx(1e-3, rel=0.01)), last


def test_a_gate_is_held_for_no_longer_than_anybody_asks(driver, library):
    gate = Gate(driver, now=library.clock)
    gate.expect(60.0)
    gate.shut()
    library.sleep(1.1)
    assert not gate.closed


def test_closing_frees_all_that_can_be_freed(library):
    driver = Driver(0, library)
    with driver.current():
        driver.event()
        stream = driver.stream()
    library.cuStreamDestroy_v2 = lambda handle: 700
    with pytest.raises(XframeError, match="cuStreamDestroy_v2 failed"):
        driver.close()
    assert (library.retained, library.pushed, library.events) == (0, 0, {})
    assert list(library.streams) == [None, stream.value]


def test_a_gate_that_never_helps_is_given_up_and_then_everything_counts(driver, library):
    gate, counted = Gate(driver), []
    while not counted or not counted[-1]:
        gate.shut()
        library.wait()
        counted.append(gate.counts(gate.closed))
    assert counted == [False] * 5 + [True]
    assert not gate.gated
    before = library.now
    gate.shut()
    assert driver.passed(gate.opened)
    assert library.now - before < 1e-4, "nothing keeps the stream waiting any more"


def test_a_gate_is_held_for_longer_than_what_is_expected(driver, library):
    gate = Gate(driver)
    gate.expect(0.4)
    gate.shut()
    library.sleep(0.7)
    assert gate.closed


def test_a_call_that_fails_is_named_in_the_drivers_words(driver, library):
    library.cuEventQuery = lambda event: 700
    with pytest.raises(XframeError, match=r"cuEventQuery failed: CUDA_ERROR_INVALID_HANDLE \(700\)"):
        driver.passed(driver.event())


def test_a_machine_without_a_driver_says_so(monkeypatch):
    def missing(name):
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(Unavailable, match=r"need an NVIDIA driver, and there is none here \(libcuda.so.1: cannot open"):
        Driver(0)


def test_signatures_are_those_of_the_header():
    spec = importlib.util.find_spec("nvidia")
    folders = [*((spec and spec.submodule_search_locations) or ()), "/usr/local/cuda"]
    found = [p for f in folders for p in (*Path(f).glob("*/include/cuda.h"), *Path(f).glob("include/cuda.h"))]
    if not found:
        pytest.skip("no cuda.h is installed here")
    text = re.sub(r"/\*.*?\*/", " ", found[0].read_text(), flags=re.DOTALL)
    for name, letters in cuda_driver.SIGNATURES.items():
        match = re.search(rf"CUresult CUDAAPI {name.removesuffix('_v2')}(?:_v2)?\(([^;]*?)\);", text)
        assert match, name
        parameters = [p.strip() for p in match[1].split(",") if p.strip() != "void"]
        assert "".join(map(_letter, parameters)) == letters, (name, parameters)


def _letter(parameter):
    kind = parameter.rpartition(" ")[0].replace("const", "").strip()
    pointers = ("CUcontext", "CUstream", "CUevent", "CUhostFn")
    if "*" in parameter or kind in pointers:
        return "p"
    letters = {"int": "i", "CUdevice": "i", "CUresult": "i", "unsigned int": "u", "CUdeviceptr": "a", "size_t": "z"}
    return letters[kind]
