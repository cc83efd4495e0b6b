"""The steps of a check, in the order in which they are worth most if the time runs out."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from xframe import comparison, environment, measure, registry, store, zoo
from xframe.comparison import AUTO, BEST, IMPLIED_FALLBACK, Request
from xframe.errors import XframeError
from xframe.gpucheck import machine
from xframe.gpucheck.journal import CUT, DONE, FAILED, SKIPPED, Found, Journal
from xframe.jobs import Budget
from xframe.planning import NONE
from xframe.prebuilt.folder import Entry
from xframe.results import Measurement, Run

Progress = Callable[[str], None]
#: Seconds that a step must have to be begun, and a row to be opened, at least.
LEAST = 20.0
#: (samples, seconds) of the budget of a row: short, as many rows share little time.
QUICK = Budget(rounds=2, min_samples=5, min_seconds=0.1, max_seconds=0.3, workers=8)
BACKENDS = ("ort", "tvm", "cudnn")
#: Where tuned kernels are kept, in the folder of the check; how many schedules are tried; seconds to end in.
LOGS, TRIALS, GRACE = "schedules", 64, 20.0


@dataclass(frozen=True)
class Settings:
    """What to check. ``prebuilt``: a folder of ``xframe build``; with it nothing is compiled, no framework needed.
    ``best``: the plan of the fastest lowering at each site is among the rows of a network, and measured for that."""

    model: str = "alexnet"
    framework: str = "pytorch"
    device: str = "cuda"
    batches: tuple[int, ...] = (1, 128, 16)
    minutes: float = 10.0
    prebuilt: Path | None = None
    best: bool = True
    budget: Budget = field(default_factory=lambda: QUICK)


@dataclass(frozen=True)
class Step:
    """``run`` gives rows and facts; ``share`` is the part of all the time that it may take."""

    name: str
    share: float
    run: Callable[[Path, float], tuple[Sequence[Measurement], dict[str, Any]]]


def steps(settings: Settings, progress: Progress) -> Iterator[Step]:
    """All that is to be done after the machine was looked at."""
    if settings.prebuilt is not None:
        yield from _prebuilt(settings, settings.prebuilt, progress)
        return
    first, *others = settings.batches
    largest = max(settings.batches)
    yield Step("roofs", 0.1, lambda place, limit: _roofs(settings, place))
    yield _network(settings, first, 0.3, progress)
    yield from _sites(settings, largest, progress)
    for batch in others:
        yield _network(settings, batch, 0.3, progress)
    yield Step("tuning", 0.3, lambda place, limit: _tuning(settings, largest, place, limit))
    yield from _sites(settings, largest, progress, tuned=True)


def check(settings: Settings, journal: Journal, progress: Progress) -> list[Found]:
    """Carry out what is not done yet; each step is written as soon as it is over.

    A step that runs out of its time, or is interrupted, keeps the rows that it has. Without a GPU all steps but the
    first are skipped, and say why.
    """
    deadline = time.monotonic() + 60 * settings.minutes
    _machine(settings, journal, progress)
    why = "" if machine.devices() else "no GPU"
    stopped = False
    for step in steps(settings, progress):
        before = journal.known(step.name)
        if before is not None and before.state == DONE:
            journal.note(step.name)
            continue
        left = deadline - time.monotonic()
        if why or stopped or left < LEAST:
            reason = why or ("interrupted" if stopped else f"{left:.0f} s were left")
            if before is None:
                journal.write(Found(step.name, SKIPPED, reason))
            else:
                journal.note(step.name)
            continue
        progress(f"{step.name}, {left:.0f} s left")
        found, stopped = _carried_out(step, journal.place(step.name), min(left, step.share * 60 * settings.minutes))
        journal.write(found)
    return list(journal)


def _machine(settings: Settings, journal: Journal, progress: Progress) -> None:
    """Always anew: it costs seconds, and what was there may be gone."""
    progress("what is there")
    started = time.monotonic()
    facts = machine.facts(probe=settings.prebuilt is None)
    journal.write(Found("machine", DONE, "", time.monotonic() - started, (), facts))


def _carried_out(step: Step, place: Path, limit: float) -> tuple[Found, bool]:
    """What a step found within ``limit`` seconds, and whether the user stopped it."""
    started = time.monotonic()

    def found(state: str, rows: Sequence[Measurement] = (), facts: Any = None, reason: str = "") -> Found:
        flat = tuple({**store.row(m), "kernel_s": kernel_seconds(m)} for m in rows)
        return Found(step.name, state, reason, round(time.monotonic() - started, 3), flat, facts or {})

    place.mkdir(parents=True, exist_ok=True)
    try:
        with alarm(limit):
            rows, facts = step.run(place, limit)
        return found(DONE, rows, facts), False
    except comparison.Interrupted as e:
        store.write(e.run, place)
        late = time.monotonic() - started >= limit
        return found(CUT, e.run.measurements, None, f"after {limit:.0f} s" if late else "interrupted"), not late
    except KeyboardInterrupt:
        late = time.monotonic() - started >= limit
        return found(CUT, (), None, f"after {limit:.0f} s" if late else "interrupted"), not late
    except XframeError as e:
        return found(FAILED, (), None, str(e)), False
    except Exception as e:  # one step must not cost the others
        return found(FAILED, (), None, f"{type(e).__name__}: {e}"), False


@contextlib.contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Within the block a KeyboardInterrupt comes after so many seconds, and instead of an end by SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    kept = {s: signal.signal(s, stop) for s in (signal.SIGALRM, signal.SIGTERM)}
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in kept.items():
            signal.signal(number, handler)


def _limited(settings: Settings, limit: float) -> Budget:
    return replace(settings.budget, open_limit=max(limit, LEAST), run_limit=max(limit / 4, LEAST))


def kernel_seconds(measurement: Measurement) -> float | None:
    """Of a pass, in the kernels of its convolutions alone: the fastest profiled one; None where none was profiled."""
    passes = [[k.end - k.start for k in p.kernels if k.kind == "conv"] for p in measurement.profiles]
    return min((sum(seconds) for seconds in passes if seconds), default=None)


def _flop(rows: Sequence[Measurement]) -> int | None:
    """Of all convolutions of the network that these are rows of."""
    found = next((m.case.artifact for m in rows if m.case.artifact), None)
    return sum(site.flop for _, site in found.conv_sites) if found else None


def _roofs(settings: Settings, place: Path) -> tuple[Sequence[Measurement], dict[str, Any]]:
    """What the GPU does at most, by kernels that are compiled here."""
    from xframe.lowering.cuda.target import Gpu
    from xframe.prebuilt import roofs

    index = environment.gpu_index(settings.device)
    return (), {"roofs": roofs.measured(roofs.write(Gpu.of_device(index), place), settings.device)}


def _network(settings: Settings, batch: int, share: float, progress: Progress) -> Step:
    """The network in every runner and lowering, and in TVM's best plan, each judged by the float64 reference."""

    labels = (AUTO, *registry.defaults(registry.LOWERINGS), *registry.BACKENDS["cudnn"].algorithms)

    def run(place: Path, limit: float) -> tuple[Sequence[Measurement], dict[str, Any]]:
        request = Request(
            settings.model,
            frameworks=None,
            runners=("native", *BACKENDS),
            lowerings=(*labels, BEST) if settings.best else labels,
            fallback=IMPLIED_FALLBACK,
            device=settings.device,
            batches=(batch,),
            threads=(1,),
            budget=_limited(settings, limit),
            pairs=_pairs(settings),
        )
        done = comparison.compare(request, progress)
        store.write(done, place)
        return done.measurements, {"network": settings.model, "batch": batch, "flop": _flop(done.measurements)}

    return Step(f"network batch {batch}", share, run)


