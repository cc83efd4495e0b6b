"""What a check of equivalence found: data alone, for the library's callers and the reports."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class State(enum.Enum):
    """A verdict. What could not be compared is ``UNCHECKED``, never passed."""

    EQUIVALENT = "equivalent"
    DIFFERENT = "different"
    UNCHECKED = "unchecked"


class Level(enum.Enum):
    """What is compared, from the cheapest to the dearest."""

    SIGNATURE = "signature"
    NORMAL_FORM = "normal form"
    NUMERICS = "numerics"
    GRADIENTS = "gradients"


@dataclass(frozen=True)
class Difference:
    """One thing in which two subjects part, in words that a user can act on.

    ``kind`` is one word or two ("padding", "weights", "LRN", "extra node"); ``where`` the layer, as the first subject
    names it; ``text`` a whole sentence that names both subjects and both values. ``harmless``: another way to write the
    same function (a bias apart, say), told but not held against anybody.
    """

    kind: str
    where: str
    text: str
    harmless: bool = False


@dataclass(frozen=True)
class Statistics:
    """How far one tensor is from another; None where that has no meaning (a cosine of zeros).

    ``ratio`` is the largest share of its own bound that an element's deviation has: above 1 they differ. ``max_rel`` is
    relative to the element of the first, zeros left out. ``ulps``: deviation in units in the last place of float32 at
    the element of the first, the quantiles 0.5, 0.9, 0.99 and 1.
    """

    max_abs: float
    max_rel: float | None
    rms: float
    cosine: float | None
    ulps: tuple[float, float, float, float]
    ratio: float
    at: tuple[int, ...] = ()
    first: float = 0.0
    second: float = 0.0
    bound: float = 0.0


@dataclass(frozen=True)
class LayerRow:
    """One aligned tensor: its node in both (``a`` and ``b``: titles in the file), operator, shape, deviation."""

    a: str
    b: str
    op: str
    shape: tuple[int, ...]
    statistics: Statistics | None
    ok: bool
    reason: str = ""


@dataclass(frozen=True)
class LevelVerdict:
    """The verdict of one level. ``reason`` says in a sentence why it is not EQUIVALENT."""

    level: Level
    state: State
    reason: str = ""
    differences: tuple[Difference, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class RunRow:
    """One subject executed by one runner ("ort all", "ort disabled", "tvm winograd", "native"), output by output.

    ``own``: against the float64 result of its own graph (a backend that loses precision, or is wrong); ``first``:
    against that of the first subject (what a user of the port sees). ``blamed``: the layer where it first leaves its
    own reference, and the operator there.
    """

    subject: str
    runner: str
    state: State
    reason: str = ""
    own: Statistics | None = None
    first: Statistics | None = None
    blamed: str = ""
    layers: tuple[LayerRow, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """One subject against the first one. ``absorbed``: what was taken for mere writing when their normal forms were
    made, in words."""

    name: str
    levels: tuple[LevelVerdict, ...]
    layers: tuple[LayerRow, ...] = ()
    outputs: tuple[LayerRow, ...] = ()
    absorbed: tuple[str, ...] = ()

    @property
    def first_divergence(self) -> LayerRow | None:
        """The first layer, in topological order, that differs; one without statistics could not be compared."""
        rows = (*self.layers, *self.outputs)
        return next((row for row in rows if not row.ok and row.statistics is not None), None)

    def level(self, level: Level) -> LevelVerdict | None:
        return next((v for v in self.levels if v.level is level), None)


@dataclass(frozen=True)
class Subject:
    """What was checked: its name, what it is ("ONNX file", "torch.nn.Module"), where its graph lies, its hash."""

    name: str
    kind: str
    path: str = ""
    sha256: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    """The whole result. ``comparisons`` has one entry for each subject but the first."""

    subjects: tuple[Subject, ...]
    comparisons: tuple[Comparison, ...]
    runs: tuple[RunRow, ...] = ()
    inputs: str = ""  # in words: "2 seeded inputs of N(0, 1), seed 0"
    notes: tuple[str, ...] = ()
    environment: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def state(self) -> State:
        """DIFFERENT if anything differs; else UNCHECKED if anything that decides was not compared; else EQUIVALENT."""
        states = [judged(c) for c in self.comparisons] + [r.state for r in self.runs]
        for state in (State.DIFFERENT, State.UNCHECKED):
            if state in states:
                return state
        return State.EQUIVALENT if states else State.UNCHECKED

    @property
    def exit_code(self) -> int:
        """0 equivalent, 3 not, 1 can't tell."""
        return {State.EQUIVALENT: 0, State.DIFFERENT: 3, State.UNCHECKED: 1}[self.state]


def judged(comparison: Comparison) -> State:
    """A subject's overall verdict.

    Numerics decide, with the signature and, where they were asked for, gradients; without numerics, equal normal forms
    do. Otherwise the normal form explains. But where two nodes correspond and differ in a number (an attribute,
    weights) that did not matter for the inputs given, the functions are not the same, and the verdict is UNCHECKED
    rather than a pass.
    """
    states = [v.state for v in comparison.levels if v.level is not Level.NORMAL_FORM]
    if State.DIFFERENT in states:
        return State.DIFFERENT
    numerics, form = comparison.level(Level.NUMERICS), comparison.level(Level.NORMAL_FORM)
    if numerics is None and form is not None and form.state is State.EQUIVALENT:
        return State.EQUIVALENT if State.UNCHECKED not in states else State.UNCHECKED  # the same graph, to the weights
    if State.UNCHECKED in states or numerics is None:
        return State.UNCHECKED
    if form is not None and form.state is State.DIFFERENT:
        unseen = [d for d in form.differences if not d.harmless and d.kind != "structure"]
        return State.UNCHECKED if unseen else State.EQUIVALENT
    return State.EQUIVALENT
