"""The host side of measuring: open workers, verify, time them in turn, verify again, profile, time them again.

The order is fixed. Nothing is timed while anything else runs: all workers of a group are open and verified before the
first visit, and a visit waits until the threads of all others are asleep.
"""

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from xframe import environment
from xframe.errors import Mismatch, NotHonoured, WorkerDied, XframeError
from xframe.jobs import Budget, Job
from xframe.results import Measurement
from xframe.types import Case, Outcome, Profile, SiteRecord
from xframe.worker import wire
from xframe.worker.host import Worker, settle

if TYPE_CHECKING:
    from xframe.equivalence.verdict import Verdict

__all__ = ["Budget", "Job", "Worker", "measure"]

#: CPUs that other processes may use during a visit before the row says so.
FOREIGN = 0.15

#: Seconds that a visit under way has, beyond its cap, to end after an interrupt.
GRACE = 1.0

Progress = Callable[[Case, str], None]


@dataclass
class _Row:
    """One job on its way: its worker, and what is known of it so far."""

    job: Job
    budget: Budget
    worker: Worker | None = None
    stopped: bool = False
    rounds: list[tuple[float, ...]] = field(default_factory=list)
    outputs: list[list[np.ndarray]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    sites: tuple[SiteRecord, ...] = ()
    profiles: list[Profile] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)
    unfaithful: NotHonoured | None = None
    verdicts: "list[Verdict]" = field(default_factory=list)
    peak: int | None = None
    facts: dict[str, Any] = field(
        default_factory=lambda: {"visits": [], "warmups": [], "settled": [], "foreign_load": []}
    )
    notes: list[str] = field(default_factory=list)
    profiled: int = 0
    verified: int = 0  # rounds
    processes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def call(self, cmd: str, limit: float, **fields: Any) -> dict[str, Any]:
        assert self.worker is not None
        reply = self.worker.call(cmd, limit, **fields)
        self.peak = reply["peak_bytes"]
        return reply

    def run(self, feed: Sequence[np.ndarray]) -> list[np.ndarray]:
        assert self.worker is not None
        outputs, reply = self.worker.run(feed, self.budget.run_limit)
        self.peak = reply["peak_bytes"]
        self.seconds.setdefault("first", reply["first_s"])
        return outputs

    def open(self) -> None:
        """Start the worker, compile, run every feed once, verify. Runs in a thread of its own."""
        opening, case = self.job.opening(), self.job.case
        cpus = environment.pinned_cpus(case.threads)
        if cpus is not None and len(cpus) < case.threads:
            self.note(f"{case.threads} threads on the {len(cpus)} CPUs that this process may use")
        with self.lock:
            if self.stopped:
                raise WorkerDied("the measurement was stopped")
            self.worker = self.job.start(cpus)
        reply = self.call("open", self.budget.open_limit, **opening)
        self.seconds.update(reply["seconds"])
        self.sites = wire.sites_of(reply["sites"])
        self.processes += 1
        self.facts.update(reply["environment"], starts_at_once=self.budget.starts, processes=self.processes)
        for note in reply["notes"]:
            self.note(note)
        self.outputs = [self.run(feed) for feed in self.job.feeds]
        self.verify("before")

    def open_again(self) -> None:
        """As :meth:`open`, in a process that knows nothing of the one before."""
        self.close()
        self.open()

    def note(self, text: str) -> None:
        """Keep a note, once: each process of a row may have it."""
        if text not in self.notes:
            self.notes.append(text)

    def verify(self, when: str) -> None:
        """Raises Mismatch when the outputs ignore their inputs, or are not what the judge expects."""
        first, *others = self.outputs
        if self.job.inputs_matter and any(all(map(np.array_equal, first, x)) for x in others):
            raise Mismatch(f"{when} timing: the outputs are the same for different inputs")
        verdict = self.job.judge(self.outputs, self.sites)
        self.verdicts.append(verdict)
        if not verdict.ok:
            raise Mismatch(f"{when} timing: {verdict.reason}")

    def visit(self, number: int) -> None:
        """Time it once. ``number`` counts the visits over all rows."""
        b = self.budget
        fields = {k: getattr(b, k) for k in ("min_samples", "min_seconds", "max_seconds", "noise")}
        busy, start = environment.busy_seconds(), time.monotonic()
        reply = self.call("time", b.run_limit + b.max_seconds, **fields)
        after, wall = environment.busy_seconds(), time.monotonic() - start
        if busy is not None and after is not None:
            self.facts["foreign_load"].append(round(max(0.0, after - busy - reply["cpu_s"]) / wall, 3))
        self.rounds.append(tuple(reply["seconds"]))
        self.facts["visits"].append(number)
        self.facts["warmups"].append(reply["warmups"])
        self.facts["settled"].append(reply["settled"])
        if self.job.case.device != "cpu":  # right afterwards: its clocks take a while to fall
            self.facts.setdefault("gpu", []).append(environment.gpu_state(self.job.case.device))

    def keep_verified(self) -> None:
        """Forget the rounds after which the outputs were not looked at any more, and say how many are left."""
        visits = ("visits", "warmups", "settled", "foreign_load", "gpu")
        for of_rounds in (self.rounds, *(self.facts[name] for name in visits if name in self.facts)):
            del of_rounds[self.verified :]
        self.notes.append(f"interrupted after {self.verified} of {self.budget.rounds} rounds")

    def verify_again(self) -> None:
        """Check the outputs of the last timed step, and that the other inputs still give theirs."""
        assert self.worker is not None
        last = self.worker.fetch(self.budget.run_limit)
        self.outputs = [*(self.run(feed) for feed in self.job.feeds[:-1]), last]
        self.verify("after")
        self.verified = len(self.rounds)
        if len(self.job.feeds) > 1:
            self.run(self.job.feeds[-1])  # bound for what is timed next

    def profile(self, passes: int) -> None:
        """More profiled steps. They may fail without costing the row, unless they show other kernels than planned."""
        try:
            reply = self.call("profile", passes * self.budget.run_limit, passes=passes)
            self.profiles += wire.profiles_of(reply["profiles"])
            self.plain += reply["plain"]
            self.profiled += 1
        except NotHonoured as e:
            self.unfaithful = e
        except XframeError as e:
            self.notes.append(f"no profile: {e}")
            if self.over and len(self.rounds) < self.budget.rounds:
                self.notes.append(f"{len(self.rounds)} of {self.budget.rounds} rounds: its process died in a profile")

    @property
    def over(self) -> bool:
        """Whether nothing more can be measured: its kernels are not those that were planned, or its process is gone."""
        return self.unfaithful is not None or self.worker is None or self.worker.dead

    def result(self, error: BaseException | None = None) -> Measurement:
        """What is known of the row, closed by ``error`` or well."""
        outcome, reason = Outcome.OK, ""
        if error is not None:
            outcome = error.outcome if isinstance(error, XframeError) else Outcome.FAILED
            reason = str(error) if isinstance(error, XframeError) else f"{type(error).__name__}: {error}"
        if outcome in (Outcome.FAILED, Outcome.TIMEOUT) and self.worker is not None:
            self.facts["stderr"] = self.worker.log()
        if unsettled := self.facts["settled"].count(False):
            self.notes.append(
                f"{unsettled} of {len(self.rounds)} visits ended at their cap, before the noise was down to its target"
            )
        if (foreign := max(self.facts["foreign_load"], default=0.0)) > FOREIGN:
            self.notes.append(f"other processes used up to {foreign:.1f} CPUs while it was timed: times are too long")
        slowed = [hit for state in self.facts.get("gpu", ()) if (hit := environment.throttled(state))]
        if slowed:
            why = ", ".join(sorted(set().union(*slowed)))
            visits = f"{len(slowed)} of {len(self.rounds)} visits"
            self.notes.append(f"the GPU held its clocks down ({why}) after {visits}: times are too long")
        worst = max(self.verdicts, key=lambda v: v.ratio if v.ratio is not None else float("inf"), default=None)
        return Measurement(
            case=self.job.case,
            outcome=outcome,
            reason=reason,
            rounds=tuple(self.rounds),
            seconds=self.seconds,
            sites=self.sites,
            profiles=tuple(self.profiles),
            plain=tuple(self.plain),
            error=worst.error if worst else None,
            error_bound=worst.bound if worst else None,
            error_ratio=worst.ratio if worst else None,
            peak_bytes=self.peak,
            environment=self.facts,
            notes=tuple(self.notes),
        )

    def kill(self) -> None:
        """End the worker, or keep it from starting. Safe while another thread is in :meth:`open`."""
        with self.lock:
            self.stopped = True
        if self.worker is not None:
            self.worker.kill()

    def close(self) -> None:
        """Let the worker end, and free what it held."""
        if self.worker is not None:
            self.worker.close()