def _pairs(settings: Settings) -> tuple[tuple[str, str], ...]:
    """Every framework natively, and one export under the backends: they read the same graph."""
    natives = [(name, "native") for name in ("pytorch", "tensorflow", "jax")]
    return (*natives, *((settings.framework, runner) for runner in BACKENDS))


def _sites(settings: Settings, batch: int, progress: Progress, tuned: bool = False) -> Iterator[Step]:
    """Each convolution as a network of its own, so that kernels of the same algorithm stand side by side.

    ``tuned``: TVM's again, by the logs of the tuning step; without any, nothing is measured.
    """
    spec = zoo.spec(settings.model)
    names = [layer.name for layer in spec.layers if layer.op == "conv"]
    for name in names:

        def run(place: Path, limit: float, name: str = name) -> tuple[Sequence[Measurement], dict[str, Any]]:
            from xframe import artifact
            from xframe.prebuilt import convolution

            logs = place.parent / LOGS
            if tuned and not logs.is_dir():
                raise XframeError("there is no log of tuned kernels")
            path = convolution.write(spec, name, batch, place / f"{name}.onnx")
            request = Request(
                str(path),
                runners=("tvm",) if tuned else BACKENDS,
                device=settings.device,
                threads=(1,),
                budget=_limited(settings, limit),
                schedules=str(logs) if tuned else NONE,
            )
            done = comparison.compare(request, progress)
            store.write(done, place)
            ((_, site),) = artifact.load(path).conv_sites
            return done.measurements, {"site": name, "batch": batch, "flop": site.flop, "tuned": tuned}

        yield Step(f"{'tuned ' * tuned}site {name} batch {batch}", (0.15 if tuned else 0.3) / len(names), run)


