"""What an environment is made of: one row a framework. A new one is a row, a requirement file and a probe."""

import difflib
import hashlib
from pathlib import Path
from typing import NamedTuple

from xframe.errors import UsageError

_HERE = Path(__file__).parent
#: Raised when what building does changes, so that environments built before are not taken for those of today.
_FORMAT = 1


class Recipe(NamedTuple):
    """How to build an environment.

    Attributes
    ----------
    pythons
        Versions of Python that it works with, the preferred one first.
    steps
        What is done after pip: functions of :mod:`xframe.environments.steps`.
    variables
        Environment variables of its workers; ``{root}`` is the environment's folder.
    files
        Files beside this one that the steps use.
    """

    pythons: tuple[str, ...]
    steps: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    files: tuple[str, ...] = ()


RECIPES: dict[str, Recipe] = {
    "caffe": Recipe(("3.9", "3.8"), variables=(("GLOG_minloglevel", "2"),)),
    "cntk": Recipe(("3.6",), ("mpi_stub",), files=("mpi_stub.c",)),
    "paddle": Recipe(("3.11",)),
    "theano": Recipe(("3.9", "3.8"), ("theano_settings",), variables=(("THEANORC", "{root}/theanorc"),)),
}


def recipe(name: str) -> Recipe:
    """The recipe of an environment. Raises UsageError with the close names where there is none."""
    if name in RECIPES:
        return RECIPES[name]
    close = difflib.get_close_matches(name.lower(), RECIPES, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are: {', '.join(RECIPES)}"
    raise UsageError(f"unknown environment {name!r}: {hint}")


def requirements(name: str) -> Path:
    """The file of everything that pip installs: exact versions, and the SHA-256 of each file."""
    return _HERE / f"{name}.txt"


def probe(name: str) -> Path:
    """The script that shows that the framework works there: one small convolution, its result checked."""
    return _HERE / "probes" / f"probe_{name}.py"


def digest(name: str) -> str:
    """Eight hex digits that change with anything that the environment is made of."""
    made_of = hashlib.sha256(repr((_FORMAT, recipe(name))).encode())
    for path in (requirements(name), *(_HERE / f for f in recipe(name).files)):
        made_of.update(path.read_bytes())
    return made_of.hexdigest()[:8]
