"""What differs between two results, or two rows, and matters: whether their times may be held against each other.

Every fact is in one of two tables, with the reason why it matters. A difference is *refused* where times would say
nothing of what is compared, or *labelled* where they do, and a reader has to know it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from xframe.registry import LOWERINGS
from xframe.results import Measurement, Run
from xframe.types import Outcome

T = TypeVar("T", Run, Measurement)

#: Names shown of what differs within one fact; more are counted.
_SHOWN = 3


@dataclass(frozen=True)
class Difference:
    """A fact that two sides do not share; ``old`` and ``new`` as recorded, None where it was not."""

    name: str
    old: Any
    new: Any
    refused: bool
    why: str

    def __str__(self) -> str:
        """``tf32: False, now True (products are rounded to 10 bits)``."""
        return f"{self.name}: {_changed(self.old, self.new)} ({self.why})"

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "old": self.old, "new": self.new, "refused": self.refused, "why": self.why}


class Fact(NamedTuple, Generic[T]):
    """``value`` gives None where it is not recorded."""

    name: str
    refused: bool
    why: str
    value: Callable[[T], Any]


def of_runs(old: Run, new: Run, allowed: Collection[str] = ()) -> tuple[Difference, ...]:
    """What differs between two results as wholes. ``allowed``: names of facts to label rather than refuse."""
    return tuple(_differences(RUN_FACTS, old, new, allowed, told=True))


def of_rows(
    old: Measurement, new: Measurement, allowed: Collection[str] = (), intended: Collection[str] = ()
) -> tuple[Difference, ...]:
    """What differs between two rows, whatever their runs.

    Parameters
    ----------
    allowed
        Names of facts to label rather than refuse.
    intended
        Names of facts whose difference is what is compared: they are left out.

    Notes
    -----
    What only one of two different runners records is left out: they have other words for what they do.
    """
    same = (old.case.framework, old.case.runner) == (new.case.framework, new.case.runner)
    found = _differences(ROW_FACTS, old, new, allowed, same)
    return tuple(d for d in (*found, *_others(old, new)) if d.name not in intended)


def in_turn(row: Measurement) -> tuple[Any, ...]:
    """What rows of one result share that were measured in turn, of those that could have been: the group that fitted
    in memory (``xframe.measure``), the set of an ablation."""
    tried = row.environment.get("ablation") or {}
    return row.environment.get("group"), tried.get("set")


def apart_from_first(measurements: Iterable[Measurement]) -> dict[int, str]:
    """Why rows are not ranked with the first of them that has a time, in words, by their ``id``.

    Parameters
    ----------
    measurements
        Of one result, in its order, that compute the same. Those of an ablation are held against each other alone:
        they are passed over.
    """
    timed = [m for m in measurements if m.outcome == Outcome.OK and "ablation" not in m.environment]
    return {id(m): why for m in timed if (why := apart(m, timed[0]))}


def apart(row: Measurement, first: Measurement) -> str:
    """Why a row of a result is not ranked with the ``first`` of its rows, in words; empty where it may be."""
    found = (d for d in of_rows(first, row, intended=VARIED) if d.refused)
    return "; ".join(f"{d.name} {_word(d.new)}, not {_word(d.old)} ({d.why})" for d in found)


def _differences(
    facts: Iterable[Fact[T]], old: T, new: T, allowed: Collection[str], told: bool
) -> Iterable[Difference]:
    for fact in facts:
        a, b = fact.value(old), fact.value(new)
        if a == b:
            continue
        if a is None or b is None:
            if told:
                yield Difference(fact.name, a, b, False, f"recorded on one side alone; {fact.why}")
        else:
            yield Difference(fact.name, a, b, fact.refused and fact.name not in allowed, fact.why)


def _others(old: Measurement, new: Measurement) -> Iterable[Difference]:
    """What runners record beyond the tables, where both do."""
    for name in sorted(old.environment.keys() & new.environment.keys() - _COVERED):
        a, b = old.environment[name], new.environment[name]
        if a != b:
            yield Difference(name, a, b, False, "a setting of the runner")


def _changed(old: Any, new: Any) -> str:
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return f"{_word(old)}, now {_word(new)}"
    names = [n for n in {**old, **new} if old.get(n) != new.get(n)]
    parts = [f"{n} {_word(old.get(n))}, now {_word(new.get(n))}" for n in names[:_SHOWN]]
    return "; ".join(parts + ([f"and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []))


def _word(value: Any) -> str:
    if isinstance(value, Mapping):
        value = [f"{k}={v}" for k, v in value.items()]
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _recorded(*path: str) -> Callable[[Run | Measurement], Any]:
    """A fact of the environment, by its keys."""

    def value(side: Run | Measurement) -> Any:
        found: Any = side.environment
        for key in path:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    return value


def _first(*readers: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda side: next((v for v in (reader(side) for reader in readers) if v is not None), None)


def _cpu(run: Run) -> list[Any] | None:
    name, family = run.environment.get("cpu"), run.environment.get("cpu_family")
    return None if name is None else [name, *(family or ())]


#: What a GPU is allowed, as NVML tells it.
_LIMITS = ("power_limit_w", "max_sm_clock_mhz", "max_memory_clock_mhz")


def _of_gpus(*names: str) -> Callable[[Run], Any]:
    """These facts of each GPU of the machine; None where there is none."""

    def value(run: Run) -> Any:
        found = [g for g in run.environment.get("gpus") or () if isinstance(g, Mapping)]
        told = {f"{g.get('name')} {i}": [g.get(name) for name in names] for i, g in enumerate(found)}
        return told or None

    return value


def _work(run: Run) -> dict[str, Any] | None:
    """The work of each layer on one image."""
    batch, layers = next(iter(run.layers.items()), (1, ()))
    return {x.name: [x.kind, x.flop / batch, x.weight_bytes] for x in layers} or None


def _sites(m: Measurement) -> dict[str, int] | None:
    """How often each convolution is in the network; None for a runner that does not tell."""
    sites = [s for _, s in m.case.artifact.conv_sites] if m.case.artifact else [s.site for s in m.sites]
    return dict(Counter(s.key for s in sites)) or None


def _export(m: Measurement) -> str | None:
    return m.case.artifact.sha256 if m.case.artifact else None


def _layout(m: Measurement) -> str | None:
    if m.case.artifact and m.case.artifact.inputs:
        return m.case.artifact.inputs[0].layout or None
    return m.environment.get("layout")


def _tf32(m: Measurement) -> bool | None:
    found = _first(_recorded("tf32"), _recorded("provider_options", "use_tf32"), _recorded("use_tf32"))(m)
    return None if found is None else str(found).lower() in ("true", "1", "on")


def _products(m: Measurement) -> list[str]:
    """The types that forced lowerings multiply; what picks by itself multiplies float32, but for TF32."""
    ran = [s.selected for s in m.sites] or [name for _, name in m.case.plan.lowerings]
    return sorted({LOWERINGS[name].products or "float32" for name in ran if name in LOWERINGS}) or ["float32"]


def _workspace(m: Measurement) -> Any:
    names = ("gpu_mem_limit", "cudnn_conv_use_max_workspace", "arena_extend_strategy")
    options = m.environment.get("provider_options") or {}
    found = {name: options[name] for name in names if name in options}
    return found or m.environment.get("workspace_limit")


def _schedules(m: Measurement) -> dict[str, str] | None:
    return {s.site.key: s.schedule for s in m.sites if s.schedule} or None


_SPEED = "a change of speed would be the machine's"
_MORE = "it is not the same work"

#: Of results as wholes.
RUN_FACTS: tuple[Fact[Run], ...] = (
    Fact("schema", True, "its numbers may mean something else", lambda run: run.schema),
    Fact("network", True, "other layers or weights: " + _MORE, _recorded("network")),
    Fact("layers", True, "the layers differ: " + _MORE, _work),
    Fact("seed", True, "the inputs are others", _recorded("request", "resolved", "seed")),
    Fact("cpu", True, f"another processor: {_SPEED}", _cpu),
    Fact("governor", True, f"clocks follow another policy: {_SPEED}", _recorded("governor")),
    Fact("turbo_off", True, f"clocks have another limit: {_SPEED}", _recorded("turbo_off")),
    Fact("gpu_limits", True, f"power or clocks of its GPUs have another limit: {_SPEED}", _of_gpus(*_LIMITS)),
    Fact("gpu_driver", False, "the driver launches, and compiles, kernels", _of_gpus("driver")),
    Fact("cores", False, "CPUs that could be used share caches and memory", _recorded("cores")),
    Fact("caches", False, "as the machine shows them", _recorded("caches")),
    Fact("hypervisor", False, "virtual machines have neighbours", _recorded("hypervisor")),
    Fact("system", False, "kernel and C library", _recorded("system")),
    Fact("python", False, "the interpreter is in the host's time", _recorded("python")),
    Fact("versions", False, "it may be what is compared", _recorded("versions")),
    Fact("git", False, "another state of xframe measured it", _recorded("git")),
)

#: Of two rows.
ROW_FACTS: tuple[Fact[Measurement], ...] = (
    Fact("model", True, "another network", lambda m: m.case.model),
    Fact("batch", True, _MORE, lambda m: m.case.batch),
    Fact("direction", True, _MORE, lambda m: m.case.direction),
    Fact("device", True, "another device", lambda m: m.case.device),
    Fact("gpu", True, f"another GPU: {_SPEED}", _recorded("gpu")),
    Fact("threads", True, "more threads are a larger machine", lambda m: m.case.threads),
    Fact("cache", True, "a cold cache reads all from memory", lambda m: m.case.cache),
    Fact("coverage", True, "other convolutions are in it: " + _MORE, _sites),
    Fact("tf32", True, "products of 10 bits are another computation", _tf32),
    Fact("products", True, "products of fewer bits are another computation", _products),
    Fact("matmul_precision", True, "products of fewer bits are another computation", _recorded("matmul_precision")),
    Fact("io_binding", True, "copies of inputs and outputs are in one time alone", _recorded("io_binding")),
    Fact("options", True, "other switches are turned", lambda m: dict(m.case.options)),
    Fact("layout", False, "its conversions are in the time", _layout),
    Fact("workspace", False, "memory decides which algorithms may run", _workspace),
    Fact("cudnn_benchmark", False, "convolutions are chosen by measuring, or not", _recorded("cudnn_benchmark")),
    Fact("plan", False, "other lowerings are forced", lambda m: {s.key: name for s, name in m.case.plan.lowerings}),
    Fact("error_budget", False, "it decides which tiles may run", lambda m: m.case.plan.error_budget),
    Fact("target", False, "compiled for another CPU", lambda m: m.case.plan.target or ""),
    Fact("schedules", False, "its kernels are tuned or not", _schedules),
    Fact("export", False, "another exporter may write another graph", _export),
    Fact("cpus", False, "pinned to other CPUs", _recorded("cpus")),
)

#: What rows of one result differ in on purpose, though it decides about their times.
VARIED = ("options", "coverage")
#: What is in the environment of a row and told above, told of the run, or other each time.
_COVERED = frozenset(
    ("tf32", "use_tf32", "matmul_precision", "io_binding", "layout", "gpu", "cudnn_benchmark", "cpus", "threads",
     "workspace_limit", "visits", "warmups", "settled", "foreign_load", "gpu_states", "device_clock", "disturbed",
     "profiled", "starts_at_once", "processes", "stderr", "ablation", "group")
)  # fmt: skip
