"""Each convolution as a network of its own, so that kernels of the same algorithm stand side by side.

Nothing takes the place of an algorithm that can't do one: its row says so, in the words of who refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from xframe import artifact, environment, planning, registry, zoo
from xframe.errors import Unsupported, XframeError
from xframe.gpucheck import words
from xframe.gpucheck.journal import DONE, Journal
from xframe.gpucheck.networks import compared, labels
from xframe.gpucheck.settings import (
    LOGS,
    TUNING,
    Progress,
    Result,
    Settings,
    Step,
    convolutions,
    request,
    site_step,
    threads,
)
from xframe.planning import NONE
from xframe.prebuilt import convolution
from xframe.types import gpu_index
from xframe.worker.alone import without_frameworks

NOTHING = "tuning kept nothing that is faster than the hand-written schedules"


def untuned(settings: Settings, batch: int, share: float, progress: Progress) -> Iterator[Step]:
    """Each in ONNX Runtime, and by every algorithm of cuDNN and lowering of TVM, by the hand-written schedules."""
    spec, layers = zoo.spec(settings.model), convolutions(settings)
    for name in layers:

        def run(place: Path, limit: float, name: str = name) -> Result:
            path = convolution.write(spec, name, batch, place / f"{name}.onnx")
            told = {"runners": ("ort", "cudnn", "tvm"), "lowerings": labels(), "schedules": NONE}
            return compared(request(settings, str(path), limit, **told), place, progress).measurements, {}

        facts = {"site": name, "batch": batch, "tuned": False}
        yield Step(site_step(name, batch), share / len(layers), run, facts)


def tuned(settings: Settings, batch: int, share: float, progress: Progress) -> Iterator[Step]:
    """Each in TVM by the logs of the tuning step, under the lowerings that it found something for; and in cuDNN by what
    was its best, measured beside them."""
    spec, layers = zoo.spec(settings.model), convolutions(settings)
    for name in layers:

        def run(place: Path, limit: float, name: str = name) -> Result:
            logs = place.parent / LOGS
            path = convolution.write(spec, name, batch, place / f"{name}.onnx")
            able = _recorded(path, logs, settings.device) if logs.is_dir() else ()
            if not able:
                before = Journal(place.parent).known(TUNING)
                if before is None or before.state != DONE:
                    raise XframeError("there is no tuned kernel of it, as tuning was not done")
                return (), {"refused": {name: NOTHING}}
            known = Journal(place.parent).known(site_step(name, batch))
            rival = words.fastest(known.rows, "cudnn") if known else None
            runners, labels = (("cudnn", "tvm"), (*able, rival)) if rival else (("tvm",), able)
            told = {"runners": runners, "lowerings": labels, "schedules": str(logs)}
            return compared(request(settings, str(path), limit, **told), place, progress).measurements, {}

        facts = {"site": name, "batch": batch, "tuned": True}
        yield Step(f"tuned {site_step(name, batch)}", share / len(layers), run, facts, after=TUNING)


def _recorded(path: Path, logs: Path, device: str) -> tuple[str, ...]:
    """The lowerings that have a tuned kernel for the convolution of a file."""
    sites = [site for _, site in artifact.load(path).conv_sites]
    schedules, found = planning.Schedules(str(logs), device=device), []
    gpu = environment.gpu_device(gpu_index(device))
    with without_frameworks():
        for name in registry.defaults(registry.LOWERINGS):
            with contextlib.suppress(Unsupported):
                if schedules.tuned(planning.plan(name, sites, gpu), threads()).tuned:
                    found.append(name)
    return tuple(found)
