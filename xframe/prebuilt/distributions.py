"""The files of Python packages that travel: those installed here, or where a package is for one Python, another's."""

from __future__ import annotations

import contextlib
import platform
import re
import subprocess
import sys
import zipfile
from collections.abc import Collection, Iterator, Sequence
from importlib import metadata
from pathlib import Path

from xframe.errors import Unavailable

#: The Python that packs, and how many MiB a piece has at most.
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
PIECE = 48
#: The last parts of names, and folders, of what no program needs.
LEFT_OUT, FOLDERS = (".a", ".lib", ".pyc", ".pyi"), frozenset({"tests", "__pycache__"})
#: C libraries (2.n) for which packages are built; pip takes a name for exactly itself.
_GLIBC = range(5, 36)


def closure(names: Sequence[str], without: Collection[str] = ()) -> list[str]:
    """These distributions and all that they require in turn, but for ``without`` and what that alone requires.

    One that is not installed here is not required here.
    """
    left_out = {canonical(name) for name in without}
    found = [n for n in dict.fromkeys(map(canonical, names)) if n not in left_out and _installed(n)]
    for name in found:
        plain = (r for r in metadata.requires(name) or () if "extra ==" not in r)
        needed = dict.fromkeys(map(named, plain))
        found += [n for n in needed if n not in left_out and n not in found and _installed(n)]
    return found


def canonical(name: str) -> str:
    """A distribution's name as registries compare them."""
    return re.sub(r"[-_.]+", "-", name).lower()


def named(spec: str) -> str:
    """The distribution of ``name``, ``name==version`` or the like."""
    return canonical(re.split(r"[^\w.-]", spec, maxsplit=1)[0])


def runs(name: str, python: str) -> bool:
    """Whether what is installed here of ``name`` is for Python ``python`` (``3.12``), too."""
    number = int(python.partition(".")[2])
    for tag in re.findall(r"^Tag: (\S+)", metadata.distribution(name).read_text("WHEEL") or "", re.M):
        interpreter, abi, _ = tag.split("-", 2)
        if (interpreter, abi) == ("py3", "none"):
            return True
        if found := re.fullmatch(r"cp3(\d+)", interpreter):
            made = int(found[1])
            if made == number or (abi == "abi3" and made <= number):
                return True
    return False


def files(names: Sequence[str], python: str, folder: Path) -> Iterator[tuple[Path, str]]:
    """(file, its place in ``<name>/``) of these distributions, for Python ``python``.

    Those that are installed here for another Python alone are fetched into ``folder``, in the same version.

    Raises
    ------
    Unavailable
        One can't be had for that Python.
    """
    other = [n for n in names if python != HERE and not runs(n, python)]
    for name in names:
        if name not in other:
            for file in metadata.files(name) or ():
                yield from _wanted(Path(str(file.locate())), name, Path(*file.parts))
    yield from fetched([f"{n}=={metadata.version(n)}" for n in other], python, folder)


def fetched(specs: Sequence[str], python: str, folder: Path) -> Iterator[tuple[Path, str]]:
    """As :func:`files`, of what :func:`fetch` fetches into ``folder``, which holds nothing else of the kind."""
    for wheel in fetch(specs, python, folder) if specs else ():
        root = wheel.with_suffix("")
        with zipfile.ZipFile(wheel) as data:
            data.extractall(root)
        for path in sorted(root.rglob("*")):
            yield from _wanted(path, canonical(wheel.name.partition("-")[0]), path.relative_to(root))


def fetch(specs: Sequence[str], python: str, folder: Path) -> list[Path]:
    """Wheels of these (``name==version``) for CPython ``python`` and this machine's kind of processor, by pip.

    Raises
    ------
    Unavailable
        pip is not here, or finds none.
    """
    machine = platform.machine()
    names = [f"manylinux_2_{n}_{machine}" for n in _GLIBC] + [f"manylinux{n}_{machine}" for n in ("1", "2010", "2014")]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["-d", str(folder), "--implementation", "cp", "--python-version", python]
    done = subprocess.run(
        [*command, *(f"--platform={name}" for name in names), *specs], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Unavailable(
            f"{', '.join(specs)} for Python {python} can't be had by pip ({done.stderr.strip()[-400:]}): pack with"
            f" Python {python}, or name what is there already with --without"
        )
    return sorted(folder.glob("*.whl"))


def _installed(name: str) -> bool:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return bool(metadata.distribution(name))
    return False


def _wanted(path: Path, name: str, place: Path) -> Iterator[tuple[Path, str]]:
    needless = place.name.endswith(LEFT_OUT) or FOLDERS.intersection(place.parts)
    if not needless and ".." not in place.parts and path.is_file():
        yield path, f"{name}/{place.as_posix()}"
