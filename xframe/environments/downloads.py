"""What pip is to install: the pinned files, fetched one by one so that nothing is fetched twice."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from xframe import files
from xframe.errors import XframeError


class Pin(NamedTuple):
    """One requirement: ``name==version`` and the SHA-256 digests of the files that may be taken for it."""

    text: str
    digests: frozenset[str]


def pins(path: Path) -> list[Pin]:
    """The requirements of a file.

    Raises
    ------
    XframeError
        One is not pinned to a version and to the files of that version.
    """
    found = []
    text = re.sub(r"(?m)#.*$", "", path.read_text(encoding="utf-8")).replace("\\\n", " ")
    for line in filter(None, map(str.strip, text.splitlines())):
        requirement, *options = line.split()
        digests = frozenset(re.findall(r"--hash=sha256:([0-9a-f]{64})(?=\s|$)", line))
        if not re.fullmatch(r"[\w.-]+==[\w.+!-]+", requirement) or len(digests) != len(options) or not digests:
            raise XframeError(f"{path}: {line!r} is not pinned: write NAME==VERSION --hash=sha256:...")
        found.append(Pin(requirement, digests))
    return found


def fetch(wanted: list[Pin], folder: Path, pip: Callable[[str, list[str]], None]) -> list[Path]:
    """The file of each pin, in ``folder``; those that are there already are not fetched again.

    Parameters
    ----------
    wanted
        The requirements.
    folder
        Where the files go; it is kept between tries.
    pip
        Called with what is being done, in words, and the arguments of pip.

    Raises
    ------
    XframeError
        Pip gave another file than the pinned one; and whatever ``pip`` raises.
    """
    folder.mkdir(parents=True, exist_ok=True)
    have = _by_digest(folder.iterdir())
    for number, pin in enumerate(wanted, 1):
        if pin.digests & have.keys():
            continue
        file = folder / "wanted.txt"
        file.write_text(" ".join([pin.text, *(f"--hash=sha256:{d}" for d in sorted(pin.digests))]) + "\n")
        arguments = ["download", "--no-deps", "--require-hashes", "--retries", "3", "--dest", str(folder)]
        pip(f"fetching {pin.text} ({number} of {len(wanted)})", [*arguments, "--requirement", str(file)])
        file.unlink()
        have = _by_digest(folder.iterdir())
        if not pin.digests & have.keys():
            raise XframeError(f"pip fetched no file for {pin.text} that is one of the pinned ones; look into {folder}")
    return [have[next(iter(pin.digests & have.keys()))] for pin in wanted]


def _by_digest(paths: Iterable[Path]) -> dict[str, Path]:
    return {files.sha256(path): path for path in paths if path.is_file()}
