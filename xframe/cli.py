"""The command line. Results on stdout, progress on stderr; whatever is heavy is imported by the command that needs it.

Exit codes: 0 fine; 1 an error, a crash, or nothing could be run; 2 a request that makes no sense; 3 outputs beyond
their bound; 4 a forced plan was not honoured; 130 interrupted.
"""

from __future__ import annotations

import contextlib
import json as jsonlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xframe.errors import UsageError, XframeError
from xframe.types import Measurement, Outcome

if TYPE_CHECKING:
    from xframe.comparison import Request
    from xframe.store import Run

app = typer.Typer(
    help="Is it the framework, or the convolution kernels it picks?",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
#: The base of the errors of the option parser. Typer has its own copy of click, or click itself, depending on its age.
_ParserError: type[Exception] = typer.BadParameter.__bases__[0].__bases__[0]

Model = Annotated[str, typer.Option(metavar="NAME|FILE.onnx", help="A registered model, or an ONNX file.")]
Frameworks = Annotated[
    str | None,
    typer.Option("--framework", metavar="A,B", help="pytorch, tensorflow and jax by default; or torch.compile."),
]
Backends = Annotated[
    str,
    typer.Option(
        "--backend", metavar="A,B", help="native, ort, openvino, tvm. Native rows are always in, as the baseline."
    ),
]
Lowerings = Annotated[
    str | None,
    typer.Option(
        "--lowering",
        metavar="A,B",
        help="auto, gemm, direct, winograd, fft, best (measures all of those first) or plan.json, for tvm. By default"
        " auto and every lowering, with --fallback direct.",
    ),
]
Fallback = Annotated[str | None, typer.Option(metavar="NAME", help="Lowering where the asked one refuses a site.")]
ErrorBudget = Annotated[
    float | None,
    typer.Option(
        metavar="X",
        help="Largest predicted error of a convolution relative to the RMS of its output: what tiles may be chosen,"
        " for tvm. 2e-3 by default.",
    ),
]
Target = Annotated[
    str | None, typer.Option(metavar="'llvm -mcpu=CPU'", help="CPU that tvm compiles for; this machine's by default.")
]
Device = Annotated[str, typer.Option(metavar="cpu|cuda[:N]", help="Device to run on.")]
Batches = Annotated[str | None, typer.Option("--batch", metavar="1,16", help="Batch sizes; 1, or the file's own.")]
Threads = Annotated[str | None, typer.Option("--threads", metavar="2,1", help="Thread counts; all CPUs by default.")]
Seed = Annotated[int, typer.Option(help="Seed of the inputs.")]
Rounds = Annotated[int, typer.Option(help="Visits to each row, in turn with the others.")]
TimeLimit = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="Limit of one step of a row, compiling included.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line for each row, and nothing else.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", metavar="DIR", help="Where run.json and best plans go.")]


@app.command()
def compare(
    model: Model = "alexnet",
    framework: Frameworks = None,
    backend: Backends = "native,ort,tvm",
    lowering: Lowerings = None,
    fallback: Fallback = None,
    error_budget: ErrorBudget = None,
    target: Target = None,
    device: Device = "cpu",
    batch: Batches = None,
    threads: Threads = None,
    seed: Seed = 0,
    rounds: Rounds = 3,
    time_limit: TimeLimit = None,
    json: Json = False,
    output: Output = None,
) -> int:
    """Time a model in every framework, runner and lowering, side by side, each output verified."""
    from xframe.comparison import Request

    request = Request(
        model,
        frameworks=_names("framework", framework),
        runners=_names("backend", backend) or (),
        lowerings=_names("lowering", lowering),
        fallback=fallback,
        error_budget=error_budget,
        target=target,
        device=device,
        batches=_numbers("batch", batch),
        threads=_numbers("threads", threads),
        seed=seed,
        budget=_budget(rounds, time_limit),
    )
    return _carry_out(request, json, output)


