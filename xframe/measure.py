"""The host side of measuring: open workers, verify, then visit them in turn: time, verify again, profile.

The order is fixed. Nothing is timed while anything else runs: all workers of a group are open and verified before the
first visit, and a visit waits until the threads of all others are asleep. A row's passes follow its timed samples
directly: a machine whose speed changes within seconds is then the same for both.
"""

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from xframe import environment
from xframe.errors import WorkerTimeout
from xframe.jobs import Budget, Job
from xframe.measured import Row
from xframe.results import Measurement
from xframe.types import Case
from xframe.worker.host import settle

__all__ = ["Budget", "Job", "measure"]

#: Seconds that a visit under way has, beyond its cap, to end after an interrupt.
GRACE = 1.0
_LATE = "it was not open after %.0f s, the time that it and all rows beside it had for that"

Progress = Callable[[Case, str], None]


def measure(
    jobs: Iterable[Job],
    budget: Budget | None = None,
    on_progress: Progress | None = None,
    since: float | None = None,
) -> Iterator[Measurement]:
    """Measure jobs side by side; a measurement comes out as soon as it is final, so in no particular order.

    Whatever one job does (crash, hang, run out of memory, give wrong outputs) costs that job's row alone.

    Parameters
    ----------
    on_progress
        Called with the case and the name of the stage it enters, from this thread.
    since
        When the time of ``budget.opening`` began, of ``time.monotonic``; None: now.

    Raises
    ------
    KeyboardInterrupt
        After the rows that were timed at least once came out, verified as ever, with the rounds that they have: also
        that of a visit under way, if it ends in time. A second interrupt ends at once.
    """
    budget = budget or Budget()
    progress = on_progress or (lambda case, stage: None)
    end = None if budget.opening is None else (time.monotonic() if since is None else since) + budget.opening
    pending = deque(Row(job, budget) for job in jobs)
    for group in itertools.count(1):
        if end is not None and time.monotonic() >= end:
            yield from (row.result(WorkerTimeout(_LATE % budget.opening)) for row in pending)
            return
        if not pending:
            return
        rows: list[Row] = []
        try:
            yield from _group(pending, rows, budget, progress, group, end)
        finally:
            for row in rows:
                row.kill()
                row.close()


def _group(
    pending: deque[Row], live: list[Row], budget: Budget, progress: Progress, group: int, end: float | None
) -> Iterator[Measurement]:
    """Take from ``pending`` what fits in memory, and measure it interleaved. ``live`` holds the rows with a worker.

    Rows are opened until ``end``. They are visited in the order of what their passes prove: those of a forced plan
    first, as where time is up before all have passes, it is they whose kernels must be known.
    """

    def ended(row: Row, error: BaseException | None = None) -> Measurement:
        live.remove(row)
        done = row.result(error)
        row.close()
        return done

    for row, error in _opened(pending, live, budget, progress, end):
        if error is not None:
            yield ended(row, error)
    live.sort(key=lambda row: not row.job.case.plan.lowerings)
    if group > 1 or pending:
        for row in live:
            row.facts["group"] = group
            row.notes.append(f"group {group}: memory or time did not allow to interleave it with the other groups")

    stop: KeyboardInterrupt | None = None
    numbers = itertools.count()
    turns = min(budget.rounds, budget.profile)  # rounds with passes; evenly spread
    if turns and not budget.fresh and any(row.job.case.device != "cpu" for row in live):
        turns = 1  # last of all: a process in which a GPU was traced may be slower from then on (CUPTI stays attached)

    def profiled(row: Row) -> Iterator[Measurement]:
        for _, error in _verified([row], progress):
            if error is not None:
                yield ended(row, error)
                return
        progress(row.job.case, f"profile {row.profiled + 1} of {turns}")
        settle([r.worker.pid for r in live if r.worker])
        row.profile((budget.profile + row.profiled) // turns)
        if row.over:
            yield ended(row, row.unfaithful)

    try:
        for turn in range(1, budget.rounds + 1):
            taken, due = (turns * t // budget.rounds for t in (turn - 1, turn))
            if budget.fresh and turn > 1:
                for row, error in _each(list(live), Row.open_again, "open again", progress):
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
                    continue
                if due > taken == row.profiled:  # not if one failed
                    yield from profiled(row)
            unsure = [r for r in live if r.verified < len(r.rounds)]
            if unsure and (budget.fresh or turn == budget.rounds):
                for row, error in _verified(unsure, progress):
                    if error is not None:
                        yield ended(row, error)
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


def _visit(row: Row, number: int) -> None:
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


def _verified(rows: Sequence[Row], progress: Progress) -> Iterator[tuple[Row, BaseException | None]]:
    """Verify rows again, whose last step was a timed one. Each comes out with its error or None."""
    return _each(rows, Row.verify_again, "verify again", progress)


def _each(
    rows: Sequence[Row], act: Callable[[Row], None], stage: str, progress: Progress
) -> Iterator[tuple[Row, BaseException | None]]:
    """Do ``act`` to each row, a few at a time. Each comes out with its error or None."""
    left = deque(rows)

    def take(_) -> Row | None:
        row = left.popleft() if left else None
        if row is not None:
            progress(row.job.case, stage)
        return row

    return _side_by_side(take, act, rows[0].budget.starts if rows else 1)


def _opened(
    pending: deque[Row], live: list[Row], budget: Budget, progress: Progress, end: float | None
) -> Iterator[tuple[Row, BaseException | None]]:
    """Open pending rows until no more fit in memory, or until ``end``; each comes out with its error or None."""

    def full(row: Row, flying: Iterable[Row]) -> bool:
        if budget.workers is not None:
            return len(live) >= budget.workers
        free = environment.available_bytes()
        return free is not None and free <= sum(r.job.bytes_needed for r in (row, *flying))

    def take(flying: Iterable[Row]) -> Row | None:
        late = end is not None and time.monotonic() >= end
        if late or not pending or (live and full(pending[0], flying)):
            return None
        row = pending.popleft()
        live.append(row)
        progress(row.job.case, "open")
        return row

    return _side_by_side(take, Row.open, budget.starts, end)


def _side_by_side(
    take: Callable[[Iterable[Row]], Row | None],
    act: Callable[[Row], None],
    starts: int,
    end: float | None = None,
) -> Iterator[tuple[Row, BaseException | None]]:
    """Do ``act`` to the rows that ``take``, given those under way, gives until it gives None: ``starts`` at a time.

    Each row comes out with its error or None. Those that are under way at ``end`` (of ``time.monotonic``) are killed.
    """
    flying: dict[Future[None], Row] = {}
    late: set[Future[None]] = set()
    with ThreadPoolExecutor(starts) as pool:
        try:
            while True:
                while len(flying) < starts and (row := take(flying.values())) is not None:
                    flying[pool.submit(act, row)] = row
                if not flying:
                    return
                left = None if end is None or late else max(0.0, end - time.monotonic())
                done = wait(flying, left, return_when=FIRST_COMPLETED).done
                if not done:
                    late.update(flying)
                    for row in flying.values():
                        row.kill()
                for future in done:
                    row = flying.pop(future)
                    yield row, WorkerTimeout(_LATE % row.budget.opening) if future in late else future.exception()
        finally:
            for row in flying.values():  # stopped in the middle: the pool waits for its threads, they for their workers
                row.kill()
