"""The whole network: in every runner and lowering, and in the best plan of TVM."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xframe import comparison, registry, store
from xframe.analysis.labels import algorithms
from xframe.comparison import AUTO, BEST, IMPLIED_FALLBACK, NATIVE
from xframe.gpucheck.settings import LOGS, Progress, Result, Settings, Step, request
from xframe.results import Run

#: What there is beside TVM, and cudnn, which is told how to compute. They cost little: they are opened before TVM.
PEERS = (NATIVE, "ort")


def labels() -> tuple[str, ...]:
    """Every way in which cuDNN and TVM can be told to compute a convolution, and their own choice."""
    return (*algorithms("cudnn", by_default=True), *common())


def common() -> tuple[str, ...]:
    """Those of TVM, and of cuDNN what has the same name: all of its algorithms are worth their time at sites alone."""
    return (*registry.defaults(registry.LOWERINGS), AUTO)


def pairs(settings: Settings, runners: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Every framework natively, and one export under the backends: they read the same graph."""
    natives = [(name, NATIVE) for name in registry.defaults(registry.FRAMEWORKS)]
    return (*natives, *((settings.framework, runner) for runner in runners if runner != NATIVE))


def measured(settings: Settings, batch: int, place: Path, limit: float, progress: Progress, **asked: Any) -> Run:
    """The rows of the network under ``asked["runners"]``, each judged by the float64 reference; kept in ``place``."""
    natives = registry.defaults(registry.FRAMEWORKS)
    last = sorted(natives, key=lambda name: name == settings.framework)  # whose export the backends run: the dear ones
    told = {
        "frameworks": tuple(last),
        "pairs": pairs(settings, asked["runners"]),
        "fallback": IMPLIED_FALLBACK,
        **asked,
    }
    return compared(request(settings, settings.model, limit, batches=(batch,), **told), place, progress)


def compared(asked: comparison.Request, place: Path, progress: Progress) -> Run:
    """A comparison, which is kept in ``place``."""
    done = comparison.compare(asked, progress)
    try:
        store.write(done, place)
    except KeyboardInterrupt as e:  # its time was over just then
        raise comparison.Interrupted(done) from e
    return done


def every(settings: Settings, batch: int, share: float, progress: Progress) -> Step:
    """The network in every runner and lowering; in cuDNN under the names that it shares with TVM."""

    def run(place: Path, limit: float) -> Result:
        runners = (*PEERS, "cudnn", "tvm")
        return measured(settings, batch, place, limit, progress, runners=runners, lowerings=common()).measurements, {}

    return Step(f"network batch {batch}", share, run, {"network": settings.model, "batch": batch})


def named(settings: Settings, batch: int, share: float, progress: Progress) -> Step:
    """The network in the lowerings of TVM that run where they are named: whether they are right. They have no part in
    ratios, as products of some are rounded."""

    def run(place: Path, limit: float) -> Result:
        labels = tuple(name for name, row in registry.LOWERINGS.items() if row.opt_in and "cuda" in row.devices)
        asked = {"runners": ("tvm",), "lowerings": labels}
        return measured(settings, batch, place, limit, progress, **asked).measurements, {}

    return Step(f"named lowerings batch {batch}", share, run, {"batch": batch})


def best(settings: Settings, batch: int, share: float, progress: Progress) -> Step:
    """The network in TVM's plan of the fastest lowering at each site, which is measured for that; and in the peers.

    At the largest batch its kernels are those that were tuned, where there are any.
    """

    def run(place: Path, limit: float) -> Result:
        logs = place.parent / LOGS
        tuned: dict[str, Any] = {"schedules": str(logs)} if batch == max(settings.batches) and logs.is_dir() else {}
        asked = {"runners": (*PEERS, "tvm"), "lowerings": (BEST,), **tuned}
        return measured(settings, batch, place, limit, progress, **asked).measurements, {}

    return Step(f"best batch {batch}", share, run, {"network": settings.model, "batch": batch})
