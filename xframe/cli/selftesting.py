"""The command ``selftest attribution``."""

from __future__ import annotations

import json as jsonlib
import sys
from typing import Annotated

import typer

from xframe.cli import console, options
from xframe.errors import UsageError

app = typer.Typer(help="Is what xframe says about time true?", no_args_is_help=True, rich_markup_mode=None)

Lies = Annotated[
    str | None,
    typer.Option(
        "--lie",
        metavar="A,B",
        help="sleep, spin, kernel, transpose, allocation, cached, fallback, unhonoured, load; all by default.",
    ),
]


@app.callback()
def group() -> None:
    """Is what xframe says about time true?"""


@app.command()
def attribution(
    model: Annotated[str, typer.Option(metavar="NAME", help="A registered model.")] = "alexnet",
    batch: Annotated[int, typer.Option(help="Batch size.")] = 1,
    threads: Annotated[int | None, typer.Option(help="Threads; all CPUs by default.")] = None,
    runs: Annotated[int, typer.Option(help="Times that everything is planted and measured anew.")] = 1,
    lie: Lies = None,
    json: options.Json = False,
) -> int:
    """Plant lies of known size in a framework and in a backend: each must be found where it was planted.

    A lie that takes time takes as long as an honest step. It is found where its interval, and a tenth of it, hold; what
    is smaller than that tenth is not looked for.
    """
    names = _checked(model, runs, lie)
    from xframe.selftest import words
    from xframe.selftest.attribution import Setting
    from xframe.selftest.attribution import attribution as once

    setting, progress, found = Setting(model, batch, threads), console.Progress(), []
    try:
        for number in range(1, runs + 1):
            if runs > 1:
                progress(f"run {number} of {runs}")
            found.append(once(setting, names, progress))
            if json:
                with console.quiet_pipe():
                    for finding in found[-1]:
                        facts = {"run": number, "model": model, "batch": batch, **finding.to_json()}
                        print(jsonlib.dumps(facts), flush=True)
    finally:
        progress.clear()
        if found and not json:
            with console.quiet_pipe():
                words.render(found, sys.stdout)
    return int(any(not finding.ok for run in found for finding in run))


def _checked(model: str, runs: int, lie: str | None) -> tuple[str, ...]:
    """The lies to plant. Raises UsageError for what makes no sense; nothing heavy is loaded."""
    from xframe.selftest.lies import LIES

    if runs < 1:
        raise UsageError(f"--runs {runs} makes no sense: it must be at least 1")
    if model.endswith(".onnx"):
        raise UsageError(f"{model} is a file, and the lies are planted in a framework: give a registered model")
    asked = options.names("lie", lie) or tuple(LIES)
    for name in asked:
        if name not in LIES:
            raise UsageError(f"unknown lie {name!r}: there are {', '.join(LIES)}")
    return tuple(name for name in LIES if name in asked)
