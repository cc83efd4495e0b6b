"""The command ``export``."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from xframe.cli import console, options
from xframe.errors import UsageError, XframeError


def export(
    model: Annotated[str, typer.Option(metavar="NAME", help="A registered model.")] = "alexnet",
    framework: options.Frameworks = None,
    batch: options.Batches = None,
    json: options.Json = False,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Where the files go.")] = Path("."),
) -> int:
    """Write a model as each framework exports it to ONNX."""
    from xframe import environment, exports, files, registry, zoo

    names = registry.chosen(registry.FRAMEWORKS, options.names("framework", framework), "framework")
    batches = options.numbers("batch", batch) or (1,)
    if min(batches) < 1:
        raise UsageError(f"--batch {min(batches)} makes no sense: it must be at least 1")
    spec = zoo.spec(model)
    console.check_writable(output)
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
            with console.quiet_pipe():
                if json:
                    facts = {"path": str(path), "model": model, "framework": name, "batch": size, "opset": made.opset}
                    print(jsonlib.dumps({**facts, "sha256": made.sha256, "seconds": seconds, "cached": cached}))
                else:
                    print(f"{path}  opset {made.opset}, {'cached' if cached else f'{seconds:.1f} s'}", flush=True)
    return int(failed)
