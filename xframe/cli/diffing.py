"""The command ``diff``: what became faster or slower from one result to the next."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xframe.cli import console, options
from xframe.errors import UsageError, XframeError

if TYPE_CHECKING:
    from xframe.analysis.changes import Changes

Old = Annotated[Path, typer.Argument(metavar="OLD", help="The run.json, or its folder, to hold the other against.")]
New = Annotated[Path, typer.Argument(metavar="NEW", help="The run.json, or its folder, to judge.")]
Allow = Annotated[
    str | None,
    typer.Option(
        metavar="A,B",
        help="Facts that may differ though times then say little, by the names that a refusal gives; missing: rows may"
        " be gone.",
    ),
]
Steady = Annotated[
    bool, typer.Option("--steady", help="The machine does not drift: what slows all rows alike is a regression.")
]


def diff(
    old: Old,
    new: New,
    threshold: options.Threshold = 0.02,
    allow: Allow = None,
    steady: Steady = False,
    json: options.Json = False,
) -> int:
    """Has anything become slower? Rows of two results: same, faster, slower or ambiguous, from their raw samples.

    Exit code 0: no row regressed; 1: a row is slower, or was OK and is not; 2: that can't be told. A file can't be
    read or is damaged, the results or some rows can't be compared (another network, processor, clock policy, number of
    threads), or a row that was OK is not in the new result, as when that was interrupted; nothing regressed besides.

    In CI: measure the main branch and the change on the same machine, one right after the other, and keep rows in
    that the change can't touch, such as other frameworks: how they moved is the drift of the machine.

    \b
        xframe compare --backend ort --fresh -o main
        (switch to the change)
        xframe compare --backend ort --fresh -o change
        xframe diff main change

    A row is slower when its 95 % interval is beyond the threshold, relative to the rows that were measured in turn
    with it if there are at least three. It is ambiguous, and does not fail, when the samples do not decide, which more
    --rounds do; when it changed as all the others did, or only beside them; when other processes of the machine can
    explain it: of L CPUs, if above 0.15, that they used while the slower one was timed, (1 + L) / (1 - L) times as
    long, 1.5 times of 0.2 CPUs, anything of a whole one; or when it changed by less than 15 % and is of one process:
    processes of the same code differ, and only --fresh sees by how much.
    """
    from xframe import store
    from xframe.analysis.changes import changes

    allowed = () if allow is None else options.names("allow", allow) or ()
    try:
        found = changes(store.load(old), store.load(new), threshold, allowed, steady)
    except XframeError as e:  # whatever it is, it is no regression
        raise UsageError(str(e)) from e
    with console.quiet_pipe():
        if json:
            _lines(found)
        else:
            from xframe.report import diff_terminal

            diff_terminal.render(found, sys.stdout)
    return found.exit_code


def _lines(found: Changes) -> None:
    from xframe import store
    from xframe.worker.wire import plain

    for change in found.rows:
        print(jsonlib.dumps(store.finite(plain(change.to_json()))))
    print(jsonlib.dumps(store.finite(plain(found.to_json()))))
