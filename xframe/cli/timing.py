"""The commands that measure: ``compare`` and ``run``."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from xframe import files
from xframe.cli import console, options
from xframe.errors import UsageError
from xframe.results import Measurement, Run
from xframe.types import Outcome

if TYPE_CHECKING:
    from xframe.comparison import Request
    from xframe.measure import Budget


Result = TypeVar("Result")

Fresh = Annotated[
    bool,
    typer.Option(
        "--fresh",
        help="Each round in a process of its own: processes of the same code differ, too. For results that `diff` is to"
        " hold against others.",
    ),
]


def compare(
    model: options.Model = "alexnet",
    framework: options.Frameworks = None,
    backend: options.Backends = "native,ort,tvm",
    lowering: options.Lowerings = None,
    fallback: options.Fallback = None,
    error_budget: options.ErrorBudget = None,
    target: options.Target = None,
    schedules: options.Schedules = "auto",
    allow_foreign_log: options.AllowForeignLog = False,
    device: options.Device = "cpu",
    batch: options.Batches = None,
    threads: options.Threads = None,
    seed: options.Seed = 0,
    rounds: options.Rounds = 3,
    fresh: Fresh = False,
    time_limit: options.TimeLimit = None,
    json: options.Json = False,
    output: options.Output = None,
) -> int:
    """Time a model in every framework, runner and lowering, side by side, each output verified."""
    from xframe.comparison import Request

    request = Request(
        model,
        frameworks=options.names("framework", framework),
        runners=options.names("backend", backend) or (),
        lowerings=options.names("lowering", lowering),
        fallback=fallback,
        error_budget=error_budget,
        target=target,
        schedules=schedules,
        allow_foreign_log=allow_foreign_log,
        device=device,
        batches=options.numbers("batch", batch),
        threads=options.numbers("threads", threads),
        seed=seed,
        budget=budget(rounds, time_limit, fresh),
    )
    return _carry_out(request, json, output)


def run(
    model: options.Model = "alexnet",
    framework: Annotated[str | None, typer.Option(metavar="NAME", help="pytorch, unless the model is a file.")] = None,
    backend: Annotated[str, typer.Option(metavar="NAME", help="native, ort, tvm or openvino.")] = "tvm",
    lowering: Annotated[str, typer.Option(metavar="NAME", help="auto, a lowering, best, or plan.json.")] = "auto",
    fallback: options.Fallback = None,
    error_budget: options.ErrorBudget = None,
    target: options.Target = None,
    schedules: options.Schedules = "auto",
    allow_foreign_log: options.AllowForeignLog = False,
    device: options.Device = "cpu",
    batch: Annotated[int | None, typer.Option(help="Batch size; 1, or the file's own.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads; all CPUs by default.")] = None,
    seed: options.Seed = 0,
    rounds: options.Rounds = 3,
    time_limit: options.TimeLimit = None,
    json: options.Json = False,
    output: options.Output = None,
) -> int:
    """Time one case alone."""
    from xframe.comparison import Request
    from xframe.subject import is_file

    if framework is None and not is_file(model):
        framework = "pytorch"
    request = Request(
        model,
        frameworks=None if framework is None else (framework,),
        runners=(backend,),
        lowerings=(lowering,),
        fallback=fallback,
        error_budget=error_budget,
        target=target,
        schedules=schedules,
        allow_foreign_log=allow_foreign_log,
        device=device,
        batches=() if batch is None else (batch,),
        threads=() if threads is None else (threads,),
        seed=seed,
        budget=budget(rounds, time_limit),
        baseline=False,
    )
    return _carry_out(request, json, output)


def exit_code(measurements: Sequence[Measurement], lowering_named: bool = False) -> int:
    """The code for a result: the gravest row decides.

    A combination that can't be had here (UNSUPPORTED, UNAVAILABLE) is no error as long as another row is OK; but a
    lowering that was asked for by name, and refuses, is one.
    """
    outcomes = {m.outcome for m in measurements}
    if Outcome.MISMATCH in outcomes:
        return 3
    if Outcome.NOT_HONOURED in outcomes:
        return 4
    refused = any(m.outcome == Outcome.UNSUPPORTED and m.case.plan.label != "auto" for m in measurements)
    bad = outcomes & {Outcome.FAILED, Outcome.TIMEOUT} or Outcome.OK not in outcomes or (lowering_named and refused)
    return int(bool(bad))


def _carry_out(request: Request, json: bool, output: Path | None) -> int:
    """Run a comparison, write it, print it; its exit code."""
    from xframe import comparison, store

    def show(result: Run) -> None:
        if json:
            for measurement in result.measurements:
                print(jsonlib.dumps(store.row(measurement)))
        else:
            from xframe.report import terminal

            terminal.render(result, sys.stdout)

    request.resolved()
    return carry_out(
        lambda progress: comparison.compare(request, progress, sys.argv),
        lambda result: exit_code(result.measurements, request.lowerings is not None),
        lambda run: run,
        show,
        lambda result, folder: str(store.write(result, folder)),
        output,
    )


def carry_out(
    measure: Callable[[console.Progress], Result],
    judge: Callable[[Result], int],
    cut_short: Callable[[Run], Result],
    show: Callable[[Result], None],
    write: Callable[[Result, Path], str],
    output: Path | None,
) -> int:
    """Measure, print, write; the exit code.

    Parameters
    ----------
    measure
        Gives the result; told where to say how far it is.
    judge
        The code for a result.
    cut_short
        The result that the rows make which an interrupt left.
    show
        Prints it.
    write
        Writes it to a folder; says where to.
    output
        That folder; None for none.
    """
    from xframe.comparison import Interrupted

    if output is not None:
        files.check_writable(output)
    progress = console.Progress()
    try:
        result = measure(progress)
        code = judge(result)
    except Interrupted as e:
        result, code = cut_short(e.run), 130
    finally:
        progress.clear()
    try:
        with console.quiet_pipe():
            show(result)
    finally:  # neither of the two may cost the other: both stand for minutes of measuring
        if output is not None:
            print(f"wrote {write(result, output)}", file=sys.stderr)
    if code == 130:
        print("xframe: interrupted; the rows that were finished are above", file=sys.stderr)
    return code


def budget(rounds: int, time_limit: float | None, fresh: bool = False) -> Budget:
    """How much to measure, from the flags. Raises UsageError."""
    from xframe.measure import Budget

    if rounds < 1:
        raise UsageError(f"--rounds {rounds} makes no sense: it must be at least 1")
    if time_limit is None:
        return Budget(rounds=rounds, fresh=fresh)
    if not time_limit > 0:
        raise UsageError(f"--time-limit {time_limit:g} makes no sense: it must be above 0 seconds")
    return Budget(rounds=rounds, open_limit=time_limit, run_limit=time_limit, fresh=fresh)
