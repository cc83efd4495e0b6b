"""The commands ``env list``, ``create``, ``check`` and ``remove``."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from xframe.cli import console, options
from xframe.errors import Unavailable, UsageError, XframeError

app = typer.Typer(
    help="Environments of their own for frameworks that go with no others: caffe, cntk, paddle, theano.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[caffe|cntk|paddle|theano]...", help="Which environments; all by default."),
]
Python = Annotated[
    str | None, typer.Option(metavar="PATH", help="The interpreter to build on, instead of one that is found.")
]
IfPossible = Annotated[bool, typer.Option("--if-possible", help="What can't be built here is told, and is no error.")]


def _chosen(names: list[str] | None) -> list[str]:
    """The environments named, each once. Raises UsageError on one that there is not."""
    from xframe.environments import recipes

    for name in names or ():
        recipes.recipe(name)
    return list(dict.fromkeys(names or recipes.RECIPES))


@app.command("list")
def list_(names: Names = None, json: options.Json = False) -> int:
    """The environments: built or not, on which Python, how large, and what they can be built on here."""
    rows = [_state(name) for name in _chosen(names)]
    with console.quiet_pipe():
        for row in rows:
            print(jsonlib.dumps(row) if json else f"{row['name']:8s} {_words(row)}")
    return 0


def _state(name: str) -> dict[str, Any]:
    """What there is to know of an environment without trying it."""
    from xframe.environments import build, places

    noted, reason, buildable = places.record(name) or {}, "", None
    try:
        places.find(name)
    except Unavailable as e:
        noted, reason = {}, str(e)
        try:
            buildable = build.interpreter(name).path
        except Unavailable as missing:
            reason = str(missing)
    return {
        "name": name,
        "built": not reason,
        "version": noted.get("framework", {}).get("version"),
        "python": noted.get("python"),
        "folder": str(places.folder(name)),
        "bytes": places.size(places.folder(name)),
        "created": noted.get("created"),
        "seconds": noted.get("seconds"),
        "can_be_built_on": buildable,
        "outdated": [str(path) for path in places.outdated(name)],
        "reason": reason,
    }


def _words(row: dict[str, Any]) -> str:
    if row["built"]:
        text = f"{row['version']} on Python {row['python']}, {row['bytes'] / 1e6:.0f} MB, in {row['folder']}"
    elif row["can_be_built_on"]:
        text = f"not built; can be, on {row['can_be_built_on']}: {row['reason']}"
    else:
        text = f"not built, and can't be: {row['reason']}"
    old = len(row["outdated"])
    return text + (f"; {old} of other versions of xframe (xframe env remove takes them too)" if old else "")


@app.command()
def create(
    names: Names = None, python: Python = None, if_possible: IfPossible = False, json: options.Json = False
) -> int:
    """Build environments: a minute each, and a few hundred MB. One that is there already is left alone."""
    from xframe.environments import build

    progress, failed = console.Progress(), 0
    for name, built in _each(names, lambda name: build.create(name, python, progress), progress):
        if isinstance(built, XframeError):
            if if_possible and not isinstance(built, UsageError):
                console.complain(XframeError(f"{name} is left out: {built}"))
            else:
                failed = max(failed, console.complain(built))
            row = {"name": name, "built": False, "reason": str(built)}
        else:
            row = {"name": name, "built": True, "interpreter": built.python, "variables": built.variables}
        with console.quiet_pipe():
            if json:
                print(jsonlib.dumps(row), flush=True)
            elif row["built"]:
                print(f"{name:8s} {row['interpreter']}", flush=True)
    return failed


@app.command()
def check(names: Names = None, json: options.Json = False) -> int:
    """Try built environments: one convolution in each, its result checked."""
    from xframe.environments import build

    progress, failed = console.Progress(), 0
    for name, facts in _each(names, lambda name: build.check(name, progress), progress):
        wrong = isinstance(facts, XframeError)
        failed = max(failed, console.complain(facts) if wrong else 0)
        row = {"name": name, "works": not wrong, **({"reason": str(facts)} if wrong else facts)}
        with console.quiet_pipe():
            if json:
                print(jsonlib.dumps(row), flush=True)
            elif not wrong:
                print(f"{name:8s} {facts['version']} works", flush=True)
    return failed


@app.command()
def remove(
    names: Annotated[list[str], typer.Argument(metavar="caffe|cntk|paddle|theano...", help="Which environments.")],
    json: options.Json = False,
) -> int:
    """Delete environments, unfinished ones and those of other versions of xframe too."""
    from xframe.environments import build

    with console.quiet_pipe():
        for name in _chosen(names):
            folders = [str(path) for path in build.remove(name, console.Progress())]
            if json:
                print(jsonlib.dumps({"name": name, "removed": folders}), flush=True)
            else:
                print(f"{name:8s} {'removed ' + ', '.join(folders) if folders else 'there was none'}", flush=True)
    return 0


def _each(names: list[str] | None, work: Any, progress: console.Progress) -> Iterator[tuple[str, Any]]:
    """Each name with what ``work`` gives for it, or the error that it raises."""
    for name in _chosen(names):
        try:
            done = work(name)
        except XframeError as e:
            done = e
        finally:
            progress.clear()
        yield name, done
