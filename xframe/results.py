"""What measuring gives: raw numbers of each case, and what is needed to judge them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xframe.types import Case, ConvSite, Kernel, Outcome, Profile, SiteRecord

#: Why a row that was asked for has nothing: the run ended before its turn.
INTERRUPTED = "interrupted before it was measured"
#: CPUs that other processes may use while something is timed before whoever shows it says so.
FOREIGN = 0.15


@dataclass(frozen=True)
class Level:
    """A level of the memory: ``holds`` bytes of data that are used again, read at ``bytes_per_s`` by all threads."""

    name: str
    holds: float
    bytes_per_s: float


@dataclass(frozen=True)
class Machine:
    """What some threads reach at most. ``levels``: the nearest first; the last holds everything.

    ``load``: CPUs that other processes used while it was measured.
    """

    flop_per_s: float
    levels: tuple[Level, ...]
    load: float = 0.0

    def __post_init__(self) -> None:
        if not self.levels or not math.isinf(self.levels[-1].holds):
            raise ValueError(f"the last level holds everything, and these do not end with one: {self.levels}")

    def place(self, size: float) -> int:
        """The position of the nearest level that holds ``size`` bytes."""
        return next(i for i, level in enumerate(self.levels) if size <= level.holds)

    def to_json(self) -> dict[str, Any]:
        """JSON has no number for what the last level holds: null."""
        levels = [{**vars(x), "holds": x.holds if math.isfinite(x.holds) else None} for x in self.levels]
        return {"flop_per_s": self.flop_per_s, "levels": levels, "load": self.load}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Machine":
        """The inverse of :meth:`to_json`. Raises KeyError, TypeError or ValueError on anything else."""
        levels = (Level(**{**x, "holds": math.inf if x["holds"] is None else x["holds"]}) for x in data["levels"])
        return Machine(data["flop_per_s"], tuple(levels), data["load"])


@dataclass(frozen=True)
class LayerWork:
    """What a layer can't do without: FLOP, bytes of the images it reads and writes, bytes of its weights.

    ``kind`` is one of ``xframe.types.KINDS``; ``name`` that of the spec's layer, or of a file's ONNX node.
    """

    name: str
    kind: str
    site: ConvSite | None
    flop: float
    image_bytes: int
    weight_bytes: int = 0


@dataclass(frozen=True)
class Measurement:
    """The result of a case. ``rounds`` are raw seconds, one tuple per visit; statistics are derived, never stored.
    ``plain``: seconds of unprofiled steps right before and after the profiled passes, which are ``profiles``.
    ``device_rounds``: of a row on a GPU, seconds of more steps right after those of each round, by the device's own
    clock (how: ``environment["device_clock"]``); empty where it can't be read.

    ``seconds``: one-off times by name (``import``, ``compile``, ``first``). ``error`` is the largest absolute deviation
    from the float64 reference over all checked inputs; ``error_ratio`` the largest of deviation over its own element's
    bound (below 1 in a verified row); ``error_bound`` the bound at that element. ``peak_bytes`` is the worker's peak
    resident memory. ``prediction``: what a plan ``best`` should take (``xframe.analysis.costs``), else empty.
    """

    case: Case
    outcome: Outcome
    reason: str = ""
    rounds: tuple[tuple[float, ...], ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    sites: tuple[SiteRecord, ...] = ()
    profiles: tuple[Profile, ...] = ()
    plain: tuple[float, ...] = ()
    error: float | None = None
    error_bound: float | None = None
    error_ratio: float | None = None
    peak_bytes: int | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    prediction: Mapping[str, Any] = field(default_factory=dict)
    device_rounds: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self):
        if self.outcome == Outcome.OK and not self.samples:
            raise ValueError(f"an OK measurement needs samples: {self.case!r}")
        if self.outcome != Outcome.OK and not self.reason:
            raise ValueError(f"outcome {self.outcome.value} needs a reason")

    @property
    def samples(self) -> tuple[float, ...]:
        """All raw seconds, rounds joined."""
        return tuple(s for r in self.rounds for s in r)

    @property
    def device_samples(self) -> tuple[float, ...]:
        """All raw seconds by the device's own clock, rounds joined."""
        return tuple(s for r in self.device_rounds for s in r)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels of the first profiled pass; empty where there is none."""
        return self.profiles[0].kernels if self.profiles else ()


@dataclass(frozen=True)
class Run:
    """One invocation. ``created`` is ISO 8601 with a time zone, ``command`` the argument list.

    ``machines``: what this machine reaches with so many threads, where it was calibrated; ``layers``: the work of the
    network at each batch. ``counterfactuals``: what other lowerings would give some rows, as
    :meth:`xframe.analysis.counterfactuals.Counterfactual.to_json` has it, and in words (``sentence``).
    """

    schema: int
    created: str
    command: Sequence[str]
    environment: Mapping[str, Any]
    measurements: Sequence[Measurement]
    machines: Mapping[int, Machine] = field(default_factory=dict)
    layers: Mapping[int, tuple[LayerWork, ...]] = field(default_factory=dict)
    counterfactuals: Sequence[Mapping[str, Any]] = ()
