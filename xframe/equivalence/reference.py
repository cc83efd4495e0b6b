"""The judge: a network evaluated in float64, each output element with the bound that a float32 run must keep."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from xframe.equivalence import (
    activations,
    casting,
    decisions,
    linear,
    normalisations,
    pointwise,
    pooling,
    reductions,
    resizing,
    shaping,
)
from xframe.equivalence.graph import Graph, Operator, Roundings, from_onnx, from_spec, run
from xframe.errors import UsageError
from xframe.types import Artifact, ModelSpec

#: Every operator that the reference knows, by its ONNX name.
OPERATORS: dict[str, Operator] = {
    **linear.OPERATORS,
    **pooling.OPERATORS,
    **reductions.OPERATORS,
    **pointwise.OPERATORS,
    **activations.OPERATORS,
    **normalisations.OPERATORS,
    **decisions.OPERATORS,
    **casting.OPERATORS,
    **resizing.OPERATORS,
    **shaping.OPERATORS,
}


@dataclass(frozen=True)
class Judged:
    """One output: its exact value, and per element the largest error that a correct float32 run may have (float64)."""

    name: str
    value: np.ndarray
    bound: np.ndarray


class Reference:
    """A network's exact outputs and their error bounds (see ``xframe.equivalence.bounds``).

    Results are kept per feeds and roundings, so that many candidates are judged for the price of one. Threads may share
    it; they evaluate one after another, as the second most often asks for what the first is at.
    """

    #: Results kept; the outputs of a classifier are small, those of an intermediate layer are not.
    KEPT = 64

    def __init__(self, graph: Graph):
        self._graph = graph
        self._results: dict[tuple, list[Judged]] = {}
        self._lock = threading.Lock()

    @classmethod
    def of_spec(cls, spec: ModelSpec, weights: Mapping[str, np.ndarray], outputs: Sequence[str] = ()) -> Reference:
        """The network of a spec, fed NCHW in any batch; ``outputs`` names layers, by default the last.

        Raises
        ------
        ModelError
            A weight is missing.
        """
        return cls(from_spec(spec, weights, outputs))

    @classmethod
    def of_onnx(cls, model: Artifact, outputs: Sequence[str] = ()) -> Reference:
        """The graph of an ONNX file, fed as the file declares; ``outputs`` names tensors, by default the model's.

        Raises
        ------
        ModelError
            The file can't be read any more.
        """
        return cls(from_onnx(model, outputs))

    def of_any_batch(self) -> Reference:
        """The same network, fed in any batch, as far as its own constants allow that."""
        shapes = tuple((None, *shape[1:]) for shape in self._graph.shapes)
        return Reference(replace(self._graph, shapes=shapes))

    def evaluate(
        self, feeds: Sequence[np.ndarray], roundings: Roundings | None = None, bounds: bool = True
    ) -> list[Judged]:
        """The exact outputs for float32 ``feeds``, in the order of the inputs, and their bounds.

        Parameters
        ----------
        roundings
            How the implementation to be judged rounds, by convolution site; a site that is not in it is taken as one
            plain chain over its reduction.
        bounds
            False: the values alone, in a third of the time; bounds may be zero.

        Raises
        ------
        ModelError
            An operator that the reference does not know, or shapes that do not fit.
        UsageError
            Feeds that are not float32 of the declared shapes.
        """
        roundings = dict(roundings or {})
        self._check(feeds)
        digest = hashlib.sha256()
        for x in feeds:
            digest.update(repr(x.shape).encode() + np.ascontiguousarray(x).data)
        key: tuple = (digest.digest(), frozenset(roundings.items()))
        with self._lock:
            if key not in self._results and not bounds:
                key = (digest.digest(), None)
            if key not in self._results:
                given = dict(zip(self._graph.inputs, feeds, strict=True))
                outputs = run(self._graph, given, OPERATORS, roundings if bounds else None)
                while len(self._results) >= self.KEPT:
                    del self._results[next(iter(self._results))]
                self._results[key] = [
                    Judged(name, q.real, q.bound if bounds else np.zeros(q.value.shape))
                    for name, q in zip(self._graph.outputs, outputs, strict=True)
                ]
            return self._results[key]

    def _check(self, feeds: Sequence[np.ndarray]) -> None:
        names, shapes = self._graph.inputs, self._graph.shapes
        if len(feeds) != len(names):
            raise UsageError(f"{len(feeds)} feeds for {len(names)} inputs ({', '.join(names)})")
        for name, shape, x in zip(names, shapes, feeds, strict=True):
            fits = len(x.shape) == len(shape) and all(want in (None, n) for want, n in zip(shape, x.shape, strict=True))
            if x.dtype != np.float32 or not fits:
                wanted = "x".join("N" if n is None else str(n) for n in shape)
                raise UsageError(f"input {name} takes float32 of {wanted}; the feed is {x.dtype} of {x.shape}")
