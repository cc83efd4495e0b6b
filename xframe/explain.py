"""Where the time of some rows goes, and what other lowerings would give them: what is measured for it.

One comparison has the rows to explain, and the common executor on the export of the first framework there is: each
lowering forced, and the plan ``best``. Which lowerings a row uses is only known from its profile; so what is asked
about others is run in a second one, where the executor has the plan of those it uses and the plan that was asked for in
turn.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from xframe import artifact, calibration, environments, zoo
from xframe.analysis import counterfactuals, floors
from xframe.analysis.counterfactuals import ASSUMED, SAME, Costs, Counterfactual
from xframe.analysis.decomposition import CPU, Group, explained, groups
from xframe.analysis.explanation import Explanation
from xframe.analysis.labels import PLANNED
from xframe.analysis.passes import Row
from xframe.comparison import (
    BEST,
    IMPLIED_FALLBACK,
    NATIVE,
    Interrupted,
    Progress,
    Request,
    compare,
    device_of,
    devices,
)
from xframe.errors import Unavailable, UsageError, XframeError
from xframe.lowering.variants import refusal
from xframe.registry import FRAMEWORKS, LOWERINGS, defaults, load, resolve
from xframe.results import LayerWork, Machine, Measurement, Run
from xframe.subject import is_file
from xframe.types import ERROR_BUDGET, ConvSite, Outcome, Plan

#: All convolutions, where names are asked for.
ALL = "all"

Layers = Mapping[int, tuple[LayerWork, ...]]
Lowerings = tuple[tuple[ConvSite, str], ...]


@dataclass(frozen=True)
class If:
    """What if ``framework`` (None: every row) used other lowerings? ``lowerings``: by name of the layer; ``text``: how
    it was asked, without the framework."""

    text: str
    framework: str | None
    lowerings: tuple[tuple[str, str], ...]

    def at(self, layers: Sequence[LayerWork]) -> dict[ConvSite, str]:
        """The lowerings asked for by site."""
        sites = {w.name: w.site for w in layers if w.site is not None}
        return {sites[name]: lowering for name, lowering in self.lowerings if name in sites}

    @staticmethod
    def parse(text: str, layers: Layers, frameworks: Sequence[str]) -> If:
        """``conv2-conv5=winograd``, ``tensorflow:conv1=fft,conv3=direct``; a layer's name, two with ``-`` between them,
        the key of a site, or ``all``.

        Raises
        ------
        UsageError
            It names a framework that is not explained, a layer that there is not, no lowering, or two of them for
            equal convolutions, of which a plan has one.
        """
        head, colon, rest = text.partition(":")
        framework = _framework(head.strip(), frameworks, text) if colon and "=" not in head else None
        found: dict[str, str] = {}
        asked = (rest if framework else text).strip()
        for part in asked.split(","):
            what, sign, lowering = (p.strip() for p in part.rpartition("="))
            if not sign or not what:
                raise UsageError(f"--if {text!r}: give LAYERS=LOWERING, like conv2-conv5=winograd")
            name = resolve(LOWERINGS, lowering, "lowering")
            for one in _named(what, layers, text):
                if found.setdefault(one, name) != name:
                    raise UsageError(f"--if {text!r} names two lowerings for {one}")
        for one, other in combinations(found, 2):
            if found[one] != found[other] and any(_equal(one, other, some) for some in layers.values()):
                raise UsageError(
                    f"--if {text!r} names two lowerings for {one} and {other}, which are equal convolutions: a plan has"
                    " one for both"
                )
        return If(asked, framework, tuple(found.items()))


def _equal(one: str, other: str, layers: Sequence[LayerWork]) -> bool:
    """Whether two layers are the same convolution."""
    sites = {w.name: w.site for w in layers}
    return sites.get(one) is not None and sites.get(one) == sites.get(other)


def _framework(name: str, frameworks: Sequence[str], text: str) -> str | None:
    """The explained framework of that name; None where the name is none of a framework, but of a layer, say."""
    if name.lower() not in {n for key, row in FRAMEWORKS.items() for n in (key, *row.aliases)}:
        return None
    found = resolve(FRAMEWORKS, name, "framework")
    if found not in frameworks:
        raise UsageError(f"--if {text!r}: {found} is not explained, add it to --framework")
    return found


def _named(what: str, layers: Layers, text: str) -> list[str]:
    """The layers that ``what`` names. Raises UsageError."""
    names = [w.name for w in next(iter(layers.values())) if w.site is not None]
    keys = {w.site.key: w.name for found in layers.values() for w in found if w.site is not None}
    if what == ALL:
        return names
    if what in names or what in keys:
        return [keys.get(what, what)]
    for i in (i for i, c in enumerate(what) if c == "-"):
        first, last = what[:i].strip(), what[i + 1 :].strip()
        if first in names and last in names and names.index(first) <= names.index(last):
            return names[names.index(first) : names.index(last) + 1]
    raise UsageError(f"--if {text!r}: there is no convolution {what!r}; there are: {', '.join(names)}")


def explain(
    request: Request, asked: Sequence[str] = (), on_progress: Progress | None = None, command: Sequence[str] = ()
) -> Explanation:
    """Measure and explain.

    Parameters
    ----------
    request
        The rows to explain; those of the common executor too, if its runner is named. Its lowerings are not asked.
        ``budget.profile`` is the number of profiled passes of each row.
    asked
        What other lowerings to try, each as :meth:`If.parse` reads it.
    on_progress
        Called with a line on what happens now.
    command
        Argument list to record.

    Raises
    ------
    UsageError, ModelError
        The request or the model makes no sense.
    Interrupted
        With the rows measured so far.
    """
    progress = on_progress or (lambda line: None)
    full = completed(request)
    layers = work(full)
    questions = [If.parse(text, layers, full.resolved().frameworks or ()) for text in asked]
    machines, notes = _machines(full, progress)
    try:
        run = compare(full, progress, command)
    except Interrupted as e:
        raise Interrupted(replace(e.run, machines=machines, layers=layers)) from e
    run = replace(run, machines=machines, layers=layers)
    found, run = _counterfactuals(request, full, run, questions, progress)
    return explanation(request, run, found, notes)


def explanation(
    request: Request, run: Run, found: Sequence[Counterfactual] = (), notes: Sequence[str] = ()
) -> Explanation:
    """The explanation of the rows of ``run`` that ``request`` is about."""
    rows = tuple(m for m in run.measurements if _is_asked(request, m))
    made = [d for d in explained(run) if any(d.case is m.case for m in rows)]
    return Explanation(run, rows, tuple(made), tuple(found), tuple(notes))


def completed(request: Request) -> Request:
    """The comparison that explains the rows of ``request``: with the rows that they are held up to.

    Raises
    ------
    UsageError
        The request makes no sense.
    """
    if len(devices(request.device)) > 1:
        raise UsageError(f"--device {request.device}: one device is explained at a time, name one of them")
    full = replace(
        request,
        runners=(*request.runners, PLANNED),
        lowerings=(*defaults(LOWERINGS), BEST),
        fallback=request.fallback or IMPLIED_FALLBACK,
    )
    resolved = full.resolved()
    frameworks = resolved.frameworks or (None,)
    runners = [r for r in resolved.runners if r != PLANNED]
    if not runners and not _names_executor(request):
        raise UsageError(f"{request.model} is a file, which has no native form: name a backend with --backend")
    pairs = [(f, r) for f in frameworks for r in runners] + [(_exporter(frameworks), PLANNED)]
    return replace(full, pairs=tuple(pairs))  # type: ignore[arg-type]  # a file has no framework


def _exporter(frameworks: Sequence[str | None]) -> str | None:
    """Whose export the common executor runs: the first framework's, but not that of an environment that there is not,
    which would cost the others what they are held up to."""
    for name in filter(None, frameworks):
        with contextlib.suppress(Unavailable):
            if FRAMEWORKS[name].environment:
                environments.find(FRAMEWORKS[name].environment)
            return name
    return frameworks[0]


def work(request: Request) -> dict[int, tuple[LayerWork, ...]]:
    """The work of the network's layers at each batch of a request. Raises UsageError, ModelError."""
    if is_file(request.model):
        loaded = artifact.load(request.model)
        return {
            loaded.inputs[0].shape[0] if loaded.inputs and loaded.inputs[0].shape else 1: floors.file_layers(loaded)
        }
    spec = zoo.spec(request.model)
    return {batch: floors.layers(spec, batch) for batch in request.resolved().batches or (1,)}


