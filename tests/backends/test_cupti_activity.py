"""CUPTI's records: their layout against the headers, and the reading of them from a library that plays them."""

import ctypes
import importlib.util
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import fake_nvidia
from xframe import nvidia
from xframe.backends import cupti_activity as cupti
from xframe.backends.cupti_activity import (
    Activity,
    ApiRecord,
    Call,
    KernelRecord,
    MemcpyRecord,
    MemsetRecord,
    Recorder,
    Recording,
)
from xframe.errors import Unavailable, XframeError

#: The oldest struct of each kind that is read as the newest is, by the number after its name.
SINCE = {"Kernel": (KernelRecord, 5), "Memcpy": (MemcpyRecord, 5), "Memset": (MemsetRecord, 4), "API": (ApiRecord, 0)}
VALUES = {
    "CUPTI_ACTIVITY_KIND_MEMCPY": cupti.MEMCPY,
    "CUPTI_ACTIVITY_KIND_MEMSET": cupti.MEMSET,
    "CUPTI_ACTIVITY_KIND_DRIVER": cupti.DRIVER,
    "CUPTI_ACTIVITY_KIND_RUNTIME": cupti.RUNTIME,
    "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL": cupti.CONCURRENT_KERNEL,
    **{f"CUPTI_ACTIVITY_MEMCPY_KIND_{name.upper()}": value for value, name in cupti.COPIES.items()},
    "CUPTI_ACTIVITY_FLAG_FLUSH_FORCED": cupti.FLUSH_FORCED,
    "CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM": cupti.SYSTEM_THREAD_ID,
    "CUPTI_SUCCESS": cupti.SUCCESS,
    "CUPTI_ERROR_OUT_OF_MEMORY": cupti.OUT_OF_MEMORY,
    "CUPTI_ERROR_MAX_LIMIT_REACHED": cupti.NO_MORE_RECORDS,
    "CUPTI_ERROR_NOT_INITIALIZED": cupti.NOT_INITIALIZED,
    "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES": cupti.NO_PRIVILEGES,
    "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED": cupti.OTHER_SUBSCRIBER,
    "CUPTI_ERROR_UNKNOWN": cupti.UNKNOWN_ERROR,
}


def headers():
    """The folders that have CUPTI's header: of NVIDIA's packages, of the toolkit, of what TensorFlow was built with."""
    places = [*(p / "include" for folder in packages("nvidia") for p in folder.glob("*"))]
    places += [Path("/usr/local/cuda/include"), Path("/usr/local/cuda/extras/CUPTI/include")]
    places += [p / "include/third_party/gpus/cuda/extras/CUPTI/include" for p in packages("tensorflow")]
    return [p for p in places if (p / "cupti_activity.h").exists()]


def packages(name):
    spec = importlib.util.find_spec(name)
    return [Path(p) for p in (spec and spec.submodule_search_locations) or ()]