def measure(
    jobs: Iterable[Job], budget: Budget | None = None, on_progress: Progress | None = None
) -> Iterator[Measurement]:
    """Measure jobs side by side; a measurement comes out as soon as it is final, so in no particular order.

    Whatever one job does (crash, hang, run out of memory, give wrong outputs) costs that job's row alone.

    Parameters
    ----------
    on_progress
        Called with the case and the name of the stage it enters, from this thread.

    Raises
    ------
    KeyboardInterrupt
        After the rows that were timed at least once came out, verified as ever, with the rounds that they have: also
        that of a visit under way, if it ends in time. A second interrupt ends at once.
    """
    budget = budget or Budget()
    progress = on_progress or (lambda case, stage: None)
    pending = deque(_Row(job, budget) for job in jobs)
    for group in itertools.count(1):
        if not pending:
            return
        rows: list[_Row] = []
        try:
            yield from _group(pending, rows, budget, progress, group)
        finally:
            for row in rows:
                row.kill()
                row.close()


def _group(
    pending: deque[_Row], live: list[_Row], budget: Budget, progress: Progress, group: int
) -> Iterator[Measurement]:
    """Take from ``pending`` what fits in memory, and measure it interleaved. ``live`` holds the rows with a worker."""

    def ended(row: _Row, error: BaseException | None = None) -> Measurement:
        live.remove(row)
        done = row.result(error)
        row.close()
        return done

    for row, error in _opened(pending, live, budget, progress):
        if error is not None:
            yield ended(row, error)
    if group > 1 or pending:
        for row in live:
            row.notes.append(f"group {group}: memory did not allow to interleave it with the other groups")

    stop: KeyboardInterrupt | None = None
    numbers = itertools.count()
    # Passes are taken beside every round: so a drift of the machine hits them and the timed samples alike.
    turns, taken = min(budget.rounds, budget.profile), 0
    try:
        for turn in range(1, budget.rounds + 1):
            if budget.fresh and turn > 1:
                for row, error in _each(list(live), _Row.open_again, "open again", progress):
                    if error is not None:
                        yield ended(row, error)
            for row in list(live):
                progress(row.job.case, f"round {turn} of {budget.rounds}")
                if not settle([r.worker.pid for r in live if r.worker]):
                    row.facts["disturbed"] = row.facts.get("disturbed", 0) + 1
                try:
                    _visit(row, next(numbers))
                except Exception as e:
                    yield ended(row, e)
            due = turns * turn // budget.rounds
            if due > taken or budget.fresh or turn == budget.rounds:
                for row, error in _verified(list(live), progress):
                    if error is not None:
                        yield ended(row, error)
            for sweep in range(taken, due):
                for row in [r for r in live if r.profiled == sweep]:  # not those of which one failed
                    progress(row.job.case, f"profile {sweep + 1} of {turns}")
                    settle([r.worker.pid for r in live if r.worker])
                    row.profile((budget.profile + sweep) // turns)
                    if row.over:
                        yield ended(row, row.unfaithful)
            taken = due
    except KeyboardInterrupt as e:
        stop = e
        unsure = [r for r in live if r.verified < len(r.rounds) and not r.over]
        for row, error in _verified(unsure, progress):
            if error is not None:
                yield ended(row, error)
    for row in [r for r in live if r.verified]:
        if stop is not None:
            row.keep_verified()
        yield ended(row)
    if stop is not None:
        raise stop


def _visit(row: _Row, number: int) -> None:
    """Time a row, from a thread of its own: an interrupt leaves the worker be, and the visit ends, unless it
    takes longer than it should."""
    with ThreadPoolExecutor(1) as pool:
        visit = pool.submit(row.visit, number)
        try:
            visit.result()
        except KeyboardInterrupt:
            try:
                wait([visit], row.budget.max_seconds + GRACE)
            finally:
                if not visit.done():
                    row.kill()
            raise


def _verified(rows: Sequence[_Row], progress: Progress) -> Iterator[tuple[_Row, BaseException | None]]:
    """Verify rows again, whose last step was a timed one. Each comes out with its error or None."""
    return _each(rows, _Row.verify_again, "verify again", progress)


def _each(
    rows: Sequence[_Row], act: Callable[[_Row], None], stage: str, progress: Progress
) -> Iterator[tuple[_Row, BaseException | None]]:
    """Do ``act`` to each row, a few at a time. Each comes out with its error or None."""
    left = deque(rows)

    def take(_) -> _Row | None:
        row = left.popleft() if left else None
        if row is not None:
            progress(row.job.case, stage)
        return row

    return _side_by_side(take, act, rows[0].budget.starts if rows else 1)


def _opened(
    pending: deque[_Row], live: list[_Row], budget: Budget, progress: Progress
) -> Iterator[tuple[_Row, BaseException | None]]:
    """Open pending rows until no more fit in memory; each comes out with its error or None."""

    def take(flying: Iterable[_Row]) -> _Row | None:
        if not pending:
            return None
        row, free = pending[0], environment.available_bytes()
        full = budget.workers is not None and len(live) >= budget.workers
        if live and (full or (free is not None and free <= sum(r.job.bytes_needed for r in (row, *flying)))):
            return None
        live.append(pending.popleft())
        progress(row.job.case, "open")
        return row

    return _side_by_side(take, _Row.open, budget.starts)


def _side_by_side(
    take: Callable[[Iterable[_Row]], _Row | None], act: Callable[[_Row], None], starts: int
) -> Iterator[tuple[_Row, BaseException | None]]:
    """Do ``act`` to the rows that ``take``, given those under way, gives until it gives None: ``starts`` at a time.

    Each row comes out with its error or None.
    """
    flying: dict[Future[None], _Row] = {}
    with ThreadPoolExecutor(starts) as pool:
        try:
            while True:
                while len(flying) < starts and (row := take(flying.values())) is not None:
                    flying[pool.submit(act, row)] = row
                if not flying:
                    return
                for future in wait(flying, return_when=FIRST_COMPLETED).done:
                    yield flying.pop(future), future.exception()
        finally:
            for row in flying.values():  # stopped in the middle: the pool waits for its threads, they for their workers
                row.kill()