def _machines(full: Request, progress: Progress) -> tuple[dict[int, Machine], list[str]]:
    """What this machine reaches with so many threads, and why it could not be measured."""
    found, notes = {}, []
    if full.device != CPU:
        return {}, [f"no floor: what {full.device} reaches at most is not measured with a run"]
    for count in full.resolved().threads:
        try:
            found[count] = calibration.machine(count, progress)
        except XframeError as e:
            notes.append(f"no floor: {e}")
    return found, notes


def _names_executor(request: Request) -> bool:
    return PLANNED in (r.lower() for r in request.runners)


def _is_asked(request: Request, m: Measurement) -> bool:
    """Whether a row is one to explain. Plans of ``--if`` and their base are the executor's rows, too."""
    return m.case.runner != PLANNED or _names_executor(request)


def _counterfactuals(
    request: Request, full: Request, run: Run, questions: Sequence[If], progress: Progress
) -> tuple[list[Counterfactual], Run]:
    """Of every row to explain: the best lowering everywhere, then what was asked; and the run with the rows of that."""
    tellers = [m for m in run.measurements if m.case.plan.label != BEST]  # nothing is predicted from what it predicts
    found: list[Counterfactual] = []
    for group in groups(replace(run, measurements=tellers)):
        costs = group.costs
        rows = [r for m in run.measurements for r in group.rows if r.measurement is m and not r.case.plan.lowerings]
        found += [c for r in rows if (c := _best(r, group, costs, run, full)) is not None]
        trials = [_Trial(r, q, group, costs, run.layers[r.case.batch], full) for r in rows for q in questions
                  if q.framework in (None, r.case.framework)]  # fmt: skip
        plans: dict[Lowerings, Plan] = {}
        for plan in (p for t in trials for p in t.plans):
            plans.setdefault(plan.lowerings, plan)  # rows that use the same share theirs
        if not plans:
            found += [t.found for t in trials]
            continue
        try:
            more = _run(full, group, list(plans.values()), progress)
        except Interrupted as e:
            raise Interrupted(replace(run, measurements=[*run.measurements, *e.run.measurements])) from e
        run = replace(run, measurements=[*run.measurements, *more.measurements])
        rows_of = dict(zip(plans, more.measurements, strict=True))
        found += [t.compared(rows_of) for t in trials]
    return found, run


