"""Tuning held against its bars: what it gains, what a trial costs, how near the peak it comes, whether a log replays.

    python benchmarks/tuning.py --lowering winograd,fft --trials 256 -o /tmp/schedules

The kernels of each lowering are tuned in a session of its own; those of one kernel alone again, to be timed. Then every
record is measured in fresh processes, in turn with its template. Peak: multiply-adds in registers, as in
``benchmarks/roofline.py``; FLOP are counted in the loops of the product with its own register tile.
"""

import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import roofline, rows
from benchmarks.rows import Row
from xframe.registry import LOWERINGS, defaults

#: Least geometric mean of the gain over a network's convolutions, and least gain of one: a loss is not used.
GAIN, LEAST_GAIN = 1.05, 1.0
#: CPU seconds of a trial, all processes; seconds of a run of so many trials of one kernel.
CPU_S, ONE_KERNEL_S, ONE_KERNEL = 2.5, 180.0, 64
#: Least share of the machine's peak of Winograd's products, all together.
PEAK, PEAK_OF = 0.9, "winograd"
#: How far a record's share of its template's time may be from the recorded one.
REPLAY = 0.05


def bar(name: str, figure: float | None, must: str, met: bool, words: str = "") -> Row:
    return {"kind": "bar", "bar": name, "figure": figure, "must": must, "met": met, "words": words}


def gain_rows(kernels: Iterable[Row]) -> list[Row]:
    """Of each lowering: the geometric mean of the gains of its kernels, 1 where the template stays, and the least."""
    from xframe.tuning.result import geometric_mean

    out = []
    found = [r for r in kernels if r["gain"]]
    for lowering in dict.fromkeys(r["lowering"] for r in found):
        gains = [r["gain"] for r in found if r["lowering"] == lowering]
        tuned = sum(r["verdict"] == "tuned" for r in found if r["lowering"] == lowering)
        mean = geometric_mean(gains)
        out.append(
            {
                "kind": "lowering",
                "lowering": lowering,
                "kernels": len(gains),
                "tuned": tuned,
                "gain": mean,
                "least": min(gains),
            }
        )
    return out


def gain_bars(lowerings: Iterable[Row]) -> list[Row]:
    out = []
    for r in lowerings:
        words = f"{r['tuned']} of {r['kernels']} kernels tuned"
        out.append(bar(f"gain of {r['lowering']}", r["gain"], f"at least {GAIN}", r["gain"] >= GAIN, words))
        out.append(
            bar(f"least gain of {r['lowering']}", r["least"], f"at least {LEAST_GAIN}", r["least"] >= LEAST_GAIN)
        )
    return out


def cost_bars(sessions: Sequence[Row], one: Row | None) -> list[Row]:
    """``one``: the session of one kernel alone."""
    trials = sum(s["trials"] for s in sessions)
    each = sum(s["cpu_s"] for s in sessions) / trials if trials else None
    out = [bar("CPU seconds of a trial", each, f"at most {CPU_S}", each is not None and each <= CPU_S)]
    if one is not None:
        took, must = one["seconds"], f"at most {ONE_KERNEL_S:g}"
        out.append(bar(f"seconds of {ONE_KERNEL} trials of a kernel", took, must, took <= ONE_KERNEL_S))
    return out


def peak_rows(kernels: Iterable[Row], peak: float, threads: int) -> list[Row]:
    """The rate of each of Winograd's products, with its own tile."""
    from xframe.lowering.target import Cpu
    from xframe.lowering.tasks import Task
    from xframe.tuning.search import product

    out, cpu = [], Cpu.host(threads)
    for r in kernels:
        if r["lowering"] == PEAK_OF and r["tuned_s"]:
            stage = product(Task.named(r["task"]), cpu, tuple(r["tile"]) if r["tile"] else None)
            assert stage is not None
            flop = roofline.flop(stage.func)
            share = flop / r["tuned_s"] / peak
            out.append({"kind": "peak", "task": r["task"], "flop": flop, "median_s": r["tuned_s"], "share": share})
    return out


def peak_bars(found: Sequence[Row], peak: float) -> list[Row]:
    if not found:
        return []
    together = sum(r["flop"] for r in found) / sum(r["median_s"] for r in found) / peak
    each = ", ".join(f"{r['share']:.2f}" for r in found)
    words = f"each: {each}; peak {peak / 1e9:.0f} GFLOP/s"
    return [bar(f"share of peak of {PEAK_OF}'s products", together, f"at least {PEAK}", together >= PEAK, words)]


def replay_bars(found: Sequence[Row]) -> list[Row]:
    """The worst record decides; one that could not be measured is one that does not replay."""
    if not found:
        return []
    name, must = "replay: share of the template's time, over that recorded", f"within {REPLAY:.0%}"
    failed = [r for r in found if r["ratio"] is None]
    if failed:
        return [bar(name, None, must, False, f"{failed[0]['outcome']}: {failed[0]['reason']}")]
    worst = max(found, key=lambda r: abs(r["ratio"] - 1))["ratio"]
    held = sum(abs(r["ratio"] - 1) <= REPLAY for r in found)
    return [bar(name, worst, must, held == len(found), f"{held} of {len(found)} records")]


