"""The commands that take xframe to another machine: ``build`` and ``gpu-check``."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from xframe import files
from xframe.cli import console, options
from xframe.errors import UsageError, XframeError
from xframe.prebuilt.distributions import HERE, PIECE

Exporter = Annotated[str, typer.Option(metavar="NAME", help="Whose export TVM compiles.")]


def build(
    model: Annotated[str, typer.Option(metavar="NAME", help="A registered model.")] = "alexnet",
    framework: Exporter = "pytorch",
    batch: options.Batches = None,
    lowering: Annotated[
        str, typer.Option(metavar="A,B", help="auto, gemm, direct, winograd, fft.")
    ] = "auto,gemm,direct,winograd,fft",
    fallback: Annotated[str, typer.Option(metavar="NAME", help="Lowering where one refuses a site.")] = "direct",
    target: Annotated[str, typer.Option(metavar="sm_90", help="GPU architecture, or TVM's target of a CPU.")] = "sm_90",
    sites: Annotated[
        bool, typer.Option("--sites/--no-sites", help="Each convolution by itself, too, at the largest batch.")
    ] = True,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Where it goes.")] = Path("built"),
) -> int:
    """Compile a network for another machine, which needs TVM's runtime alone: see scripts/gpu_check.py --prebuilt."""
    from xframe import planning, registry
    from xframe.prebuilt import build as building

    labels = options.names("lowering", lowering) or ()
    for name in labels:
        if name != planning.AUTO:
            registry.resolve(registry.LOWERINGS, name, "lowering")
    name = registry.resolve(registry.FRAMEWORKS, framework, "framework")
    batches = options.numbers("batch", batch) or (1,)
    if min(batches) < 1:
        raise UsageError(f"--batch {min(batches)} makes no sense: it must be at least 1")
    files.check_writable(output)
    progress = console.Progress()
    try:
        entries = building.build(model, name, batches, labels, target, output, fallback, sites=sites, progress=progress)
    finally:
        progress.clear()
    for entry in entries:
        print("\n  ".join([f"{entry.name}: {entry.reason or 'compiled'}", *building.schedules(output, entry)]))
    made = [e for e in entries if not e.reason]
    print(f"{len(made)} of {len(entries)} compiled for {target} in {output}", file=sys.stderr)
    return int(not made)


def gpu_check(
    minutes: Annotated[float, typer.Option(help="Time for all of it.")] = 10.0,
    model: Annotated[str, typer.Option(metavar="NAME", help="A registered model.")] = "alexnet",
    framework: Exporter = "pytorch",
    device: Annotated[str, typer.Option(metavar="cuda[:N,M]", help="The GPU, or several in turn.")] = "cuda",
    batch: Annotated[str, typer.Option(metavar="1,128", help="Batch sizes, in the order of their worth.")] = "1,128,16",
    prebuilt: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Run what xframe build made; nothing is compiled here.")
    ] = None,
    pack: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Only write what must travel to a machine that nothing can be installed on."),
    ] = None,
    python: Annotated[str, typer.Option(metavar="X.Y", help="Of --pack: the Python of that machine.")] = HERE,
    piece: Annotated[int, typer.Option(metavar="MiB", help="Of --pack: size of a file, at most.")] = PIECE,
    without: Annotated[
        str | None, typer.Option(metavar="A,B", help="Of --pack: packages that the machine has already.")
    ] = None,
    take: Annotated[
        str | None,
        typer.Option(
            "--with", metavar="A,B==1.2", help="Of --pack: further packages, which come before the machine's."
        ),
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Where results go.")] = Path(
        "gpu-check"
    ),
    archive: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where they go as one file, too: DIR.tar.gz.")
    ] = None,
) -> int:
    """Check a machine with an NVIDIA GPU: what is there, every lowering against float64, times, ratios to cuDNN.

    What is done is written as it is done, and not done again by the next run with the same folder.
    """
    from xframe import comparison, registry
    from xframe.gpucheck import check, words
    from xframe.gpucheck.archive import Archived
    from xframe.gpucheck.settings import Settings
    from xframe.worker.host import in_bus_order

    if not minutes > 0:
        raise UsageError(f"--minutes {minutes:g} makes no sense: it must be above 0")
    if not device.startswith("cuda"):
        raise UsageError(f"--device {device}: this checks GPUs: cuda, cuda:<number> or cuda:<number>,<number>")
    devices = comparison.devices(device)
    if archive is not None and devices[1:]:
        raise UsageError(
            f"--archive {archive} is one file, and --device {device} makes one for each GPU, beside its folder in"
            f" {output}: leave it out, or name one GPU"
        )
    if pack is not None:
        several = (options.names(*given) or () for given in (("without", without), ("with", take)))
        return _pack(pack, prebuilt, python, piece, *several)
    files.check_writable(output)
    if archive is not None:
        files.check_writable(archive.parent)
    exporter = registry.resolve(registry.FRAMEWORKS, framework, "framework")
    batches = options.numbers("batch", batch) or (1,)
    if min(batches) < 1:
        raise UsageError(f"--batch {min(batches)} makes no sense: it must be at least 1")
    in_bus_order(os.environ)  # for what is asked of the GPUs in this process
    codes = []
    with _cache(output):
        for one in devices:  # each has a folder of its own, and as much time as any other
            where = output / one.replace(":", "-") if devices[1:] else output
            settings = Settings(model, exporter, one, batches, minutes / len(devices), prebuilt)
            progress = console.Progress()
            try:
                found = check.check(settings, journal := Archived(where, archive), progress)
            finally:
                progress.clear()
            text = "\n".join(words.lines(found))
            print(f"{one}\n{text}\n" if devices[1:] else text)
            print(
                f"wrote {where}" + (f"; {journal.trouble}" if journal.trouble else f" and {journal.path}"),
                file=sys.stderr,
            )
            codes.append(words.exit_code(found) or int(bool(journal.trouble)))
            if words.stopped(found):
                break
    return max(codes)


def _cache(output: Path) -> contextlib.AbstractContextManager[None]:
    """Where the user's cache folder can't be written, ``output`` has one: else no network would have an export."""
    from xframe.gpucheck.archive import CACHE

    try:
        files.check_writable(files.home())
    except XframeError as e:
        print(f"{e}: for now {output / CACHE} takes its place; $XFRAME_HOME names another", file=sys.stderr)
        return files.home_at(output / CACHE)
    return contextlib.nullcontext()


def _pack(
    output: Path, built: Path | None, python: str, piece: int, without: Sequence[str], more: Sequence[str]
) -> int:
    from xframe.prebuilt import pack as packing

    def tell(line: str) -> None:
        print(line, file=sys.stderr)

    for path in packing.pack(output, built, python, piece, without, tell, more):
        print(f"{path.stat().st_size:>10} {path}")
    where = f"{platform.system()} {platform.machine()}"
    tell(f"for Python {python} on {where}; there: sh {output.name}/gpu_check.sh -o found")
    return 0
