"""The commands ``schedules list``, ``show``, ``merge``, ``prune`` and ``verify``."""

from __future__ import annotations

import json as jsonlib
import math
import os
import statistics
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xframe.cli import console, options
from xframe.errors import UsageError, XframeError

if TYPE_CHECKING:
    from xframe.schedules.log import Entry, Log

app = typer.Typer(
    help="Schedule logs: what was tuned, for which device, and whether it can be used here.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Where = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[LOG|FOLDER|WORDS]...",
        help="Logs: a folder that is or holds some, or part of a name, as alexnet-b1/winograd. All by default.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell what would be done.")]
#: Columns where there is no terminal that tells its width.
_WIDTH = 160


def _chosen(where: list[str] | None) -> list[Path]:
    """The folders of the logs that ``where`` names. Raises UsageError where it names none."""
    from xframe.schedules import find

    known: list[Path] = []
    for root in find.roots():
        if os.path.isdir(root):
            known += find.folders(root)
    if not where:
        return known
    chosen: dict[Path, None] = {}
    for text in where:
        path = Path(text)
        found = find.folders(path) if os.path.isdir(path) else [k for k in known if text.strip("/") in find.title(k)]
        if not found:
            what = (
                "has no schedule log in it"
                if os.path.isdir(path)
                else "is no folder, nor part of a schedule log's name"
            )
            names = f"; there are {', '.join(map(find.title, known[:5]))}" if known else ""
            raise UsageError(f"{text} {what}{names}{', ...' if len(known) > 5 else ''}")
        chosen |= dict.fromkeys(found)
    return list(chosen)


def _each(where: list[str] | None) -> Iterator[tuple[Path, Log | None, str | None]]:
    """Folder, log, and why it can't be used here, in words; a broken log is None."""
    from xframe.schedules import device, find, log

    here = device.here().values()
    for folder in _chosen(where):
        try:
            found = log.read(folder)
        except log.LogError as e:
            yield folder, None, str(e)
        else:
            yield folder, found, find.stale(found) or find.foreign(found, *here)


def _geometric_mean(gains: Iterable[float]) -> float | None:
    logs = [math.log(g) for g in gains]
    return math.exp(statistics.fmean(logs)) if logs else None


def _named(folder: Path) -> dict[str, Any]:
    """What the place of a log tells: network, batch and lowering; None where it is not named as it should be."""
    network, lowering = folder.absolute().parts[-2:]
    model, _, batch = network.rpartition("-b")
    good = model and batch.isdigit()
    return {"model": model if good else None, "batch": int(batch) if good else None, "lowering": lowering}


@app.command("list")
def list_(where: Where = None, json: options.Json = False) -> int:
    """The logs: device, network, lowering, kernels, geometric mean of their gains, and whether they are of use here."""
    from xframe.schedules import find

    rows = []
    for folder, log, why in _each(where):
        entries = list(log.entries.values()) if log else []
        rows.append(
            {
                "log": str(folder),
                "device": log.device.slug if log else None,
                "device_name": log.device.words if log else None,
                **_named(folder),
                "kernels": len(entries) if log else None,
                "gain": _geometric_mean(e.gain for e in entries),
                "tvm": log.tvm if log else None,
                "target": log.target if log else None,
                "software": dict(log.software) if log else None,
                "threads": sorted({e.threads for e in entries}),
                "newest": max((e.created for e in entries), default=None),
                "usable": why is None,
                "reason": why or "",
            }
        )
    with console.quiet_pipe():
        if json:
            _lines(rows)
        elif rows:
            _list_table(rows)
        else:
            print(f"no schedule logs in {' or '.join(map(str, find.roots())) or 'any folder'}: xframe tune makes some")
    return 0


def _list_table(rows: list[dict[str, Any]]) -> None:
    table = _table("device", "network", "lowering", "kernels", "gain", "threads", "TVM", "usable here")
    notes: dict[str, int] = {}
    for row in rows:
        number = notes.setdefault(row["reason"], len(notes) + 1) if row["reason"] else None
        network = f"{row['model']}-b{row['batch']}" if row["model"] else Path(row["log"]).parent.name
        table.add_row(
            row["device"] or "-",
            network,
            row["lowering"],
            "-" if row["kernels"] is None else str(row["kernels"]),
            _times(row["gain"]),
            ",".join(map(str, row["threads"])) or "-",
            row["tvm"] or "-",
            "yes" if row["usable"] else f"no [{number}]",
        )
    _print(table)
    for reason, number in notes.items():
        print(f"[{number}] {reason}")


@app.command()
def show(where: Where = None, json: options.Json = False) -> int:
    """Each kernel of the logs: its tile, knobs, gain, and how it was measured."""
    from xframe.schedules import find

    broken = 0
    with console.quiet_pipe():
        for folder, log, why in _each(where):
            if log is None:
                broken = console.complain(XframeError(str(why)))
            elif json:
                _lines({"log": str(folder), **_facts(e)} for e in log.entries.values())
            else:
                more = "".join(f", {name} {version}" for name, version in log.software.items())
                print(f"\n{find.title(folder)}: {log.device.words}, TVM {log.tvm}, {log.target}{more}")
                print(f"not usable here: {why}" if why else "usable here")
                _show_table(list(log.entries.values()))
    return broken


def _facts(entry: Entry) -> dict[str, Any]:
    """An entry as ``--json`` has it: all but the record itself."""
    median, baseline = statistics.median(entry.seconds), statistics.median(entry.baseline)
    return {
        "task": entry.task,
        "tile": list(entry.tile),
        "space": entry.space,
        "knobs": entry.knobs,
        "gain": entry.gain,
        "median_s": median,
        "baseline_median_s": baseline,
        "samples": len(entry.seconds),
        "seconds": list(entry.seconds),
        "baseline": list(entry.baseline),
        "flop_per_s": entry.flop / median,
        "share": entry.share,
        "workload": entry.workload,
        "created": entry.created,
        "seed": entry.seed,
        "trials": entry.trials,
        "session": entry.session,
        "transferred": entry.transferred,
        "xframe": entry.xframe,
    }