def bar_table(found: Iterable[Row]) -> str:
    head = ("bar", "figure", "must be", "met", "")
    return rows.table(head, [_cells(r) for r in found])


def _cells(r: Row) -> list[str]:
    figure = "-" if r["figure"] is None else f"{r['figure']:.3f}"
    return [r["bar"], figure, r["must"], "yes" if r["met"] else "no", r["words"]]


def kernel_table(kernels: Iterable[Row]) -> str:
    body = []
    for r in kernels:
        cells = [f"{s * 1e6:.1f}" if s else "-" for s in (r["by_hand_s"], r["tuned_s"])]
        gain = f"{r['gain']:.2f}x" if r["gain"] else "-"
        rate = f"{r['flop_per_s'] / 1e9:.1f}" if r["flop_per_s"] else "-"
        body.append([r["task"], *cells, gain, rate, str(r["trials"]), r["verdict"]])
    return rows.table(("kernel", "by hand us", "tuned us", "gain", "GFLOP/s", "trials", "schedule"), body)


def measured(given: Any, threads: int, out: Path) -> Iterable[Row]:
    """All rows of a thread count, as they are known: kernels, sessions, lowerings, peaks, replays, bars."""
    from xframe.lowering.target import Cpu
    from xframe.tuning.runner import LocalRunner
    from xframe.tuning.session import tune
    from xframe.tuning.terminal import Bar
    from xframe.tuning.verify import verify
    from xframe.tuning.work import Request, works

    cpu = Cpu.host(threads)

    def session(work, trials, folder):
        with closing(LocalRunner(cpu)) as runner, Bar() as bar:
            report = tune(work, runner, cpu, folder, trials, given.strategy, seed=given.seed, on_progress=bar)
        return report, {**report.to_json(), "work": [w.label for w in work]}

    asked = Request((given.model,), given.lowering, given.batch, given.framework, threads).resolved()
    work = works(asked, _say)
    kernels, sessions, folders, seen = [], [], [], set()
    for lowering in asked.lowerings or ():
        mine = [
            replace(w, tasks=tuple(t for t in w.tasks if t.lowering == lowering and t.name not in seen))
            for w in work
            if w.lowering == lowering
        ]
        names = {t.name for w in mine for t in w.tasks}
        seen |= names
        if not names:
            continue
        report, summary = session([w for w in mine if w.tasks], given.trials, out)
        sessions.append(summary)
        folders += report.logs
        kernels += [r.to_json() for r in report.rows]
        yield from (*kernels[-len(report.rows) :], summary)
    lowerings = gain_rows(kernels)
    yield from lowerings
    slowest = max((r for r in kernels if r["by_hand_s"]), key=lambda r: r["by_hand_s"], default=None)
    one = None
    if slowest is not None:
        tasks = tuple(t for w in work for t in w.tasks if t.name == slowest["task"])[:1]
        with tempfile.TemporaryDirectory(prefix="xframe-one-") as folder:
            _, one = session([replace(work[0], tasks=tasks)], ONE_KERNEL, Path(folder))
        yield one
    peak = roofline.machine(threads).flop_per_s
    peaks = peak_rows(kernels, peak, threads)
    yield from peaks
    replays = []
    for folder in dict.fromkeys(folders):
        for held in verify(folder, given.rounds, _say):
            replays.append({"kind": "replay", "log": str(folder), **vars(held)})
            yield replays[-1]
    yield from (*gain_bars(lowerings), *cost_bars(sessions, one), *peak_bars(peaks, peak), *replay_bars(replays))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    parser = rows.options(__doc__.splitlines()[0], rounds=3)
    parser.add_argument("--model", default="alexnet", help="a registered model, or an ONNX file")
    parser.add_argument("--framework", default="pytorch", help="whose export is used")
    parser.add_argument("--batch", type=rows.numbers, default=(1,))
    parser.add_argument("--lowering", type=rows.names, default=defaults(LOWERINGS))
    parser.add_argument("--trials", type=int, default=256, help="of each lowering")
    parser.add_argument("--strategy", default="evolutionary")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, help="keep the logs there")
    given = parser.parse_args()
    missed = False
    with tempfile.TemporaryDirectory(prefix="xframe-logs-") as folder:
        for threads in given.threads:
            found = []
            for r in measured(given, threads, given.output or Path(folder)):
                found.append({"threads": threads, **r})
                if given.json:
                    print(json.dumps(found[-1]), flush=True)
            kinds = {kind: [r for r in found if r["kind"] == kind] for kind in ("kernel", "bar")}
            missed |= not all(r["met"] for r in kinds["bar"])
            if not given.json:
                print(
                    f"{given.model}, threads {threads}\n\n{kernel_table(kinds['kernel'])}\n\n{bar_table(kinds['bar'])}"
                )
    return int(missed)


if __name__ == "__main__":
    sys.exit(rows.run(main))
