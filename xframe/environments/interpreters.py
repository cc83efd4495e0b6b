"""Finds a Python of a version: one that was named, or on PATH, or kept by pyenv, uv or conda."""

import contextlib
import functools
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from xframe.errors import Unavailable, UsageError

#: Asked of each candidate: its version, where it really is, and what keeps it from making virtual environments.
_QUESTION = """
import json, sys
lack = ""
for module in ("venv", "ensurepip", "ssl"):
    try:
        __import__(module)
    except ImportError as e:
        lack = lack or module
print(json.dumps(["%d.%d" % sys.version_info[:2], sys.executable, lack, sys.maxsize > 2**32]))
"""
_LIMIT = 30.0  # seconds for an answer
#: The oldest Python that uv has.
_OLDEST_OF_UV = (3, 8)


class Interpreter(NamedTuple):
    """A Python that virtual environments can be made with: its path, and its version, as ``"3.8"``."""

    path: str
    version: str


def find(versions: Sequence[str], given: str | None = None) -> Interpreter:
    """A Python of one of ``versions``, the earlier ones preferred.

    Parameters
    ----------
    versions
        Such as ``("3.9", "3.8")``.
    given
        The path of the only one to consider, or its name on PATH.

    Raises
    ------
    Unavailable
        There is none; the message says what was found instead and how to get one.
    UsageError
        ``given`` is no Python of these versions.
    """
    if given is not None:
        return _given(versions, given)
    troubles = []
    for version in versions:
        for path in candidates(version):
            interpreter, trouble = _ask(path)
            if interpreter and interpreter.version == version:
                return interpreter
            if trouble:
                troubles.append(trouble)
    found = f" ({'; '.join(dict.fromkeys(troubles))})" if troubles else ""
    raise Unavailable(
        f"no Python {' or '.join(versions)} on PATH, nor in pyenv, uv or conda{found}: {_how_to_get(versions)},"
        " or name one with --python PATH"
    )


def _given(versions: Sequence[str], given: str) -> Interpreter:
    interpreter, trouble = _ask(given)
    if interpreter is None:
        raise UsageError(f"--python {given}: {trouble or 'it is no Python that runs here'}")
    if interpreter.version not in versions:
        raise UsageError(f"--python {given} is Python {interpreter.version}; Python {' or '.join(versions)} is needed")
    return interpreter


def _how_to_get(versions: Sequence[str]) -> str:
    ways = [f"pyenv install {versions[0]}", f"conda create -n py{versions[0].replace('.', '')} python={versions[0]}"]
    if tuple(int(n) for n in versions[0].split(".")) >= _OLDEST_OF_UV:
        ways.insert(0, f"uv python install {versions[0]}")
    return f"install it ({', or '.join(ways)})"


def candidates(version: str) -> Iterator[str]:
    """Paths where a Python of ``version`` may be; each exists and can be executed."""
    seen = set()
    for path in _places(version):
        if os.access(path, os.X_OK) and path.is_file() and str(path) not in seen:
            seen.add(str(path))
            yield str(path)


def _places(version: str) -> Iterator[Path]:
    home = Path.home()
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if folder:
            yield Path(folder).absolute() / f"python{version}"
    pyenv = Path(os.environ.get("PYENV_ROOT") or home / ".pyenv")
    for found in _newest_first(pyenv / "versions", f"{version}.*"):
        yield found / "bin" / "python"
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python")
    for found in _newest_first(uv, f"cpython-{version}.*"):
        yield found / "bin" / f"python{version}"
    for prefix in _conda_environments(home):
        yield prefix / "bin" / f"python{version}"


def _newest_first(folder: Path, pattern: str) -> list[Path]:
    def numbers(path: Path) -> list[int]:
        return [int(n) for n in path.name.replace("-", ".").split(".") if n.isdigit()]

    return sorted(folder.glob(pattern), key=numbers, reverse=True)


def _conda_environments(home: Path) -> Iterator[Path]:
    """The active environment, those that conda has noted, and those of installations at the usual places."""
    roots = [home / name for name in ("miniconda3", "anaconda3", "miniforge3", "mambaforge", ".conda", "micromamba")]
    if os.environ.get("CONDA_EXE"):
        roots.insert(0, Path(os.environ["CONDA_EXE"]).parents[1])
    if os.environ.get("MAMBA_ROOT_PREFIX"):
        roots.insert(0, Path(os.environ["MAMBA_ROOT_PREFIX"]))
    if os.environ.get("CONDA_PREFIX"):
        yield Path(os.environ["CONDA_PREFIX"])
    with contextlib.suppress(OSError, ValueError):
        yield from map(Path, (home / ".conda" / "environments.txt").read_text(encoding="utf-8").split())
    for root in roots:
        yield root
        yield from sorted((root / "envs").glob("*"))


@functools.cache
def _ask(path: str) -> tuple[Interpreter | None, str]:
    """What the file at ``path`` is: an interpreter to build with, or the reason why not ("": it is none at all)."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    try:
        done = subprocess.run(
            [path, "-c", _QUESTION], capture_output=True, text=True, timeout=_LIMIT, env=env, stdin=subprocess.DEVNULL
        )
        version, executable, lack, wide = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError, TypeError):
        return None, ""  # such as a shim of pyenv for a version that is not switched on
    if lack:
        debian = f": apt install python{version}-venv" if path.startswith("/usr/bin/") else ""
        return None, f"{path} has no module {lack}{debian}"
    if not wide:
        return None, f"{path} is a 32-bit Python"
    return Interpreter(executable, version), ""
