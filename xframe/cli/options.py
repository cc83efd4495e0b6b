"""The options that commands share, each declared once, and how their text is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from xframe.errors import UsageError

T = TypeVar("T")

Model = Annotated[str, typer.Option(metavar="NAME|FILE.onnx", help="A registered model, or an ONNX file.")]
Frameworks = Annotated[
    str | None,
    typer.Option(
        "--framework",
        metavar="A,B",
        help="pytorch, tensorflow and jax by default; or caffe, cntk, paddle, theano, torch.compile; all.",
    ),
]
Backends = Annotated[
    str,
    typer.Option(
        "--backend",
        metavar="A,B",
        help="native, ort, openvino, tvm, cudnn. Native rows are always in, as the baseline.",
    ),
]
Lowerings = Annotated[
    str | None,
    typer.Option(
        "--lowering",
        metavar="A,B",
        help="auto, gemm, direct, winograd, fft, best (measures all of those first) or plan.json, for tvm; where they"
        " are named, on a GPU, gemm_explicit, whose column matrix is written to memory, and gemm_tf32 and gemm_fp16,"
        " whose products have fewer bits. For cudnn auto and its"
        " algorithms: those names, implicit_gemm, implicit_precomp_gemm, fft_tiling, winograd_nonfused; the fastest"
        " engine of its graph interface, graph_fastest, and with channels last, graph_nhwc; where they are named,"
        " graph_plain, graph_winograd and graph_fft. By default auto and every one, with --fallback direct.",
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
Schedules = Annotated[
    str,
    typer.Option(
        metavar="auto|none|DIR",
        help="Tuned kernels, for tvm: from the schedule logs of the device, from none, or from the logs in a folder.",
    ),
]
AllowForeignLog = Annotated[
    bool,
    typer.Option("--allow-foreign-log", help="Where this machine has no log, use those of others; the rows say so."),
]
Device = Annotated[
    str, typer.Option(metavar="cpu|cuda[:N[,M]]", help="Device to run on; several GPUs one after another.")
]
Batches = Annotated[str | None, typer.Option("--batch", metavar="1,16", help="Batch sizes; 1, or the file's own.")]
Threads = Annotated[str | None, typer.Option("--threads", metavar="2,1", help="Thread counts; all CPUs by default.")]
Seed = Annotated[int, typer.Option(help="Seed of the inputs.")]
Rounds = Annotated[int, typer.Option(help="Visits to each row, in turn with the others.")]
TimeLimit = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="Limit of one step of a row, compiling included.")
]
Threshold = Annotated[
    float, typer.Option(metavar="X", help="Effects up to it count as none: a part of the time, 0.02 for 2 %.")
]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout, one object a line, and nothing else.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", metavar="DIR", help="Where run.json and best plans go.")]


def names(flag: str, text: str | None) -> tuple[str, ...] | None:
    """``"a, b"`` -> ``("a", "b")``; None stays None. Raises UsageError on an empty list."""
    if text is None:
        return None
    found = tuple(n.strip() for n in text.split(",") if n.strip())
    if not found:
        raise UsageError(f"--{flag} {text!r} names nothing: give one or more names, separated by commas")
    return found


def numbers(flag: str, text: str | None) -> tuple[int, ...]:
    """``"1, 16"`` -> ``(1, 16)``; None is ``()``. Raises UsageError."""
    try:
        return tuple(int(n) for n in names(flag, text) or ())
    except ValueError:
        raise UsageError(f"--{flag} {text!r}: give whole numbers, separated by commas") from None


def pairs(flag: str, texts: list[str] | None, value: Callable[[str], T]) -> dict[str, T]:
    """``["a=1,b=2", "c=3"]`` -> ``{"a": value("1"), ...}``.

    Raises
    ------
    UsageError
        A part has no name or no value, ``value`` raises ValueError (its message says what is right), or a name has two
        values.
    """
    found: dict[str, T] = {}
    for part in (p for text in texts or () for p in names(flag, text) or ()):
        name, _, given = (s.strip() for s in part.rpartition("="))
        try:
            if not name or not given:
                raise ValueError("give NAME=VALUE, several separated by commas")
            read = value(given)
        except ValueError as e:
            raise UsageError(f"--{flag} {part!r}: {e}") from None
        if found.setdefault(name, read) != read:
            raise UsageError(f"--{flag}: {name} is given twice, with different values")
    return found
