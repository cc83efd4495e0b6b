"""The command ``ablate``: what a framework's own options are worth."""

from __future__ import annotations

import json as jsonlib
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from xframe.cli import options, timing

if TYPE_CHECKING:
    from xframe.results import Run

Backends = Annotated[
    str,
    typer.Option(
        "--backend",
        metavar="A,B",
        help="Backends whose switches are tried too, on the first framework's export; native for none.",
    ),
]
Threads = Annotated[int | None, typer.Option(help="Threads of the defaults; all CPUs if not given. One is tried too.")]


def ablate(
    model: options.Model = "alexnet",
    framework: options.Frameworks = None,
    backend: Backends = "ort",
    device: options.Device = "cpu",
    batch: options.Batches = None,
    threads: Threads = None,
    seed: options.Seed = 0,
    rounds: options.Rounds = 5,
    threshold: options.Threshold = 0.02,
    time_limit: options.TimeLimit = None,
    json: options.Json = False,
    output: options.Output = None,
) -> int:
    """What are a framework's own options worth? Each switch alone, then together what helped.

    Every setting is timed in turn with the defaults, and verified like any row. A value that the device or the build
    refuses, or that gives other numbers, is a row with its reason, and no error: the rows of the defaults alone decide
    the exit code.
    """
    from xframe import ablation, store
    from xframe.analysis.ablations import DEFAULT
    from xframe.analysis.ratios import checked
    from xframe.comparison import Request

    request = Request(
        model,
        frameworks=options.names("framework", framework),
        runners=options.names("backend", backend) or (),
        lowerings=("auto",),
        device=device,
        batches=options.numbers("batch", batch),
        threads=() if threads is None else (threads,),
        seed=seed,
        budget=timing.budget(rounds, time_limit),
    )
    request.resolved()
    checked(threshold)
    return timing.carry_out(
        lambda progress: ablation.ablate(request, progress, sys.argv, threshold),
        lambda run: timing.exit_code([m for m in run.measurements if m.environment["ablation"]["step"] == DEFAULT]),
        lambda run: run,
        lambda run: _show(run, json),
        lambda run, folder: str(store.write(run, folder)),
        output,
    )


def _show(result: Run, json: bool) -> None:
    from xframe import store

    if json:
        from xframe.analysis.ablations import rows

        for m, told in rows(result.measurements):
            print(jsonlib.dumps(store.finite({**store.row(m), **told})))
    else:
        from xframe.report import ablation_terminal

        ablation_terminal.render(result, sys.stdout)
