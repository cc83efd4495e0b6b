"""``check_equivalence``: everything given is opened, held against the first, level by level, and executed."""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from xframe import environment
from xframe.check import candidates, gradients, numerics
from xframe.check import inputs as giving
from xframe.check.engine import Engines, Runner
from xframe.check.reduce import reduce as reduce_pair
from xframe.check.reduce import reduce_run
from xframe.check.signature import Signature, align, relaid
from xframe.check.subjects import Opened, expand, open_all
from xframe.equivalence.reference import Judged, Reference
from xframe.equivalence.result import Check, Comparison, LayerRow, Level, LevelVerdict, RunRow, State
from xframe.errors import UsageError, XframeError
from xframe.normal.canonical import canonical
from xframe.normal.form import Normal
from xframe.normal.match import Match, match

Feed = Sequence[np.ndarray]
Progress = Callable[[str], None]

UNALIGNED = "inputs and outputs do not correspond: see the signature"
LEVELS = (Level.SIGNATURE, Level.NORMAL_FORM, Level.NUMERICS)


def check_equivalence(
    subjects: Mapping[str, Any] | Sequence[Any],
    inputs: Any = None,
    *,
    names: Mapping[str, str] | None = None,
    layouts: Mapping[str, str] | None = None,
    sizes: Mapping[str, int] | None = None,
    levels: Sequence[Level | str] = LEVELS,
    runners: Sequence[str] = ("ort",),
    count: int = 2,
    seed: int = 0,
    value_range: tuple[float, float] | None = None,
    fold_batchnorm: bool = True,
    reduce: str | Path | None = None,
    progress: Progress | None = None,
    engines: Engines | None = None,
) -> Check:
    """Do these models compute the same function, and if not, where do they part?

    Parameters
    ----------
    subjects
        Two or more of: paths of ONNX files, ``onnx.ModelProto``, registered models (``"alexnet@jax"``), torch modules,
        Keras models, ``tf.function``, JAX functions, pairs ``(function, params)``; by name, or in a list. All others
        are held against the first. One alone is held against its own float64 reference, as ``runners`` execute it; one
        registered model stands for its exports by all frameworks.
    inputs
        One feed or several, in the first subject's order and layout, or where they are: see
        :func:`xframe.check.inputs.feeds`. Default: ``count`` seeded ones, N(0, 1) or uniform in ``value_range``.
    names
        Input or output of the first subject -> its counterpart in the others, where names or positions don't tell.
    layouts
        Subject -> ``"NCHW"`` or ``"NHWC"``, where its image inputs don't tell.
    sizes
        Symbolic dimension -> its size; 1 without.
    levels
        What is compared: ``"signature"``, ``"normal form"``, ``"numerics"``, ``"gradients"``.
    runners
        What executes each subject, besides the float64 reference: ``"ort:disabled"`` to ``"ort:all"`` (``"ort"``),
        ``"tvm:winograd"`` and the other lowerings, ``"openvino"``, ``"native"``.
    fold_batchnorm
        Whether a batch normalisation counts as the same as one folded into its convolution.
    reduce
        A folder for the smallest sub-models and input that still disagree, if any do.
    progress
        Told what is done next, in a line.
    engines
        The processes that execute, to keep for the next check; without, each model and runner has one of its own.

    Returns
    -------
    Check
        ``state`` is the verdict, ``comparisons`` and ``runs`` the evidence.

    Raises
    ------
    UsageError
        The request makes no sense.
    ModelError, Unsupported, Unavailable, XframeError
        A subject can't be opened: its words say why.
    """
    asked = [_level(level) for level in levels]
    for runner in runners:
        Runner.parse(runner)
    things = _named(subjects)
    for name in layouts or {}:
        if name not in things:
            raise UsageError(f"a layout is given for {name!r}; the subjects are {', '.join(things)}")
    told = progress or (lambda line: None)
    with tempfile.TemporaryDirectory(prefix="xframe-check-") as folder:
        given = None if inputs is None else giving.settled(inputs, count)
        early = None if given is None else giving.feeds(given, None, count=count)[0]
        told(f"opening {', '.join(things)}")
        opened = open_all(things, Path(folder), early, sizes)
        ports = opened[0].interface.inputs
        feeds, words = giving.feeds(given, [p.shape for p in ports], [p.name for p in ports], count, seed, value_range)  # type: ignore[misc]
        checker = _Checker(
            opened, feeds, asked, names or {}, layouts or {}, fold_batchnorm, bool(runners), told, engines
        )
        comparisons = tuple(checker.comparison(other, seed) for other in opened[1:])
        runs = tuple(row for one in opened for row in checker.runs(one, runners))
        notes = () if reduce is None else (checker.reduced(opened, comparisons, runs, Path(reduce)),)
        inside = [replace(o.subject, path="") if folder in o.subject.path else o.subject for o in opened]
        return Check(tuple(inside), comparisons, runs, words, notes, environment.versions())


def _level(given: Level | str) -> Level:
    try:
        return Level(given)
    except ValueError:
        raise UsageError(f"unknown level {given!r}: there are {', '.join(x.value for x in Level)}") from None


