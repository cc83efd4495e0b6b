"""The plan ``best``: every lowering is measured in the network itself, then each convolution takes what costs least.

The plan is run like any other, and what it was predicted to take is told beside what it took.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import xframe
from xframe import artifact, files, planning
from xframe.analysis.costs import EARLIER, Costs, Prediction
from xframe.errors import Unsupported, by_outcome
from xframe.lowering.identity import identity
from xframe.measure import Budget, Job, Progress, measure
from xframe.planning import Schedules
from xframe.registry import LOWERINGS
from xframe.results import FOREIGN, Measurement
from xframe.types import Case, ConvSite, Device, Outcome, Plan
from xframe.worker import wire

#: Profiled passes of each plan: one alone is too noisy to choose by.
PASSES = 9
#: The part of the time for opening rows that is for those whose costs are measured; the rest is for the best plan.
OPENING = 0.6
#: Failures that another try may not have, so that costs without what failed are not kept.
_PASSING = (Outcome.FAILED.value, Outcome.TIMEOUT.value, Outcome.UNAVAILABLE.value)


class Oracle:
    """Finds best plans, and remembers what it predicted of them.

    Costs are measured once for the same convolutions of the same network, batch, number of threads and schedules,
    whatever framework exported it, and kept under ``$XFRAME_HOME/costs``; not those of a disturbed machine or a passing
    failure.

    Parameters
    ----------
    device
        To plan for.
    fallback
        What runs at the sites that a measured lowering refuses.
    budget
        How long to time: one round, as costs are those of :data:`PASSES` profiled passes.
    schedules
        Where the measured plans, and the best one, take tuned kernels from.
    named
        Lowerings to choose from even if they are opt-in, such as ``gemm_explicit``. Those of rounded products need no
        naming: an error budget that lets them in does that.
    """

    def __init__(
        self,
        device: Device,
        fallback: str,
        budget: Budget,
        schedules: Schedules,
        on_progress: Progress,
        named: Sequence[str] = (),
    ):
        self._device, self._fallback, self._on_progress = device, fallback, on_progress
        self._schedules = schedules
        told = {fallback, *named}
        #: What is measured, the fallback first.
        self._lowerings = sorted(
            (name for name, row in LOWERINGS.items() if not row.opt_in or row.products or name in told),
            key=lambda name: name != fallback,
        )
        opening = None if budget.opening is None else OPENING * budget.opening
        self._budget = replace(budget, rounds=1, profile=PASSES, opening=opening)
        self._known: dict[Path, Costs] = {}
        self._predictions: dict[Case, tuple[Prediction, Costs]] = {}

    def best(self, job: Job, since: float | None = None) -> Case:
        """The case of ``job``, which has its artifact, with the plan that costs least.

        ``since``: as :func:`xframe.measure.measure` takes it.

        Raises
        ------
        XframeError
            There is nothing to choose, or no lowering is left at some convolution: of the outcome of what failed.
        """
        case = job.case
        assert case.artifact is not None
        sites = [site for _, site in case.artifact.conv_sites]
        if not sites:
            raise Unsupported(f"{planning.BEST} chooses how convolutions are lowered, and {case.model} has none")
        plans = [self._schedules.tuned(plan, case.threads) for plan in self._forced(sites, case.plan)]
        costs = self._costs(job, plans, since)
        for site in sites:
            if not costs.lowerings(site):
                why = "; ".join(f"{name}: {reason}" for name, (_, reason) in costs.failed.items())
                outcome = next((outcome for outcome, _ in costs.failed.values()), Outcome.FAILED.value)
                raise by_outcome(outcome, f"{planning.BEST}: no lowering could be measured at {site.key} ({why})")
        lowerings, prediction = costs.cheapest(sites, artifact.conv_edges(case.artifact))
        chosen = replace(case.plan, lowerings=tuple(lowerings.items()))
        done = replace(case, plan=self._schedules.tuned(chosen, case.threads))
        self._predictions[done] = prediction, costs
        return done

    def compared(self, m: Measurement) -> Measurement:
        """``m`` with what was predicted of it, if its plan came from here."""
        if m.case not in self._predictions:
            return m
        prediction, costs = self._predictions[m.case]
        notes = [f"{name} is left out of {m.case.plan.label}: {': '.join(why)}" for name, why in costs.failed.items()]
        if m.outcome == Outcome.OK:
            took = f"measured {median(m.samples) * 1e3:.2f}"
            notes.append(f"{m.case.plan.label}: predicted {prediction.total_s * 1e3:.2f} ms, {took}")
        return replace(m, notes=(*m.notes, *costs.notes, *notes), prediction=prediction.to_json())

    def _forced(self, sites: list[ConvSite], asked: Plan) -> Iterator[Plan]:
        """``asked`` for each lowering that does some of the sites; the others run the fallback, or what can do them.

        Raises
        ------
        Unsupported
            All lowerings refuse a site.
        """
        able: dict[ConvSite, list[str]] = {}
        for site in dict.fromkeys(sites):
            refusals = []
            for name in self._lowerings:
                try:
                    planning.plan(name, [site], self._device, None, asked.error_budget)
                    able.setdefault(site, []).append(name)
                except Unsupported as e:
                    refusals.append(str(e))
            if site not in able:
                raise Unsupported(f"{planning.BEST}: every lowering refuses: {'; '.join(refusals)}")
        for name in LOWERINGS:
            lowerings = tuple((s, name if name in names else names[0]) for s, names in able.items())
            if name in (used for _, used in lowerings):
                yield replace(asked, label=name, lowerings=lowerings)

    def _costs(self, job: Job, plans: list[Plan], since: float | None) -> Costs:
        """The costs that these plans of the job's network show: known, kept, or measured now."""
        facts = self._facts(job, plans)
        path = files.place("costs", facts)
        if path not in self._known:
            self._known[path] = files.kept(path, _earlier) or self._measured(job, plans, path, facts, since)
        return self._known[path]

    def _facts(self, job: Job, plans: list[Plan]) -> dict[str, Any]:
        """What costs depend on, as JSON."""
        case = job.case
        assert case.artifact is not None
        limits = ("open_limit", "run_limit", "opening", "workers")
        return {
            "case": wire.plain(replace(case, framework=None, artifact=None)),
            "device": [self._device.name, self._device.arch],
            "network": job.spec.to_json() if job.spec else case.artifact.sha256,
            "sites": sorted(Counter(site.key for _, site in case.artifact.conv_sites).items()),
            "plans": [plan.to_json() for plan in plans],
            "budget": {k: v for k, v in asdict(self._budget).items() if k not in limits},
            "xframe": xframe.__version__,
            "lowerings": identity(),
        }

    def _measured(self, job: Job, plans: list[Plan], path: Path, facts: dict[str, Any], since: float | None) -> Costs:
        jobs = [replace(job, case=replace(job.case, plan=plan)) for plan in plans]
        found = list(measure(jobs, self._budget, self._on_progress, since))
        costs = Costs.of(found)
        load = max((x for m in found for x in m.environment.get("foreign_load", ())), default=0.0)
        if load > FOREIGN:
            note = f"other processes used up to {load:.1f} CPUs while the costs of {planning.BEST} were measured"
            return replace(costs, notes=(f"{note}: another run measures them again",))
        if not any(outcome in _PASSING for outcome, _ in costs.failed.values()):
            files.keep(path, facts, costs.to_json())
        return costs


def _earlier(data: Mapping[str, Any]) -> Costs:
    """Kept costs, with when they were measured: the machine may be faster or slower now."""
    when = str(data["of"]["created"]).replace("T", " ")[:16]
    return replace(Costs.from_json(data), notes=(f"{EARLIER} {when}",))
