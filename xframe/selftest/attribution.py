"""The self-test of the decomposition: lies of known size are planted, and must be found in the right term.

The honest row, honest twins of it, and the rows that lie are measured in turn like any rows, each in a process of its
own, by what measures every comparison; what a lie took, it clocked itself. A lie about time must be in its term and in
no other; one about results or kernels must cost its row the outcome; a machine that is busy with something else must be
in the notes of the row.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from xframe import environment, zoo
from xframe.analysis import floors
from xframe.analysis.decomposition import explained
from xframe.analysis.labels import PLANNED, site_names
from xframe.analysis.terms import Decomposition
from xframe.comparison import NATIVE, Request, compare
from xframe.errors import XframeError
from xframe.measure import Budget
from xframe.registry import BACKENDS, FRAMEWORKS, Row
from xframe.results import Measurement, Run
from xframe.selftest import ledger, verdict
from xframe.selftest.lies import LIES, NOTE
from xframe.selftest.spread import against
from xframe.selftest.verdict import Finding

#: The framework that lies, and its twins that do not: what these differ by is what processes of the same code do.
HONEST, TWINS = "pytorch", ("pytorch-twin-1", "pytorch-twin-2", "pytorch-twin-3")
#: The lowering that the lies about kernels are asked for, and what takes the sites that it refuses.
ASKED, FALLBACK = "winograd", "direct"
#: More passes than a comparison takes: its intervals are what is tested. One worker starts at a time: lies find their
#: size while it does.
BUDGET = Budget(rounds=5, min_samples=7, min_seconds=0.2, max_seconds=0.5, profile=15, starts=1)

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Setting:
    """What the lies are planted in: a registered model, with a convolution that Winograd can do.

    ``threads``: None for all CPUs that this process may use.
    """

    model: str = "alexnet"
    batch: int = 1
    threads: int | None = None
    budget: Budget = BUDGET

    def request(self, **asked: Any) -> Request:
        """A comparison of this model; ``asked`` says of what."""
        threads = () if self.threads is None else (self.threads,)
        given = {"batches": (self.batch,), "threads": threads, "budget": self.budget, "baseline": False, **asked}
        return Request(self.model, **given)


#: Computes until its parent is gone, however that ended.
BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"


def attribution(setting: Setting, names: Sequence[str], progress: Progress) -> list[Finding]:
    """Plant the lies ``names`` of :data:`~xframe.selftest.lies.LIES` once each; what became of them, in that order.

    With lies that take time comes one more finding, ``none``: that of the honest row, in which none may be found.

    Raises
    ------
    UsageError, ModelError
        The model can't be used, or the batch or the threads make no sense.
    KeyboardInterrupt
        Nothing is kept of what was begun.
    """
    found: dict[str, Finding] = {}
    native = [name for name in names if LIES[name].of_framework]
    if native:
        found |= _in_framework(setting, native, progress)
    for name in names:
        if LIES[name].lands == NOTE:
            found[name] = _under_load(setting, name, progress)
        elif name not in found:
            found[name] = _in_backend(setting, name, progress)
    return [found[name] for name in ("none", *names) if name in found]


@contextlib.contextmanager
def registered(table: dict[str, Row], rows: Mapping[str, Row]) -> Iterator[None]:
    """Within the block ``rows`` are in the registry's ``table``, in place of those of the same name."""
    kept = dict(table)
    table.update(rows)
    try:
        yield
    finally:
        table.clear()
        table.update(kept)


@contextlib.contextmanager
def load(processes: int) -> Iterator[None]:
    """Within the block so many other processes compute without end."""
    with contextlib.ExitStack() as started:
        for _ in range(processes):
            process = started.enter_context(subprocess.Popen([sys.executable, "-c", BUSY]))
            started.callback(process.kill)
        yield


