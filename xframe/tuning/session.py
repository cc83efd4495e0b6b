"""A tuning session: one queue over the kernels of several plans, and what beat its hand-written schedule kept in logs.

First every kernel is measured by hand; then each gets a share of the trials in proportion to the time that it takes,
the largest first, and its best schedules are measured again. What is still faster then, beyond noise, is an entry of
the logs of all plans that have the kernel; the template stays for the others. Logs are written kernel by kernel, trials
as they end, so that whatever stops a session leaves what it has.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import xframe
from xframe import files
from xframe.errors import Unsupported, UsageError, XframeError
from xframe.lowering.identity import identity as sources
from xframe.lowering.target import Target
from xframe.lowering.tasks import Task
from xframe.schedules import log
from xframe.schedules.device import Identity
from xframe.schedules.log import Entry, Log
from xframe.schedules.merge import merge, update
from xframe.tuning import journal, transfer
from xframe.tuning.auto import AutoSearch
from xframe.tuning.journal import Journal, check_room
from xframe.tuning.kernel import Kernel, Proposer, gain
from xframe.tuning.points import Point, Runner, Trial
from xframe.tuning.result import Interrupted, Progress, Report, Row, State, Stopped, Work
from xframe.tuning.search import STRATEGIES, Search, product

TEMPLATE, AUTO = "template", "auto"
SPACES = (TEMPLATE, AUTO)
#: Trials of a kernel at least, its hand-written schedule included, where there are so many.
LEAST = 4
#: Records of other kernels to begin with, at most.
STARTS = 3


def tune(
    work: Sequence[Work],
    runner: Runner,
    cpu: Target,
    out: Path,
    trials: int = 256,
    strategy: str = "evolutionary",
    space: str = TEMPLATE,
    seed: int = 0,
    resume: bool = False,
    settings: Mapping[str, Any] | None = None,
    known: Sequence[Log] = (),
    device: Identity | None = None,
    on_progress: Progress | None = None,
) -> Report:
    """Tune the kernels of ``work``, each once, and keep what is faster than by hand in the logs under ``out``.

    Parameters
    ----------
    trials
        In all; those that a resumed journal has count.
    space
        ``template``: that of the lowering's knobs and register tiles; ``auto``: MetaSchedule's own.
    resume
        Go on with the journal that an interrupted run of the same settings left.
    settings
        What else the work depends on, for the journal, by the names of the command line's options.
    known
        Logs whose records are starting points of other kernels like theirs; nothing of them is believed.
    device
        What the runner measures on; None: this machine's CPU.

    Raises
    ------
    UsageError
        The request makes no sense.
    XframeError
        A folder can't be written or has no room; a log that is there can't be added to; a journal can't be resumed.
    Stopped, Interrupted
        With what is kept; :class:`Stopped` is also raised when no hand-written schedule at all could be measured.
    """
    tasks = {t.name: t for w in work for t in w.tasks}
    if not tasks:
        raise Unsupported("there is nothing to tune: no kernel of these plans has a template")
    for flag, given, there in (("space", space, SPACES), ("strategy", strategy, STRATEGIES)):
        if given not in there:
            raise UsageError(f"--{flag} {given!r}: there are {' and '.join(there)}")
    if trials < 2 * len(tasks):
        raise UsageError(
            f"--trials {trials} is too few for {len(tasks)} kernels: each needs one by hand and another, so at least"
            f" {2 * len(tasks)}"
        )
    for folder in (Path(out), files.home()):
        check_room(folder)
    logs = _Logs(work, Path(out), cpu, device)
    how = {"strategy": strategy, "space": space, "seed": seed, "threads": cpu.threads, "target": cpu.text}
    how |= dict(settings or {}) | {"work": [w.label for w in work]}
    with Journal.open(_subject(work), how, _versions(), logs.slug, resume) as kept:
        session = _Session(work, tasks, runner, cpu, trials, (strategy, space, seed), kept, logs, known)
        return session.run(on_progress or (lambda state: None))


def shares(total: int, seconds: Mapping[str, float]) -> dict[str, int]:
    """``total`` trials in proportion to ``seconds``, :data:`LEAST` each at least where there are so many."""
    if not seconds:
        return {}
    least = min(LEAST, total // len(seconds))
    rest, left, out = dict(seconds), total, {}
    while low := [n for n, s in rest.items() if left * s < least * sum(rest.values())]:
        out.update(dict.fromkeys(low, least))
        left -= least * len(low)
        rest = {n: s for n, s in rest.items() if n not in out}
    exact = {n: left * s / sum(rest.values()) for n, s in rest.items()}
    out.update({n: int(x) for n, x in exact.items()})
    for name in sorted(exact, key=lambda n: int(exact[n]) - exact[n])[: total - sum(out.values())]:
        out[name] += 1
    return out


@dataclass
class _Session:
    work: Sequence[Work]
    tasks: Mapping[str, Task]
    runner: Runner
    cpu: Target
    total: int
    how: tuple[str, str, int]
    journal: Journal
    logs: _Logs
    known: Sequence[Log]
    origins: dict[str, dict[Point, str]] = field(default_factory=dict)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)
    flop: dict[str, float] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    measured: int = 0
    cpu_s: float = 0.0
    remarks: list[str] = field(default_factory=list)

    def run(self, on_progress: Progress) -> Report:
        self.began, self.own_s = time.monotonic(), _own_cpu_seconds()
        self.notes = [self.journal.note] if self.journal.note else []
        self.kernels = {name: Kernel(task, partial(self._proposer, task)) for name, task in self.tasks.items()}
        self._recall()
        try:
            on_progress(self._state(None))
            self._measure(on_progress)
            if not any(k.by_hand for k in self.kernels.values()):
                first = next(k.decision for k in self.kernels.values() if k.decision)
                raise XframeError(f"nothing could be measured; of the first kernel, {first.reason}")
            self.journal.append(journal.END)
        except KeyboardInterrupt as e:
            raise Interrupted(self._report()) from e
        except XframeError as e:
            raise Stopped(str(e), self._report()) from e
        return self._report()

    def _proposer(self, task: Task) -> Proposer:
        """The search of a kernel, which begins with what is known of others like it."""
        strategy, space, seed = self.how
        if space == AUTO:
            return AutoSearch(task, self.cpu, strategy, seed)
        search = Search(task, self.cpu, strategy, seed)
        for entry in transfer.sources(self.known, task)[:STARTS]:
            point = transfer.adapted(entry, task, self.cpu, search.spaces)
            if point is not None:
                search.start([point])
                self.origins.setdefault(task.name, {}).setdefault(point, entry.task)
        return search

    def _recall(self) -> None:
        """Take in what the journal has."""
        count = 0
        for record in self.journal.records:
            kernel = self.kernels.get(record.get("task", ""))
            if kernel is not None:
                trial, count = journal.trial_of(record["trial"]), count + 1
                kernel.take(trial, record["confirms"])
                if record["origin"] is not None:
                    self.origins.setdefault(kernel.task.name, {})[trial.point] = record["origin"]
        if count:
            self.notes.append(f"{count} trials are from the journal {self.journal.path}")

    def _measure(self, on_progress: Progress) -> None:
        under_way: dict[Future[Trial], tuple[Kernel, bool]] = {}
        error: XframeError | None = None
        while True:
            while len(under_way) < self.runner.width and (job := self._next()) is not None:
                kernel, point, confirms = job
                under_way[self.runner.submit(kernel.task, point)] = kernel, confirms
            if not under_way:
                return
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                kernel, confirms = under_way.pop(future)
                try:
                    trial = future.result()
                except XframeError as e:  # nobody measures any more; of others there may be a trial
                    error = e
                    continue
                self.measured += 1
                self.cpu_s += trial.cpu_s
                self.remarks += [trial.note] if trial.note else []
                kept = asdict(trial) if confirms else journal.plain(trial)
                name, origin = kernel.task.name, self.origins.get(kernel.task.name, {}).get(trial.point)
                self.journal.append(journal.TRIAL, task=name, confirms=confirms, origin=origin, trial=kept)
                kernel.ended(trial, confirms)
                on_progress(self._state(kernel))
            if error is not None:
                raise error

    def _next(self) -> tuple[Kernel, Point, bool] | None:
        """The next thing to measure: the kernels that take longest first; None while all wait for what is under way."""
        while True:
            self._share()
            order = sorted(self.kernels.values(), key=lambda k: -(k.by_hand or math.inf))
            jobs = ((k, k.next()) for k in order)
            found = next(((k, *job) for k, job in jobs if job is not None), None)
            if not self._settle() or found is not None:
                return found

    def _settle(self) -> bool:
        """Keep what was decided since; whether there was something."""
        decided = [n for n, k in self.kernels.items() if k.decision is not None and n not in self.settled]
        for name in decided:
            self.settled.add(name)
            kernel = self.kernels[name]
            if kernel.decision is not None and kernel.decision.best is not None:
                entry = self._entry(kernel, kernel.decision.best)
                self.logs.keep(entry)
                self.entries[name] = entry
        return bool(decided)

    def _share(self) -> None:
        """Share out the trials among the kernels that are not decided, once all were measured by hand."""
        rest = {n: k for n, k in self.kernels.items() if k.decision is None}
        if any(k.by_hand is None for k in rest.values()):
            return
        spent = sum(len(k.trials) for k in self.kernels.values() if k.decision is not None)
        for name, share in shares(max(0, self.total - spent), {n: k.by_hand or 0.0 for n, k in rest.items()}).items():
            rest[name].share = share

    def _entry(self, kernel: Kernel, best: Trial) -> Entry:
        point, name = best.point, kernel.task.name
        assert best.share is not None
        return Entry(
            task=name,
            tile=point.tile,
            workload=best.workload,
            knobs=None if point.trace is not None else dict(point.knobs),
            space=AUTO if point.trace is not None else TEMPLATE,
            seconds=best.seconds,
            baseline=best.baseline,
            share=best.share,
            flop=self._flop(kernel),
            workload_line=best.workload_line,
            record=best.record,
            created=datetime.now().astimezone().isoformat(timespec="seconds"),
            seed=self.how[2],
            trials=len(kernel.trials),
            session=self.journal.head["session"],
            transferred=self.origins.get(name, {}).get(point),
            xframe=xframe.__version__,
        )

    def _flop(self, kernel: Kernel) -> float:
        name = kernel.task.name
        if name not in self.flop:
            self.flop[name] = _product_flop(kernel.task, self.cpu)
        return self.flop[name]

    def _state(self, kernel: Kernel | None) -> State:
        done = sum(len(k.trials) for k in self.kernels.values())
        spent = time.monotonic() - self.began
        left = spent / self.measured * max(0, self.total - done) if self.measured else None
        if kernel is None or kernel.best is None:
            return State(done, self.total, kernel.task if kernel else None, left_s=left)
        best, flop = kernel.best, self._flop(kernel)
        if len(kernel.trials) == 1:
            return State(done, self.total, kernel.task, "by hand", left_s=left)
        doing = "confirming" if kernel.confirmations else "searching"
        rates = flop / median(best.seconds), flop / median(best.baseline)
        return State(done, self.total, kernel.task, doing, gain(best), *rates, left)

    def _report(self) -> Report:
        rows = []
        for name, kernel in self.kernels.items():
            decision = kernel.decision
            rows.append(
                Row(
                    kernel.task,
                    tuple(w.label for w in self.work if name in {t.name for t in w.tasks}),
                    self.entries.get(name),
                    "not finished: --resume goes on" if decision is None else decision.reason,
                    kernel.by_hand,
                    self._flop(kernel) if kernel.by_hand else 0.0,
                    len(kernel.trials),
                    kernel.failures,
                )
            )
        seconds, cpu_s = time.monotonic() - self.began, _own_cpu_seconds() - self.own_s + self.cpu_s
        notes = list(self.notes)
        if self.remarks:
            notes.append(f"{len(self.remarks)} of {self.measured} trials have a remark, the last: {self.remarks[-1]}")
        return Report(tuple(rows), tuple(self.logs.written), tuple(notes), self.measured, seconds, cpu_s)


class _Logs:
    """The logs of some works under a folder.

    Raises
    ------
    XframeError
        One that is there can't be read, or is of another device or version, so that it can't be added to.
    """

    def __init__(self, work: Sequence[Work], out: Path, cpu: Target, device: Identity | None):
        self.written: dict[Path, None] = {}
        self._empty = Log.here(cpu.text, device=device)
        self._folders: dict[str, list[Path]] = {}
        for one in work:
            folder = out / self.slug / f"{one.model}-b{one.batch}" / one.lowering
            if log.is_log(folder):
                merge(log.read(folder), self._empty)
            for task in one.tasks:
                self._folders.setdefault(task.name, []).append(folder)

    @property
    def slug(self) -> str:
        return self._empty.device.slug

    def keep(self, entry: Entry) -> None:
        """Put it into the logs of its kernel, beside what others wrote there meanwhile."""
        for folder in dict.fromkeys(self._folders[entry.task]):
            update(folder, replace(self._empty, entries={entry.task: entry}))
            self.written[folder] = None


def _product_flop(task: Task, cpu: Target) -> float:
    """Floating-point operations of the product with the hand-written tile: two for each step of each sum.

    A complex sum is two real ones of twice as many steps. The signs that it changes are no work.
    """
    from tvm import s_tir

    stage = product(task, cpu)
    if stage is None:
        return 0.0
    schedule = s_tir.Schedule(stage.func)
    loops = schedule.get(schedule.get_sblock("product")).iter_vars
    return 2.0 * math.prod(int(v.dom.extent) for v in loops)


def _subject(work: Sequence[Work]) -> str:
    models = dict.fromkeys(f"{w.model}-b{w.batch}" for w in work)
    return "+".join([*models, *dict.fromkeys(w.lowering for w in work)])


def _versions() -> dict[str, str]:
    return {
        "xframe": xframe.__version__,
        "apache-tvm": metadata.version("apache-tvm"),
        "sources and processor": sources()[:16],
    }


def _own_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
