"""The engines of cuDNN's graph interface for an operation graph, and what they declare of themselves.

cuDNN names no algorithm there, but engines, by number, each with knobs and with notes on its arithmetic. What can be
forced is therefore a kind of engine, by its notes: ``graph_winograd``, ``graph_fft``, ``graph_plain`` with a note of
neither (implicit GEMM or direct, cuDNN does not say which), and ``graph_fastest``, the fastest of all; ``graph_nhwc``
is the fastest where image, weights and output lie with their channels last.
"""

import contextlib
import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from xframe.backends.cudnn_device import Gpu
from xframe.backends.cudnn_graph import COMPILED_AT_RUN_TIME, HEURISTICS, NOTES, Descriptor, made
from xframe.backends.cudnn_library import CallFailed
from xframe.backends.cudnn_rounding import OPERANDS

#: The kinds that a plan can name; ``graph_fastest`` is any of the last three, ``graph_nhwc`` that with channels last.
FASTEST, NHWC, PLAIN, WINOGRAD, FFT = "graph_fastest", "graph_nhwc", "graph_plain", "graph_winograd", "graph_fft"
KINDS = (FASTEST, NHWC, PLAIN, WINOGRAD, FFT)
#: Notes of engines that do not compute in float32 as it is: operands rounded to TF32, for which there is a bound, and
#: inputs of a narrower type, which may have a lesser range, and sums of fewer bits, for which there is none.
INPUTS, SUMS = "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION"
NARROW = (*OPERANDS, INPUTS, SUMS)
_WORDS = {
    **dict(zip(NARROW, ("tensor cores", "inputs of fewer bits", "sums of fewer bits"), strict=True)),
    **{f"WINOGRAD_TILE_{n}x{n}": f"{n}x{n} tiles" for n in (4, 6, 13)},
    "NONDETERMINISTIC": "nondeterministic",
}
#: What names an engine.
BY_NUMBER, BY_KNOBS = "its number", "its number and its knobs"
#: An engine is tried with all of its knobs' settings if there are at most so many.
SETTINGS = 64


@dataclass
class Engine:
    """An engine with its knobs, at one convolution.

    ``number``: cuDNN's, None where what was to name one refused; ``source``: what named it; ``knobs``: as cuDNN's own
    tags have them (``k2=5``), empty for its defaults; ``notes``: None where it refused before it could be asked;
    ``compiled``: its kernels are compiled when the plan is made; ``seconds``: of its shortest run, None where it was
    not measured; ``gated``: whether none of the host's time is in it; ``workspace``: bytes; ``layout``: of the tensors;
    ``refused``: cuDNN's words, or why it is left out.
    """

    number: int | None
    source: str
    knobs: tuple[str, ...] = ()
    notes: tuple[str, ...] | None = None
    compiled: bool = False
    seconds: float | None = None
    gated: bool | None = None
    workspace: int | None = None
    refused: str = ""
    layout: str = "NCHW"

    @property
    def kind(self) -> str:
        """What a plan calls it."""
        notes = self.notes or ()
        return WINOGRAD if any(n.startswith("WINOGRAD") for n in notes) else FFT if "FFT" in notes else PLAIN

    @property
    def words(self) -> str:
        """``cudnn graph engine 34: winograd, 4x4 tiles``."""
        family = {WINOGRAD: "winograd", FFT: "fft", PLAIN: "no transform"}[self.kind]
        more = [_WORDS.get(n, n) for n in self.notes or () if n in _WORDS or n not in NOTES]
        last = ", channels last" if self.layout == "NHWC" else ""
        return f"cudnn graph engine {self.number}{last}: {', '.join([family, *more])}"

    def told(self) -> dict[str, Any]:
        """For the record of a row."""
        kind = None if self.notes is None else self.kind
        return {
            "engine": self.number, "knobs": list(self.knobs), "kind": kind, "notes": self.notes and list(self.notes),
            "compiled_at_run_time": self.compiled, "source": self.source, "seconds": self.seconds, "gated": self.gated,
            "workspace": self.workspace, "layout": self.layout, "refused": self.refused,
        }  # fmt: skip

    def barred(self, tf32: bool) -> str:
        """Why it may not run, where rounding operands to TF32 is allowed (``tf32``) or is not; empty if it may."""
        narrow = [n for n in NARROW if n in (self.notes or ())]
        if narrow and not tf32:
            return f"left out, as float32 is to stay float32: {', '.join(_WORDS[n] for n in narrow)}"
        more = [n for n in narrow if n not in OPERANDS]
        return f"left out, as it is more than rounding to TF32: {', '.join(_WORDS[n] for n in more)}" if more else ""


Configured = tuple[Engine, Descriptor | None]
#: (type, value) of each knob.
Setting = tuple[tuple[int, int], ...]


