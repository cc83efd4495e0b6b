"""One comparison: every framework under every runner and lowering that was asked for, one measurement each."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from xframe import environment, exports, planning
from xframe.analysis.labels import PLANNED, algorithms, title
from xframe.errors import Unavailable, UsageError, XframeError
from xframe.measure import Budget, Job, measure
from xframe.oracle import Oracle
from xframe.registry import BACKENDS, FRAMEWORKS, LOWERINGS, Row, chosen, defaults, resolve
from xframe.results import INTERRUPTED, Measurement, Run
from xframe.store import SCHEMA
from xframe.subject import Subject, is_file, repeated
from xframe.types import ERROR_BUDGET, Artifact, Case, Device, Outcome, Plan, gpu_index
from xframe.worker.alone import without_frameworks

NATIVE, AUTO, BEST = "native", planning.AUTO, planning.BEST
#: When no lowering is asked for: all of them, and this one wherever one refuses.
IMPLIED_FALLBACK = "direct"

Progress = Callable[[str], None]


class Interrupted(KeyboardInterrupt):
    """Stopped by the user. ``run`` holds every row; those that were not measured any more say so."""

    def __init__(self, run: Run):
        super().__init__("interrupted")
        self.run = run


@dataclass(frozen=True)
class Request:
    """What to compare. Names may be aliases; duplicates collapse.

    Parameters
    ----------
    model
        A registered model or the path of an ONNX file, which has no framework and no native row.
    frameworks
        None: all registered ones that are not opt-in. ``all``: those that are, too, but for other ways to run one.
    runners
        ``native`` and names of backends.
    lowerings
        ``auto``, names of lowerings, ``best`` (see ``xframe.oracle``: it measures all of them first), or paths of plan
        files, for the backends that can be told one. None: ``auto`` and every lowering, with the fallback ``direct``
        implied.
    fallback
        Lowering for the sites that the asked one refuses; None: such a row is UNSUPPORTED.
    error_budget
        See ``xframe.types.Plan``; None: the default, or that of a plan's file.
    target
        The CPU to compile for where the backend takes a plan, e.g. ``llvm -mcpu=core-avx2``. None: this machine's.
    schedules
        ``auto``: kernels of forced plans are scheduled as this machine's logs say, where they have a record; ``none``:
        all by the lowerings' own templates; or a folder of logs.
    allow_foreign_log
        Use logs of other kinds of machines where there is none of this one; the rows say so.
    batches
        Empty: 1, or the file's own.
    threads
        Empty: all CPUs that this process may use.
    device
        ``cpu``, ``cuda``, ``cuda:<number>``, or ``cuda:<number>,<number>``: one after another.
    baseline
        Add each framework's native row where it was not asked for.
    pairs
        The (framework, runner) to take of all combinations, registered names; None: all.
    images
        Different images in a batch at most, as many repeat them in random order: what is exact is computed of these
        alone, and judges every place. For networks that treat each image by itself. None: all differ.
    """

    model: str
    frameworks: tuple[str, ...] | None = None
    runners: tuple[str, ...] = (NATIVE, *defaults(BACKENDS))
    lowerings: tuple[str, ...] | None = None
    fallback: str | None = None
    error_budget: float | None = None
    target: str | None = None
    schedules: str = planning.AUTO
    allow_foreign_log: bool = False
    device: str = "cpu"
    batches: tuple[int, ...] = ()
    threads: tuple[int, ...] = ()
    seed: int = 0
    budget: Budget = field(default_factory=Budget)
    baseline: bool = True
    pairs: tuple[tuple[str, str], ...] | None = None
    images: int | None = None

    def resolved(self) -> Request:
        """This request with its defaults filled in and its names checked; nothing heavy is loaded.

        Raises
        ------
        UsageError
            An unknown name or a value that makes no sense.
        """
        for what, values in (("batch", self.batches), ("threads", self.threads)):
            if any(v < 1 for v in values):
                raise UsageError(f"--{what} {min(values)} makes no sense: it must be at least 1")
        if self.seed < 0:
            raise UsageError(f"--seed {self.seed} makes no sense: it must be at least 0")
        if self.error_budget is not None and not 0 < self.error_budget < math.inf:
            raise UsageError(f"--error-budget {self.error_budget:g} makes no sense: it must be above 0, like 1e-4")
        devices(self.device)
        frameworks = chosen(FRAMEWORKS, self.frameworks, "framework")
        runners = _unique(_runner(r) for r in self.runners)
        if is_file(self.model):
            if self.frameworks is not None:
                raise UsageError(f"--framework goes with a registered model, and {self.model} is a file: leave it out")
            runners, frameworks = tuple(r for r in runners if r != NATIVE), ()
            if not runners:
                raise UsageError(f"{self.model} is a file, which has no native form: name a backend with --backend")
        elif self.baseline:
            runners = _unique((NATIVE, *runners))
        lowerings, fallback = self.lowerings, self.fallback
        if lowerings is None:
            others = (name for runner in runners for name in algorithms(runner, by_default=True))
            lowerings, fallback = (AUTO, *defaults(LOWERINGS), *others), fallback or IMPLIED_FALLBACK
        lowerings = _unique(_lowering(label) for label in lowerings)
        astray = [x for x in lowerings if x != AUTO and not any(_takes(r, x) for r in runners)]
        if astray and self.lowerings is not None:
            able = " or ".join(r for r in BACKENDS if any(_takes(r, x) for x in astray))
            raise UsageError(
                f"--lowering needs --backend {able} for {', '.join(astray)}: other runners have none of that name, or"
                " pick their convolutions themselves"
            )
        if PLANNED not in runners and self.error_budget is not None:
            raise UsageError(f"--error-budget needs --backend {PLANNED}: other runners choose without it")
        if PLANNED not in runners and self.target is not None:
            raise UsageError(f"--target needs --backend {PLANNED}: other runners are compiled already")
        self._check_schedules(runners)
        return replace(
            self,
            frameworks=frameworks,
            runners=runners,
            lowerings=lowerings,
            fallback=fallback and _fallback(fallback, runners),
            batches=_unique(self.batches),
            threads=_unique(self.threads) or (len(environment.allowed_cpus()),),
        )

    def _check_schedules(self, runners: tuple[str, ...]) -> None:
        """Raises UsageError where logs were asked for that nothing can use, or that are not there."""
        given = self.schedules not in (planning.AUTO, planning.NONE)
        if PLANNED not in runners and (given or self.allow_foreign_log):
            flag = "--schedules" if given else "--allow-foreign-log"
            raise UsageError(f"{flag} needs --backend {PLANNED}: other runners have schedules of their own")
        if given and not os.path.isdir(self.schedules):
            raise UsageError(
                f"--schedules {self.schedules}: there is no such folder; give one of schedule logs, {planning.AUTO} for"
                f" those of this machine, or {planning.NONE}"
            )
        if self.allow_foreign_log and self.schedules == planning.NONE:
            raise UsageError(
                f"--allow-foreign-log makes no sense with --schedules {planning.NONE}: leave one of them out"
            )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compare(request: Request, on_progress: Progress | None = None, command: Sequence[str] = ()) -> Run:
    """Measure all that ``request`` asks for.

    What one combination can't do costs its own row alone: the row is there, with its outcome and reason. Rows of one
    batch and thread count are interleaved. Exports and the float64 reference run while nothing is timed.

    Parameters
    ----------
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
    asked = request.resolved()
    progress(f"loading {asked.model}")
    subject = Subject.of(asked.model)
    asked = replace(asked, batches=batches(asked, subject))
    with contextlib.suppress(Unavailable), without_frameworks():  # what is not available, each row says
        for label in (x for x in asked.lowerings or () if PLANNED in asked.runners and _takes(PLANNED, x)):
            planning.plan(label, (), device_of(devices(asked.device)[0]), asked.fallback, target=asked.target)
    created, facts = datetime.now().astimezone().isoformat(timespec="seconds"), about(request, asked, subject)
    cases = list(_cases(asked, subject.name))
    schedules = {d: planning.Schedules(asked.schedules, asked.allow_foreign_log, d) for d in devices(asked.device)}
    done: dict[Case, Measurement] = {}
    stopped: KeyboardInterrupt | None = None
    try:
        for device, batch in itertools.product(devices(asked.device), asked.batches):
            group = [c for c in cases if (c.device, c.batch) == (device, batch)]
            here = replace(asked, device=device)
            for case, measurement in _measured(here, subject, batch, group, schedules[device], progress):
                done[case] = measurement
    except KeyboardInterrupt as e:
        stopped = e
        for case in cases:
            done.setdefault(case, Measurement(case, Outcome.FAILED, INTERRUPTED))
    run = Run(SCHEMA, created, list(command), facts, [done[c] for c in cases])
    if stopped is not None:
        raise Interrupted(run) from stopped
    return run