def _best(row: Row, group: Group, costs: Costs, run: Run, full: Request) -> Counterfactual | None:
    """What the lowerings of the plan ``best`` would give; measured where the row's own are those of some other row."""
    best = next((m for m in run.measurements if m.case.plan.label == BEST and _alike(m, row) and m.profiles), None)
    if best is None:
        return None
    base, _ = _base(row, group, full)
    made = counterfactuals.predicted(
        row, "the best lowering everywhere", dict(best.case.plan.lowerings), base, group.names, costs
    )
    others = [m for m in run.measurements if m is not best]
    own = counterfactuals.same_plan(others, row.case, base)
    return made.compared(own, best) if own is not None and made.changes else made


def _alike(m: Measurement, row: Row) -> bool:
    return (m.case.batch, m.case.threads) == (row.case.batch, row.case.threads)


def _base(row: Row, group: Group, full: Request) -> tuple[dict[ConvSite, str], list[str]]:
    """The lowering that the executor runs at each site for what the row uses there, and what it refuses, in words."""
    base, refused = {}, []
    for site in group.sites:
        used = row.lowerings.get(site) or ASSUMED
        why = _refusal(used, site, full)
        refused += [f"{used} at {group.names[site]} is refused by the executor: {why}"] if why else []
        base[site] = ASSUMED if why else used
    return base, refused


def _refusal(lowering: str, site: ConvSite, full: Request) -> str:
    """Why the executor can't run a lowering at a site, in words; empty if it can."""
    try:
        chosen = load(LOWERINGS, lowering)
    except Unavailable as e:
        return str(e)
    return refusal(chosen, site, device_of(full.device), full.error_budget or ERROR_BUDGET) or ""


class _Trial:
    """One question about one row: what is predicted, and the two plans that are run for it; none if one is refused."""

    def __init__(
        self, row: Row, question: If, group: Group, costs: Costs, layers: Sequence[LayerWork], full: Request
    ) -> None:
        asked = question.at(layers)
        base, refused = _base(row, group, full)
        made = counterfactuals.predicted(row, question.text, asked, base, group.names, costs)
        self.found = replace(made, notes=(*made.notes, *refused))
        self.plans: list[Plan] = []
        why = [f"{low} at {group.names[s]}: {why}" for s, low in asked.items() if (why := _refusal(low, s, full))]
        if why:
            self.found = replace(self.found, outcome=Outcome.UNSUPPORTED, reason="; ".join(why))
        elif made.changes:
            name = " ".join(filter(None, (row.case.framework, "" if row.case.runner == NATIVE else row.case.runner)))
            changed = {**base, **asked}
            if changed == base:
                self.found = replace(self.found, reason=SAME)
                return
            self.plans = [Plan(f"as {name}", _by_site(base)), Plan(f"as {name}, {question.text}", _by_site(changed))]

    def compared(self, rows: Mapping[Lowerings, Measurement]) -> Counterfactual:
        """With what the rows of its two plans gave."""
        if not self.plans:
            return self.found
        return self.found.compared(*(rows[plan.lowerings] for plan in self.plans))


def _by_site(lowerings: Mapping[ConvSite, str]) -> Lowerings:
    return tuple(sorted(lowerings.items(), key=lambda item: item[0].key))


def _run(full: Request, group: Group, plans: Sequence[Plan], progress: Progress) -> Run:
    """The executor's rows of these plans, in their order, interleaved."""
    case = group.rows[0].case
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.json" for number in range(len(plans))]
        for path, plan in zip(paths, plans, strict=True):
            given = {k: v for k, v in plan.to_json().items() if k in ("label", "lowerings")}
            path.write_text(json.dumps(given), encoding="utf-8")
        request = replace(
            full,
            runners=(PLANNED,),
            lowerings=tuple(map(str, paths)),
            batches=() if is_file(full.model) else (case.batch,),
            threads=(case.threads,),
            baseline=False,
        )
        return compare(request, lambda line: progress(f"other lowerings: {line}"))
