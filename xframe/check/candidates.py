"""Every subject executed: by backends at their levels and lowerings, and natively. Who changes the result?

A row is held against the exact value of its own graph (a backend that is wrong, or loses precision) and against that
of the first subject (what a user of the port sees).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from xframe.check.blame import Blame, blame
from xframe.check.engine import LEVELLED, NATIVE, Engine, Engines, Feed, Ran, Runner
from xframe.check.judging import compared, overall, worst
from xframe.equivalence.reference import Judged, Reference
from xframe.equivalence.result import RunRow, State
from xframe.errors import Unavailable, XframeError
from xframe.types import OPTIMIZATIONS

if TYPE_CHECKING:
    from xframe.check.subjects import Opened

Progress = Callable[[str], None]
#: How much coarser than float32 a format rounds, and below what it rounds to zero.
_COARSER = {"float16": (2.0**13, 2.0**-14), "bfloat16": (2.0**16, 0.0)}


def execute(opened: Opened, runner: str, feeds: Sequence[Feed], **limits: float) -> list[list[np.ndarray]]:
    """One list of outputs for each feed, as the subject orders and lays them out.

    Parameters
    ----------
    runner
        ``"ort"`` (= ``"ort:all"``), ``"ort:disabled"``, ``"ort:basic"``, ``"ort:extended"``, ``"tvm:auto"``,
        ``"tvm:gemm"`` and so on, ``"openvino"``; each runs in a process of its own. ``"native"`` runs in this one.
    feeds
        Float32 arrays in the order and layout of this subject's inputs.
    limits
        ``open_limit`` and ``run_limit`` of :class:`xframe.check.engine.Engine`, seconds.

    Raises
    ------
    XframeError
        Whatever kept it from running, as the class of its outcome.
    """
    found = Runner.parse(runner)
    if found.backend == NATIVE:
        return _native(opened, feeds).outputs
    with Engine(found, **limits) as engine:  # type: ignore[arg-type]  # threads are not among the limits
        return engine.run(opened.path, opened.graph, feeds).outputs


def rows(
    opened: Opened,
    runners: Sequence[str],
    feeds: Sequence[Feed],
    own: Sequence[Sequence[Judged]],
    first: Sequence[Sequence[Judged]] | None = None,
    *,
    first_name: str = "the first subject",
    progress: Progress | None = None,
    engines: Engines | None = None,
    **limits: float,
) -> list[RunRow]:
    """One row for each runner; ``native`` has none where the subject is a file.

    Parameters
    ----------
    opened, runners, feeds, limits
        As for :func:`execute`.
    own
        Exact outputs and bounds of this subject's graph for each feed, in its own order and layout.
    first
        Those of the first subject, in the order and layout of this subject's outputs; None for the first itself.
    engines
        To run in, and to keep; without, each row has processes of its own, with these ``limits``.

    Raises
    ------
    UsageError
        An unknown runner.
    """
    asked = dict.fromkeys(Runner.parse(name) for name in runners)
    told = progress or (lambda line: None)
    judge = _Judge(opened, feeds, own, first, first_name)
    made = []
    for runner in asked:
        if runner.backend != NATIVE or opened.make_live is not None:
            told(f"{opened.subject.name}: {runner}")
            with Engines(**limits) if engines is None else nullcontext(engines) as kept:
                made.append(_row(judge, runner, told, kept))
    return made


class _Judge:
    """What every row of a subject is held against."""

    def __init__(
        self,
        opened: Opened,
        feeds: Sequence[Feed],
        own: Sequence[Sequence[Judged]],
        first: Sequence[Sequence[Judged]] | None,
        first_name: str,
    ) -> None:
        self.opened, self.feeds, self.first, self.first_name = opened, feeds, first, first_name
        self._own = own
        self.reference = Reference(opened.graph)

    def own(self, ran: Ran) -> list[list[Judged]]:
        """Exact outputs with the bounds of a run that rounds as this one does."""
        if not ran.roundings and ran.dtype not in _COARSER:
            return [list(exact) for exact in self._own]
        return [self._bounded(feed, ran) for feed in self.feeds]

    def _bounded(self, feed: Feed, ran: Ran) -> list[Judged]:
        if ran.dtype not in _COARSER:
            return self.reference.evaluate(feed, ran.roundings)
        factor, floor = _COARSER[ran.dtype]
        kind = np.dtype(ran.dtype)
        exact = self.reference.evaluate([x.astype(kind).astype(np.float32) for x in feed])
        return [replace(j, bound=j.bound * factor + floor) for j in exact]

    def others(self, own: Sequence[Sequence[Judged]]) -> list[list[Judged]]:
        """The first subject's exact outputs; a run may be off by the bound of either."""
        assert self.first is not None
        return [
            [
                replace(f, bound=f.bound + o.bound) if f.bound.shape == o.bound.shape else f
                for f, o in zip(firsts, owns, strict=False)
            ]
            for firsts, owns in zip(self.first, own, strict=True)
        ]


