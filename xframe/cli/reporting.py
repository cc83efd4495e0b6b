"""The command ``report``: a result as a page to read, or in a form that another program opens."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from xframe import files
from xframe.cli import console
from xframe.errors import UsageError

#: Format -> the end of its files' names.
FORMATS = {"html": ".html", "markdown": ".md", "csv": ".csv", "trace": ".trace.json"}

Result = Annotated[Path, typer.Argument(metavar="RUN.json", help="A result, or the folder that holds its run.json.")]
File = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="Where to write; Markdown and CSV go to stdout without it."),
]
Format = Annotated[
    str | None,
    typer.Option("--format", metavar="NAME", help=f"{', '.join(FORMATS)}; by the end of FILE, else html."),
]


def report(result: Result, output: File = None, format: Format = None) -> int:
    """A result as one page with charts, as Markdown, as CSV, or as a trace for Perfetto."""
    if output is not None and output.is_dir():
        raise UsageError(f"-o {output} is a folder: give the name of a file, such as {output / 'report.html'}")
    chosen = _format(output, format)
    if output is None and chosen in ("html", "trace"):
        output = Path(f"report{FORMATS[chosen]}")
    if output is not None and output.resolve() in (result.resolve(), (result / "run.json").resolve()):
        raise UsageError(f"-o {output} is the result itself, which would be lost: give another name")
    if output is not None:
        files.check_writable(output.parent)
    texts = _texts(result, chosen)
    if output is None:
        with console.quiet_pipe():
            sys.stdout.write(next(iter(texts.values())))
        if others := [name for name in texts if name]:
            print(f"without the {' and '.join(others)}, which -o FILE writes to a file beside it", file=sys.stderr)
        return 0

    for addition, text in texts.items():
        path = output.with_name(f"{output.stem}-{addition}{output.suffix}") if addition else output
        with files.atomic(path) as part:
            part.write_text(text, encoding="utf-8")
        print(f"wrote {path}", file=sys.stderr)
    return 0


def _format(output: Path | None, name: str | None) -> str:
    """The format asked for, by its name or by that of the file."""
    if name is not None:
        known = {**{f: f for f in FORMATS}, "md": "markdown"}
        if name.lower() not in known:
            raise UsageError(f"--format {name}: there are {', '.join(FORMATS)}")
        return known[name.lower()]
    if output is None:
        return "html"
    known_ends = {**{end: f for f, end in FORMATS.items()}, ".markdown": "markdown", ".htm": "html"}
    for end, found in known_ends.items():
        if output.name.lower().endswith(end):
            return found
    ends = ", ".join(FORMATS.values())
    raise UsageError(f"-o {output}: its name does not tell the format; end it in {ends}, or give --format")


def _texts(result: Path, chosen: str) -> dict[str, str]:
    """What to write, by what is added to the name of the file: nothing for the first."""
    from xframe import store
    from xframe.analysis.decomposition import explained

    path = result / "run.json" if result.is_dir() else result
    run = store.load(path)
    if chosen == "trace":
        from xframe.report.trace import trace

        return {"": trace(run)}
    found = explained(run)
    if chosen == "csv":
        from xframe.report import csv_rows

        return {"": csv_rows.rows(run), "decompositions": csv_rows.decompositions(found)}
    if chosen == "markdown":
        from xframe.report.markdown import markdown

        return {"": markdown(run, found, str(path), files.sha256(path))}
    from xframe.report.page import Source, page

    return {"": page(run, found, Source(str(path), files.sha256(path)))}
