"""Results on disk: one ``run.json`` with everything that was measured, raw samples included."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from xframe import typed
from xframe.analysis.algorithms import told
from xframe.analysis.labels import planned
from xframe.errors import XframeError
from xframe.files import atomic
from xframe.planning import BEST
from xframe.results import LayerWork, Machine, Measurement, Run
from xframe.store_rules import RULES, Asked, RowFacts, RunFacts
from xframe.types import Case, ConvSite, Outcome, Plan
from xframe.worker.timing import quartiles
from xframe.worker.wire import artifact_of, plain, profiles_of, sites_of

#: Grows with every change that an older reader would misread.
SCHEMA = 2

#: Keys that every row has, whatever became of it.
ROW_KEYS = (
    "model", "framework", "backend", "lowering", "device", "batch", "threads", "direction", "outcome", "reason",
    "median_s", "iqr_s", "samples", "max_abs_error", "error_bound", "error_ratio", "peak_bytes", "compile_s", "notes",
    "fallback", "schedules", "options", "device_median_s", "device_iqr_s", "device_clock", "algorithms",
)  # fmt: skip
#: Of a whole number that is taken digit by digit; Python has no bound for them, and what computes with them has.
_DIGITS = 19
#: Those that came later: files of before do not have them.
_LATER = ("device_median_s", "device_iqr_s", "device_clock", "algorithms")


def row(measurement: Measurement) -> dict[str, Any]:
    """The flat row of :data:`ROW_KEYS`: what tables, ``--json`` and comparisons read. Seconds and bytes.

    ``backend`` is ``native`` or a backend's name; ``lowering`` is the plan's label, ``auto`` for a runner that picks
    by itself; ``samples`` is a count; ``fallback`` maps site keys to the reason of the refusal;
    ``schedules`` says of each convolution of a forced plan, once it was compiled, where its schedule is from;
    ``options`` are the switches of the runner that are not at their default; ``device_median_s`` is of steps by the
    clock of a GPU itself, and ``device_clock`` says how they were taken; ``algorithms`` says of each convolution that a
    profile shows which lowering its kernels are, None where nobody can tell, and their own words for it.
    """
    case, samples = measurement.case, measurement.samples
    timed = measurement.outcome == Outcome.OK  # the time of a wrong result is none: its raw samples alone are kept
    q1, median, q3 = quartiles(samples) if timed else (None, None, None)
    d1, by_device, d3 = quartiles(measurement.device_samples) if timed and device_clock(measurement) else (None,) * 3
    return finite(
        {
            "model": case.model,
            "framework": case.framework,
            "backend": case.runner,
            "lowering": case.plan.label if planned(case) else "auto",
            "device": case.device,
            "batch": case.batch,
            "threads": case.threads,
            "direction": case.direction,
            "outcome": measurement.outcome.value,
            "reason": measurement.reason,
            "median_s": median,
            "iqr_s": None if q1 is None or q3 is None else q3 - q1,
            "samples": len(samples),
            "max_abs_error": measurement.error,
            "error_bound": measurement.error_bound,
            "error_ratio": measurement.error_ratio,
            "peak_bytes": measurement.peak_bytes,
            "compile_s": measurement.seconds.get("compile", measurement.seconds.get("build")),
            "notes": list(measurement.notes),
            "fallback": {site.key: why for site, why in case.plan.fallback},
            "schedules": [
                {"site": s.site.key, "name": s.name, "schedule": s.schedule} for s in measurement.sites if s.schedule
            ],
            "options": dict(case.options),
            "device_median_s": by_device,
            "device_iqr_s": None if d1 is None or d3 is None else d3 - d1,
            "device_clock": device_clock(measurement) or None,
            "algorithms": [
                {"site": site.key, "lowering": name, "words": text} for site, (name, text) in told(measurement).items()
            ],
        }
    )


def device_clock(measurement: Measurement) -> str:
    """How the times by the device's own clock were taken; empty where there are none."""
    clock = measurement.environment.get("device_clock")
    if not measurement.device_samples or not clock:
        return ""
    return f"{clock['how']}; with nothing between them {clock['empty_s'] * 1e6:.1f} us"


def _detailed(measurement: Measurement) -> dict[str, Any]:
    """A row with what it was derived from."""
    case = measurement.case
    extra = {
        "cache": case.cache,
        "artifact": case.artifact,
        "plan": case.plan.to_json(),
        "rounds_s": measurement.rounds,
        "device_rounds_s": measurement.device_rounds,
        "seconds": measurement.seconds,
        "sites": measurement.sites,
        "profiles": measurement.profiles,
        "plain_s": measurement.plain,
        "prediction": measurement.prediction,
        "environment": measurement.environment,
    }
    return {**row(measurement), **finite(plain(extra))}


def finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    return [finite(v) for v in value] if isinstance(value, list) else value


def write(run: Run, folder: Path) -> Path:
    """Write ``folder/run.json``, whole or not at all, an older one stays until then; and each plan ``best`` beside it.

    Raises
    ------
    XframeError
        The folder can't be written, or the disk is full.
    """
    path = Path(folder) / "run.json"
    content = {
        "schema": run.schema,
        "created": run.created,
        "command": list(run.command),
        "environment": finite(plain(run.environment)),
        "machines": {str(threads): m.to_json() for threads, m in run.machines.items()},
        "layers": finite(plain(run.layers)),
        "rows": [_detailed(m) for m in run.measurements],
        "counterfactuals": finite(plain(run.counterfactuals)),
    }
    text = json.dumps(content, indent=1, allow_nan=False)
    with atomic(path) as part:
        part.write_text(text + "\n", encoding="utf-8")
    for name, plan in _best_plans(run.measurements).items():
        with atomic(Path(folder) / name) as part:
            part.write_text(json.dumps(plan.to_json(), indent=1) + "\n", encoding="utf-8")
    return path


