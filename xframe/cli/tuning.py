"""The command ``tune``: faster schedules for the kernels of a plan, kept in the schedule logs of this device."""

from __future__ import annotations

import contextlib
import json as jsonlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xframe import files
from xframe.cli import console, options
from xframe.errors import Unavailable, Unsupported, UsageError, XframeError
from xframe.types import gpu_index

if TYPE_CHECKING:
    from xframe.lowering.target import Target
    from xframe.schedules.log import Log
    from xframe.tuning.points import Runner
    from xframe.tuning.result import Report

CPU = "cpu"
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
Workers = Annotated[
    int | None,
    typer.Option(help="Schedules under way at a time; 1 on a CPU, for a GPU as many as CPUs, or as servers."),
]


def tune(
    model: Models = "alexnet",
    lowering: Lowerings = None,
    batch: options.Batches = None,
    framework: Framework = "pytorch",
    threads: Threads = None,
    device: options.Device = CPU,
    target: Annotated[str | None, typer.Option(hidden=True)] = None,
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
    """Tune the kernels of forced plans; keep what beats the hand-written schedules in the logs of the device."""
    from xframe import comparison

    devices = comparison.devices(device)
    on_gpu = devices[0] != CPU
    _check(on_gpu, device, target, threads, space, tracker)
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
    from xframe.schedules.device import identity
    from xframe.worker.alone import without_frameworks

    where = output or next(iter(find.roots()), None)
    if where is None:
        raise UsageError("there is no folder schedules/ in this installation: name one with -o, or by XFRAME_SCHEDULES")
    files.check_writable(where)
    identities = {name: identity(name) for name in devices}  # before the work: a GPU may not be there
    try:
        with without_frameworks():  # TVM would load PyTorch, and kernels are measured alone
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
    code = 0
    for name, of in identities.items():
        made_for = _target(name, asked.threads)
        progress = console.Progress()
        try:
            work = works(asked, progress, made_for)
        finally:
            progress.clear()
        settings = {"framework": asked.framework, "fallback": asked.fallback, "error-budget": asked.error_budget}
        settings |= {"tracker": tracker, "key": key} | ({"device": name} if on_gpu else {})
        stopped: BaseException | None = None
        try:
            with _runner(made_for, name, tracker, key, workers) as runner, Bar() as bar:
                report = session(
                    work,
                    runner,
                    made_for,
                    where,
                    trials,
                    strategy,
                    space,
                    seed,
                    resume,
                    settings,
                    _known(where, of.kind) if transfer else [],
                    getattr(runner, "identity", of),
                    bar,
                )
        except (Interrupted, Stopped) as e:
            report, stopped = e.report, e
        _show(report, json, name, f"{name}: {of.words}" if on_gpu else "")
        if isinstance(stopped, Interrupted):
            print("xframe: interrupted; what is above is kept, and --resume goes on", file=sys.stderr)
            return 130
        if stopped is not None:
            code = console.complain(XframeError(str(stopped)))
    return code


def _check(on_gpu: bool, device: str, target: str | None, threads: int | None, space: str, tracker: str | None) -> None:
    """Raises Unsupported or UsageError where options do not go together with the device."""
    if target is not None:
        raise Unsupported(
            f"--target {target} was asked for: a schedule is kept for what it was timed on, and nothing can be timed on"
            " a target alone; tune where the GPU is, with --device cuda"
        )
    if on_gpu and tracker is not None:
        raise Unsupported(
            f"--device {device} was asked for: the servers of a tracker measure on their CPUs; tune where the GPU is,"
            " without --tracker"
        )
    if on_gpu and threads is not None:
        raise UsageError("--threads is of a CPU's kernels: leave it out, a GPU's run on all its multiprocessors")
    if on_gpu and space == SPACES[1]:
        raise UsageError(f"--space {space} is for CPUs: schedules for GPUs are searched in the template's space alone")


def _target(device: str, threads: int) -> Target:
    """What code for ``device`` is compiled for. Raises Unavailable where it is a GPU that TVM does not find."""
    from xframe.lowering.target import Cpu, Gpu
    from xframe.worker.host import in_bus_order

    if device == CPU:
        return Cpu.host(threads)
    in_bus_order(os.environ)
    return Gpu.of_device(gpu_index(device))


@contextlib.contextmanager
def _runner(target: Target, device: str, tracker: str | None, key: str | None, workers: int | None) -> Iterator[Runner]:
    """Who measures: processes here, or the servers of a tracker."""
    runner: Runner
    if tracker is not None and key is not None:
        from xframe.fleet.runner import FleetRunner
        from xframe.lowering.target import Cpu
        from xframe.schedules.device import identity

        assert isinstance(target, Cpu)  # see _check
        runner = FleetRunner(tracker, key, workers, target, expected=identity())  # logs are of this device
    else:
        from xframe.tuning.runner import LocalRunner

        runner = LocalRunner(target, workers, device=device)
    try:
        yield runner
    finally:
        runner.close()


def _known(where: Path, kind: str) -> list[Log]:
    """All logs of devices of this kind that can be read: starting points, which are measured like any other."""
    from xframe.schedules import find
    from xframe.schedules.log import LogError, read

    found: dict[Path, Log] = {}
    for root in (where, *find.roots()):
        with contextlib.suppress(LogError):
            for folder in find.folders(root):
                with contextlib.suppress(LogError):
                    found.setdefault(folder.resolve(), read(folder))
    return [log for log in found.values() if log.device.kind == kind]


def _show(report: Report, json: bool, device: str, head: str) -> None:
    with console.quiet_pipe():
        if json:
            for row in (*(r.to_json() for r in report.rows), report.to_json()):
                print(jsonlib.dumps({**row, "device": device}))
        else:
            from xframe.tuning.terminal import render

            if head:
                print(head)
            render(report, sys.stdout)
