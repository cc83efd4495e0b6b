"""What a result depends on besides the code measured: the machine, its state, the versions."""

import contextlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Generator
from importlib import metadata
from pathlib import Path
from typing import Any

import xframe
from xframe import nvml
from xframe.errors import Unavailable
from xframe.types import Device, gpu_index

#: Distributions whose versions go into every result.
DISTRIBUTIONS = (
    "numpy", "onnx", "onnxruntime-gpu", "onnxruntime", "torch", "onnxscript", "tensorflow", "tf2onnx", "jax", "jaxlib",
    "apache-tvm", "apache-tvm-ffi", "openvino", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "nvidia-cublas",
    "nvidia-cuda-runtime", "nvidia-cuda-nvrtc",
    "nvidia-cuda-cupti",
)  # fmt: skip
_SYS = Path("/sys/devices/system/cpu")
#: Instruction sets by which a tuned schedule can be told apart, the widest first: (flag in /proc/cpuinfo, slug).
_ARCH = (("avx512f", "avx512"), ("avx2", "avx2"), ("avx", "avx"), ("sve", "sve"), ("asimd", "neon"))


def _read(path: Path) -> str | None:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text().strip() or None
    return None


def cpuinfo() -> dict[str, str]:
    """The fields of the first processor in ``/proc/cpuinfo``; empty where there is none (macOS)."""
    text = _read(Path("/proc/cpuinfo")) or ""
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {k.strip(): v.strip() for k, _, v in pairs}


def allowed_cpus() -> list[int]:
    """CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def pinned_cpus(threads: int) -> list[int] | None:
    """The CPUs to pin ``threads`` threads to: one of each physical core first, then their siblings.

    All allowed ones when there are fewer than ``threads``; None where a process can't be pinned (macOS).
    """
    if not hasattr(os, "sched_setaffinity"):
        return None
    rank: dict[int, tuple[int, int]] = {}
    seen: dict[str, int] = {}
    for cpu in allowed_cpus():
        core = _read(_SYS / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu)
        rank[cpu] = (seen.get(core, 0), cpu)
        seen[core] = seen.get(core, 0) + 1
    return sorted(sorted(rank, key=rank.__getitem__)[:threads])


def cpu_device() -> Device:
    """This machine's CPU. The slug has vendor, instruction set and allowed CPUs: ``intel-xeon-avx512-2c``."""
    info = cpuinfo()
    name = info.get("model name") or info.get("Model") or platform.processor() or platform.machine()
    flags = (info.get("flags") or info.get("Features") or "").split()
    arch = next((slug for flag, slug in _ARCH if flag in flags), platform.machine().lower())
    noise = r"\((r|tm)\)|\b(cpu|processor|with|genuine|virtual|@.*|\d+-core)\b|@.*"
    words = re.findall(r"[a-z0-9]+", re.sub(noise, " ", name.lower()))[:4]
    cores = len(allowed_cpus())
    return Device("-".join([*words, arch, f"{cores}c"]), "cpu", name, arch, cores)


def gpu_device(index: int) -> Device:
    """A GPU of this process, with a slug of its name: ``nvidia-h200``. ``cuda``, of no name, where there is none."""
    with contextlib.suppress(Unavailable):
        found = nvml.gpus()
        if index < len(found):
            name = found[index]["name"] or "cuda"
            slug = "-".join(re.findall(r"[a-z0-9]+", name.lower()))
            return Device(slug, "cuda", name, found[index]["arch"] or "", found[index]["cores"] or 0, index)
    return Device("cuda", "cuda", "CUDA GPU", "", 0, index)


def gpus() -> list[dict[str, Any]] | None:
    """What each GPU of this process is and how it is now (``xframe.nvml``); None where there is no driver."""
    try:
        return [{**facts, "now": state} for facts, state in zip(nvml.gpus(), nvml.states(), strict=False)]
    except Unavailable:
        return None


def gpu_state(device: str) -> dict[str, Any] | None:
    """How the GPU of ``cuda`` or ``cuda:<number>`` is now (``xframe.nvml``); None where nobody can tell."""
    with contextlib.closing(gpu_states(device)) as states:
        return next(states)


def gpu_states(device: str) -> Generator[dict[str, Any] | None, None, None]:
    """How it is each time it is asked for, without end: as :func:`gpu_state`, which opens the driver anew each time."""
    if device != "cpu":
        yield from nvml.watch(gpu_index(device))
    while True:
        yield None


def throttled(state: dict[str, Any] | None) -> set[str]:
    """Why a GPU in this state computes slower than it can; empty if it does not."""
    return set(nvml.THROTTLING.intersection((state or {}).get("reasons") or ()))


def available_bytes() -> int | None:
    """Memory that can be had without swapping, within the control group's limit; None when it can't be told."""
    found = []
    match = re.search(r"MemAvailable:\s+(\d+) kB", _read(Path("/proc/meminfo")) or "")
    if match:
        found.append(int(match[1]) * 1024)
    limit, used = _read(Path("/sys/fs/cgroup/memory.max")), _read(Path("/sys/fs/cgroup/memory.current"))
    if limit and limit.isdigit() and used:
        found.append(int(limit) - int(used))
    return min(found) if found else None


def cache_bytes() -> dict[int, int]:
    """Bytes of the data caches that the first CPU sees, by level; those that can't be told are left out."""
    found = {}
    for index in _SYS.glob("cpu0/cache/index*"):
        level, size = _read(index / "level"), re.fullmatch(r"(\d+)K", _read(index / "size") or "")
        if level and size and _read(index / "type") != "Instruction":
            found[int(level)] = int(size[1]) << 10
    return found


def busy_seconds() -> float | None:
    """CPU seconds that all processors together spent working since boot, time stolen by a hypervisor included.

    None where it can't be told. User, system, interrupt and steal time of ``/proc/stat``, in ticks of ``SC_CLK_TCK``.
    """
    text = _read(Path("/proc/stat"))
    if text is None:
        return None
    user, nice, system, _, _, irq, softirq, steal, *_ = map(int, text.split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def versions() -> dict[str, str]:
    """Installed versions of :data:`DISTRIBUTIONS`; what is missing is left out."""
    out = {"xframe": xframe.__version__}
    for name in DISTRIBUTIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            out[name] = metadata.version(name)
    return out


def git_revision() -> str | None:
    """Commit of the checkout that this package runs from, ``-dirty`` appended if it was changed; None elsewhere."""
    root = Path(xframe.__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def capture() -> dict[str, Any]:
    """Facts of this machine and installation, for the head of a result. Keys are always there, values may be None."""
    info, device = cpuinfo(), cpu_device()
    caches = {}
    for index in sorted(_SYS.glob("cpu0/cache/index*")):
        caches[f"L{_read(index / 'level')} {_read(index / 'type')}"] = _read(index / "size")
    return {
        "device": device.slug,
        "cpu": device.name,
        "cpu_family": [info.get(k) for k in ("vendor_id", "cpu family", "model", "stepping")],
        "arch": device.arch,
        "cores": device.cores,
        "caches": caches,
        "governor": _read(_SYS / "cpu0/cpufreq/scaling_governor"),
        "turbo_off": _read(_SYS / "intel_pstate/no_turbo"),
        "memory_available": available_bytes(),
        "gpus": gpus(),
        "load_average": list(os.getloadavg()),
        "hypervisor": "hypervisor" in info.get("flags", "").split(),
        "system": platform.platform(),
        "python": sys.version.split()[0],
        "versions": versions(),
        "git": git_revision(),
        "cpus_allowed": allowed_cpus(),
    }
