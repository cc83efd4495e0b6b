"""One convolution in cuDNN's graph interface with its channels last, in a network whose channels are first.

The changes of layout are calls of their own: at a site the convolution is what is compared.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from xframe.backends.cudnn_convolution import Choice, Problem
from xframe.backends.cudnn_device import ONE, ZERO, Dims, Gpu, channels_last
from xframe.backends.cudnn_engines import FASTEST, Engine
from xframe.backends.cudnn_graph_convolution import GraphConvolution


class ChannelsLast:
    """A problem with an image and an output of its own. Raises CallFailed where cuDNN takes no such graph."""

    def __init__(self, gpu: Gpu, problem: Problem):
        self._gpu, self._problem = gpu, problem
        self._graph = GraphConvolution(gpu, problem, "NHWC")
        self._x, self._y = (gpu.room(4 * math.prod(dims)) for dims in (problem.image, problem.out))

    @property
    def engines(self) -> list[Engine]:
        """All that cuDNN listed, with what came of them."""
        return self._graph.engines

    def forced(self, algorithm: str, x: int, w: int, y: int) -> Choice:
        """The fastest engine. Raises CallFailed as GraphConvolution does."""
        weights = self._gpu.room(4 * math.prod(self._problem.filters))
        self._copy(self._problem.filters, w, weights)()
        found = self._graph.forced(FASTEST, self._x, weights, self._y)

        def call(x: int, w: int, workspace: int, y: int) -> Callable[[], None]:
            return found.call(self._x, weights, workspace, self._y)

        return replace(found, call=call, around=self._around)

    def _around(self, x: int, y: int) -> tuple[Callable[[], None], Callable[[], None]]:
        return self._copy(self._problem.image, x, self._x), self._copy(self._problem.out, self._y, y, back=True)

    def _copy(self, dims: Dims, source: int, target: int, back: bool = False) -> Callable[[], None]:
        """What copies a tensor to where its channels are last, or back."""
        first, last = self._gpu.tensor(dims), self._gpu.tensor(dims, channels_last(dims))
        given, wanted = (last, first) if back else (first, last)
        return partial(self._gpu.api.cudnnTransformTensor, self._gpu.cudnn, ONE, given, source, ZERO, wanted, target)
