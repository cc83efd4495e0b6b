"""The steps of a check, in the order in which they are worth most if the time runs out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from xframe.gpucheck import elsewhere, networks, sites, tuning
from xframe.gpucheck.settings import Progress, Result, Settings, Step
from xframe.prebuilt import roofs
from xframe.types import gpu_index
from xframe.worker.alone import without_frameworks

#: Shares of the time: of the step alone, or of all steps of its kind together. They add up to 1.
ROOFS, FIRST, BEST_FIRST, SITES, LARGEST = 0.05, 0.13, 0.08, 0.35, 0.10
TUNING, BEST, TUNED, NAMED, REST = 0.09, 0.08, 0.06, 0.03, 0.03


def steps(settings: Settings, progress: Progress) -> Iterator[Step]:
    """All that is to be done after the machine was looked at."""
    if settings.prebuilt is not None:
        yield from elsewhere.steps(settings, settings.prebuilt, progress)
        return
    first, largest = settings.batches[0], max(settings.batches)
    others = [b for b in dict.fromkeys(settings.batches) if b not in (first, largest)]
    yield Step("roofs", ROOFS, lambda place, limit: _roofs(settings, place), least=roofs.LIMIT)
    yield networks.every(settings, first, FIRST, progress)
    yield networks.best(settings, first, BEST_FIRST, progress)
    yield from sites.untuned(settings, largest, SITES, progress)
    if largest != first:
        yield networks.every(settings, largest, LARGEST, progress)
    yield tuning.tuning(settings, largest, TUNING)
    if largest != first:
        yield networks.best(settings, largest, BEST, progress)
    yield from sites.tuned(settings, largest, TUNED, progress)
    yield networks.named(settings, first, NAMED, progress)
    for batch in others:
        yield networks.every(settings, batch, REST / len(others), progress)


def _roofs(settings: Settings, place: Path) -> Result:
    """What the GPU does at most, by kernels that are compiled here."""
    with without_frameworks():
        from xframe.lowering.cuda.target import Gpu

        library = roofs.write(Gpu.of_device(gpu_index(settings.device)), place)
    return (), {"roofs": roofs.measured(library, settings.device)}