@app.command()
def run(
    model: Model = "alexnet",
    framework: Annotated[str | None, typer.Option(metavar="NAME", help="pytorch, unless the model is a file.")] = None,
    backend: Annotated[str, typer.Option(metavar="NAME", help="native, ort, tvm or openvino.")] = "tvm",
    lowering: Annotated[str, typer.Option(metavar="NAME", help="auto, a lowering, best, or plan.json.")] = "auto",
    fallback: Fallback = None,
    error_budget: ErrorBudget = None,
    target: Target = None,
    device: Device = "cpu",
    batch: Annotated[int | None, typer.Option(help="Batch size; 1, or the file's own.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads; all CPUs by default.")] = None,
    seed: Seed = 0,
    rounds: Rounds = 3,
    time_limit: TimeLimit = None,
    json: Json = False,
    output: Output = None,
) -> int:
    """Time one case alone."""
    from xframe.comparison import Request
    from xframe.subject import is_file

    if framework is None and not is_file(model):
        framework = "pytorch"
    request = Request(
        model,
        frameworks=None if framework is None else (framework,),
        runners=(backend,),
        lowerings=(lowering,),
        fallback=fallback,
        error_budget=error_budget,
        target=target,
        device=device,
        batches=() if batch is None else (batch,),
        threads=() if threads is None else (threads,),
        seed=seed,
        budget=_budget(rounds, time_limit),
        baseline=False,
    )
    return _carry_out(request, json, output)


@app.command()
def export(
    model: Annotated[str, typer.Option(metavar="NAME", help="A registered model.")] = "alexnet",
    framework: Frameworks = None,
    batch: Batches = None,
    json: Json = False,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Where the files go.")] = Path("."),
) -> int:
    """Write a model as each framework exports it to ONNX."""
    from xframe import environment, exports, files, registry, zoo

    names = _names("framework", framework) or registry.defaults(registry.FRAMEWORKS)
    names = tuple(dict.fromkeys(registry.resolve(registry.FRAMEWORKS, n, "framework") for n in names))
    batches = _numbers("batch", batch) or (1,)
    if min(batches) < 1:
        raise UsageError(f"--batch {min(batches)} makes no sense: it must be at least 1")
    spec = zoo.spec(model)
    _check_writable(output)
    weights = zoo.weights_file(spec)
    failed = False
    for name in names:
        for size in batches:
            progress = _Progress()
            progress(f"{name}: export, batch {size}")
            try:
                made, seconds, cached = exports.export(name, spec, weights, size, len(environment.allowed_cpus()))
            except XframeError as e:
                failed = True
                progress.clear()
                _complain(e)
                continue
            path = output / f"{model}-{name}-b{size}.onnx"
            with files.atomic(path) as part:
                part.write_bytes(Path(made.path).read_bytes())
            progress.clear()
            with _quiet_pipe():
                if json:
                    facts = {"path": str(path), "model": model, "framework": name, "batch": size, "opset": made.opset}
                    print(jsonlib.dumps({**facts, "sha256": made.sha256, "seconds": seconds, "cached": cached}))
                else:
                    print(f"{path}  opset {made.opset}, {'cached' if cached else f'{seconds:.1f} s'}", flush=True)
    return int(failed)