def about(request: Request, asked: Request, subject: Subject) -> dict[str, Any]:
    """What a run depends on: the machine as it is now, the network, and what was asked for, as given and resolved."""
    asking = {**request.to_json(), "resolved": asked.to_json()}
    return {**environment.capture(), "network": subject.digest, "request": asking}


def _unique(values) -> tuple:
    return tuple(dict.fromkeys(values))


def _runner(name: str) -> str:
    return resolve({NATIVE: Row("", (), ""), **BACKENDS}, name, "backend")


def _lowering(label: str) -> str:
    """A lowering's registered name; ``auto``, ``best`` and the path of a plan pass through."""
    if label.lower() in (AUTO, BEST) or label.endswith(".json"):
        return label if label.endswith(".json") else label.lower()
    if any(label.lower() in algorithms(runner) for runner in BACKENDS) and label.lower() not in LOWERINGS:
        return label.lower()
    try:
        return resolve(LOWERINGS, label, "lowering")
    except UsageError as e:
        raise UsageError(f"{e} (or {AUTO}, {BEST}, or the path of a plan, which ends in .json)") from None


def _fallback(name: str, runners: Sequence[str]) -> str:
    """A lowering's registered name; where no runner takes lowerings, that of an algorithm of a runner's own passes."""
    own = PLANNED not in runners and any(name.lower() in algorithms(runner) for runner in runners)
    return name.lower() if own else resolve(LOWERINGS, name, "lowering")


