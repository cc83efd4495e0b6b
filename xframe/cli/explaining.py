"""The command ``explain``: where the time goes, and what other lowerings would give."""

from __future__ import annotations

import io
import json as jsonlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xframe.cli import options, timing
from xframe.errors import UsageError
from xframe.types import Outcome

if TYPE_CHECKING:
    from xframe.analysis.explanation import Explanation

Backends = Annotated[
    str,
    typer.Option(
        "--backend",
        metavar="A,B",
        help="Whose rows are explained: native, which always are, ort, openvino, tvm. TVM's kernels under each lowering"
        " are measured anyway.",
    ),
]
Passes = Annotated[int, typer.Option(help="Profiled passes after each visit.")]
Ifs = Annotated[
    list[str] | None,
    typer.Option(
        "--if",
        metavar="[FRAMEWORK:]LAYERS=LOWERING",
        help="What if it used another lowering: conv2-conv5=winograd, tensorflow:conv1=fft,conv3=direct, all=gemm. Run"
        " in TVM's kernels, beside what the framework uses. Several times for several questions.",
    ),
]
Details = Annotated[bool, typer.Option("--details", help="The parts of every term too.")]


#: Rounds, the seconds of a visit, and passes after it: many and short, as what rounds differ by decides how far the
#: terms are known.
ROUNDS, VISIT, PASSES = 5, 0.2, 3


def explain(
    model: options.Model = "alexnet",
    framework: options.Frameworks = None,
    backend: Backends = "native",
    ifs: Ifs = None,
    error_budget: options.ErrorBudget = None,
    schedules: options.Schedules = "auto",
    allow_foreign_log: options.AllowForeignLog = False,
    device: options.Device = "cpu",
    batch: options.Batches = None,
    threads: options.Threads = None,
    seed: options.Seed = 0,
    rounds: options.Rounds = ROUNDS,
    passes: Passes = PASSES,
    fresh: timing.Fresh = False,
    time_limit: options.TimeLimit = None,
    details: Details = False,
    json: options.Json = False,
    output: options.Output = None,
) -> int:
    """Where does the time go: algorithm, kernels, layout, overhead? In words, and as terms that sum to it.

    Profiled passes apart from the timed ones are held against the roofline of this machine, the best kernels measured,
    and TVM's kernels for the algorithm that each framework was seen to use.
    """
    from xframe import explain as explaining
    from xframe.comparison import Request

    if passes < 1:
        raise UsageError(f"--passes {passes} makes no sense: it must be at least 1")
    request = Request(
        model,
        frameworks=options.names("framework", framework),
        runners=options.names("backend", backend) or (),
        error_budget=error_budget,
        schedules=schedules,
        allow_foreign_log=allow_foreign_log,
        device=device,
        batches=options.numbers("batch", batch),
        threads=options.numbers("threads", threads),
        seed=seed,
        budget=replace(
            timing.budget(rounds, time_limit, fresh),
            profile=rounds * passes,
            min_seconds=0.1,
            max_seconds=VISIT,
        ),
    )
    explaining.completed(request)
    return timing.carry_out(
        lambda progress: explaining.explain(request, ifs or (), progress, sys.argv),
        _code,
        lambda run: explaining.explanation(request, run),
        lambda result: _show(result, details, json),
        _write,
        output,
    )


def _code(result: Explanation) -> int:
    bad = any(c.outcome != Outcome.OK for c in result.counterfactuals)
    return timing.exit_code(result.run.measurements) or int(bad)


def _show(result: Explanation, details: bool, json: bool) -> None:
    from xframe import store

    if json:
        for line in _lines(result):
            print(jsonlib.dumps(store.finite(line)))
    else:
        from xframe.report import explain_terminal

        explain_terminal.render(result, sys.stdout, details)


def _lines(result: Explanation) -> Iterator[dict[str, Any]]:
    """What ``--json`` prints, each with its ``kind``: rows, decompositions, differences, counterfactuals, sentences."""
    from xframe import store
    from xframe.report import explain_words

    yield from ({"kind": "row", **store.row(m)} for m in result.run.measurements)
    yield from ({"kind": "decomposition", **d.to_json()} for d in result.decompositions)
    yield from ({"kind": "difference", **slow.difference(fast).to_json()} for fast, slow in result.pairs())
    yield from ({"kind": "counterfactual", **c.to_json()} for c in result.counterfactuals)
    yield from ({"kind": "sentence", "text": text} for text in explain_words.sentences(result))


def _write(result: Explanation, folder: Path) -> str:
    """``run.json``, and beside it the explanation as Markdown: sentences, then the tables in full; where, in words."""
    from xframe import files, store
    from xframe.report import explain_terminal, explain_words

    told = tuple({**c.to_json(), "sentence": explain_words.counterfactual(c)} for c in result.counterfactuals)
    run = store.write(replace(result.run, counterfactuals=told), folder)
    path, out = folder / "explanation.md", io.StringIO()
    explain_terminal.render_tables(result, out)
    first = result.run.measurements[0].case
    with files.atomic(path) as part:
        lines = [f"# Where {first.model} spends its time", *(f"- {s}" for s in explain_words.sentences(result))]
        part.write_text("\n\n".join(lines) + f"\n\n```\n{out.getvalue().strip()}\n```\n", encoding="utf-8")
    return f"{run} and {path}"
