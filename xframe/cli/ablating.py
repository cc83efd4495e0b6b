"""The command ``ablate``: what a framework's own options are worth."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xframe.cli import console, options, timing

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
    from xframe import ablation
    from xframe.analysis.ablations import DEFAULT
    from xframe.analysis.ratios import checked
    from xframe.comparison import Interrupted, Request

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
    if output is not None:
        console.check_writable(output)
    progress = console.Progress()
    try:
        result = ablation.ablate(request, progress, sys.argv, threshold)
        defaults = [m for m in result.measurements if m.environment["ablation"]["step"] == DEFAULT]
        code = timing.exit_code(defaults)
    except Interrupted as e:
        result, code = e.run, 130
    finally:
        progress.clear()
    _show(result, threshold, json, output)
    if code == 130:
        print("xframe: interrupted; the rows that were finished are above", file=sys.stderr)
    return code


def _show(result: Run, threshold: float, json: bool, output: Path | None) -> None:
    from xframe import store

    try:
        with console.quiet_pipe():
            if json:
                from xframe.analysis.ablations import rows

                for m, told in rows(result.measurements, threshold):
                    print(jsonlib.dumps(store.finite({**store.row(m), **told})))
            else:
                from xframe.report import ablation_terminal

                ablation_terminal.render(result, sys.stdout, threshold)
    finally:  # neither of the two may cost the other: both stand for minutes of measuring
        if output is not None:
            print(f"wrote {store.write(result, output)}", file=sys.stderr)
