"""Which kind of device a schedule was tuned on: what makes a schedule fast or slow there, and a name for it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from xframe import environment, nvml
from xframe.errors import Unavailable
from xframe.schedules.untrusted import Fields
from xframe.types import gpu_index

#: Flags of /proc/cpuinfo by which float32 code differs. Others come and go with the version of Linux that tells them.
_VECTORS = re.compile(r"sse4_2|avx|avx2|fma|avx512(f|bw|cd|dq|vl)|asimd|sve2?|sme2?")
GPU = "cuda"
#: Fields that must be equal for a schedule to be at home. Names are marketing: one processor has several.
_KIND = ("kind", "vendor", "family", "model", "features", "caches")
_MOST, _MOST_CORES = 1 << 40, 1 << 16


@dataclass(frozen=True)
class Identity:
    """A kind of device.

    ``slug`` names its folder under ``schedules/``. ``family`` and ``model`` are the vendor's numbers (Arm: implementer
    and part), ``features`` its vector instruction sets, ``caches`` the bytes of the data caches that a core sees
    (``L1``, ``L2``, ``L3``). ``cores``: how many processors the machine has; it is told, but not part of the kind, as
    every record says for how many threads it is.

    Of a GPU ``family`` is its architecture (``sm_90``), ``model`` its name, and ``cores`` its CUDA cores: a part of a
    GPU has another name.
    """

    slug: str
    kind: str
    vendor: str
    name: str
    family: str
    model: str
    features: tuple[str, ...]
    caches: tuple[tuple[str, int], ...]
    cores: int

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "features": list(self.features), "caches": dict(self.caches)}

    @staticmethod
    def from_json(data: Any) -> Identity:
        """The inverse of :meth:`to_json`; raises LogError on anything else."""
        given = Fields(data, "the device", [f.name for f in fields(Identity)])
        return Identity(
            given.text("slug", r"[a-z0-9]+(-[a-z0-9]+)*", 80),
            given.text("kind", r"[a-z]+"),
            given.text("vendor"),
            given.text("name"),
            given.text("family", r"\w+"),
            given.text("model", r"\w+"),
            given.texts("features", r"\w+", 100),
            tuple(sorted(given.integers("caches", r"L\d", 1, _MOST, 9).items())),
            given.whole("cores", 1, _MOST_CORES),
        )

    @property
    def words(self) -> str:
        """``AMD EPYC (family 26, model 2)``, ``NVIDIA H200 (sm_90)``."""
        if self.kind == GPU:
            return f"{self.name} ({self.family})"
        return f"{self.name} (family {self.family}, model {self.model})"

    def differs(self, other: Identity) -> str | None:
        """In what ``other`` is another kind of device than this one, in words; None if it is of the same kind."""
        different = [f for f in _KIND if getattr(self, f) != getattr(other, f)]
        if not different:
            return None
        if different[0] == "features":
            mine, theirs = set(self.features), set(other.features)
            signed = [*(f"+{f}" for f in sorted(theirs - mine)), *(f"-{f}" for f in sorted(mine - theirs))]
            return f"vector instructions {' '.join(signed)}"
        if different[0] == "caches":
            return f"caches of {_sizes(other.caches)} rather than {_sizes(self.caches)}"
        return f"{other.words} rather than {self.words}"


def _sizes(caches: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(f"{size >> 10} KiB {level}" for level, size in caches) or "unknown size"


def identity(device: str = "cpu") -> Identity:
    """This machine's CPU, or its GPU ``cuda`` or ``cuda:<number>``, as the driver tells it.

    Raises
    ------
    Unavailable
        There is no such GPU, or no driver.
    """
    if device == "cpu":
        return _cpu()
    found, index = nvml.gpus(), gpu_index(device)
    if index >= len(found):
        raise Unavailable(f"device {device} was asked for, and the driver tells of {len(found)} GPUs here")
    return _gpu(found[index], environment.gpu_device(index).slug)


def here() -> dict[str, Identity]:
    """This machine's ``cpu``, and each GPU that this process sees: ``cuda:0`` and so on."""
    found = {"cpu": _cpu()}
    with contextlib.suppress(Unavailable):
        for index, facts in enumerate(nvml.gpus()):
            found[f"{GPU}:{index}"] = _gpu(facts, environment.gpu_device(index).slug)
    return found


def _gpu(facts: Mapping[str, Any], slug: str) -> Identity:
    """Of what the driver tells of a GPU, and the slug of its name."""
    name, arch = facts["name"] or "CUDA GPU", facts["arch"] or "sm_0"
    return Identity(
        slug=f"{slug}-{_plain(arch)}",
        kind=GPU,
        vendor="NVIDIA",
        name=name,
        family=arch,
        model=_plain(name),
        features=(),
        caches=(),
        cores=min(max(facts["cores"] or 1, 1), _MOST_CORES),
    )


def _cpu() -> Identity:
    info, device = environment.cpuinfo(), environment.cpu_device()
    vendor = info.get("vendor_id") or info.get("CPU implementer") or "unknown"
    family = info.get("cpu family") or info.get("CPU architecture") or "0"
    model = info.get("model") or info.get("CPU part") or "0"
    caches = tuple(sorted((f"L{level}", size) for level, size in environment.cache_bytes().items()))
    return Identity(
        slug=re.sub("[^a-z0-9]+", "-", f"{device.slug.rpartition('-')[0]}-f{_plain(family)}m{_plain(model)}"),
        kind=device.kind,
        vendor=vendor,
        name=device.name,
        family=_plain(family),
        model=_plain(model),
        features=_vectors(info),
        caches=caches,
        cores=os.cpu_count() or 1,
    )


def _vectors(info: Mapping[str, str]) -> tuple[str, ...]:
    flags = (info.get("flags") or info.get("Features") or "").split()
    return tuple(sorted(f for f in set(flags) if _VECTORS.fullmatch(f)))


def _plain(number: str) -> str:
    return re.sub(r"[^a-z0-9]", "", number.lower()) or "0"