def _best_plans(measurements: Sequence[Measurement]) -> dict[str, Plan]:
    """File name -> plan, without its schedules, which are this machine's and come from its logs.

    The framework is in the name only where frameworks differ in their plan.
    """
    plans: dict[str, Plan] = {}
    for m in measurements:
        case, plan = m.case, replace(m.case.plan, tuned=())
        if m.outcome == Outcome.OK and plan.label == BEST:
            size = f"b{case.batch}-t{case.threads}.json"
            name = f"{BEST}-{case.model}-{size}"
            if plans.setdefault(name, plan) != plan:
                plans[f"{BEST}-{case.model}-{case.framework}-{size}"] = plan
    return plans


def read(path: Path) -> dict[str, Any]:
    """What :func:`write` wrote, given the file or its folder.

    Raises
    ------
    XframeError
        It is missing, broken, of another schema, or a row lacks a key.
    """
    path = Path(path)
    path = path / "run.json" if path.is_dir() else path
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text, parse_float=_float, parse_int=_int, parse_constant=_float)
    except OSError as e:
        raise XframeError(f"can't read {path}: {e.strerror or e}; give a run.json or the folder that holds one") from e
    except (ValueError, RecursionError) as e:
        raise XframeError(f"{path} is not a whole JSON file ({e}): it was cut short or edited; run it again") from e
    if not isinstance(data, dict) or "schema" not in data:
        raise XframeError(f"{path} is not a result of xframe: it has no schema number")
    if data["schema"] != SCHEMA:
        raise XframeError(
            f"{path} has schema {data['schema']!r}, this xframe reads {SCHEMA}: run it again, or read it with the"
            " version that wrote it"
        )
    for key in ("created", "command", "environment", "machines", "layers", "rows"):
        if key not in data:
            raise XframeError(f"{path} lacks {key!r}: it was edited or cut; run it again")
    if not isinstance(data["rows"], list):
        raise XframeError(f"{path}: 'rows' is not a list; run it again")
    for number, one in enumerate(data["rows"]):
        needed = (*(k for k in ROW_KEYS if k not in _LATER), "rounds_s")
        missing = [k for k in needed if not isinstance(one, dict) or k not in one]
        if missing:
            raise XframeError(f"{path}: row {number} lacks {', '.join(missing)}; run it again")
    return data


def load(path: Path) -> Run:
    """The run that :func:`write` wrote, given the file or its folder.

    Raises
    ------
    XframeError
        As :func:`read`; or a value in it makes no sense.
    """
    data = read(path)
    try:
        run = Run(
            data["schema"],
            data["created"],
            tuple(data["command"]),
            data["environment"],
            tuple(map(_measurement, data["rows"])),
            {int(threads): Machine.from_json(machine) for threads, machine in data["machines"].items()},
            {int(batch): tuple(map(_layer, rows)) for batch, rows in data["layers"].items()},
            tuple(data.get("counterfactuals", ())),
        )
        for number, m in enumerate(run.measurements):
            typed.check(m, Measurement, RULES, at=("rows", str(number)))
            typed.check(m.environment, RowFacts, at=("rows", str(number), "environment"))
        typed.check(replace(run, measurements=()), Run, RULES)
        typed.check(run.environment, RunFacts, at=("environment",))
        typed.check(run.counterfactuals, Sequence[Asked], at=("counterfactuals",))
    except typed.Misfit as e:
        raise XframeError(f"{path} was edited or is damaged: {e}; run it again") from e
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise XframeError(f"{path} was edited or is damaged ({type(e).__name__}: {e}); run it again") from e
    return run


def _float(text: str) -> float:
    """A number that arithmetic can be done with: not NaN, nor beyond all bounds. Raises ValueError."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number of JSON")
    return number


def _int(text: str) -> int:
    return int(text) if len(text) < _DIGITS else int(_float(text))


def _measurement(row: Mapping[str, Any]) -> Measurement:
    case = Case(
        row["model"],
        row["framework"],
        row["backend"],
        Plan.from_json(row["plan"]),
        row["device"],
        row["batch"],
        row["threads"],
        artifact_of(row["artifact"]),
        row["cache"],
        row["direction"],
        tuple(row["options"].items()),
    )
    return Measurement(
        case,
        Outcome(row["outcome"]),
        row["reason"],
        tuple(map(tuple, row["rounds_s"])),
        row["seconds"],
        sites_of(row["sites"]),
        profiles_of(row["profiles"]),
        tuple(row["plain_s"]),
        row["max_abs_error"],
        row["error_bound"],
        row["error_ratio"],
        row["peak_bytes"],
        row["environment"],
        tuple(row["notes"]),
        row["prediction"],
        tuple(map(tuple, row.get("device_rounds_s", ()))),
    )


def _layer(data: Mapping[str, Any]) -> LayerWork:
    return LayerWork(**{**data, "site": ConvSite.parse(data["site"]) if data["site"] else None})
