"""What ran in a step of JAX, by layer: from its profiler's trace, joined to the HLO that XLA compiled.

On a GPU XLA runs CUDA graphs. It means to launch one kernel after the other while it is traced; then what the timed
step saves by the graph is in the difference between profiled steps and others. As a plugin of JAX it has been seen not
to know of the trace (openxla/xprof 3070): then a graph's kernels have no instruction, and the profile says what gives
them one.
"""

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from xframe.frameworks import cupti, traces, xla
from xframe.frameworks.traces import Event
from xframe.types import Kernel, ModelSpec, Profile, Span

#: From the events of a step to its kernels and the other events.
Kernels = Callable[[Iterable[Event]], tuple[list[Kernel], list[Event]]]

_WAITING = ("Await", "BlockUntilReady", "block_until_ready", "Wait", *cupti.WAITING)


def record(function: Callable[[], None]) -> list[Event]:
    """The events of all host threads while ``function`` ran, and what ran on GPUs; not Python's own calls."""
    options = jax.profiler.ProfileOptions()  # there is none of devices: they always are
    options.host_tracer_level, options.python_tracer_level = 3, 0
    with tempfile.TemporaryDirectory(prefix="xframe-trace-") as folder:
        jax.profiler.start_trace(folder, profiler_options=options)
        try:
            function()
        finally:
            jax.profiler.stop_trace()
        data = [jax.profiler.ProfileData.from_file(str(p)) for p in Path(folder).rglob("*.xplane.pb")]
    return [event for d in data for event in read(d)]


def read(data: Any) -> list[Event]:
    """The events of ``jax.profiler.ProfileData``: the host's, and what ran on GPUs."""
    return [e for plane in data.planes if plane.name.startswith(("/host:", cupti.PLANES)) for e in _events(plane)]


def _events(plane: Any) -> Iterable[Event]:
    device = plane.name.startswith(cupti.PLANES)
    for number, line in enumerate(plane.lines):
        thread = f"{plane.name if device else ''}{line.name}/{number}"
        for event in line.events:
            start, stats = event.start_ns * 1e-9, dict(event.stats)
            if not device or cupti.ran(stats):
                yield Event(event.name, start, start + event.duration_ns * 1e-9, thread, stats, device)


def cost_of_an_event(device: jax.Device) -> float:
    """Seconds that the profiler adds for each event, from a program of many small kernels that do not fuse."""
    m, gpu = jax.device_put(jnp.eye(8), device), on_gpu(device)

    def kernel(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (3, 3), (1, 1), "SAME")

    def chain(x: Any) -> Any:
        for _ in range(100):
            x = step(x)
        return x

    # Programs, on a GPU: kernels of one may be a CUDA graph, which tracing may take apart: no cost of an event.
    step = jax.jit(kernel).lower(m).compile() if gpu else kernel
    run = chain if gpu else jax.jit(chain).lower(m).compile()
    return traces.seconds_per_event(lambda: run(m).block_until_ready(), record)


def on_gpu(device: jax.Device) -> bool:
    return bool(device.platform != "cpu")


def of_program(spec: ModelSpec, batch: int, hlo: str, gpu: bool = False) -> Kernels:
    """Tells kernels from the other events of a step of one program. ``hlo``: the optimised module."""
    names = {x.name for x in spec.layers}

    def layer_of(op_name: str) -> str:  # jit(<lambda>)/conv1/conv_general_dilated
        return next((part for part in op_name.split("/")[:-1] if part in names), "")

    works = xla.program(hlo, spec, batch, layer_of)

    def on_device(events: Iterable[Event]) -> tuple[list[Kernel], list[Event]]:
        ran, others = cupti.split(events, "jax")
        return xla.on_device(ran, works), others

    return on_device if gpu else lambda events: xla.kernels(events, works)


class Profiler:
    """Profiled passes of a network. ``step`` runs it once, to its end; ``kernels`` finds them among the events."""

    def __init__(self, step: Callable[[], None], kernels: Kernels, device: jax.Device):
        self._step, self._kernels, self._gpu = step, kernels, on_gpu(device)
        self._cost = cost_of_an_event(device)

    def passes(self, count: int) -> list[Profile]:
        return [self._profile() for _ in range(count)]

    def _profile(self) -> Profile:
        wall, thread, events = traces.step(traces.marked(self._step, record, jax.profiler.TraceAnnotation))
        kernels, others = self._kernels(events)
        host = traces.spans(others, wall, thread, _WAITING)
        asked = [e.end for e in others if e.thread == thread and e.name.startswith("PjitFunction")]
        if asked:  # one program after the other: between them Python runs
            host.append(Span("step", 0.0, max(asked), "python"))
        last = max((k.end for k in kernels), default=wall)
        woken = (e.start for e in others if e.name.endswith("::Await") and "_c" in e.stats)  # the end of its wait
        host += [Span("thread wake-up", last, time, "wake-up") for time in woken if time > last]
        note = cupti.note(kernels) if self._gpu else ""
        return Profile(wall, tuple(kernels), tuple(host), self._cost * len(events), note)
