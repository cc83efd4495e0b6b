"""The command ``tune``: faster schedules for the kernels of a plan, kept in the schedule logs of this device."""

from __future__ import annotations

import contextlib
import json as jsonlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xframe.cli import console, options
from xframe.errors import Unavailable, Unsupported, UsageError, XframeError

if TYPE_CHECKING:
    from xframe.lowering.target import Cpu
    from xframe.schedules.log import Log
    from xframe.tuning.points import Runner
    from xframe.tuning.result import Report

STRATEGIES, SPACES = ("evolutionary", "replay"), ("template", "auto")
PIP = "pip install 'xframe-eval[tune]'"

Models = Annotated[
    str, typer.Option("--model", metavar="A,B", help="Registered models and ONNX files, tuned as one queue.")
]
Lowerings = Annotated[
    str | None, typer.Option("--lowering", metavar="A,B", help="gemm, direct, winograd, fft; all of them by default.")
]
Fallback = Annotated[str, typer.Option(metavar="NAME", help="Lowering where the asked one refuses a site.")]
Framework = Annotated[str, typer.Option(metavar="NAME", help="Whose exports of registered models are tuned.")]
Threads = Annotated[int | None, typer.Option(help="Threads that kernels run with; all CPUs by default.")]
Trials = Annotated[int, typer.Option(help="Schedules to measure in all, shared out by the time that kernels take.")]
Strategy = Annotated[
    str, typer.Option(metavar="|".join(STRATEGIES), help="Search by a learnt cost model, or at random.")
]
Space = Annotated[
    str, typer.Option(metavar="|".join(SPACES), help="The lowerings' own knobs and tiles, or MetaSchedule's space.")
]
Seed = Annotated[int, typer.Option(help="Seed of the search.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run of the same settings that was stopped.")]
Transfer = Annotated[
    bool, typer.Option(help="Begin with what logs of other batches, threads or machines have for kernels like these.")
]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="DIR", help="The folder of logs; schedules/ by default.")
]
Tracker = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Measure on the servers of this RPC tracker. Needs --key.")
]
Key = Annotated[str | None, typer.Option(metavar="NAME", help="Servers of the tracker to use: their kind of device.")]
Workers = Annotated[int | None, typer.Option(help="Schedules under way at a time; 1 here, or as many as servers.")]


def tune(
    model: Models = "alexnet",
    lowering: Lowerings = None,
    batch: options.Batches = None,
    framework: Framework = "pytorch",
    threads: Threads = None,
    device: options.Device = "cpu",
    fallback: Fallback = "direct",
    error_budget: options.ErrorBudget = None,
    trials: Trials = 256,
    strategy: Strategy = "evolutionary",
    space: Space = "template",
    seed: Seed = 0,
    transfer: Transfer = True,
    resume: Resume = False,
    tracker: Tracker = None,
    key: Key = None,
    workers: Workers = None,
    output: Output = None,
    json: options.Json = False,
) -> int:
    """Tune the kernels of forced plans; keep what beats the hand-written schedules in the logs of this device."""
    if device != "cpu":
        raise Unsupported(
            f"--device {device} was asked for: trials are timed on cpu only, so that nothing else is tuned"
        )
    for flag, given, known in (("strategy", strategy, STRATEGIES), ("space", space, SPACES)):
        if given not in known:
            raise UsageError(f"--{flag} {given!r}: there are {' and '.join(known)}")
    for flag, number in (("trials", trials), ("workers", workers), ("threads", threads)):
        if number is not None and number < 1:
            raise UsageError(f"--{flag} {number} makes no sense: it must be at least 1")
    if seed < 0:
        raise UsageError(f"--seed {seed} makes no sense: it must be at least 0")
    if (tracker is None) != (key is None):
        raise UsageError("--tracker and --key go together: the tracker's address, and which of its servers to use")
    from xframe.schedules import find
    from xframe.worker.alone import without_frameworks

    where = output or next(iter(find.roots()), None)
    if where is None:
        raise UsageError("there is no folder schedules/ in this installation: name one with -o, or by XFRAME_SCHEDULES")
    console.check_writable(where)
    try:
        with without_frameworks():  # TVM would load PyTorch, and kernels are measured alone
            from xframe.lowering.target import Cpu
            from xframe.tuning.result import Interrupted, Stopped
            from xframe.tuning.session import tune as session
            from xframe.tuning.terminal import Bar
            from xframe.tuning.work import Request, works
    except ModuleNotFoundError as e:
        raise Unavailable(f"tuning needs the Python module {e.name}, which is missing here: {PIP}") from e

    asked = Request(
        options.names("model", model) or (),
        options.names("lowering", lowering),
        options.numbers("batch", batch),
        framework,
        threads or 0,
        fallback,
        error_budget,
    ).resolved()
    progress = console.Progress()
    try:
        work = works(asked, progress)
    finally:
        progress.clear()
    cpu = Cpu.host(asked.threads)
    settings = {"framework": asked.framework, "fallback": asked.fallback, "error-budget": asked.error_budget}
    settings |= {"tracker": tracker, "key": key}
    stopped: BaseException | None = None
    try:
        with _runner(cpu, tracker, key, workers) as runner, Bar() as bar:
            report = session(
                work,
                runner,
                cpu,
                where,
                trials,
                strategy,
                space,
                seed,
                resume,
                settings,
                _known(where) if transfer else [],
                getattr(runner, "identity", None),
                bar,
            )
    except (Interrupted, Stopped) as e:
        report, stopped = e.report, e
    _show(report, json)
    if isinstance(stopped, Interrupted):
        print("xframe: interrupted; what is above is kept, and --resume goes on", file=sys.stderr)
        return 130
    return 0 if stopped is None else console.complain(XframeError(str(stopped)))


@contextlib.contextmanager
def _runner(cpu: Cpu, tracker: str | None, key: str | None, workers: int | None) -> Iterator[Runner]:
    """Who measures: processes here, or the servers of a tracker."""
    runner: Runner
    if tracker is not None and key is not None:
        from xframe.fleet.runner import FleetRunner
        from xframe.schedules import device

        runner = FleetRunner(tracker, key, workers, cpu, expected=device.identity())  # logs are of this device
    else:
        from xframe.tuning.runner import LocalRunner

        runner = LocalRunner(cpu, workers=workers or 1)
    try:
        yield runner
    finally:
        runner.close()


def _known(where: Path) -> list[Log]:
    """All logs that can be read, of whatever device: starting points, which are measured like any other."""
    from xframe.schedules import find
    from xframe.schedules.log import LogError, read

    found: dict[Path, Log] = {}
    for root in (where, *find.roots()):
        with contextlib.suppress(LogError):
            for folder in find.folders(root):
                with contextlib.suppress(LogError):
                    found.setdefault(folder.resolve(), read(folder))
    return list(found.values())


def _show(report: Report, json: bool) -> None:
    with console.quiet_pipe():
        if json:
            for row in (*(r.to_json() for r in report.rows), report.to_json()):
                print(jsonlib.dumps(row))
        else:
            from xframe.tuning.terminal import render

            render(report, sys.stdout)
