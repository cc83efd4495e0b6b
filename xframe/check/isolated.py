"""A registered network in a framework that has an environment of its own: run and differentiated there."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xframe import environment, launch
from xframe.errors import Unsupported
from xframe.frameworks.common_live import Places, located
from xframe.registry import FRAMEWORKS
from xframe.types import ModelSpec
from xframe.worker.host import Worker, plugin_row

#: Seconds for opening or differentiating, which compile in some frameworks, and for a run.
_OPEN_LIMIT, _RUN_LIMIT = 900.0, 120.0


class Isolated:
    """See :class:`xframe.protocols.Live`. Its worker starts when it is first asked for something, and ends with it.

    Parameters
    ----------
    framework
        A name registered in FRAMEWORKS.
    weights
        The npz file with the weights of ``spec``.
    """

    notes: Sequence[str] = ()

    def __init__(self, framework: str, spec: ModelSpec, weights: Path, batch: int):
        self.kind = f"{framework} network"
        self._framework, self._spec, self._weights, self._batch = framework, spec, weights, batch
        self._threads = len(environment.allowed_cpus())
        self._places = Places()
        self._worker: Worker | None = None
        self._opened = False

    def shapes(self) -> list[tuple[int | None, ...]] | None:
        return [(self._batch, *self._spec.input)]

    def export(self, feeds: list[np.ndarray]) -> Any:
        """Raises Unsupported: its exports are those of :mod:`xframe.exports`."""
        raise Unsupported(f"a {self.kind} is exported as a registered model: {self._spec.name}@{self._framework}")

    def place(self, constants: Mapping[str, np.ndarray]) -> None:
        """See :class:`xframe.protocols.Live`."""
        with np.load(self._weights, allow_pickle=False) as data:
            self._places = located(constants, {name: data[name] for name in data.files})

    def run(self, feeds: list[np.ndarray]) -> list[np.ndarray]:
        """Raises XframeError with what the framework said, or how its process ended."""
        worker = self._started()
        if not self._opened:
            fields = {"device": "cpu", "threads": self._threads, "options": {}}
            worker.call("open", _OPEN_LIMIT, runner="native", **fields, **self._network())
            self._opened = True
        return worker.run(feeds, _RUN_LIMIT)[0]

    def gradients(
        self, feeds: list[np.ndarray], cotangents: list[np.ndarray]
    ) -> tuple[list[np.ndarray | None], dict[str, np.ndarray]]:
        """As of any live model; None for an input by which the framework does not differentiate. Raises XframeError."""
        found = self._started().gradients(feeds, cotangents, _OPEN_LIMIT, **self._network())
        by_input = found.pop("input", None)
        return [by_input], self._places.arranged(found)

    def _network(self) -> dict[str, Any]:
        row = plugin_row(FRAMEWORKS, self._framework)
        return {"plugin": row, "spec": self._spec.to_json(), "weights": self._weights, "batch": self._batch}

    def _started(self) -> Worker:
        if self._worker is None or self._worker.dead:
            cpus = environment.pinned_cpus(self._threads)
            self._worker, self._opened = launch.worker(FRAMEWORKS, self._framework, self._threads, cpus=cpus), False
            weakref.finalize(self, _ended, self._worker)
        return self._worker


def _ended(worker: Worker) -> None:
    with contextlib.suppress(OSError):
        worker.close()