def _row(judge: _Judge, runner: Runner, told: Progress, engines: Engines) -> RunRow:
    """One runner's row. Whatever goes wrong with it costs this row alone."""
    name = judge.opened.subject.name
    if runner.backend == NATIVE:
        try:
            return _judged(judge, runner, _native(judge.opened, judge.feeds))
        except XframeError as e:
            return _unchecked(name, runner, e)
    engine = engines.of(runner)
    try:
        ran = engine.run(judge.opened.path, judge.opened.graph, judge.feeds)
        row = _judged(judge, runner, ran)
    except XframeError as e:
        return _unchecked(name, runner, e)
    wrong = _wrong_feed(judge, ran)
    if wrong is None or ran.dtype in _COARSER:
        return row
    told(f"{name}: where {runner} leaves its reference")
    found = _blamed(engine, judge, judge.feeds[wrong])
    level = _levels(judge, runner.label, wrong, engines) if runner.backend == LEVELLED else ""
    reason = "; ".join(filter(None, (row.reason, level, found.reason)))
    return replace(row, reason=reason, blamed=found.layer, layers=found.layers)


def _unchecked(name: str, runner: Runner, error: XframeError) -> RunRow:
    return RunRow(name, str(runner), State.UNCHECKED, f"{error.outcome.value.lower()}: {error}")


def _judged(judge: _Judge, runner: Runner, ran: Ran) -> RunRow:
    own = judge.own(ran)
    state, reason = overall([compared(got, want) for got, want in zip(ran.outputs, own, strict=True)])
    far, off = worst(ran.outputs, own), None
    if judge.first is not None:
        first = judge.others(own)
        off = worst(ran.outputs, first)
        other, why = overall([compared(got, want) for got, want in zip(ran.outputs, first, strict=True)])
        if state is State.EQUIVALENT and other is not State.EQUIVALENT:
            state, reason = other, f"right for its own graph, but not what {judge.first_name} computes: {why}"
    if ran.dtype in _COARSER:
        reason = "; ".join(filter(None, (f"it computes in {ran.dtype}, and is judged as such", reason)))
    reason = "; ".join(filter(None, (reason, *ran.notes)))
    return RunRow(judge.opened.subject.name, str(runner), state, reason, far, off)


def _wrong_feed(judge: _Judge, ran: Ran) -> int | None:
    """The first feed for which the run leaves its own reference."""
    pairs = zip(ran.outputs, judge.own(ran), strict=True)
    return next((i for i, pair in enumerate(pairs) if compared(*pair)[0] is State.DIFFERENT), None)


def _blamed(engine: Engine, judge: _Judge, feed: Feed) -> Blame:
    try:
        return blame(engine, judge.opened.graph, feed)
    except XframeError as e:
        return Blame("", f"where it goes wrong can't be told: {e}")


def _levels(judge: _Judge, known: str, wrong: int, engines: Engines) -> str:
    """At which graph-optimisation levels the feed number ``wrong`` is computed right, in words; not at ``known``."""
    feed, own = judge.feeds[wrong], judge.own(Ran([]))[wrong]
    found: dict[bool, list[str]] = {True: [], False: []}
    for level in OPTIMIZATIONS:
        right = False
        if level != known:
            try:
                engine = engines.of(Runner(LEVELLED, level))
                ran = engine.run(judge.opened.path, judge.opened.graph, [feed])
            except XframeError:
                continue
            right = compared(ran.outputs[0], own)[0] is not State.DIFFERENT
        found[right].append(level)
    return levels_in_words(found[True], found[False])


def levels_in_words(right: Sequence[str], wrong: Sequence[str]) -> str:
    """``"right with optimisations disabled and basic, wrong from extended on"``."""
    order = OPTIMIZATIONS.index
    if not wrong:
        return ""
    if not right:
        return "wrong at every level, with optimisations disabled too: no optimisation is to blame"
    if max(map(order, right)) < min(map(order, wrong)):
        later = f"from {wrong[0]} on" if len(wrong) > 1 else f"at {wrong[0]}"
        return f"right with optimisations {_and(right)}, wrong {later}"
    return f"right with optimisations {_and(right)}, wrong with {_and(wrong)}"


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _native(opened: Opened, feeds: Sequence[Feed]) -> Ran:
    """The live model itself, in this process."""
    live = opened.live
    if live is None:
        raise Unavailable(f"{opened.subject.name} is a file, and has no native run")
    try:
        return Ran([[np.asarray(y) for y in live.run(list(feed))] for feed in feeds])
    except XframeError:
        raise
    except Exception as e:  # a user's model may raise anything
        raise XframeError(f"{opened.subject.name} failed natively: {type(e).__name__}: {e}") from e