@pytest.mark.parametrize("folder", headers() or [None], ids=lambda folder: folder and folder.parts[-3])
def test_layouts_and_values_are_those_of_the_header(folder, tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if folder is None or compiler is None:
        pytest.skip("it needs a C compiler and CUPTI's header, of CUDA's toolkit or of TensorFlow")
    text = "".join(p.read_text(encoding="utf-8") for p in sorted(folder.glob("cupti_activity*.h")))
    lines = [f"#include <{name}.h>" for name in ("stddef", "cupti_version", "cupti_result", "cupti_activity")]
    for name, (ours, since) in SINCE.items():
        numbers = {int(n or 0) for n in re.findall(rf"\}} CUpti_Activity{name}(\d*);", text)}
        structs = [f"CUpti_Activity{name}{n or ''}" for n in sorted(numbers) if n >= since]
        assert structs
        for struct in structs:
            for field, kind in ours._fields_:
                here = getattr(ours, field).offset
                lines.append(f'_Static_assert(offsetof({struct}, {field}) == {here}, "{struct}.{field}");')
                lines.append(f'_Static_assert(sizeof((({struct}*)0)->{field}) == {ctypes.sizeof(kind)}, "{field}");')
    lines += [f'_Static_assert({name} == {value}, "{name}");' for name, value in VALUES.items()]
    lines.append(f'_Static_assert(CUPTI_API_VERSION >= {cupti.OLDEST} && CUPTI_API_VERSION < {cupti.UNKNOWN}, "");')
    source = tmp_path / "layout.c"
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    cuda = next((p for p in (folder, *(p / "include" for p in folder.parents)) if (p / "cuda.h").exists()), None)
    where = [f"-I{p}" for p in (folder, cuda or "/usr/local/cuda/include")]
    done = subprocess.run([compiler, "-fsyntax-only", *where, str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]


@pytest.fixture
def fake(cupti_library, monkeypatch):
    library = fake_nvidia.loaded(cupti_library, fake_enabled=ctypes.c_size_t)
    library.fake_reset()
    monkeypatch.setattr(nvidia, "load", lambda name: library)
    monkeypatch.setattr(cupti, "BUFFER", 1024)  # a few records

    def happened(*records):
        made = [library.fake_happened(ctypes.byref(r), ctypes.sizeof(r)) for r in records]
        return all(made)

    return SimpleNamespace(
        happened=happened,
        fail=lambda what, status: library.fake_fail(what.encode(), status),
        version=library.fake_version,
        drop=lambda n: library.fake_drop(ctypes.c_size_t(n)),
        limit=lambda n: library.fake_limit(ctypes.c_size_t(n)),
        enabled=library.fake_enabled,
        thread_ids=library.fake_thread_ids,
    )


def kernel(name=b"k", start=1000, end=2000, call=1, stream=7):
    return KernelRecord(kind=10, start=start, end=end, streamId=stream, correlationId=call, name=name)


def api(call, start, end, thread=1, kind=5):
    return ApiRecord(kind=kind, start=start, end=end, threadId=thread, correlationId=call)


def recorded(fake, *records):
    recorder = Recorder()
    recorder.start(time.time_ns)
    assert fake.happened(*records)
    found = recorder.stop()
    recorder.close()
    return found


def test_kernels_copies_and_calls_come_as_they_were(fake):
    now = time.time_ns()
    found = recorded(
        fake,
        kernel(b"sm80_xmma", now + 1000, now + 3000, 5),
        MemcpyRecord(kind=1, copyKind=1, start=now, end=now + 500, streamId=7, correlationId=4),
        MemsetRecord(kind=2, start=now + 600, end=now + 700, streamId=8, correlationId=6),
        api(5, now - 900, now - 100, 42),
        api(4, now - 2000, now - 1000, 42, kind=4),
    )
    assert [(a.name, a.stream, a.call, a.end - a.start) for a in found.activities] == [
        ("Memcpy HtoD", 7, 4, 500),
        ("Memset", 8, 6, 100),
        ("sm80_xmma", 7, 5, 2000),
    ]
    assert {n: (call.end - call.start, call.thread) for n, call in found.calls.items()} == {5: (800, 42), 4: (1000, 42)}
    assert fake.thread_ids() == cupti.SYSTEM_THREAD_ID


def test_times_are_of_the_clock_that_is_given(fake):
    start, now = time.time_ns(), time.time_ns()
    recorder = Recorder()
    recorder.start(lambda: time.time_ns() - start + 5_000_000_000)
    fake.happened(kernel(start=now, end=now + 10))
    (activity,) = recorder.stop().activities
    assert abs(activity.start - (now - start) - 5_000_000_000) < 2_000_000  # the noise of reading two clocks
    assert activity.end - activity.start == 10


def test_buffers_are_asked_for_as_they_fill_and_all_are_read(fake):
    records = [kernel(f"k{i}".encode(), 1000 + i, 2000 + i, i) for i in range(40)]
    found = recorded(fake, *records)
    assert [a.name for a in found.activities] == [f"k{i}" for i in range(40)]


def test_what_is_of_no_kind_of_ours_is_skipped(fake):
    class Overhead(ctypes.Structure):
        _fields_ = (("kind", ctypes.c_uint32), ("rest", ctypes.c_uint32 * 5))

    found = recorded(fake, Overhead(kind=17), kernel(), Overhead(kind=17))
    assert [a.name for a in found.activities] == ["k"]


def test_the_outer_call_of_an_id_counts(fake):
    found = recorded(fake, api(1, 200, 300, kind=4), api(1, 100, 400), api(2, 100, 400), api(2, 200, 300, kind=4))
    assert {n: call.end - call.start for n, call in found.calls.items()} == {1: 300, 2: 300}


def test_nothing_is_recorded_before_and_after(fake):
    recorder = Recorder()
    assert not fake.happened(kernel())
    recorder.start(time.time_ns)
    assert fake.enabled() == len(cupti.KINDS)
    recorder.stop()
    assert fake.enabled() == 0
    assert not fake.happened(kernel())
    recorder.start(time.time_ns)
    fake.happened(kernel(b"again"))
    assert [a.name for a in recorder.stop().activities] == ["again"]


def test_callbacks_work_on_threads_that_python_did_not_start(fake):
    recorder = Recorder()
    recorder.start(time.time_ns)
    thread = threading.Thread(target=fake.happened, args=[kernel(call=i) for i in range(20)])
    thread.start()
    thread.join()
    assert len(recorder.stop().activities) == 20


@pytest.mark.parametrize(
    ("lose", "words"),
    [
        (lambda fake: fake.drop(3), "CUPTI lost 3 records and 0 times of kernels"),
        (lambda fake: fake.happened(kernel(start=0, end=0)), "CUPTI lost 0 records and 1 times of kernels"),
        (lambda fake: (fake.limit(100), fake.happened(kernel())), "CUPTI lost 1 records"),
    ],
)
def test_a_profile_that_is_not_whole_is_none(fake, lose, words):
    recorder = Recorder()
    recorder.start(time.time_ns)
    lose(fake)
    with pytest.raises(XframeError, match=words):
        recorder.stop()
    assert fake.enabled() == 0
    recorder.start(time.time_ns)
    assert recorder.stop().activities == ()


def test_a_record_that_can_not_be_read_ends_the_profile(fake):
    class Strange(ctypes.Structure):
        _fields_ = (("kind", ctypes.c_uint32), ("rest", ctypes.c_uint32 * 5))

    recorder = Recorder()
    recorder.start(time.time_ns)
    fake.happened(kernel(), Strange(kind=17))
    (buffer,) = recorder._empty.values()
    buffer[216 // 8] = 99  # the kind of the second record
    with pytest.raises(XframeError, match="cuptiActivityGetNextRecord gave CUPTI_ERROR_OF_THE_TEST"):
        recorder.stop()


@pytest.mark.parametrize("status", [cupti.NOT_INITIALIZED, cupti.NO_PRIVILEGES, cupti.UNKNOWN_ERROR, 33])
def test_a_refusal_says_what_to_do(fake, status):
    fake.fail("cuptiSubscribe", status)
    advice = re.escape(cupti._ADVICE.get(status, "its manual says"))
    with pytest.raises(Unavailable, match=rf"cuptiSubscribe gave CUPTI_ERROR_OF_THE_TEST \({status}\): {advice}"):
        Recorder()


def test_another_profiler_is_left_alone(fake):
    recorder = Recorder()
    with pytest.raises(Unavailable, match=r"MULTIPLE_SUBSCRIBERS.* \(39\): end the profiler or debugger"):
        Recorder()
    recorder.close()
    Recorder().close()


def test_a_kind_that_is_refused_leaves_none_on(fake):
    recorder = Recorder()
    fake.fail(f"kind {cupti.DRIVER}", cupti.NO_PRIVILEGES)
    with pytest.raises(Unavailable, match="NVreg_RestrictProfilingToAdminUsers=0, or run as root"):
        recorder.start(time.time_ns)
    assert fake.enabled() == 0


@pytest.mark.parametrize("version", [17, 130600])
def test_records_of_an_unknown_version_are_not_guessed(fake, version):
    fake.version(version)
    with pytest.raises(Unavailable, match=rf"of version {version} here: pip install 'nvidia-cuda-cupti>=13,<13.6'"):
        Recorder()


def test_cupti_itself_walks_over_these_records():
    """Its own function needs no GPU for that; the sizes are those of CUDA 13.0's structs."""
    try:
        library = nvidia.load("cupti")
    except Unavailable as e:
        pytest.skip(str(e))
    version = ctypes.c_uint32()
    if library.cuptiGetVersion(ctypes.byref(version)) or version.value // 100 != 1300:
        pytest.skip("the CUPTI that is here is not of CUDA 13.0, or tells nothing without a driver")
    records = [kernel(b"_Z3addPf"), api(1, 100, 200), MemcpyRecord(kind=1, copyKind=8, start=5, end=6), kernel(b"b"),
               MemsetRecord(kind=2, start=7, end=8), api(2, 300, 400)]  # fmt: skip
    sizes = {KernelRecord: 216, ApiRecord: 40, MemcpyRecord: 96, MemsetRecord: 88}
    buffer, used = (ctypes.c_uint64 * 200)(), 0
    for record in records:
        ctypes.memmove(ctypes.addressof(buffer) + used, ctypes.byref(record), ctypes.sizeof(record))
        used += sizes[type(record)]
    recorder = Recorder.__new__(Recorder)
    recorder._library, recorder._ahead = library, 0
    library.cuptiActivityGetNextRecord.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    recorder._full = [(ctypes.addressof(buffer), buffer, used)]
    found, untimed = recorder._read()
    assert [a.name for a in found.activities] == ["Memcpy DtoD", "Memset", "add(float*)", "b"]
    assert found.calls == {1: Call(100, 200, 1), 2: Call(300, 400, 1)}
    assert untimed == 0


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("_ZN5cudnn3cnn15im2col4d_kernelIflEEvPT_", "void cudnn::cnn::im2col4d_kernel<float, long>(float*)"),
        ("sm80_xmma_fprop_implicit_gemm_f32f32", "sm80_xmma_fprop_implicit_gemm_f32f32"),
        ("_Zwrong", "_Zwrong"),
        ("", ""),
    ],
)
def test_names_are_as_the_source_has_them(name, source):
    assert cupti.demangled(name) == source


def owners(calls, *intervals):
    activities = [Activity(f"k{n}", 10_000, 20_000, 7, n) for n in calls]
    return [owner for _, owner in Recording(tuple(activities), calls).owned(intervals)]


def test_an_activity_is_of_what_the_launching_thread_was_at():
    at = (100, 200, 1, "first"), (210, 300, 1, "second"), (100, 300, 2, "elsewhere")
    assert owners({1: Call(110, 120, 1), 2: Call(290, 300, 1), 3: Call(250, 260, 2)}, *at) == [
        "first",
        "second",
        "elsewhere",
    ]


@pytest.mark.parametrize(
    "call", [Call(90, 95, 1), Call(190, 205, 1), Call(202, 206, 1), Call(310, 320, 1), Call(120, 130, 3)]
)
def test_what_was_launched_beside_them_all_is_of_nobody(call):
    assert owners({1: call}, (100, 200, 1, "first"), (210, 300, 1, "second")) == [None]


def test_what_has_no_call_is_of_nobody():
    recording = Recording((Activity("k", 110, 120, 7, 9),), {})
    assert [owner for _, owner in recording.owned([(100, 200, 1, "first")])] == [None]


def test_ends_that_are_cut_may_overlap_and_the_later_one_is_meant():
    assert owners({1: Call(199, 201, 1), 2: Call(200, 201, 1)}, (100, 202, 1, "a"), (200, 300, 1, "b")) == ["a", "b"]
