"""Caffe 1.0: a ``Net`` in its test phase; exported by a walk over its ``NetParameter``."""

import os
import shutil
import tempfile
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence

import caffe
import numpy as np
from google.protobuf import text_format

from xframe.errors import UsageError
from xframe.frameworks import caffe_blas, caffe_files, caffe_profile, shapes
from xframe.frameworks.caffe_graph import walk
from xframe.frameworks.caffe_net import INPUT, Network
from xframe.neutral import Graph
from xframe.protocols import DEFAULTS
from xframe.types import ModelSpec, Profile


class _Executable(shapes.Network):
    def __init__(self, spec: ModelSpec, weights: Mapping[str, Any], batch: int, threads: int) -> None:
        told = caffe_blas.set_threads(threads)
        environment = {
            "caffe": caffe.__version__,
            "threads": threads if told is None else told,
            "blas": caffe_blas.name(),
            "convolution": "im2col + GEMM, %s" % caffe_blas.name(),
        }
        notes: List[str] = []
        if told is None:
            notes.append("the threads of Caffe's BLAS can't change to %d in this process" % threads)
        super().__init__(spec, batch, environment, notes)
        self._spec = spec
        self._network = Network(spec, weights, batch)
        self._net = _made(self._network)
        self._last = len(self._net.layers) - 1

    def bind(self, feeds: List[Any]) -> None:
        self._net.blobs[INPUT].data[...] = self.checked(feeds)

    def step(self) -> None:
        self._net._forward(0, self._last)

    def sync(self) -> None:
        pass

    def fetch(self) -> List[np.ndarray]:
        return [np.array(self._net.blobs[self._network.output].data)]

    def profile(self, passes: int) -> List[Profile]:
        return caffe_profile.profiles(self._spec, self._shape[0], self._network, self._net, passes)


class Caffe:
    """See :class:`xframe.protocols.Framework`."""

    layout = "NCHW"
    version = caffe.__version__

    def build(
        self,
        spec: ModelSpec,
        weights: Mapping[str, Any],
        device: str,
        batch: int,
        threads: int,
        options: Mapping[str, str] = DEFAULTS,
    ) -> _Executable:
        """The network as a ``Net``, its layers in place where a hand-written file has them so.

        Raises
        ------
        UsageError
            The spec, the weights or the name of the device make no sense.
        Unavailable
            ``device`` is a GPU: this build of Caffe is for CPUs.
        """
        shapes.cpu_only("caffe", device)
        started = time.perf_counter()
        made = _Executable(spec, weights, batch, threads)
        made.seconds = {"load": time.perf_counter() - started}
        return made

    def export(self, spec: ModelSpec, weights: Mapping[str, Any], batch: int) -> Graph:
        """The network that Caffe loaded, its layers and blobs, as a neutral graph. Raises UsageError as ``build``."""
        network = Network(spec, weights, batch)
        net = _made(network)
        blobs = {name: [np.array(blob.data) for blob in held] for name, held in net.params.items()}
        return walk(network.proto, blobs, outputs={network.output: "output"})

    def convert(self, files: Sequence[str], batch: Optional[int]) -> Graph:
        """A user's ``deploy.prototxt`` and ``.caffemodel``; see :func:`xframe.frameworks.caffe_files.converted`."""
        return caffe_files.converted(files, batch)

    def gradients(
        self, spec: ModelSpec, weights: Mapping[str, Any], batch: int, feeds: List[Any], cotangents: List[Any]
    ) -> Dict[str, np.ndarray]:
        """Gradients of the sum of cotangent times output, by the input and by every weight that Caffe learns.

        Those are all but the mean and the variance of a batch normalisation. Raises UsageError as ``build``, and for
        arrays that do not fit.
        """
        network = Network(spec, weights, batch, in_place=False)
        network.proto.force_backward = True  # without a loss Caffe would skip every layer
        net = _made(network)
        bottom, top = net.blobs[INPUT], net.blobs[network.output]
        wanted = [bottom.data.shape], [top.data.shape]
        if ([x.shape for x in feeds], [c.shape for c in cotangents]) != wanted:
            raise UsageError(
                "gradients of %s need one input of shape %s, and one cotangent of shape %s"
                % (spec.name, wanted[0][0], wanted[1][0])
            )
        last = len(net.layers) - 1
        bottom.data[...] = feeds[0]
        net._forward(0, last)
        top.diff[...] = cotangents[0]
        net._backward(last, 0)
        found = {name: np.array(net.params[layer][number].diff) for name, (layer, number) in network.weights.items()}
        found[INPUT] = np.array(bottom.diff)
        return found


def _made(network: Network) -> Any:
    """A ``Net`` with its weights. Caffe reads networks from files only; this one is gone when it has."""
    caffe.set_mode_cpu()
    folder = tempfile.mkdtemp(prefix="xframe-caffe-")
    try:
        path = os.path.join(folder, "net.prototxt")
        with open(path, "w") as f:
            f.write(text_format.MessageToString(network.proto))
        net = caffe.Net(path, caffe.TEST)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for layer, values in network.blobs.items():
        for blob, value in zip(net.params[layer], values):
            blob.data[...] = value
    return net
