"""What is to be measured, and how much of it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from xframe import launch
from xframe.errors import Unsupported, UsageError
from xframe.registry import BACKENDS, FRAMEWORKS
from xframe.types import Case, ModelSpec, SiteRecord
from xframe.worker.host import Worker, plugin_row

if TYPE_CHECKING:
    from xframe.equivalence.verdict import Verdict

#: What a worker needs before its weights: interpreter and framework, bytes.
_BASE_BYTES = 600 << 20


@dataclass(frozen=True)
class Budget:
    """How much to measure, and how long to wait. Seconds throughout.

    Each case is visited ``rounds`` times in turn with the others. A visit ends once ``min_samples`` and ``min_seconds``
    are reached and the interquartile range over the median is at most ``noise``, at the latest after ``max_seconds``,
    but never without a sample. ``open_limit`` bounds import and compilation, ``run_limit`` every other command.
    ``workers``: cases that are interleaved; None: as many as memory allows. ``profile``: profiled passes, spread over
    the rounds, taken after each in turn with the other cases; on a GPU all after the last, unless ``fresh``.
    ``starts``: workers busy at once while nothing is timed; compile times are taken under this load
    (``starts_at_once`` in results). ``fresh``: each round in a process of its own, so that rounds differ as processes
    of the same code do. ``opening``: what is not open so long after what it is measured for was begun, is given up, and
    the others are measured; None: each has its own ``open_limit``.
    """

    rounds: int = 3
    min_samples: int = 5
    min_seconds: float = 0.15
    max_seconds: float = 0.4
    noise: float = 0.03
    open_limit: float = 900.0
    run_limit: float = 120.0
    workers: int | None = None
    profile: int = 1
    starts: int = 2
    fresh: bool = False
    opening: float | None = None

    def __post_init__(self) -> None:
        for name in ("rounds", "min_samples", "max_seconds", "open_limit", "run_limit", "starts"):
            if getattr(self, name) <= 0:
                raise UsageError(f"budget: {name} must be positive, got {getattr(self, name)}")
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"budget: at least one worker is needed, got {self.workers}")


@dataclass(frozen=True)
class Job:
    """A case with what it takes to run and to judge it.

    Parameters
    ----------
    spec, weights
        For a native case; a backend reads all from ``case.artifact``.
    feeds
        At least two lists of input arrays, canonical (NCHW) and different from each other.
    judge
        Given one list of outputs for each feed and the site records, the verdict on all of them. Several threads may
        ask it at a time.
    inputs_matter
        False where the reference itself gives the same outputs for all feeds; else equal outputs are a mismatch.
    """

    case: Case
    spec: ModelSpec | None
    weights: Path | None
    feeds: Sequence[Sequence[np.ndarray]]
    judge: "Callable[[list[list[np.ndarray]], Sequence[SiteRecord]], Verdict]"
    inputs_matter: bool = True

    def __post_init__(self) -> None:
        if len(self.feeds) < 2:
            raise UsageError("a job needs two different feeds: with one, a cached output can't be told from a real one")

    @property
    def bytes_needed(self) -> int:
        """A guess at the memory of its worker: weights as read, as the framework keeps them, and as it packs them."""
        source = self.weights or (self.case.artifact and Path(self.case.artifact.path))
        return _BASE_BYTES + (3 * source.stat().st_size if source and source.exists() else 0)

    def opening(self) -> dict[str, Any]:
        """The fields of the worker's ``open`` command. Raises Unsupported for what no worker can do."""
        case = self.case
        if case.cache != "hot" or case.direction != "forward":
            raise Unsupported(f"{case.direction} with a {case.cache} cache can't be measured; forward and hot can")
        fields: dict[str, Any] = {"device": case.device, "batch": case.batch, "threads": case.threads}
        fields["options"] = dict(case.options)
        if case.runner == "native":
            if case.framework is None or self.spec is None or self.weights is None:
                raise UsageError(f"{case.model}: a native run needs a framework, a model spec and weights")
            row = plugin_row(FRAMEWORKS, case.framework)
            return {**fields, "runner": "native", "plugin": row, "spec": self.spec.to_json(), "weights": self.weights}
        if case.artifact is None:
            raise UsageError(f"{case.model}: backend {case.runner} needs an artifact")
        row = plugin_row(BACKENDS, case.runner)
        return {**fields, "runner": "backend", "plugin": row, "artifact": case.artifact, "plan": case.plan}

    def start(self, cpus: Iterable[int] | None) -> Worker:
        """A worker for it, on these CPUs. Raises what :func:`xframe.launch.worker` does."""
        case = self.case
        native = case.runner == "native"
        table, name = (FRAMEWORKS, case.framework or "") if native else (BACKENDS, case.runner)
        return launch.worker(table, name, case.threads, case.device, cpus, case.options)