def _show_table(entries: list[Entry]) -> None:
    table = _table("kernel", "tile", "knobs", "gain", "us", "by hand", "n", "GFLOP/s", "of bound", "trials", "made")
    for entry in entries:
        facts = _facts(entry)
        knobs = " ".join(f"{k}={v}" for k, v in sorted(entry.knobs.items())) if entry.knobs else entry.space
        table.add_row(
            entry.task,
            f"{entry.tile[0]}x{entry.tile[1]}",
            knobs,
            _times(entry.gain),
            f"{facts['median_s'] * 1e6:.0f}",
            f"{facts['baseline_median_s'] * 1e6:.0f}",
            str(facts["samples"]),
            f"{facts['flop_per_s'] / 1e9:.0f}",
            f"{entry.share:.2g}",
            str(entry.trials),
            entry.created[:10] + (f", from {entry.transferred}" if entry.transferred else ""),
        )
    _print(table)


@app.command()
def merge(
    sources: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Logs, or folders that hold some.")],
    into: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where all logs are kept; by default this project's schedules/.")
    ] = None,
    json: options.Json = False,
) -> int:
    """Take the logs of other folders into one: of each kernel the record with the larger gain."""
    from xframe.schedules import find, log
    from xframe.schedules import merge as merging

    roots = find.roots()
    if into is None and not roots:
        raise UsageError("there is no folder of schedule logs to merge into: name one with --into")
    root = into or roots[0]
    rows: list[dict[str, Any]] = []
    failed = 0
    for source in sources:
        found = find.folders(source)
        if not found:
            raise UsageError(f"{source} has no schedule log in it")
        for folder in found:
            try:
                new = log.read(folder)
                target = merging.place(root, folder, new)
                merged = merging.update(target, new)
            except XframeError as e:
                failed = console.complain(e)
                continue
            taken = sum(merged.entries[task] == entry for task, entry in new.entries.items())
            rows.append({"log": str(folder), "into": str(target), "taken": taken, "kernels": len(merged.entries)})
    with console.quiet_pipe():
        if json:
            _lines(rows)
        for row in [] if json else rows:
            print(f"{row['log']}: {row['into']} took {_count(row['taken'], 'record')}, now it has {row['kernels']}")
    return failed


@app.command()
def prune(where: Where = None, dry_run: DryRun = False, json: options.Json = False) -> int:
    """Drop records that are stale or slower than the template from the logs."""
    from xframe.schedules import device, find
    from xframe.schedules import prune as pruning

    progress, here = console.Progress(), device.identity()
    count, failed = 0, 0
    with console.quiet_pipe():
        for folder in _chosen(where):
            try:
                dropped = pruning.prune(folder, here, dry_run, progress)
            except XframeError as e:
                failed = console.complain(e)
                continue
            finally:
                progress.clear()
            count += len(dropped)
            for one in dropped:
                if json:
                    _lines([{"log": str(folder), "task": one.task, "reason": one.reason, "dropped": not dry_run}])
                else:
                    print(f"{find.title(folder)}: {one.task}: {one.reason}")
        if not json:
            print(f"{_count(count, 'record')} {'would be ' if dry_run else ''}dropped")
    return failed


@app.command()
def verify(
    where: Where = None,
    rounds: Annotated[int, typer.Option(help="Fresh processes that measure each kernel.")] = 3,
    json: options.Json = False,
) -> int:
    """Measure the records again: what was recorded against what they take now."""
    from dataclasses import asdict

    from xframe.schedules import find
    from xframe.worker.alone import without_frameworks

    with without_frameworks():  # TVM would load PyTorch
        from xframe.tuning.verify import verify as measured

    progress, code = console.Progress(), 0
    with console.quiet_pipe():
        for folder in _chosen(where):
            try:
                found = measured(folder, rounds, progress)
            except UsageError:
                raise
            except XframeError as e:
                code = max(code, console.complain(e))
                continue
            finally:
                progress.clear()
            code = max([code, *(_EXIT.get(v.outcome, 1) for v in found)])
            if json:
                _lines({"log": str(folder), **asdict(v)} for v in found)
                continue
            print(f"\n{find.title(folder)}")
            table = _table("kernel", "verdict", "recorded us", "now us", "by hand us", "gain recorded / now")
            for v in found:
                times = (f"{s * 1e6:.0f}" if s is not None else "-" for s in (v.recorded_s, v.now_s, v.baseline_s))
                table.add_row(v.task, v.outcome, *times, _times(v.ratio))
            _print(table)
            for v in found:
                if v.reason:
                    print(f"{v.task}: {v.outcome}, {v.reason}")
    return code


#: Exit codes of verdicts; all others are 1. WRONG: outputs beyond their bound.
_EXIT = {"OK": 0, "FASTER": 0, "WRONG": 3}


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3f}"


def _lines(rows: Iterable[dict[str, Any]]) -> None:
    for row in rows:
        print(jsonlib.dumps(row), flush=True)


def _table(*names: str):
    from rich.table import Table

    words = {"device", "network", "lowering", "kernel", "knobs", "usable here", "made", "verdict"}
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, justify="left" if name in words else "right", overflow="fold", no_wrap=name not in words)
    return table


def _print(table) -> None:
    from rich.console import Console

    Console(markup=False, emoji=False, highlight=False, width=None if sys.stdout.isatty() else _WIDTH).print(table)
