"""The commands that take xframe to another machine: ``build`` and ``gpu-check``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from xframe.cli import console, options
from xframe.errors import UsageError


def build(
    model: Annotated[str, typer.Option(metavar="NAME", help="A registered model.")] = "alexnet",
    framework: Annotated[str, typer.Option(metavar="NAME", help="Whose export is compiled.")] = "pytorch",
    batch: options.Batches = None,
    lowering: Annotated[
        str, typer.Option(metavar="A,B", help="auto, gemm, direct, winograd, fft.")
    ] = "auto,gemm,direct,winograd,fft",
    fallback: Annotated[str, typer.Option(metavar="NAME", help="Lowering where one refuses a site.")] = "direct",
    target: Annotated[str, typer.Option(metavar="sm_90", help="GPU architecture, or TVM's target of a CPU.")] = "sm_90",
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
    console.check_writable(output)
    progress = console.Progress()
    try:
        entries = building.build(model, name, batches, labels, target, output, fallback, progress=progress)
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
    device: Annotated[str, typer.Option(metavar="cuda[:N]", help="The GPU.")] = "cuda",
    batch: Annotated[
        str, typer.Option(metavar="1,128", help="Batch sizes, in the order to measure them.")
    ] = "1,128,16",
    prebuilt: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Run what xframe build made; nothing is compiled here.")
    ] = None,
    pack: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Only write what must travel to a bare machine, in pieces of 60 MiB."),
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Where results go.")] = Path(
        "gpu-check"
    ),
) -> int:
    """Check a machine with an NVIDIA GPU: what is there, every lowering against float64, times, ratios to cuDNN.

    What is done is written as it is done, and not done again by the next run with the same folder.
    """
    from xframe.gpucheck import journal, steps, words

    if not minutes > 0:
        raise UsageError(f"--minutes {minutes:g} makes no sense: it must be above 0")
    if not device.startswith("cuda"):
        raise UsageError(f"--device {device}: this checks GPUs, cuda or cuda:<number>")
    if pack is not None:
        return _pack(prebuilt, pack)
    console.check_writable(output)
    batches = options.numbers("batch", batch) or (1,)
    settings = steps.Settings(model, device=device, batches=batches, minutes=minutes, prebuilt=prebuilt)
    progress = console.Progress()
    try:
        found = steps.check(settings, journal.Journal(output), progress)
    finally:
        progress.clear()
    text = "\n".join(words.lines(found))
    (output / "summary.txt").write_text(text + "\n", encoding="utf-8")
    print(text)
    print(f"wrote {output}", file=sys.stderr)
    return int(not words.complete(found))


def _pack(prebuilt: Path | None, output: Path) -> int:
    from xframe.prebuilt import folder
    from xframe.prebuilt import pack as packing

    if prebuilt is None:
        raise UsageError("--pack takes what xframe build made: name its folder with --prebuilt")
    folder.read(prebuilt)
    for path in packing.pack(prebuilt, output):
        print(f"{path.stat().st_size:>10} {path}")
    return 0
