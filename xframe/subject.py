"""What is compared: a registered model or an ONNX file, with its inputs and the judge of its outputs."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from xframe import artifact, zoo
from xframe.equivalence.reference import Judged, Reference
from xframe.equivalence.verdict import Verdict, judge
from xframe.types import Artifact, ModelSpec, SiteRecord
from xframe.worker import wire

Feed = Sequence[np.ndarray]
Judge = Callable[[list[list[np.ndarray]], Sequence[SiteRecord]], Verdict]

#: Different inputs a row is checked with: with one, a cached output could not be told from a computed one.
FEEDS = 2


def is_file(model: str) -> bool:
    """Whether ``model`` is the path of an ONNX file rather than the name of a registered model."""
    return model.endswith(".onnx") or os.sep in model


@dataclass(frozen=True)
class Subject:
    """``spec`` and ``weights`` of a registered model, or the ``file``; ``reference`` is its float64 evaluation."""

    name: str
    spec: ModelSpec | None
    weights: Path | None
    file: Artifact | None
    reference: Reference

    @classmethod
    def of(cls, model: str) -> Subject:
        """Look up or load ``model``.

        Raises
        ------
        UsageError
            No such model.
        ModelError
            The file can't be used.
        """
        if is_file(model):
            loaded = artifact.load(model)
            return cls(loaded.model, None, None, loaded, Reference.of_onnx(loaded))
        spec = zoo.spec(model)
        weights = zoo.weights_file(spec)
        with np.load(weights, allow_pickle=False) as data:
            return cls(spec.name, spec, weights, None, Reference.of_spec(spec, {k: data[k] for k in data.files}))

    @property
    def digest(self) -> str:
        """SHA-256 of the network: layers and seed of the weights, or the file."""
        if self.file is not None:
            return self.file.sha256
        assert self.spec is not None
        return hashlib.sha256(json.dumps(self.spec.to_json(), sort_keys=True).encode()).hexdigest()

    def feeds(self, batch: int, seed: int) -> list[list[np.ndarray]]:
        """:data:`FEEDS` canonical (NCHW) feeds of N(0, 1), one array an input; a file has its own batch."""
        shapes: list[tuple[int, ...]]
        if self.file is None:
            assert self.spec is not None
            shapes = [(batch, *self.spec.input)]
        else:
            shapes = [canonical_shape(i.shape, i.layout) for i in self.file.inputs]
        return [[zoo.inputs(s, seed + k + FEEDS * i) for i, s in enumerate(shapes)] for k in range(FEEDS)]

    def judge(self, feeds: Sequence[Feed]) -> tuple[Judge, bool]:
        """The judge of outputs for ``feeds``, and whether the exact outputs differ between the feeds at all.

        Raises
        ------
        ModelError
            The float64 reference does not know an operator, so that nothing can be verified.
        """
        exact = [self.exact(feed, ()) for feed in feeds]
        differ = any(
            not np.array_equal(a.value, b.value)
            for other in exact[1:]
            for a, b in zip(exact[0], other, strict=True)
        )  # fmt: skip

        def verdict(outputs: list[list[np.ndarray]], sites: Sequence[SiteRecord]) -> Verdict:
            pairs = zip(outputs, feeds, strict=True)
            return _worst([judge(got, self.exact(feed, sites)) for got, feed in pairs])

        return verdict, differ

    def exact(self, feed: Feed, sites: Sequence[SiteRecord]) -> list[Judged]:
        """Exact canonical outputs, with the bounds of an implementation that rounds as ``sites`` say."""
        roundings = {s.site: s.rounding for s in sites if s.rounding}
        if self.file is None:
            return self.reference.evaluate(feed, roundings)
        declared = [wire.to_layout(x, i.layout) for x, i in zip(feed, self.file.inputs, strict=True)]
        judged = self.reference.evaluate(declared, roundings)
        return [
            replace(j, value=wire.from_layout(j.value, o.layout), bound=wire.from_layout(j.bound, o.layout))
            for j, o in zip(judged, self.file.outputs, strict=True)
        ]


def canonical_shape(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """``shape`` as it is in NCHW, of a tensor in ``layout``."""
    return (shape[0], shape[3], *shape[1:3]) if layout == "NHWC" else shape


def _worst(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict for all feeds: the failed one with the largest ratio, else the largest ratio; the largest error."""
    failed = [v for v in verdicts if not v.ok]
    worst = max(failed or verdicts, key=lambda v: float("inf") if v.ratio is None else v.ratio)
    if worst.error is None:
        return worst
    return replace(worst, error=max(v.error for v in verdicts if v.error is not None))