def _tuning(settings: Settings, batch: int, place: Path, limit: float) -> tuple[Sequence[Measurement], dict[str, Any]]:
    """A short run of ``xframe tune``; its logs are as a repository keeps them, and stay when it is stopped."""
    logs = place.parent / LOGS
    command = [sys.executable, "-m", "xframe.cli", "tune", "--model", settings.model, "--device", settings.device]
    command += ["--batch", str(batch), "--trials", str(TRIALS), "-o", str(logs)]
    facts: dict[str, Any] = {"command": command}
    with (
        open(place / "output.txt", "w", encoding="utf-8") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as running,
    ):
        try:
            code = running.wait(max(1.0, limit - GRACE))
        except subprocess.TimeoutExpired:
            code, facts["ended"] = 0, f"stopped after {limit - GRACE:.0f} s"
        finally:
            if running.poll() is None:
                running.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    running.wait(GRACE / 2)
                running.kill()
    said = (place / "output.txt").read_text(encoding="utf-8", errors="replace")
    if code:
        raise XframeError(f"{' '.join(command[1:])} ended with {code}: {said.strip()[-1000:]}")
    kept = sorted(p.parent.relative_to(logs).as_posix() for p in logs.rglob("meta.json")) if logs.is_dir() else []
    return (), {**facts, "output": said[-4000:], "logs": kept}


def _prebuilt(settings: Settings, where: Path, progress: Progress) -> Iterator[Step]:
    """What was compiled elsewhere, by batch."""
    from xframe.prebuilt import folder, roofs

    target, entries = folder.read(where)
    if (where / roofs.LIBRARY).is_file():
        yield Step(
            "roofs", 0.1, lambda place, limit: ((), {"roofs": roofs.measured(where / roofs.LIBRARY, settings.device)})
        )
    batches = dict.fromkeys(e.batch for e in entries)
    for batch in batches:

        def run(place: Path, limit: float, batch: int = batch) -> tuple[Sequence[Measurement], dict[str, Any]]:
            mine = [e for e in entries if e.batch == batch and not e.site]
            rows, refused = _compiled(where, mine, settings.device, _limited(settings, limit), progress)
            facts = {"target": target, "refused": refused, "network": mine[0].model, "batch": batch}
            return rows, {**facts, "flop": _flop(rows)}

        yield Step(f"prebuilt batch {batch}", 0.9 / len(batches), run)


def _compiled(
    where: Path, entries: Sequence[Entry], device: str, budget: Budget, progress: Progress
) -> tuple[list[Measurement], dict[str, str]]:
    """The rows of what can be run, and why the rest can't."""
    from xframe.prebuilt import jobs

    rows: list[Measurement] = []
    refused, ready = {}, []
    for entry in entries:
        try:
            ready.append(jobs.job(where, entry, device))
        except XframeError as e:
            refused[entry.name] = str(e)
    with jobs.running(where):
        try:
            for row in measure.measure(ready, budget, lambda case, stage: progress(f"{case.plan.label}: {stage}")):
                rows.append(row)  # one by one: an interrupt keeps them
        except KeyboardInterrupt as e:
            raise comparison.Interrupted(Run(store.SCHEMA, "", [], {}, rows)) from e
    return rows, refused