def _named(subjects: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    """Name -> thing. Things without names are called by what they are, or A, B, C."""
    if isinstance(subjects, Mapping):
        things = dict(subjects)
    else:
        if isinstance(subjects, str | Path):
            subjects = [subjects]
        things = {}
        for thing in expand(subjects):
            name = Path(thing).name if isinstance(thing, str | Path) else chr(ord("A") + len(things))
            copies = sum(n == name or n.startswith(f"{name} (") for n in things)
            things[f"{name} ({copies + 1})" if copies else name] = thing
    if not things:
        raise UsageError("nothing to check: give two models or more")
    return things


class _Checker:
    """One check: what was opened, the feeds of the first subject, and what was evaluated already."""

    def __init__(
        self,
        opened: Sequence[Opened],
        feeds: Sequence[Feed],
        levels: Sequence[Level],
        names: Mapping[str, str],
        layouts: Mapping[str, str],
        fold_batchnorm: bool,
        executed: bool,
        told: Progress,
        engines: Engines | None,
    ) -> None:
        self.first, self.feeds, self.levels, self.told = opened[0], feeds, levels, told
        self._fold, self._executed, self._engines = fold_batchnorm, executed, engines
        layout = layouts.get(self.first.subject.name)
        self._signatures = {
            o.subject.name: align(self.first.interface, o.interface, names, (layout, layouts.get(o.subject.name)))
            for o in opened[1:]
        }
        self._normals: dict[tuple, Normal] = {}
        self._matches: dict[str, Match] = {}
        self._exact: dict[str, list[list[Judged]]] = {}

    def comparison(self, other: Opened, seed: int) -> Comparison:
        """``other`` against the first subject, at each level that was asked for."""
        name = other.subject.name
        signature = self._signatures[name]
        verdicts = [signature.verdict] if Level.SIGNATURE in self.levels else []
        layers: tuple[LayerRow, ...] = ()
        outputs: tuple[LayerRow, ...] = ()
        deeper = [level for level in Level if level is not Level.SIGNATURE and level in self.levels]
        for level in deeper:
            if not (signature.comparable if level is Level.NORMAL_FORM else signature.aligned):
                verdicts.append(LevelVerdict(level, State.UNCHECKED, UNALIGNED))
                continue
            self.told(f"{name}: {level.value}")
            start = time.perf_counter()
            try:
                if level is Level.NORMAL_FORM:
                    verdict = self._form(other)
                elif level is Level.NUMERICS:
                    verdict, layers, outputs = self._numerics(other)
                else:
                    verdict, _ = gradients.compare(self.first, other, signature, self.feeds, seed)
            except XframeError as e:
                verdict = LevelVerdict(level, State.UNCHECKED, str(e))
            verdicts.append(replace(verdict, seconds=time.perf_counter() - start))
        return Comparison(name, tuple(verdicts), layers, outputs, self._absorbed(name))

    def _absorbed(self, name: str) -> tuple[str, ...]:
        """What making the normal forms of both took for mere writing."""
        found: dict[str, dict[str, None]] = {}
        for (one, *_), normal in self._normals.items():
            if one in (self.first.subject.name, name):
                for note in normal.notes:
                    found[f"{one}: {note}"] = {}
                for weight in normal.weights.values():
                    for how in weight.how:
                        found.setdefault(f"{one}: weights {how}: ", {}).update(dict.fromkeys(weight.source))
        return tuple(text + ", ".join(sources) for text, sources in found.items())

    def _form(self, other: Opened) -> LevelVerdict:
        found = self._match(other)
        parted = [d.text for d in found.differences if not d.harmless]
        more = f", and {len(parted) - 1} more" if len(parted) > 1 else ""
        state = State.EQUIVALENT if found.equal else State.DIFFERENT
        return LevelVerdict(Level.NORMAL_FORM, state, f"{parted[0]}{more}" if parted else "", found.differences)

    def _numerics(self, other: Opened) -> tuple[LevelVerdict, tuple[LayerRow, ...], tuple[LayerRow, ...]]:
        """Outputs by the graphs as they are in their files, so that no rewriting stands between them and the verdict;
        layers by the normal forms, which correspond."""
        signature, called = self._signatures[other.subject.name], self.first.subject.name
        outputs: tuple[LayerRow, ...] = ()
        layers: tuple[LayerRow, ...] = ()
        trouble = ""
        try:
            exact, theirs = self.exact(self.first), self.exact(other)
            outputs = numerics.outputs(exact, [_in_order(o, self.first, signature) for o in theirs])
        except XframeError as e:
            trouble = str(e)
        try:
            feeds = [self._canonical(feed, signature) for feed in self.feeds]
            layers = numerics.layers(*self._pair(other), self._match(other), feeds)
        except XframeError as e:
            trouble = trouble or f"its layers could not be compared: {e}"
        state, reason = numerics.verdict(outputs, layers, called)
        if not outputs:
            state, reason = State.UNCHECKED, trouble
        elif trouble:
            reason = "; ".join(filter(None, (reason, trouble)))
        return LevelVerdict(Level.NUMERICS, state, reason), layers, outputs

    def runs(self, opened: Opened, runners: Sequence[str]) -> list[RunRow]:
        """A row for each runner of one subject."""
        name, signature = opened.subject.name, self._signatures.get(opened.subject.name)
        if not runners:
            return []
        rows = functools.partial(candidates.rows, opened, runners, progress=self.told, engines=self._engines)
        try:
            if signature is None:
                return rows(self.feeds, self.exact(opened))
            if not signature.aligned:
                raise XframeError(UNALIGNED)
            first = [_in_order(e, opened, signature, forth=True) for e in self.exact(self.first)]
            return rows(self._feeds(opened), self.exact(opened), first, first_name=self.first.subject.name)
        except UsageError:
            raise
        except XframeError as e:
            return [RunRow(name, runner, State.UNCHECKED, str(e)) for runner in runners]

    def exact(self, opened: Opened) -> list[list[Judged]]:
        """The float64 outputs of its own graph for each feed, as it orders and lays them out. They have bounds where
        something is held against them: those of the first subject, and of all that are executed."""
        name = opened.subject.name
        if name not in self._exact:
            self.told(f"{name}: float64 reference")
            reference, bounds = Reference(opened.graph), self._executed or opened is self.first
            self._exact[name] = [reference.evaluate(feed, bounds=bounds) for feed in self._feeds(opened)]
        return self._exact[name]

    def _feeds(self, opened: Opened) -> Sequence[Feed]:
        """The feeds as this subject orders them and lays them out."""
        return (
            self.feeds if opened is self.first else [self._signatures[opened.subject.name].feed(f) for f in self.feeds]
        )

    def _match(self, other: Opened) -> Match:
        name = other.subject.name
        if name not in self._matches:
            self._matches[name] = match(*self._pair(other), (self.first.subject.name, name))
        return self._matches[name]

    def _pair(self, other: Opened) -> tuple[Normal, Normal]:
        signature = self._signatures[other.subject.name]
        ways = [
            (self.first, [(b.a, b.axes_a) for b in signature.inputs], [(b.a, b.axes_a) for b in signature.outputs]),
            (other, [(b.b, b.axes_b) for b in signature.inputs], [(b.b, b.axes_b) for b in signature.outputs]),
        ]
        a, b = (self._normal(*way) for way in ways)
        return a, b

    def _normal(self, opened: Opened, inputs: list, outputs: list) -> Normal:
        key = (opened.subject.name, tuple(inputs), tuple(outputs))
        if key not in self._normals:
            raw = opened.graph
            at = [raw.inputs.index(name) for name, _ in inputs]
            graph = replace(
                raw,
                inputs=tuple(raw.inputs[i] for i in at),
                shapes=tuple(raw.shapes[i] for i in at),
                dtypes=tuple(raw.dtypes[i] for i in at),
                outputs=tuple(name for name, _ in outputs),
                notes=(),  # the subject has them
            )
            self._normals[key] = canonical(
                graph,
                inputs={name: axes for name, axes in inputs if axes},
                outputs={name: axes for name, axes in outputs if axes},
                fold_batchnorm=self._fold,
            )
        return self._normals[key]

    def reduced(
        self, opened: Sequence[Opened], comparisons: Sequence[Comparison], runs: Sequence[RunRow], folder: Path
    ) -> str:
        """Write the smallest case of what differs first; what came of it, in words."""
        subjects = {o.subject.name: o for o in opened}
        try:
            for found in comparisons:
                numbers = found.level(Level.NUMERICS)
                if numbers is not None and numbers.state is State.DIFFERENT:
                    other = subjects[found.name]
                    feeds = [self._canonical(feed, self._signatures[found.name]) for feed in self.feeds]
                    pair, names = self._pair(other), (self.first.subject.name, found.name)
                    made = reduce_pair(*pair, self._match(other), feeds, folder, names=names, progress=self.told)
                    return made.sentence
            for row in runs:
                if row.blamed:
                    one = subjects[row.subject]
                    return reduce_run(one, row.runner, self._feeds(one), folder, progress=self.told).sentence
        except XframeError as e:
            return f"nothing smaller was written: {e}"
        return "nothing to reduce: no numbers differ"

    def _canonical(self, feed: Feed, signature: Signature) -> list[np.ndarray]:
        """A feed of the first subject as its normal form takes it."""
        given = dict(zip((p.name for p in self.first.interface.inputs), feed, strict=True))
        return [relaid(given[b.a], b.axes_a, ()) for b in signature.inputs]


def _in_order(judged: Sequence[Judged], to: Opened, signature: Signature, forth: bool = False) -> list[Judged]:
    """The second subject's outputs in the order and layout of ``to``, the first; ``forth``: the other way round."""
    known = {j.name: j for j in judged}
    found = {}
    for b in signature.outputs:
        name, target, axes, to_axes = (b.a, b.b, b.axes_a, b.axes_b) if forth else (b.b, b.a, b.axes_b, b.axes_a)
        j = known[name]
        found[target] = Judged(target, relaid(j.value, axes, to_axes), relaid(j.bound, axes, to_axes))
    return [found[p.name] for p in to.interface.outputs if p.name in found]
