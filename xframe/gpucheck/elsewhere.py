"""What was compiled elsewhere, and beside it what works here without TVM: native frameworks, ONNX Runtime, cuDNN."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from xframe import comparison, environment, measure, store, zoo
from xframe.analysis.labels import algorithms
from xframe.comparison import AUTO
from xframe.errors import XframeError
from xframe.gpucheck import networks
from xframe.gpucheck.settings import Progress, Result, Settings, Step, limited, request, threads
from xframe.jobs import Job
from xframe.prebuilt import convolution, folder, jobs, roofs
from xframe.prebuilt.folder import Entry
from xframe.results import Measurement, Run

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

        def measured(place: Path, limit: float) -> Result:
            return (), {"roofs": roofs.measured(library, settings.device)}

        yield Step("roofs", ROOFS, measured, least=roofs.LIMIT)
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
        def others() -> Run:
            told: dict[str, Any] = {"runners": (*networks.PEERS, "cudnn"), "lowerings": (AUTO,)}
            return networks.measured(mine, batch, place, limit / 2, progress, **told)

        return _beside(others, partial(_compiled, settings, where, entries, limit / 2, progress), place)

    return Step(f"prebuilt batch {batch}", 0.0, run, {"network": mine.model, "batch": batch})


def _site(settings: Settings, where: Path, site: str, batch: int, entries: Sequence[Entry], progress: Progress) -> Step:
    def run(place: Path, limit: float) -> Result:
        path = convolution.write(zoo.spec(entries[0].model), site, batch, place / f"{site}.onnx")

        def others() -> Run:
            labels = (*algorithms("cudnn", by_default=True), AUTO)
            told: dict[str, Any] = {"runners": ("ort", "cudnn"), "lowerings": labels}
            return networks.compared(request(settings, str(path), limit / 2, **told), place, progress)

        def compiled(rows: list[Measurement], refused: dict[str, str]) -> None:
            judged = jobs.of_site(path, batch)
            _compiled(settings, where, entries, limit / 2, progress, rows, refused, judged)

        return _beside(others, compiled, place)

    return Step(f"prebuilt {site} batch {batch}", 0.0, run, {"site": site, "batch": batch, "tuned": False})


def _beside(
    others: Callable[[], Run], compiled: Callable[[list[Measurement], dict[str, str]], None], place: Path
) -> Result:
    """The rows of both, kept in ``place`` as one run; those that are there stay when the second is cut off or refused.

    What can't run beside it costs itself. ``compiled`` puts its rows one by one, and what is refused, into what it is
    given. Raises XframeError where nothing is left.
    """
    created = datetime.now().astimezone().isoformat(timespec="seconds")
    run, rows = Run(store.SCHEMA, created, [], {}, []), list[Measurement]()
    refused: dict[str, str] = {}
    try:
        try:
            run = others()
        except XframeError as e:
            refused["others"] = str(e)
            run = replace(run, environment=environment.capture())
        try:
            compiled(rows, refused)
        except XframeError as e:
            if not run.measurements and not rows:
                raise
            refused["compiled"] = str(e)
        whole = replace(run, measurements=[*run.measurements, *rows])
        store.write(whole, place)
    except comparison.Interrupted:
        raise
    except KeyboardInterrupt as e:  # wherever it came, also while jobs are made ready
        raise comparison.Interrupted(replace(run, measurements=[*run.measurements, *rows])) from e
    return whole.measurements, {"refused": refused}


def _compiled(
    settings: Settings,
    where: Path,
    entries: Sequence[Entry],
    limit: float,
    progress: Progress,
    rows: list[Measurement],
    refused: dict[str, str],
    judged: jobs.Judged | None = None,
) -> None:
    """The rows of what can be run, and why the rest can't. ``judged``: of single convolutions."""
    ready, began = list[Job](), time.monotonic()
    with jobs.running(where):
        for entry in entries:
            try:
                ready.append(jobs.job(where, entry, settings.device, threads(), judged))
            except XframeError as e:
                refused[entry.name] = str(e)
        for row in measure.measure(ready, limited(settings, limit), comparison.stages(progress), began):
            rows.append(row)  # one by one: an interrupt keeps them
