"""The command ``check``: do these models compute the same function, and if not, where do they part?"""

from __future__ import annotations

import json as jsonlib
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xframe import files
from xframe.cli import console, options
from xframe.errors import UsageError, XframeError

if TYPE_CHECKING:
    from xframe.equivalence.result import Check

Models = Annotated[
    list[str],
    typer.Argument(
        metavar="A B...",
        help="ONNX files or registered models (alexnet, alexnet@tensorflow); the others are held against the first."
        " One registered model alone stands for the exports of the default frameworks, alexnet@all for all.",
    ),
]
Inputs = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="Inputs to use: .npz, .npy, .pb, or a folder of ONNX test data. Seeded if none."),
]
Count = Annotated[int, typer.Option(help="Number of seeded inputs.")]
Range = Annotated[
    str | None, typer.Option("--range", metavar="LOW,HIGH", help="Seeded inputs are uniform in it, not N(0, 1).")
]
Layouts = Annotated[
    list[str] | None,
    typer.Option("--layout", metavar="MODEL=NHWC", help="Layout of a model's images, where it can't be told."),
]
Map = Annotated[
    list[str] | None,
    typer.Option("--map", metavar="a=b,..", help="Input or output a of the first model is b of the others."),
]
Sizes = Annotated[
    list[str] | None, typer.Option("--size", metavar="batch=4,..", help="Size of a symbolic dimension; 1 if not given.")
]
Levels = Annotated[
    str, typer.Option("--level", metavar="A,B", help="signature, normal-form, numerics (decides), gradients.")
]
Runners = Annotated[
    str,
    typer.Option(
        "--runner",
        metavar="A,B",
        help="What executes each model: ort:disabled, ort:basic, ort:extended, ort:all (ort), tvm:gemm, tvm:direct,"
        " tvm:winograd, tvm:fft, tvm:auto, openvino, native; none.",
    ),
]
KeepBatchnorm = Annotated[
    bool, typer.Option("--keep-batchnorm", help="Batch normalisation stays apart, not folded into its convolution.")
]
Reduce = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Write the smallest sub-models and input that still disagree there."),
]
Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write a page with an error heat map per layer.")
]


def check(
    models: Models,
    inputs: Inputs = None,
    count: Count = 2,
    seed: options.Seed = 0,
    value_range: Range = None,
    layout: Layouts = None,
    names: Map = None,
    size: Sizes = None,
    level: Levels = "signature,normal-form,numerics",
    runner: Runners = "ort",
    keep_batchnorm: KeepBatchnorm = False,
    reduce: Reduce = None,
    html: Html = None,
    json: options.Json = False,
) -> int:
    """Do these models compute the same function? Exit code 0: yes; 3: no; 1: can't tell, or an error."""
    if count < 1:
        raise UsageError(f"--count {count} makes no sense: it must be at least 1")
    if inputs is not None and value_range is not None:
        raise UsageError("--inputs and --range: give one of them; a range is of seeded inputs")
    runners = () if runner.strip() == "none" else options.names("runner", runner) or ()
    subjects = _subjects(models)
    if len(subjects) == 1 and not runners:
        raise UsageError("one model, and nothing to hold it against: name a second one, or a --runner")
    keywords = {
        "names": options.pairs("map", names, str),
        "layouts": _layouts(models, subjects, options.pairs("layout", layout, _layout)),
        "sizes": options.pairs("size", size, _size),
        "levels": _levels(level),
        "runners": runners,
        "count": count,
        "seed": seed,
        "value_range": _range(value_range),
        "fold_batchnorm": not keep_batchnorm,
        "reduce": reduce,
    }
    if html is not None and html.is_dir():
        raise UsageError(f"--html {html} is a folder: give the name of a file")
    try:
        for folder in (reduce, None if html is None else html.parent):
            if folder is not None:
                files.check_writable(folder)
        return _carry_out(subjects, inputs, keywords, html, json)
    except UsageError:
        raise
    except XframeError as e:  # the other codes are verdicts here
        console.complain(e)
        return 1


def _carry_out(subjects: dict[str, Path | str], inputs: Path | None, keywords: dict, html: Path | None, json: bool):
    from xframe.check.api import check_equivalence

    progress = console.Progress()
    try:
        result = check_equivalence(subjects, inputs, progress=progress, **keywords)
    finally:
        progress.clear()
    try:
        _show(result, json)
    finally:  # a reader that went away costs nobody the page
        if html is not None:
            from xframe.report.check_page import page

            with files.atomic(html) as part:
                part.write_text(page(result), encoding="utf-8")
            print(f"wrote {html}", file=sys.stderr)
    return result.exit_code


def _show(result: Check, json: bool) -> None:
    with console.quiet_pipe():
        if json:
            from xframe.report.check_record import plain

            print(jsonlib.dumps(plain(result), allow_nan=False))
        else:
            from xframe.report.check_terminal import render

            render(result, sys.stdout)


def _subjects(models: Sequence[str]) -> dict[str, Path | str]:
    """Short name -> file or registered model. A name is a file's own where that is enough to tell it by."""
    from xframe import zoo
    from xframe.check.subjects import expand

    if len(models) == 1 and not _is_file(models[0]):
        zoo.spec(models[0].replace(":", "@").partition("@")[0])  # a wrong name is told as that
    models = expand(models)
    short = [Path(m).name if _is_file(m) else m for m in models]
    found: dict[str, Path | str] = {}
    for model, name in zip(models, short, strict=True):
        name = name if short.count(name) == 1 else model
        copies = [n for n in found if n == name or n.startswith(f"{name} (")]
        found[f"{name} ({len(copies) + 1})" if copies else name] = Path(model) if _is_file(model) else model
    return found


def _is_file(model: str) -> bool:
    from xframe import subject

    return subject.is_file(model) or Path(model).is_file()


def _layouts(models: Sequence[str], subjects: dict[str, Path | str], given: dict[str, str]) -> dict[str, str]:
    """Layouts by the short names; as typed they may be whole paths."""
    found = {}
    for name, layout in given.items():
        meant = [
            s for s, thing in subjects.items() if name in (s, str(thing)) or (name in models and Path(name) == thing)
        ]
        if not meant:
            raise UsageError(f"--layout {name}={layout}: no model has that name; there are: {', '.join(subjects)}")
        found.update(dict.fromkeys(meant, layout))
    return found


def _layout(text: str) -> str:
    if text.upper() not in ("NCHW", "NHWC"):
        raise ValueError("a layout is NCHW or NHWC")
    return text.upper()


def _size(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("a size is a whole number of at least 1")
    return int(text)


def _levels(text: str) -> tuple[str, ...]:
    from xframe.equivalence.result import Level

    known = {level.value.replace(" ", "-"): level.value for level in Level}
    asked = [name.replace(" ", "-").replace("_", "-") for name in options.names("level", text) or ()]
    for name in asked:
        if name not in known:
            raise UsageError(f"--level {name}: there are {', '.join(known)}")
    return tuple(value for name, value in known.items() if name in asked)


def _range(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        low, high = (float(part) for part in text.split(","))
        if not (low < high and math.isfinite(low) and math.isfinite(high)):
            raise ValueError
    except ValueError:
        raise UsageError(f"--range {text!r}: give two numbers LOW,HIGH, the lower one first") from None
    return low, high