def listed(gpu: Gpu, graph: Descriptor) -> list[Configured]:
    """What each of cuDNN's heuristics proposes, with knobs; every other engine with its defaults; and each that may
    run, with every setting of its knobs: heuristics that mean to use tensor cores propose few or none of float32's.

    In this order, but the first of each engine before the second of any. Each with its configuration, None where it
    refused to have one. Raises CallFailed with what is no refusal.
    """
    found: list[Configured] = []
    for mode in HEURISTICS:
        silent = Engine(None, f"heuristics {mode.lower()}")
        with refusals(gpu, silent):
            found += _proposed(gpu, graph, mode, silent.source)
        found += [(silent, None)] if silent.refused else []
    known = {engine.number for engine, _ in found}
    for number in range(graph.number("OPERATIONGRAPH_ENGINE_GLOBAL_COUNT")):
        found += _numbered(gpu, graph, number, defaults=number not in known)
    unique: dict[Any, Configured] = {}
    for engine, config in found:
        key = (engine.source,) if engine.number is None else (engine.number, *sorted(engine.knobs))
        unique.setdefault(key, (engine, config))
    seen: Counter[int | None] = Counter()
    ranked = []
    for engine, config in unique.values():
        ranked.append((seen[engine.number], engine, config))
        seen[engine.number] += 1
    return [(engine, config) for _, engine, config in sorted(ranked, key=lambda r: r[0])]


def _proposed(gpu: Gpu, graph: Descriptor, mode: str, source: str) -> Iterator[Configured]:
    heuristics = made(
        gpu.api, "ENGINEHEUR", gpu.until, ENGINEHEUR_OPERATION_GRAPH=graph, ENGINEHEUR_MODE=HEURISTICS[mode]
    )
    count = heuristics.count("ENGINEHEUR_RESULTS")
    for config in heuristics.parts("ENGINEHEUR_RESULTS", "ENGINECFG", gpu.until, count):
        with contextlib.ExitStack() as until:
            (final,) = config.parts("ENGINECFG_ENGINE", "ENGINE", until, 1)
            choices = config.parts("ENGINECFG_KNOB_CHOICES", "KNOB_CHOICE", until)
            knobs = tuple(f"k{c.number('KNOB_CHOICE_KNOB_TYPE')}={c.number('KNOB_CHOICE_KNOB_VALUE')}" for c in choices)
            engine = _read(final, source, knobs)
        yield engine, config


def _numbered(gpu: Gpu, graph: Descriptor, number: int, defaults: bool) -> list[Configured]:
    """An engine with its ``defaults``, if they are wanted, and with each setting of its knobs."""
    engine = Engine(number, BY_NUMBER)
    settings: list[Setting] = [()]
    with refusals(gpu, engine):
        final = made(gpu.api, "ENGINE", gpu.until, ENGINE_OPERATION_GRAPH=graph, ENGINE_GLOBAL_INDEX=number)
        engine = _read(final, engine.source, ())
    if engine.notes is None:
        return [(engine, None)] if defaults else []
    if not engine.barred(gpu.tf32):
        with refusals(gpu, replace(engine)):  # what does not tell its knobs has its defaults
            settings += _settings(gpu, final)
    return [_set(gpu, final, engine, chosen) for chosen in (settings if defaults else settings[1:])]


def _settings(gpu: Gpu, final: Descriptor) -> list[Setting]:
    """All of them, by what an engine says of its knobs; none if there are more than :data:`SETTINGS`."""
    with contextlib.ExitStack() as until:
        values = []
        for knob in final.parts("ENGINE_KNOB_INFO", "KNOB_INFO", until):
            kind, least, most, stride = (
                knob.number(f"KNOB_INFO_{what}") for what in ("TYPE", "MINIMUM_VALUE", "MAXIMUM_VALUE", "STRIDE")
            )
            values.append([(kind, value) for value in range(least, most + 1, max(1, stride))])
    if not values or math.prod(map(len, values)) > SETTINGS:
        return []
    return list(itertools.product(*values))


def _set(gpu: Gpu, final: Descriptor, engine: Engine, chosen: Setting) -> Configured:
    """The engine that ``final`` is, with these knobs, or with its defaults."""
    knobs = tuple(f"k{kind}={value}" for kind, value in chosen)
    engine = replace(engine, knobs=knobs, source=BY_KNOBS if chosen else BY_NUMBER)
    config: Descriptor | None = None
    with refusals(gpu, engine):
        choices = [
            made(gpu.api, "KNOB_CHOICE", gpu.until, KNOB_CHOICE_KNOB_TYPE=kind, KNOB_CHOICE_KNOB_VALUE=value)
            for kind, value in chosen
        ]
        given = {"ENGINECFG_KNOB_CHOICES": choices} if choices else {}
        config = made(gpu.api, "ENGINECFG", gpu.until, ENGINECFG_ENGINE=final, **given)
    return engine, config


def _read(final: Descriptor, source: str, knobs: tuple[str, ...]) -> Engine:
    names = {number: name for name, number in NOTES.items()}
    notes = tuple(names.get(n, f"note {n}") for n in final.numbers("ENGINE_NUMERICAL_NOTE"))
    compiled = COMPILED_AT_RUN_TIME in final.numbers("ENGINE_BEHAVIOR_NOTE")
    return Engine(final.number("ENGINE_GLOBAL_INDEX"), source, knobs, notes, compiled)


@contextlib.contextmanager
def refusals(gpu: Gpu, engine: Engine) -> Iterator[None]:
    """What cuDNN refuses within is told of ``engine``, and goes on; any other failure is raised."""
    try:
        yield
    except CallFailed as e:
        if not gpu.survives(e):
            raise
        engine.refused = e.words
