"""What a result must be beyond the types that its records declare: numbers that can be, names that are known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from xframe.results import LayerWork, Level, Machine, Measurement
from xframe.typed import Rules
from xframe.types import HOST, KINDS, Case, ConvSite, Kernel, Profile, Span, TensorInfo


class DeviceClock(TypedDict):
    """How a GPU's own clock was read, and what it says of nothing, in seconds."""

    how: str
    empty_s: float


class Place(TypedDict):
    """The place of a row in an ablation (``xframe.analysis.ablations``)."""

    set: int
    step: str
    changed: Mapping[str, str]


class Tried(Place, total=False):
    """As files of before do not have it: ``threshold``, the difference that counts as none."""

    threshold: float


class RowFacts(TypedDict, total=False):
    """What others read of the ``environment`` of a row; there is more in it, which is shown as it is.

    ``foreign_load``: CPUs that other processes used, in each visit; ``profiled``: after how many rounds how many passes
    and unprofiled steps were taken; ``processes``: how many the row's own were; ``group``: where not all were measured
    in turn, with which it was.
    """

    foreign_load: Sequence[float]
    profiled: Sequence[tuple[int, int, int]]
    processes: int
    group: int
    device_clock: DeviceClock
    provider_options: Mapping[str, Any] | None
    ablation: Tried


class Asked(TypedDict):
    """What others read of what other lowerings would give a row."""

    batch: int
    threads: int
    sentence: str


class RunFacts(TypedDict, total=False):
    """The same of the ``environment`` of a run."""

    versions: Mapping[str, Any]
    cpu_family: Sequence[Any] | None
    gpus: Sequence[Mapping[str, Any]] | None
    request: Mapping[str, Any]


def _positive(numbers: Iterable[float]) -> bool:
    return all(0 < n < math.inf for n in numbers)


def _samples(m: Measurement) -> bool:
    return all(m.rounds) and _positive((*m.samples, *m.device_samples, *m.plain))


def _predicted(m: Measurement) -> bool:
    """Of steps that take less than their profiled passes it may be below 0."""
    total = m.prediction.get("total_s", 1.0)
    return isinstance(total, int | float) and math.isfinite(total) and total != 0


def _sizes(s: ConvSite) -> bool:
    sizes = (s.batch, s.in_channels, *s.in_hw, s.out_channels, *s.kernel, *s.stride, *s.dilation, s.groups)
    return _positive((*sizes, *s.out_hw)) if _positive(sizes) else False


RULES: Rules = {
    Case: (lambda c: c.batch > 0 and c.threads > 0, "a batch and threads above 0"),
    ConvSite: (_sizes, "sizes above 0"),
    Kernel: (lambda k: k.kind in ("", *KINDS), f"a kind of {', '.join(KINDS)}, or none"),
    LayerWork: (lambda w: w.kind in KINDS and min(w.flop, w.image_bytes, w.weight_bytes) >= 0,
                f"a kind of {', '.join(KINDS)}, and no work below 0"),
    Level: (lambda x: x.bytes_per_s > 0 and x.holds > 0, "bytes above 0"),
    Machine: (lambda m: m.flop_per_s > 0, "FLOP/s above 0"),
    Measurement: (lambda m: _samples(m) and _predicted(m), "seconds above 0, and no round without a sample"),
    Profile: (lambda p: p.wall > 0, "a wall time above 0 s"),
    Span: (lambda s: s.kind in HOST, f"a kind of {', '.join(HOST)}"),
    TensorInfo: (lambda t: _positive(t.shape), "a shape of sizes above 0"),
}  # fmt: skip
