"""What other lowerings would give a row: what measured kernels predict, beside what running the plan gave.

The common executor runs any plan, so there a change of lowerings is predicted from the kernels of other plans, and
measured. A framework can't be told, so for its own wall time there are two predictions: that its kernels keep their
quality (then it gains what the executor does), or that they are replaced by the executor's.

T(l, s), the cost of lowering l at a site s, are all kernels that are tied to it in the executor's rows that used it
there, also those that bring the image into the form which it reads; of a plan that was itself predicted from others,
nothing is predicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from xframe.analysis.labels import PLANNED
from xframe.analysis.passes import CONV, Row
from xframe.analysis.terms import Term
from xframe.results import Measurement
from xframe.types import Case, ConvSite, Outcome

#: What takes the place of an algorithm that is unknown, or that the executor refuses.
ASSUMED = "direct"
#: Why nothing was measured where that is what was asked for.
SAME = "in the executor what was asked for stands for what it uses already, so that there is one plan"


class Change(NamedTuple):
    """At a site, named as its layers: the lowering ``used``, None if nobody can tell, and the one ``asked`` for."""

    site: str
    used: str | None
    asked: str


@dataclass(frozen=True)
class Counterfactual:
    """A change of lowerings of one row. Terms are differences of wall times in seconds, negative where time is saved.

    Parameters
    ----------
    case
        Of the row.
    asked
        What was asked, in words.
    changes
        The sites where it makes a difference.
    replaced
        Predicted for the row: its convolution kernels there replaced by the executor's.
    predicted
        Predicted for the executor, from the lowerings that the row used to those asked for; and for the row, if its
        kernels keep their quality.
    measured
        The same in the executor, both plans run.
    outcome, reason
        OK if the plans ran, or there was nothing to run; else what became of them.
    notes
        What was taken for granted, in sentences.
    """

    case: Case
    asked: str
    changes: tuple[Change, ...]
    replaced: Term | None = None
    predicted: Term | None = None
    measured: Term | None = None
    outcome: Outcome = Outcome.OK
    reason: str = ""
    notes: tuple[str, ...] = ()

    def compared(self, base: Measurement, other: Measurement) -> Counterfactual:
        """This with what was measured: the executor's row of the other plan less that of the base."""
        if dict(base.case.plan.lowerings) == dict(other.case.plan.lowerings):
            return replace(self, reason=SAME)
        for m, what in ((base, "what it uses"), (other, "what was asked for")):
            if m.outcome != Outcome.OK:
                return replace(self, outcome=m.outcome, reason=f"in the executor, {what}: {m.reason}")
        return replace(self, measured=difference("measured", base, other))

    def to_json(self) -> dict[str, Any]:
        """Seconds throughout."""
        terms = {name: getattr(self, name) for name in ("replaced", "predicted", "measured")}
        return {
            "framework": self.case.framework,
            "backend": self.case.runner,
            "batch": self.case.batch,
            "threads": self.case.threads,
            "asked": self.asked,
            "changes": [c._asdict() for c in self.changes],
            **{name: term and term.to_json() for name, term in terms.items()},
            "outcome": self.outcome.value,
            "reason": self.reason,
            "notes": list(self.notes),
        }


def difference(name: str, base: Measurement, other: Measurement) -> Term:
    """Wall time of ``other`` less that of ``base``; both are OK, and have profiles or not."""
    return Term.of(name, Row(other).wall - Row(base).wall)


class Costs:
    """T(l, s), as arrays: the estimate, then its bootstrap resamples.

    Of rows that run the same code there the median counts; of different code for the same lowering, the fastest.

    Parameters
    ----------
    rows
        Those of the common executor that were told their lowerings are looked at.
    """

    def __init__(self, rows: Iterable[Row]):
        pools: dict[tuple[str, ConvSite], dict[tuple, list[np.ndarray]]] = {}
        for row in (r for r in rows if r.forced and not r.measurement.prediction):
            code = (row.case.options, bool(row.case.plan.tuned))
            for site, lowering in row.case.plan.lowerings:
                if site in row.sites:
                    pool = pools.setdefault((lowering, site), {}).setdefault(code, [])
                    pool.append(row.spent(CONV, site))
        self._found = {
            key: np.min([np.median(p, axis=0) for p in of_code.values()], axis=0) for key, of_code in pools.items()
        }

    def at(self, site: ConvSite) -> dict[str, np.ndarray]:
        """Seconds of each lowering that some row shows at a site."""
        return {lowering: taken for (lowering, where), taken in self._found.items() if where == site}

    def __getitem__(self, key: tuple[str, ConvSite]) -> np.ndarray:
        """Seconds of a lowering at a site. Raises KeyError where no row shows it."""
        return self._found[key]

    def __contains__(self, key: tuple[str, ConvSite]) -> bool:
        return key in self._found


def predicted(
    row: Row,
    asked: str,
    lowerings: Mapping[ConvSite, str],
    base: Mapping[ConvSite, str],
    names: Mapping[ConvSite, str],
    costs: Costs,
) -> Counterfactual:
    """What ``lowerings`` would give ``row``, as far as kernels tell.

    Parameters
    ----------
    lowerings
        Those asked for; sites that are left out stay as they are.
    base
        What the executor runs at each site for what the row uses there.
    names
        Of the sites.
    """
    used, notes = row.lowerings, []
    changed = {s: low for s, low in lowerings.items() if used.get(s) != low}
    changes = tuple(Change(names[s], used.get(s), low) for s, low in changed.items())
    done = Counterfactual(row.case, asked, changes)
    if same := [names[s] for s in lowerings if s not in changed]:
        notes.append(f"{_title(row)} uses what was asked for already at {', '.join(same)}")
    if assumed := [names[s] for s, low in base.items() if used.get(s) != low]:
        notes.append(f"in the executor {ASSUMED} stands for what {_title(row)} uses at {', '.join(assumed)}")
    missing = [f"{low} at {names[s]}" for s, low in changed.items() if (low, s) not in costs]
    missing += [f"{base[s]} at {names[s]}" for s in changed if (base[s], s) not in costs]
    if missing:
        why = f"nothing is predicted, as no profiled row shows {', '.join(dict.fromkeys(missing))}"
        return replace(done, notes=(*notes, why))
    zero = np.zeros_like(row.wall)
    executor = sum((costs[low, s] - costs[base[s], s] for s, low in changed.items()), zero)
    done = replace(done, predicted=Term.of("predicted", executor), notes=tuple(notes))
    unseen = [names[s] for s in changed if s not in row.sites]
    if unseen:
        return replace(done, notes=(*notes, f"{_title(row)} does not show its kernels at {', '.join(unseen)}"))
    replaced = sum((costs[low, s] - row.spent(CONV, s) for s, low in changed.items()), zero)
    return replace(done, replaced=Term.of("replaced", replaced))


def _title(row: Row) -> str:
    """The row in short."""
    case = row.case
    return " ".join(filter(None, (case.framework, "" if case.runner == "native" else case.runner)))


def same_plan(measurements: Sequence[Measurement], like: Case, lowerings: Mapping[ConvSite, str]) -> Measurement | None:
    """The executor's OK row, of the batch, threads and device of ``like``, whose plan has these lowerings; or None."""
    for m in measurements:
        case = m.case
        own = (case.runner, case.batch, case.threads, case.device)
        alike = own == (PLANNED, like.batch, like.threads, like.device)
        if alike and m.outcome == Outcome.OK and m.profiles and dict(case.plan.lowerings) == dict(lowerings):
            return m
    return None
