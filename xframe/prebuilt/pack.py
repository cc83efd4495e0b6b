"""What must travel to a machine that nothing can be installed on, in pieces that a slow or small door lets through."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import xframe
from xframe import files, nvidia, zoo
from xframe.errors import Unavailable, UsageError
from xframe.prebuilt import distributions, folder, pieces, seeds, unpack
from xframe.prebuilt.distributions import HERE, PIECE

#: What xframe needs; TVM; and what tuning needs.
NEEDED = ("numpy", "onnx", "typer", "rich")
RUNTIME = ("apache-tvm", "apache-tvm-ffi")
TUNING = ("xgboost-cpu", "cloudpickle", "psutil", "tornado")
#: Of TVM, what nothing here needs, and what only compiling needs: 250 MB.
NEEDLESS, COMPILER = "/3rdparty/", re.compile(r"libtvm_compiler|/(include|src)/|\.(hpp|h|cuh|cc|cu)$")
RUNTIME_LIBRARY = nvidia.FILES["cudart"][0][0]
#: What xframe is in a checkout; where it is installed, models and schedules are within it, and what is beside it is
#: not its own.
OWN, DATA = ("xframe", "models", "schedules"), "xframe/data"
_ROOT = Path(xframe.__file__).resolve().parents[1]
SCRIPT = """#!/bin/sh
# Runs the check with what is in the pieces beside this file. They are for Python {python}: PYTHON=... names another one
# than the first on the PATH.
here=$(cd "$(dirname "$0")" && pwd)
for python in $PYTHON python3 python{python} python; do
    if "$python" -c 'import sys; sys.exit(sys.version_info[:2] != ({comma}))' 2>/dev/null; then
        exec "$python" "$here/gpu_check.py" "$@"
    fi
done
echo "gpu_check: these pieces are for Python {python}, and there is none on the PATH: pack with --python X.Y" >&2
exit 2
"""


def pack(
    output: Path,
    built: Path | None = None,
    python: str = HERE,
    piece: int = PIECE,
    without: Sequence[str] = (),
    tell: Callable[[str], None] = lambda line: None,
    more: Sequence[str] = (),
) -> list[Path]:
    """Write ``gpu_check.tar.xz.000``, ... of at most ``piece`` MiB each, and ``gpu_check.sh``, which unpacks and runs.

    They hold xframe and the Python packages that it needs, for Python ``python``, but those ``without``; and TVM: with
    ``built``, a folder of ``xframe build``, its runtime and that folder, whose seeded weights are made there; else all
    of it, with what tuning needs. Packages that are there already are not replaced, but by TVM and by ``more``: what
    pip has by these names (``name`` or ``name==version``), without what they require. Existing pieces are replaced.

    Raises
    ------
    Unavailable
        TVM is not installed here, or a package can't be had for that Python.
    UsageError
        There is no such Python, or ``built`` holds no compiled networks.
    """
    if not re.fullmatch(r"3\.\d+", python) or int(python[2:]) < 11:
        raise UsageError(f"--python {python}: xframe needs 3.11 or later, as 3.12")
    if piece < 1:
        raise UsageError(f"--piece {piece} makes no sense: it must be at least 1 MiB")
    if importlib.util.find_spec("tvm") is None:
        raise Unavailable("packing takes TVM along, and it is not installed here: pip install 'xframe-eval[tvm]'")
    if built:
        folder.read(built)
    parts: list[Path] = []
    with tempfile.TemporaryDirectory() as scratch, pieces.archive(output, piece << 20, parts) as tar:
        for source, name in contents(built, python, without, Path(scratch), tell, more):
            tar.add(source, arcname=name, recursive=False)
    digests = {path.name: files.sha256(path) for path in parts}
    ours = [*map(distributions.canonical, RUNTIME), *map(distributions.named, more)]
    about = {"python": python, "pieces": digests, "ours": ours, "without": list(without)}
    script, start, described = (output / name for name in ("gpu_check.sh", "gpu_check.py", unpack.ABOUT))
    script.write_text(SCRIPT.format(python=python, comma=python.replace(".", ", ")), encoding="utf-8")
    script.chmod(0o755)
    shutil.copyfile(unpack.__file__, start)
    described.write_text(json.dumps(about, indent=1), encoding="utf-8")
    return [*parts, script, start, described]


def contents(
    built: Path | None,
    python: str,
    without: Sequence[str],
    scratch: Path,
    tell: Callable[[str], None],
    more: Sequence[str] = (),
) -> Iterator[tuple[Path, str]]:
    """(file, its place) of everything that travels; what is made for it is in ``scratch``."""
    for path in own(_ROOT):
        yield path, path.relative_to(_ROOT).as_posix()
    apart = [*without, *map(distributions.named, more)]
    names = distributions.closure([*NEEDED, *RUNTIME, *(() if built else TUNING)], apart)
    found = distributions.files(names, python, scratch)
    for path, place in itertools.chain(found, distributions.fetched(more, python, scratch / "more")):
        tvm = place.startswith(RUNTIME)
        if not (tvm and (NEEDLESS in place or (built and COMPILER.search(place)))):
            yield path, f"{unpack.PACKAGES}/{place}"
    if (runtime := cuda_runtime()) is None:
        tell(f"{RUNTIME_LIBRARY} is not here, so it is not packed: TVM needs that of the other machine")
    else:
        yield runtime, f"{unpack.LIBRARIES}/{RUNTIME_LIBRARY}"
    if built:
        yield from _compiled(built, scratch, tell)


def own(root: Path) -> Iterator[Path]:
    """The files of xframe itself in ``root``, the folder that it is imported from."""
    for part in OWN[:1] if _installed(root) else OWN:
        yield from _files(root / part)


def _installed(root: Path) -> bool:
    return (root / DATA).is_dir()


def _compiled(built: Path, scratch: Path, tell: Callable[[str], None]) -> Iterator[tuple[Path, str]]:
    """A folder of compiled networks, without the parameters that are made of seeds, and with the models they are of."""
    models = dict.fromkeys(entry.model for entry in folder.read(built)[1])
    made = seeds.recipes(built, list(models))
    left = sum((built / folder.PARAMETERS / name).stat().st_size for name in made)
    tell(f"{len(made)} parameters ({left >> 20} MiB) are seeded weights: they are made there")
    yield seeds.write(scratch, made), f"{unpack.BUILT}/{seeds.RECIPES}"
    for path in _files(built):
        if path.parent.name != folder.PARAMETERS or path.name not in made:
            yield path, f"{unpack.BUILT}/{path.relative_to(built).as_posix()}"
    place = f"{DATA}/models" if _installed(_ROOT) else "models"
    for name in models:
        file = next(f for f in (where / f"{name}.py" for where in zoo.folders()) if f.is_file())
        if _ROOT not in file.resolve().parents:
            yield file, f"{place}/{file.name}"


def cuda_runtime() -> Path | None:
    """The CUDA runtime that TVM's needs, which a machine with a driver alone lacks; None where it is not here."""
    with contextlib.suppress(Unavailable):
        found = nvidia.path("cudart")
        return found if found.name.startswith(RUNTIME_LIBRARY) else None
    return None


def _files(folder: Path) -> Iterator[Path]:
    return (p for p in sorted(folder.rglob("*")) if p.is_file() and "__pycache__" not in p.parts)
