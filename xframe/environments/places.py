"""Where environments are, and whether they are there."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from xframe import files
from xframe.environments import recipes
from xframe.errors import Unavailable

#: Written last, removed first: an environment is there when this file is.
_RECORD = "environment.json"


class Built(NamedTuple):
    """An environment that is there: its interpreter, and the environment variables of its workers."""

    python: str
    variables: dict[str, str]


def base() -> Path:
    """The folder of all environments: ``$XFRAME_ENVIRONMENTS``, else ``environments`` in the cache folder."""
    given = os.environ.get("XFRAME_ENVIRONMENTS")
    return Path(given).absolute() if given else files.home().absolute() / "environments"


def folder(name: str) -> Path:
    """Where the environment of today's recipe is, or would be. Raises UsageError where there is no such recipe."""
    return base() / f"{name}-{recipes.digest(name)}"


def interpreter(name: str) -> Path:
    """The interpreter of the environment, or where it would be."""
    return folder(name) / "venv" / "bin" / "python"


def variables(name: str) -> dict[str, str]:
    """Environment variables of the environment's workers."""
    root = str(folder(name))
    return {variable: text.replace("{root}", root) for variable, text in recipes.recipe(name).variables}


def find(name: str) -> Built:
    """The environment ``name``.

    Raises
    ------
    Unavailable
        It is not built, or the interpreter that it was built on is gone; the message says what to run.
    UsageError
        There is no such environment.
    """
    python = interpreter(name)
    if record(name) is None:
        why = "was built by another version of xframe" if outdated(name) else "is not built"
        raise Unavailable(f"the environment {name} {why}: run xframe env create {name}")
    if not os.access(python, os.X_OK):
        gone = os.path.realpath(python)
        raise Unavailable(f"the environment {name} has lost its Python, {gone}: run xframe env create {name}")
    return Built(str(python), variables(name))


def record(name: str) -> dict[str, Any] | None:
    """What was noted when the environment was built; None where it is not (wholly) built."""
    try:
        noted = json.loads((folder(name) / _RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return noted if isinstance(noted, dict) else None


def note(name: str, facts: dict[str, Any]) -> None:
    """Say that the environment is built. Raises XframeError when that can't be written."""
    with files.atomic(folder(name) / _RECORD) as part:
        part.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def forget(root: Path) -> None:
    """Say that the environment in ``root`` is not built (any more)."""
    (root / _RECORD).unlink(missing_ok=True)


def all_of(name: str) -> Iterator[Path]:
    """The folders of an environment: today's, parts of one, and those of other recipes."""
    recipes.recipe(name)
    for path in sorted(base().glob(f"{name}-*")):
        digits = path.name.removeprefix(f"{name}-")
        if path.is_dir() and not path.is_symlink() and len(digits) == 8 and set(digits) <= set("0123456789abcdef"):
            yield path


def outdated(name: str) -> list[Path]:
    """Environments of that name that another recipe made."""
    return [path for path in all_of(name) if path != folder(name) and (path / _RECORD).exists()]


def size(root: Path) -> int:
    """Bytes of the files below ``root``; 0 where it is not."""
    return sum(path.lstat().st_size for path in root.rglob("*") if path.is_file() and not path.is_symlink())


def remove(root: Path) -> None:
    """Delete an environment; whoever looks for it meanwhile finds it whole or not at all."""
    forget(root)
    shutil.rmtree(root)