@app.command()
def devices(json: Json = False) -> int:
    """What is here: the CPU, and which frameworks and backends import, with the pip line for what is missing."""
    from xframe import available, environment, registry, zoo

    device = environment.cpu_device()
    with _quiet_pipe():
        if not json:
            print(f"cpu        {device.slug}: {device.name}, {device.cores} CPUs to use")
            print(f"models     {', '.join(zoo.names())}")
        for kind, table in (("framework", registry.FRAMEWORKS), ("backend", registry.BACKENDS)):
            for found in available.probe(table):
                if json:
                    facts = {"kind": kind, "name": found.name, "version": found.version, "reason": found.reason}
                    print(jsonlib.dumps(facts), flush=True)
                else:
                    print(f"{kind:<10} {found.name}: {found.version or 'missing: ' + found.reason}", flush=True)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """The console script: runs a command and gives its exit code. Errors become one line on stderr."""
    try:
        return app(args=None if argv is None else list(argv), prog_name="xframe", standalone_mode=False) or 0
    except XframeError as e:
        return _complain(e)
    except _ParserError as e:
        text = e.format_message()  # type: ignore[attr-defined]
        print(text if type(e).__name__ == "NoArgsIsHelpError" else f"xframe: {text}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, typer.Abort):
        print("xframe: interrupted", file=sys.stderr)
        return 130
    except ModuleNotFoundError as e:
        print(f"xframe: the Python module {e.name} is missing here: pip install xframe-eval, or -e .", file=sys.stderr)
        return 1
    except BrokenPipeError:
        _drop_stdout()
        return 1


def exit_code(measurements: Sequence[Measurement], lowering_named: bool = False) -> int:
    """The code for a result: the gravest row decides.

    A combination that can't be had here (UNSUPPORTED, UNAVAILABLE) is no error as long as another row is OK; but a
    lowering that was asked for by name, and refuses, is one.
    """
    outcomes = {m.outcome for m in measurements}
    if Outcome.MISMATCH in outcomes:
        return 3
    if Outcome.NOT_HONOURED in outcomes:
        return 4
    refused = any(m.outcome == Outcome.UNSUPPORTED and m.case.plan.label != "auto" for m in measurements)
    bad = outcomes & {Outcome.FAILED, Outcome.TIMEOUT} or Outcome.OK not in outcomes or (lowering_named and refused)
    return int(bool(bad))


def _carry_out(request: Request, json: bool, output: Path | None) -> int:
    """Run a comparison, write it, print it; its exit code."""
    from xframe import comparison

    request.resolved()
    if output is not None:
        _check_writable(output)
    progress = _Progress()
    try:
        result = comparison.compare(request, progress, sys.argv)
        code = exit_code(result.measurements, request.lowerings is not None)
    except comparison.Interrupted as e:
        result, code = e.run, 130
    finally:
        progress.clear()
    _show(result, json, output)
    if code == 130:
        print("xframe: interrupted; the rows that were finished are above", file=sys.stderr)
    return code


def _show(result: Run, json: bool, output: Path | None) -> None:
    from xframe import store

    try:
        with _quiet_pipe():
            if json:
                for measurement in result.measurements:
                    print(jsonlib.dumps(store.row(measurement)))
            else:
                from xframe.report import terminal

                terminal.render(result, sys.stdout)
    finally:  # neither of the two may cost the other: both stand for minutes of measuring
        if output is not None:
            print(f"wrote {store.write(result, output)}", file=sys.stderr)


def _names(flag: str, text: str | None) -> tuple[str, ...] | None:
    """``"a, b"`` -> ``("a", "b")``; None stays None. Raises UsageError on an empty list."""
    if text is None:
        return None
    names = tuple(n.strip() for n in text.split(",") if n.strip())
    if not names:
        raise UsageError(f"--{flag} {text!r} names nothing: give one or more names, separated by commas")
    return names


def _numbers(flag: str, text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(n) for n in _names(flag, text) or ())
    except ValueError:
        raise UsageError(f"--{flag} {text!r}: give whole numbers, separated by commas") from None


def _budget(rounds: int, time_limit: float | None):
    from xframe.measure import Budget

    if rounds < 1:
        raise UsageError(f"--rounds {rounds} makes no sense: it must be at least 1")
    if time_limit is None:
        return Budget(rounds=rounds)
    if not time_limit > 0:
        raise UsageError(f"--time-limit {time_limit:g} makes no sense: it must be above 0 seconds")
    return Budget(rounds=rounds, open_limit=time_limit, run_limit=time_limit)


def _check_writable(folder: Path) -> None:
    """Before the long work. Raises XframeError when nothing can be written to ``folder``."""
    from xframe import files

    probe = folder / ".xframe-write-test"
    try:
        with files.atomic(probe):
            pass
    except XframeError as e:
        raise XframeError(str(e).replace(str(probe), f"to the folder {folder}")) from e
    probe.unlink(missing_ok=True)


def _complain(error: XframeError) -> int:
    print(f"xframe: {' '.join(str(error).split())}", file=sys.stderr)
    return error.exit_code


class _Progress:
    """Lines on stderr; in a terminal, one line that changes."""

    def __call__(self, line: str) -> None:
        if sys.stderr.isatty():
            width = max(os.get_terminal_size(sys.stderr.fileno()).columns, 20)
            print(f"\r\x1b[K{line[: width - 1]}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def clear(self) -> None:
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _quiet_pipe() -> Iterator[None]:
    """Whoever reads stdout may stop reading (``| head``): no error."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()


def _drop_stdout() -> None:
    with contextlib.suppress(OSError, ValueError):  # stdout may be no file at all
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
