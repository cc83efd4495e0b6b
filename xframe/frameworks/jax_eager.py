"""Whose the kernels are where JAX runs without ``jit``: each operation is a program of its own, and none has a layer.

Which programs a layer runs is learned in a step that waits for each layer. Any other step runs the same ones; of a
program that several layers share, the executions are numbered in the order in which they were asked for. On a GPU
nothing tells executions apart, but its stream runs kernels in that order: there each kernel of a program has a number.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import jax

from xframe.errors import XframeError
from xframe.frameworks import cupti, jax_profile, xla
from xframe.frameworks.traces import Event
from xframe.types import Kernel, ModelSpec

#: Begins the events that enclose a layer.
_LAYER = "xframe.layer "

#: Runs a step in which each layer is waited for, inside what this gives for its name.
Slowly = Callable[[Callable[[str], AbstractContextManager[Any]]], None]


def kernels(spec: ModelSpec, batch: int, slowly: Slowly, device: jax.Device) -> jax_profile.Kernels:
    """Tells kernels from the other events of a step. Whatever ``slowly`` runs must have been compiled before.

    Raises
    ------
    XframeError
        What ran is not among the programs that JAX keeps; or a GPU leaves no trace.
    """
    gpu = jax_profile.on_gpu(device)
    events = jax_profile.record(lambda: slowly(lambda name: jax.profiler.TraceAnnotation(_LAYER + name)))
    if gpu:
        ran, others = cupti.split(events, "jax")
        events = [*others, *_numbered(ran)]
    learned = _Programs(events)
    texts = [m.to_string() for e in device.client.live_executables() for m in e.hlo_modules()]
    works: dict[str, xla.Work] = {}
    for program, layers in learned.layers.items():
        text = _text(texts, *learned.seen[program])
        for layer in dict.fromkeys(layers):
            found = xla.program(text, spec, batch, lambda _, layer=layer: layer)  # type: ignore[misc]
            works.update({_key(program, layer, op): work for op, work in found.items()})

    def on_cpu(events: Iterable[Event]) -> tuple[list[Kernel], list[Event]]:
        return xla.kernels(_placed(list(events), learned.layers), works)

    def on_device(events: Iterable[Event]) -> tuple[list[Kernel], list[Event]]:
        ran, others = cupti.split(events, "jax")
        return xla.on_device(_placed(_numbered(ran), learned.layers), works), others

    return on_device if gpu else on_cpu


def _numbered(ran: Iterable[Event]) -> list[Event]:
    """What ran on a GPU, in order, as if each kernel of a program were an execution of it."""
    before: Counter[Any] = Counter()
    out = []
    for event in ran:
        program = event.stats.get("program_id")
        out.append(event._replace(stats={**event.stats, "run_id": before[program]}))
        before[program] += 1
    return out


class _Programs:
    """Of a step that waited for each layer: the layer of each execution of a program, in order; its module's name, and
    which of its instructions were seen."""

    def __init__(self, events: Iterable[Event]):
        events = sorted(events, key=lambda e: e.start)
        marks = [e for e in events if e.name.startswith(_LAYER)]
        runs: dict[Any, dict[Any, str]] = {}
        self.seen: dict[Any, tuple[str, set[str]]] = {}
        for event in (e for e in events if _is_kernel(e)):
            # What is between two layers brings the input of the second into form.
            mark = next((m for m in marks if event.start <= m.end), marks[-1])
            program, run = event.stats["program_id"], event.stats["run_id"]
            runs.setdefault(program, {}).setdefault(run, mark.name.removeprefix(_LAYER))
            self.seen.setdefault(program, (event.stats["hlo_module"], set()))[1].add(event.stats["hlo_op"])
        self.layers = {program: [found[run] for run in sorted(found)] for program, found in runs.items()}


def _is_kernel(event: Event) -> bool:
    return {"hlo_op", "program_id", "run_id"} <= event.stats.keys()


def _key(program: Any, layer: str, instruction: str) -> str:
    return f"{program}/{layer}/{instruction}"


def _text(texts: Iterable[str], module: str, instructions: Iterable[str]) -> str:
    """The program of that name that has these instructions: one of the same shapes, or of others, which differ in
    nothing that is asked of it."""
    for text in texts:
        if text.startswith(f"HloModule {module},") and all(
            re.search(rf"^ *(ROOT )?%?{re.escape(i)} = ", text, re.MULTILINE) for i in instructions
        ):
            return text
    raise XframeError(f"jax keeps no program {module} with the instructions that ran: {', '.join(instructions)}")


def _placed(events: list[Event], layers: dict[Any, list[str]]) -> list[Event]:
    """The events, those of kernels with the key of their work. Raises XframeError where a program
    ran more or less often than in the step that was learned from."""
    runs: dict[Any, set[Any]] = {}
    for event in filter(_is_kernel, events):
        runs.setdefault(event.stats["program_id"], set()).add(event.stats["run_id"])
    if {program: len(found) for program, found in runs.items()} != {p: len(found) for p, found in layers.items()}:
        raise XframeError("a step of jax ran other programs than the step before it")
    owners = {(p, run): layer for p, found in runs.items() for run, layer in zip(sorted(found), layers[p], strict=True)}

    def placed(event: Event) -> Event:
        if not _is_kernel(event):
            return event
        program = event.stats["program_id"]
        layer = owners[program, event.stats["run_id"]]
        return event._replace(stats={**event.stats, xla.WORK: _key(program, layer, event.stats["hlo_op"])})

    return [placed(event) for event in events]