def _takes(runner: str, label: str) -> bool:
    """Whether a runner has a row for a label of ``--lowering``."""
    if runner == PLANNED:
        return label in (AUTO, BEST, *LOWERINGS) or label.endswith(".json")
    return label == AUTO or label in algorithms(runner)


def batches(asked: Request, subject: Subject) -> tuple[int, ...]:
    """The batches to run. Raises UsageError where a file has another one than asked for."""
    if subject.file is None:
        return asked.batches or (1,)
    shape = subject.file.inputs[0].shape if subject.file.inputs else ()
    own = shape[0] if shape else 1
    if set(asked.batches) - {own}:
        raise UsageError(
            f"--batch {','.join(map(str, asked.batches))} was asked for, and {os.path.basename(subject.file.path)} is"
            f" fixed at batch {own}: leave --batch out, or export the model again at that batch"
        )
    return (own,)


def _cases(asked: Request, model: str) -> Iterator[Case]:
    """Every row asked for, in the order of the result; plans have no sites yet, artifacts are to come."""
    budget = asked.error_budget or ERROR_BUDGET
    for device, batch in itertools.product(devices(asked.device), asked.batches):
        for threads in asked.threads:
            for framework in asked.frameworks or (None,):
                for runner in (r for r in asked.runners if asked.pairs is None or (framework, r) in asked.pairs):
                    told = runner == PLANNED or algorithms(runner)
                    for label in [x for x in asked.lowerings or () if _takes(runner, x)] if told else (AUTO,):
                        plan = Plan(label, error_budget=budget, target=asked.target if runner == PLANNED else None)
                        options = _options(asked, runner, label)
                        yield Case(model, framework, runner, plan, device, batch, threads, options=options)


def _options(asked: Request, runner: str, label: str) -> tuple[tuple[str, str], ...]:
    """The switch by which a runner with algorithms of its own is told what takes the sites that refuse one: what was
    asked for, or its most general one where it has no such, as a fallback is to work."""
    if not algorithms(runner) or label == AUTO or not asked.fallback:
        return ()
    row = BACKENDS[runner]
    able = asked.fallback in row.algorithms and asked.fallback not in row.absent
    return (("fallback", asked.fallback if able else row.general),)


