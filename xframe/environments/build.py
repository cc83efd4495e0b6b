"""Makes environments: whole or not at all, and from where an earlier try got to."""

import contextlib
import json
import os
import platform
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xframe.environments import downloads, interpreters, places, recipes, running
from xframe.environments.interpreters import Interpreter
from xframe.environments.places import Built
from xframe.environments.running import Commands, Progress
from xframe.environments.steps import STEPS
from xframe.errors import Unavailable, XframeError

#: Seconds for the probe. Theano compiles the C code of its first convolution.
PROBE_LIMIT = 300.0
#: The only machines that all of the pinned files are for.
_WHEELS = "Linux x86_64"


def _silent(line: str) -> None:
    pass


def create(name: str, python: str | None = None, progress: Progress = _silent) -> Built:
    """The environment ``name``, built where it is not there yet.

    It is there once all of it is. After a kill at any point, the next call goes on with the files that were fetched;
    two calls at the same time build it once.

    Parameters
    ----------
    name
        One of ``recipes.RECIPES``.
    python
        The interpreter to build it on; where it is built on another one, it is built again. By default one is found.
    progress
        Told what is being done, a line each.

    Raises
    ------
    Unavailable
        Something that it needs is missing here: a Python, a compiler, the package index; or its framework does not work
        here. The message says what to do.
    UsageError
        There is no such environment, or ``python`` is of the wrong version.
    XframeError
        The folder can't be written, or pip gave something else than what is pinned.
    """
    recipe = recipes.recipe(name)
    chosen = interpreters.find(recipe.pythons, python) if python is not None else None
    if _fits(name, chosen):
        return places.find(name)
    chosen = chosen or interpreter(name)
    with _alone(name, progress) as held:
        if not _fits(name, chosen if python is not None else None):
            root = places.folder(name)
            places.forget(root)
            run = Commands(name, f"can't build the environment {name}", root / "log", held, progress)
            places.note(name, _built(name, root, chosen, run))
    return places.find(name)


def interpreter(name: str) -> Interpreter:
    """What the environment ``name`` can be built on here.

    Raises
    ------
    Unavailable
        There are no wheels for this machine, or there is no such Python here; the message says how to get one.
    """
    here = f"{platform.system()} {platform.machine()}"
    if here != _WHEELS:
        raise Unavailable(f"can't build the environment {name}: its wheels are for {_WHEELS}, and this is {here}")
    return interpreters.find(recipes.recipe(name).pythons)


def check(name: str, progress: Progress = _silent) -> dict[str, Any]:
    """What the framework of a built environment says of itself after a small convolution: ``version`` at least.

    Raises
    ------
    Unavailable
        It is not built, or does not work (any more).
    """
    places.find(name)
    with _alone(name, progress) as held:
        log = places.folder(name) / "log"
        broken = f"the environment {name} does not work (xframe env remove {name}, then create, makes it anew)"
        return _probed(name, Commands(name, broken, log, held, progress))


def remove(name: str, progress: Progress = _silent) -> list[Path]:
    """Delete the environment ``name``: today's, unfinished ones, and those of other recipes. The folders deleted."""
    found = list(places.all_of(name))
    if found:
        with _alone(name, progress):
            for root in found:
                places.remove(root)
    return found


@contextlib.contextmanager
def _alone(name: str, progress: Progress) -> Iterator[int]:
    """Hold the environment; errors of the file system in words."""
    try:
        with running.lock(places.base() / f".{name}.lock", lambda line: progress(f"{name}: {line}")) as held:
            yield held
    except OSError as e:
        raise XframeError(
            f"can't write to {places.base()}: {e.strerror or e}; free some space, or set XFRAME_HOME to another folder"
        ) from e


def _fits(name: str, chosen: Interpreter | None) -> bool:
    """Whether the environment is there, and on the interpreter that was chosen, if one was."""
    try:
        places.find(name)
    except Unavailable:
        return False
    noted = places.record(name) or {}
    return chosen is None or noted.get("interpreter") == chosen.path


def _built(name: str, root: Path, chosen: Interpreter, run: Commands) -> dict[str, Any]:
    """Build in ``root``, where only what was fetched may be kept; the facts to note."""
    started = time.monotonic()
    root.mkdir(parents=True, exist_ok=True)
    (root / "log").write_bytes(b"")
    shutil.rmtree(root / "venv", ignore_errors=True)
    run(f"making a virtual environment of Python {chosen.version}", [chosen.path, "-m", "venv", root / "venv"])
    python = places.interpreter(name)

    def pip(what: str, arguments: list[str]) -> None:
        run(what, [python, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments])

    wanted = downloads.pins(recipes.requirements(name))
    fetched = downloads.fetch(wanted, root / "downloads", pip)
    # All is here and verified: neither the network nor the user's settings have a say any more.
    install = ["install", "--isolated", "--no-index", "--no-deps", "--no-compile"]
    wheels = [str(path) for path in fetched if path.suffix == ".whl"]
    sources = [str(path) for path in fetched if path.suffix != ".whl"]
    pip(f"installing {len(wheels)} packages", [*install, *wheels])
    if sources:
        pip(f"installing {len(sources)} from source", [*install, "--no-build-isolation", *sources])
    for step in recipes.recipe(name).steps:
        STEPS[step](root, run)
    facts = _probed(name, run)
    shutil.rmtree(root / "downloads")
    return {
        "name": name,
        "python": chosen.version,
        "interpreter": chosen.path,
        "packages": [pin.text for pin in wanted],
        "framework": facts,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": round(time.monotonic() - started, 1),
    }


def _probed(name: str, run: Commands) -> dict[str, Any]:
    """What the probe says; raises Unavailable where the framework does not work."""
    variables = {"OMP_NUM_THREADS": str(os.cpu_count() or 1), **places.variables(name)}
    printed = run("trying it", [places.interpreter(name), recipes.probe(name)], variables, PROBE_LIMIT)
    try:
        facts = json.loads(printed.splitlines()[-1])
        return {"version": str(facts["version"]), **facts}
    except (ValueError, IndexError, KeyError, TypeError):
        raise Unavailable(f"the environment {name} is built, but its probe told nothing: {printed[-200:]!r}") from None
