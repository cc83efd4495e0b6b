"""What a framework's own options are worth: each switch alone, then all that helped together.

A set is the defaults and some settings, measured in turn, so that drift of the machine hits all alike. Sets are as
large as memory allows, and each has the defaults. What was picked as the best of several is measured again beside them:
the best of many measurements is always too good.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from xframe import comparison, environment, exports
from xframe.analysis.ablations import (
    ALONE,
    DEFAULT,
    FRAMEWORK,
    THREADS,
    TOGETHER,
    TRIED,
    WORST,
    Changed,
    Setting,
    against,
    helped,
    slowest,
)
from xframe.analysis.labels import title
from xframe.analysis.ratios import THRESHOLD, Verdict
from xframe.comparison import NATIVE, Interrupted, Progress, Request
from xframe.errors import UsageError, XframeError
from xframe.measure import Budget, Job, measure
from xframe.registry import BACKENDS, FRAMEWORKS, Switch
from xframe.results import Measurement, Run
from xframe.store import SCHEMA
from xframe.subject import Subject
from xframe.types import Artifact, Case, Plan


def ablate(
    request: Request, on_progress: Progress | None = None, command: Sequence[str] = (), threshold: float = THRESHOLD
) -> Run:
    """Measure the switches of each framework, natively, and of each backend, on the export of the first framework.

    Parameters
    ----------
    request
        Its model, frameworks, runners, device, batches, seed and budget; of its threads the first number is the
        default's.
    threshold
        A setting helps where it is faster by more: a part of the time.

    Returns
    -------
    Run
        What :func:`xframe.analysis.ablations.ablations` reads. A value that is refused, fails, or gives other numbers
        is a row with that outcome.

    Raises
    ------
    UsageError, ModelError
        The request or the model makes no sense, or a backend has no switches.
    Interrupted
        With the rows measured so far.
    """
    progress = on_progress or (lambda line: None)
    asked = replace(request, lowerings=(comparison.AUTO,)).resolved()
    if len(comparison.devices(asked.device)) > 1:
        raise UsageError(f"--device {asked.device}: switches are tried on one device at a time, name one of them")
    passes = 0 if asked.device == "cpu" else min(asked.budget.profile, 1)  # a GPU's come after a row's last round
    asked = replace(asked, threads=asked.threads[:1], budget=replace(asked.budget, profile=passes))
    for runner in asked.runners:
        if runner != NATIVE and not BACKENDS[runner].switches:
            raise UsageError(f"--backend {runner} has no switches to try: leave it out")
    progress(f"loading {asked.model}")
    subject = Subject.of(asked.model)
    asked = replace(asked, batches=comparison.batches(asked, subject))
    created = datetime.now().astimezone().isoformat(timespec="seconds")
    facts = comparison.about(request, asked, subject)
    done: list[Measurement] = []
    stopped: KeyboardInterrupt | None = None
    try:
        for batch in asked.batches:
            _batch(asked, subject, batch, threshold, done, progress)
    except KeyboardInterrupt as e:
        stopped = e
    run = Run(SCHEMA, created, list(command), facts, done)
    if stopped is not None:
        raise Interrupted(run) from stopped
    return run


def settings(switches: Sequence[Switch], threads: int, variants: Sequence[str] = ()) -> list[Changed]:
    """Each other value of each switch alone; other ways to run the framework; then one thread, and all, where the
    default has another number."""
    counts = {1, len(environment.allowed_cpus())} - {threads}
    alone: list[Changed] = [((s.name, value),) for s in switches for value in s.values[1:]]
    alone += [((FRAMEWORK, name),) for name in variants]
    return alone + [((THREADS, str(n)),) for n in sorted(counts)]


def _batch(
    asked: Request, subject: Subject, batch: int, threshold: float, done: list[Measurement], progress: Progress
) -> None:
    """The ablation of every runner at one batch; rows go to ``done`` as they become final."""
    feeds = subject.feeds(batch, asked.seed)
    progress(f"float64 reference, batch {batch}")
    judge, inputs_matter = subject.judge(feeds)
    for framework, runner in _subjects(asked):
        case = Case(subject.name, framework, runner, Plan(), asked.device, batch, asked.threads[0])
        try:
            artifact = None if runner == NATIVE else _artifact(subject, framework, batch, progress)
        except XframeError as e:
            about = {"set": len(done), "step": DEFAULT, "changed": {}, "threshold": threshold}
            done.append(Measurement(case, e.outcome, str(e), environment={"ablation": about}))
            continue
        job = Job(replace(case, artifact=artifact), subject.spec, subject.weights, feeds, judge, inputs_matter)
        _Sets(job, asked.budget, threshold, done, progress).run()


def _subjects(asked: Request) -> Iterator[tuple[str | None, str]]:
    """(framework, runner): frameworks by themselves, then backends, whose framework is that of the export."""
    frameworks = asked.frameworks or ()
    if NATIVE in asked.runners:
        yield from ((f, NATIVE) for f in frameworks)
    yield from (((frameworks or (None,))[0], r) for r in asked.runners if r != NATIVE)


def _artifact(subject: Subject, framework: str | None, batch: int, progress: Progress) -> Artifact:
    if subject.file is not None:
        return subject.file
    assert framework is not None
    assert subject.spec is not None
    assert subject.weights is not None
    progress(f"{framework}: export, batch {batch}")
    return exports.export(framework, subject.spec, subject.weights, batch, len(environment.allowed_cpus()))[0]


class _Sets:
    """The sets of one runner at one batch. ``job`` is that of the defaults; rows go to ``done``."""

    def __init__(
        self,
        job: Job,
        budget: Budget,
        threshold: float,
        done: list[Measurement],
        progress: Progress,
    ):
        self._job, self._budget, self._threshold, self._done, self._progress = job, budget, threshold, done, progress
        framework, native = job.case.framework or "", job.case.runner == NATIVE
        self._switches = (FRAMEWORKS[framework] if native else BACKENDS[job.case.runner]).switches
        self._variants = [n for n, row in FRAMEWORKS.items() if native and row.variant_of == framework]

    def run(self) -> None:
        single = settings(self._switches, self._job.case.threads, self._variants)
        alone = self._measured(dict.fromkeys(single, ALONE))
        gains = helped(alone)
        if gains:
            best, worst = self._combined(gains), slowest(alone)
            self._measured({best: TOGETHER, **({worst.changed: WORST} if worst else {})})

    def _combined(self, gains: Sequence[Setting]) -> Changed:
        """All values that help beside those taken before them, the largest gain first."""
        taken, *others = [s.changed for s in gains]
        for one in others:
            if not self._known(taken + one):
                continue
            before, after = self._measured({taken: TRIED, taken + one: TRIED})
            times = against(after, before)
            if times is not None and times.verdict(self._threshold) == Verdict.FASTER:
                taken += one
        return taken

    def _measured(self, steps: Mapping[Changed, str]) -> list[Setting]:
        """Measure these settings, in sets that fit in memory."""
        free, size = environment.available_bytes(), len(steps) + 1
        fit = size if free is None else int(free // self._job.bytes_needed)
        size = max(1, min(size, fit, self._budget.workers or size) - 1)
        todo = list(steps.items()) or [((), DEFAULT)]
        return [s for i in range(0, len(todo), size) for s in self._set(todo[i : i + size])]

    def _set(self, steps: Sequence[tuple[Changed, str]]) -> list[Setting]:
        """Measure the defaults and these settings in turn."""
        number = len(self._done)
        cases = {self._case(changed): (step, changed) for changed, step in (((), DEFAULT), *steps)}
        rows: dict[Case, Measurement] = {}
        try:
            jobs = (replace(self._job, case=c) for c in cases)
            for m in measure(jobs, self._budget, comparison.stages(self._progress)):
                step, changed = cases[m.case]
                about = {"set": number, "step": step, "changed": dict(changed), "threshold": self._threshold}
                rows[m.case] = replace(m, environment={**m.environment, "ablation": about})
                self._progress(f"{title(m.case)}: {m.outcome.value}")
        finally:
            found = [rows[c] for c in cases if c in rows]
            self._done += found
        default = rows[self._job.case]
        return [Setting(*cases[m.case], m, default) for m in found if m is not default]

    def _known(self, changed: Changed) -> bool:
        """Whether another way to run the framework has the other switches too."""
        options = dict(changed)
        variant = options.pop(FRAMEWORK, None)
        names = {THREADS, *(s.name for s in (FRAMEWORKS[variant].switches if variant else self._switches))}
        return options.keys() <= names

    def _case(self, changed: Changed) -> Case:
        options, case = dict(changed), self._job.case
        threads = int(options.pop(THREADS, case.threads))
        framework = options.pop(FRAMEWORK, case.framework)
        ordered = tuple((s.name, options[s.name]) for s in self._switches if s.name in options)
        return replace(case, framework=framework, threads=threads, options=ordered)
