"""A framework that runs in an environment of its own, behind the same methods as one of this process."""

import itertools

import numpy as np

from xframe import launch, onnx_writer
from xframe.registry import FRAMEWORKS
from xframe.worker import wire
from xframe.worker.host import plugin_row

LIMIT = 300


class Network:
    """An executable in a worker: ``bind`` runs it, so that what it raises is raised there."""

    def __init__(self, worker, reply):
        self._worker = worker
        self.sites = wire.sites_of(reply["sites"])
        self.environment, self.seconds, self.notes = reply["environment"], reply["seconds"], reply["notes"]

    def bind(self, feeds):
        self._outputs, _ = self._worker.run(feeds, LIMIT)

    def step(self):
        pass

    sync = close = step

    def fetch(self):
        return self._outputs

    def profile(self, passes):
        return wire.profiles_of(self._worker.call("profile", LIMIT, passes=passes)["profiles"])


class Remote:
    """Its workers, one for each number of threads, live until :meth:`close`. Raises Unavailable if it is not built."""

    layout = "NCHW"

    def __init__(self, name, folder):
        self.name, self._folder = name, folder
        self._row = plugin_row(FRAMEWORKS, name)
        self._workers, self._number = {}, itertools.count()
        self.worker(2)

    def worker(self, threads):
        if threads not in self._workers or self._workers[threads].dead:
            self._workers[threads] = launch.worker(FRAMEWORKS, self.name, threads)
        return self._workers[threads]

    def build(self, spec, weights, device, batch, threads):
        worker = self.worker(threads)
        fields = {"device": device, "threads": threads, "options": {}, **self._network(spec, weights, batch)}
        return Network(worker, worker.call("open", LIMIT, runner="native", **fields))

    def export(self, spec, weights, batch):
        worker = self.worker(2)
        raw = worker.place("raw")
        reply = worker.call("export", LIMIT, path="", raw=raw, **self._network(spec, weights, batch))
        assert reply["stamps"]["layout"] == self.layout
        return onnx_writer.model(reply["form"], raw, batch)

    def gradients(self, spec, weights, batch, feeds, cotangents):
        return self.worker(2).gradients(feeds, cotangents, LIMIT, **self._network(spec, weights, batch))

    def close(self):
        for worker in self._workers.values():
            worker.close()

    def _network(self, spec, weights, batch):
        path = self._folder / f"{next(self._number)}.npz"
        np.savez(path, **weights)
        return {"plugin": self._row, "spec": spec.to_json(), "weights": path, "batch": batch}