def _measured(
    asked: Request, subject: Subject, batch: int, cases: Sequence[Case], logs: planning.Schedules, progress: Progress
) -> Iterator[tuple[Case, Measurement]]:
    """Each case of one batch with its measurement, as they become final."""
    began = time.monotonic()
    order = repeated(batch, asked.images, asked.seed)
    feeds = subject.feeds(batch, asked.seed, order)
    artifacts: dict[str | None, Artifact | XframeError] = {None: subject.file} if subject.file else {}
    with _exports(asked, subject, batch, cases) as under_way:
        progress(f"float64 reference, batch {batch}")
        judge, inputs_matter = subject.judge(feeds, order)
        for framework in under_way.frameworks:
            progress(f"{framework}: export, batch {batch}")
            try:
                artifacts[framework] = under_way.result(framework)[0]
            except XframeError as e:
                artifacts[framework] = type(e)(f"no export of {framework}: {e}")

    def job(case: Case) -> Job:
        return Job(case, subject.spec, subject.weights, feeds, judge, inputs_matter)

    costs = stages(lambda line: progress(f"costs of {BEST}: {line}"))
    device, named = device_of(asked.device), asked.lowerings or ()
    oracle = Oracle(device, asked.fallback or IMPLIED_FALLBACK, asked.budget, logs, costs, named)
    for threads in asked.threads:
        ready: dict[Case, list[Case]] = {}  # two plan files may turn out to say the same
        for case in (c for c in cases if c.threads == threads):
            try:
                known = _ready(case, artifacts, asked, logs)
                known = oracle.best(job(known), began) if case.plan.label == BEST else known
                ready.setdefault(known, []).append(case)
            except XframeError as e:
                progress(f"{title(case)}: {e.outcome.value}")
                yield case, Measurement(case, e.outcome, str(e))
        for measurement in map(oracle.compared, measure(map(job, ready), asked.budget, stages(progress), began)):
            progress(f"{title(measurement.case)}: {measurement.outcome.value}")
            planned = measurement.case.runner == PLANNED
            told = (*measurement.notes, *(logs.notes(measurement.case.plan, threads) if planned else ()))
            yield from ((case, replace(measurement, notes=told)) for case in ready[measurement.case])
        began = time.monotonic()


def _exports(asked: Request, subject: Subject, batch: int, cases: Sequence[Case]) -> exports.Exports:
    """The exports that some case needs, begun. A file is one already."""
    if subject.spec is None or subject.weights is None:
        return exports.Exports(())
    network = (subject.spec, subject.weights, batch, len(environment.allowed_cpus()))
    wanted = dict.fromkeys(c.framework for c in cases if c.framework and c.runner != NATIVE)
    return exports.Exports(exports.Export(f, *network) for f in wanted)


def _ready(
    case: Case, artifacts: dict[str | None, Artifact | XframeError], asked: Request, logs: planning.Schedules
) -> Case:
    """The case with its artifact and its plan. Raises XframeError for what can't be run."""
    if case.runner == NATIVE:
        return case
    found = artifacts[case.framework]
    if isinstance(found, XframeError):
        raise found
    sites = [site for _, site in found.conv_sites]
    if case.plan.label in algorithms(case.runner):
        told = tuple((site, case.plan.label) for site in dict.fromkeys(sites))
        return replace(case, artifact=found, plan=replace(case.plan, lowerings=told))
    device = device_of(case.device)
    plan = planning.plan(case.plan.label, sites, device, asked.fallback, asked.error_budget, asked.target)
    return replace(case, artifact=found, plan=logs.tuned(plan, case.threads))


def stages(progress: Progress) -> Callable[[Case, str], None]:
    """The stages of measuring as lines; what is done to all cases in turn is one line."""
    last = ""

    def on_stage(case: Case, stage: str) -> None:
        nonlocal last
        together = {"round": f"timing, {stage}", "profile": stage}
        line = together.get(stage.split()[0], f"{title(case)}: {stage}")
        if line != last:
            progress(line)
        last = line

    return on_stage


def devices(text: str) -> tuple[str, ...]:
    """``"cuda:0,1"`` -> ``("cuda:0", "cuda:1")``, measured one after another. Raises UsageError for anything else."""
    if not re.fullmatch(r"cpu|cuda(:\d+(,\d+)*)?", text):
        raise UsageError(f"unknown device {text!r}: there are cpu, cuda, cuda:<number> and cuda:<number>,<number>")
    kind, _, numbers = text.partition(":")
    return _unique(f"{kind}:{n}" for n in numbers.split(",")) if numbers else (kind,)


def device_of(name: str) -> Device:
    """The device to plan for, of one of :func:`devices`. Where there is no such GPU, its runtimes say so in rows."""
    return environment.cpu_device() if name == "cpu" else environment.gpu_device(gpu_index(name))
