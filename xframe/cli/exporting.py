"""The command ``export``."""

from __future__ import annotations

import json as jsonlib
import time
from pathlib import Path
from typing import Annotated

import typer

from xframe import files
from xframe.cli import console, options
from xframe.errors import UsageError, XframeError
from xframe.types import Artifact


def export(
    given: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE...]", help="With --from: the files of the model, model.prototxt model.caffemodel."
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="FRAMEWORK", help="Convert a model in files of a framework's own; caffe can."),
    ] = None,
    model: Annotated[str, typer.Option(metavar="NAME", help="A registered model.")] = "alexnet",
    framework: options.Frameworks = None,
    batch: options.Batches = None,
    json: options.Json = False,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="DIR|FILE.onnx", help="Where the files go; with --from also the file."),
    ] = Path("."),
) -> int:
    """Write a model as each framework exports it to ONNX, or convert one that is in a framework's own files."""
    from xframe import environment, exports, registry, zoo

    if source is not None:
        if framework is not None:
            raise UsageError("--from names the framework that the files are of: leave out --framework")
        return _convert(source, given or [], options.numbers("batch", batch), output, json)
    if given:
        raise UsageError(f"{given[0]}: files are taken with --from, say --from caffe model.prototxt model.caffemodel")
    names = registry.chosen(registry.FRAMEWORKS, options.names("framework", framework), "framework")
    batches = options.numbers("batch", batch) or (1,)
    if min(batches) < 1:
        raise UsageError(f"--batch {min(batches)} makes no sense: it must be at least 1")
    spec = zoo.spec(model)
    files.check_writable(output)
    weights = zoo.weights_file(spec)
    failed = False
    for name in names:
        for size in batches:
            progress = console.Progress()
            progress(f"{name}: export, batch {size}")
            try:
                made, seconds, cached = exports.export(name, spec, weights, size, len(environment.allowed_cpus()))
            except XframeError as e:
                failed = True
                progress.clear()
                console.complain(e)
                continue
            path = output / f"{model}-{name}-b{size}.onnx"
            with files.atomic(path) as part:
                part.write_bytes(Path(made.path).read_bytes())
            progress.clear()
            _tell(path, made, name, size, seconds, cached, json)
    return int(failed)


def _convert(framework: str, given: list[Path], batches: tuple[int, ...], output: Path, json: bool) -> int:
    """Convert a user's model to one ONNX file: ``output``, or of the model's name in that folder."""
    from xframe import exports, registry

    name = registry.resolve(registry.FRAMEWORKS, framework, "framework")
    if not given:
        raise UsageError(f"--from {name} converts files: name them, say model.prototxt model.caffemodel")
    if len(batches) > 1 or min(batches, default=1) < 1:
        raise UsageError("--from makes one file: give it one --batch of at least 1, or none for that of the files")
    path = output if output.suffix == ".onnx" else output / f"{given[0].stem}.onnx"
    files.check_writable(path.parent)
    progress, began = console.Progress(), time.perf_counter()
    progress(f"{name}: converting {', '.join(map(str, given))}")
    try:
        made = exports.convert(name, given, path, *batches)
    finally:
        progress.clear()
    _tell(path, made, name, made.inputs[0].shape[0], time.perf_counter() - began, False, json)
    return 0


def _tell(path: Path, made: Artifact, framework: str, batch: int, seconds: float, cached: bool, json: bool) -> None:
    with console.quiet_pipe():
        if json:
            facts = {
                "path": str(path),
                "model": made.model,
                "framework": framework,
                "batch": batch,
                "opset": made.opset,
            }
            print(jsonlib.dumps({**facts, "sha256": made.sha256, "seconds": seconds, "cached": cached}))
        else:
            print(f"{path}  opset {made.opset}, {'cached' if cached else f'{seconds:.1f} s'}", flush=True)
