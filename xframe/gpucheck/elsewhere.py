"""What was compiled elsewhere, and beside it what works here without TVM: native frameworks, ONNX Runtime, cuDNN."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from xframe import comparison, measure, store, zoo
from xframe.analysis.labels import algorithms
from xframe.comparison import AUTO
from xframe.errors import XframeError
from xframe.gpucheck import networks
from xframe.gpucheck.settings import IMAGES, Progress, Result, Settings, Step, limited, request, threads
from xframe.prebuilt import convolution, folder, jobs, roofs
from xframe.prebuilt.folder import Entry
from xframe.results import Measurement, Run
from xframe.subject import Subject, repeated

#: Shares of the time: of the roofs, of the first network, of all convolutions together, of the other networks together.
ROOFS, FIRST, SITES, REST = 0.05, 0.25, 0.45, 0.25


def steps(settings: Settings, where: Path, progress: Progress) -> Iterator[Step]:
    """The networks of a folder by batch, and its single convolutions after the first of them."""
    target, entries = folder.read(where)
    of_networks: dict[int, list[Entry]] = {}
    of_sites: dict[tuple[str, int], list[Entry]] = {}
    for entry in entries:
        if entry.site:
            of_sites.setdefault((entry.site, entry.batch), []).append(entry)
        else:
            of_networks.setdefault(entry.batch, []).append(entry)
    if (where / roofs.LIBRARY).is_file():
        library = where / roofs.LIBRARY
        yield Step("roofs", ROOFS, lambda place, limit: ((), {"roofs": roofs.measured(library, settings.device)}))
    made = [_network(settings, where, batch, mine, progress) for batch, mine in of_networks.items()]
    made = [replace(s, share=REST / (len(made) - 1) if i else FIRST) for i, s in enumerate(made)]
    made[1:1] = [
        replace(_site(settings, where, site, batch, mine, progress), share=SITES / len(of_sites))
        for (site, batch), mine in of_sites.items()
    ]
    yield from (replace(step, facts={**step.facts, "target": target}) for step in made)


def _network(settings: Settings, where: Path, batch: int, entries: Sequence[Entry], progress: Progress) -> Step:
    mine = replace(settings, model=entries[0].model, framework=entries[0].framework or settings.framework)

    def run(place: Path, limit: float) -> Result:
        def others() -> Sequence[Measurement]:
            told: dict[str, Any] = {"runners": (*networks.PEERS, "cudnn"), "lowerings": (AUTO,)}
            return networks.measured(mine, batch, place, limit / 2, progress, **told)[0]

        return _beside(others, lambda: _compiled(settings, where, entries, limit / 2, progress))

    return Step(f"prebuilt batch {batch}", 0.0, run, {"network": mine.model, "batch": batch})


def _site(settings: Settings, where: Path, site: str, batch: int, entries: Sequence[Entry], progress: Progress) -> Step:
    def run(place: Path, limit: float) -> Result:
        path = convolution.write(zoo.spec(entries[0].model), site, batch, place / f"{site}.onnx")

        def others() -> Sequence[Measurement]:
            labels = (*algorithms("cudnn", by_default=True), AUTO)
            told: dict[str, Any] = {"runners": ("ort", "cudnn"), "lowerings": labels}
            return networks.compared(request(settings, str(path), limit / 2, **told), place, progress)

        return _beside(others, lambda: _compiled(settings, where, entries, limit / 2, progress, path))

    return Step(f"prebuilt {site} batch {batch}", 0.0, run, {"site": site, "batch": batch, "tuned": False})


def _beside(
    others: Callable[[], Sequence[Measurement]], compiled: Callable[[], tuple[Sequence[Measurement], dict[str, str]]]
) -> Result:
    """The rows of both; those of the first stay when the second is cut off. What can't run beside it costs itself."""
    rows: list[Measurement] = []
    refused: dict[str, str] = {}
    try:
        rows += others()
    except XframeError as e:
        refused["others"] = str(e)
    try:
        mine, why = compiled()
    except comparison.Interrupted as e:
        raise comparison.Interrupted(replace(e.run, measurements=[*rows, *e.run.measurements])) from e
    return [*rows, *mine], {"refused": {**refused, **why}}


def _compiled(
    settings: Settings,
    where: Path,
    entries: Sequence[Entry],
    limit: float,
    progress: Progress,
    path: Path | None = None,
) -> tuple[list[Measurement], dict[str, str]]:
    """The rows of what can be run, and why the rest can't. ``path``: of the convolution that they are, to judge it."""
    rows: list[Measurement] = []
    refused, ready, judged = {}, [], None
    if path is not None:
        subject, order = Subject.of(str(path)), repeated(entries[0].batch, IMAGES, 0)
        feeds = subject.feeds(entries[0].batch, 0, order)
        judged = (feeds, *subject.judge(feeds, order))
    with jobs.running(where):
        for entry in entries:
            try:
                ready.append(jobs.job(where, entry, settings.device, threads(), judged))
            except XframeError as e:
                refused[entry.name] = str(e)
        try:
            stages = comparison.stages(progress)
            for row in measure.measure(ready, limited(settings, limit), stages):
                rows.append(row)  # one by one: an interrupt keeps them
        except KeyboardInterrupt as e:
            raise comparison.Interrupted(Run(store.SCHEMA, "", [], {}, rows)) from e
    return rows, refused
