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


def repeated(batch: int, images: int | None, seed: int) -> np.ndarray | None:
    """Which of ``images`` different images is at each place of a batch: each as often as any other, in random order.

    None where that would be all of them, or ``images`` is None. What is expected of such a batch is known at every
    place once it is known of the different images, in a fraction of the time; and an implementation that takes one
    place for another is seen wherever their images differ.
    """
    if images is None or images >= batch:
        return None
    return np.random.default_rng(seed).permutation(np.arange(batch) % images)


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

    def feeds(self, batch: int, seed: int, order: np.ndarray | None = None) -> list[list[np.ndarray]]:
        """:data:`FEEDS` canonical (NCHW) feeds of N(0, 1), one array an input; a file has its own batch.

        ``order``: :func:`repeated` of the batch; None: all images differ.
        """
        shapes: list[tuple[int, ...]]
        if self.file is None:
            assert self.spec is not None
            shapes = [(batch, *self.spec.input)]
        else:
            shapes = [canonical_shape(i.shape, i.layout) for i in self.file.inputs]

        def array(shape: tuple[int, ...], number: int) -> np.ndarray:
            if order is None:
                return zoo.inputs(shape, number)
            return zoo.inputs((int(order.max()) + 1, *shape[1:]), number)[order]

        return [[array(s, seed + k + FEEDS * i) for i, s in enumerate(shapes)] for k in range(FEEDS)]

    def judge(self, feeds: Sequence[Feed], order: np.ndarray | None = None) -> tuple[Judge, bool]:
        """The judge of outputs for ``feeds``, and whether the exact outputs differ between the feeds at all.

        With ``order``, as given to :meth:`feeds`, exact outputs are computed of the different images alone, and every
        place of the batch is judged by them: for a network that treats each image by itself.

        Raises
        ------
        ModelError
            The float64 reference does not know an operator, so that nothing can be verified.
        """
        reference = self
        if order is not None:
            reference = replace(self, reference=self.reference.of_any_batch())
            first = np.unique(order, return_index=True)[1]
            feeds = [[x[first] for x in feed] for feed in feeds]
        exact = [reference.exact(feed, ()) for feed in feeds]
        differ = any(
            not np.array_equal(a.value, b.value)
            for other in exact[1:]
            for a, b in zip(exact[0], other, strict=True)
        )  # fmt: skip

        def verdict(outputs: list[list[np.ndarray]], sites: Sequence[SiteRecord]) -> Verdict:
            if order is not None:
                sites = [replace(s, site=replace(s.site, batch=len(first))) for s in sites]
            pairs = [(got, reference.exact(feed, sites)) for got, feed in zip(outputs, feeds, strict=True)]
            return _worst([judge(*pair) if order is None else _judged_by_place(*pair, order) for pair in pairs])

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


def _judged_by_place(got: Sequence[np.ndarray], exact: Sequence[Judged], order: np.ndarray) -> Verdict:
    """The verdict on a batch that has image ``order[i]`` at place i, given what is exact of each image.

    Image by image, which stays in a cache; where something is wrong all at once, whose words name the place.
    """

    def of(places: np.ndarray) -> list[Judged]:
        return [replace(j, value=j.value[places], bound=j.bound[places]) for j in exact]

    if all(len(x) == len(order) for x in got):
        each = [judge([x[i : i + 1] for x in got], of(order[i : i + 1])) for i in range(len(order))]
        if all(v.ok for v in each):
            return _worst(each)
    return judge(got, of(order))


def _worst(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict for all feeds: the failed one with the largest ratio, else the largest ratio; the largest error."""
    failed = [v for v in verdicts if not v.ok]
    worst = max(failed or verdicts, key=lambda v: float("inf") if v.ratio is None else v.ratio)
    if worst.error is None:
        return worst
    return replace(worst, error=max(v.error for v in verdicts if v.error is not None))