def _in_framework(setting: Setting, names: Sequence[str], progress: Progress) -> dict[str, Finding]:
    """The lies of a framework, the honest rows beside those that take time."""
    honest, timed = FRAMEWORKS[HONEST], any(LIES[name].timed for name in names)
    rows = {name: honest._replace(aliases=()) for name in (TWINS if timed else ())}
    rows.update({_framework(name): honest._replace(where=LIES[name].where, aliases=()) for name in names})
    with registered(FRAMEWORKS, rows):
        frameworks = (HONEST, *rows) if timed else tuple(rows)
        run = compare(setting.request(frameworks=frameworks, runners=(NATIVE,)), progress)
    layers = {setting.batch: floors.layers(zoo.spec(setting.model), setting.batch)}
    return judged(replace(run, layers=layers), names)


def judged(run: Run, names: Sequence[str]) -> dict[str, Finding]:
    """The verdicts on the lies of a framework, in a run that has the honest rows too."""
    measured = {m.case.framework: m for m in run.measurements}
    explanations = {d.case.framework: d for d in explained(run) if d.case is not None}
    found: dict[str, Finding] = {}
    for name in names:
        row = measured[_framework(name)]
        if not LIES[name].timed:
            found[name] = verdict.refused(name, LIES[name], row)
            continue
        try:
            planted = ledger.taken(row.environment["planted_file"])
            difference = _difference(explanations, measured, _framework(name), (HONEST, *TWINS))
        except (KeyError, XframeError) as e:
            found[name] = verdict.missing(name, LIES[name], f"{row.outcome.value}: {row.reason or e}")
            continue
        finding = verdict.timed(name, LIES[name], planted, difference, _part(run, row))
        found[name] = verdict.excused(finding, (row, *(measured[h] for h in (HONEST, *TWINS))))
    smallest = min((f.planted for f in found.values() if f.planted), default=None)
    if smallest is not None:
        try:
            finding = verdict.honest(_difference(explanations, measured, HONEST, TWINS), smallest)
            found["none"] = verdict.excused(finding, [measured[h] for h in (HONEST, *TWINS)])
        except XframeError as e:
            found["none"] = Finding("none", "nowhere", "nothing", False, str(e))
    return found


def _difference(
    explanations: Mapping[Any, Decomposition], rows: Mapping[Any, Measurement], name: str, honest: Sequence[str]
) -> Decomposition:
    """A row less the honest ones. Raises XframeError where one of them can't be explained."""
    for one in (name, *honest):
        if one not in explanations:
            row = rows[one]
            why = row.reason or "; ".join(row.notes) or "it has no profile"
            raise XframeError(f"{one} can't be explained: {row.outcome.value}, {why}")
    return against(explanations[name], [explanations[h] for h in honest])


def _part(run: Run, row: Measurement) -> str:
    """What the layer that lies is called among the parts of a term."""
    works, layer = run.layers.get(row.case.batch, ()), row.environment["planted_layer"]
    sites = {work.name: work.site for work in works if work.site is not None}
    return site_names(dict.fromkeys(sites.values()), works)[sites[layer]] if layer in sites else layer


def _framework(name: str) -> str:
    """The name under which the lie ``name`` is a framework."""
    return f"{HONEST}+{name}"


def _in_backend(setting: Setting, name: str, progress: Progress) -> Finding:
    """A lie about what a backend ran: it takes the place of the one that can be told a lowering."""
    quick = replace(setting.budget, rounds=1, profile=1)
    with registered(BACKENDS, {PLANNED: BACKENDS[PLANNED]._replace(where=LIES[name].where)}):
        asked = {"lowerings": (ASKED,), "fallback": FALLBACK, "schedules": "none"}
        request = replace(setting, budget=quick).request(frameworks=(HONEST,), runners=(PLANNED,), **asked)
        (row,) = compare(request, progress).measurements
    return verdict.refused(name, LIES[name], row)


def _under_load(setting: Setting, name: str, progress: Progress) -> Finding:
    """An honest row on a machine that is busy with something else."""
    quick = replace(setting.budget, rounds=1, profile=0)
    with load(len(environment.allowed_cpus())):
        request = replace(setting, budget=quick).request(frameworks=(HONEST,), runners=(NATIVE,))
        (row,) = compare(request, progress).measurements
    return verdict.noted(name, LIES[name], row)
