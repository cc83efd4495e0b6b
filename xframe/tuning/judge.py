"""Whether a candidate computes its site: the whole chain on seeded random data, against float64."""

import math
from collections import OrderedDict
from dataclasses import dataclass, replace

import numpy as np

from xframe.equivalence.graph import Graph, Node, run
from xframe.equivalence.reference import OPERATORS, Judged
from xframe.equivalence.verdict import judge
from xframe.errors import Mismatch
from xframe.lowering.stage import ALTERNATIVES, Tile
from xframe.lowering.target import Target
from xframe.lowering.tasks import Task
from xframe.tuning.build import Chain

TO_NHWC = (0, 2, 3, 1)


@dataclass(frozen=True)
class Arguments:
    """What the steps of a chain take, float32, C-contiguous, of the shapes that they take.

    Step ``i`` takes its image (``image``, or the output of the step before), ``constants[i]``, and the last one takes
    ``residual``, if there is one.
    """

    image: np.ndarray
    constants: tuple[tuple[np.ndarray, ...], ...]
    residual: np.ndarray | None


class Judge:
    """Holds the data of ``task``, all N(0, 1) but the weights, which keep the variance; and its exact outputs.

    Outputs are judged by the bound of the task's own algorithm (``xframe.equivalence.bounds``). It holds 16 bytes an
    element of the output.
    """

    def __init__(self, task: Task, cpu: Target, seed: int = 0):
        self.task, self._cpu = task, cpu
        site, g = task.variant.site, np.random.default_rng(seed)

        def normal(*shape: int) -> np.ndarray:
            return g.standard_normal(shape, dtype=np.float32)

        self._image = normal(site.batch, site.in_channels, *site.in_hw)
        self._weight = normal(site.out_channels, site.in_channels // site.groups, *site.kernel)
        self._weight /= np.float32(math.sqrt(site.reduction))
        self._bias = normal(site.out_channels)
        shape = (site.batch, site.out_channels, *site.out_hw)
        self._residual = normal(*shape) if task.residual else None
        self._constants: OrderedDict[tuple[int, int], list[tuple[np.ndarray, ...]]] = OrderedDict()
        self._exact = [self._judged(i) for i in range(site.batch)]

    @property
    def nbytes(self) -> int:
        """Bytes that it holds beside the constants of a few register tiles."""
        return sum(e.value.nbytes + e.bound.nbytes for e in self._exact) + self._image.nbytes

    def arguments(self, chain: Chain) -> Arguments:
        """What to feed a chain of a library of the task."""
        image = self._image.transpose(TO_NHWC) if self.task.layout == "NHWC" else self._image
        constants = tuple(
            tuple(np.ascontiguousarray(a).reshape(shape) for a, shape in zip(arrays, step.inputs[1:], strict=False))
            for arrays, step in zip(self._constants_of(chain.tile), chain.steps, strict=True)
        )
        residual = self._residual
        if residual is not None:
            residual = np.ascontiguousarray(residual.transpose(TO_NHWC)).reshape(chain.steps[-1].inputs[-1])
        return Arguments(np.ascontiguousarray(image).reshape(chain.steps[0].inputs[0]), constants, residual)

    def share(self, output: np.ndarray) -> float:
        """The largest part of its own bound by which an element of the chain's last output misses the exact value.

        Raises
        ------
        Mismatch
            An element is beyond its bound or not finite.
        """
        site = self.task.variant.site
        images = output.reshape(site.batch, *site.out_hw, site.out_channels)
        verdicts = [judge([got], [exact]) for got, exact in zip(images, self._exact, strict=True)]
        wrong = next((v for v in verdicts if not v.ok), None)
        if wrong is not None:
            raise Mismatch(wrong.reason)
        return max(v.ratio or 0.0 for v in verdicts)

    def _constants_of(self, tile: tuple[int, int]) -> list[tuple[np.ndarray, ...]]:
        """The constants of each stage, with this register tile."""
        if tile not in self._constants:
            stages = self.task.stages(self._weight, self._bias, self._cpu, Tile(*tile, self._cpu.lanes))
            while len(self._constants) >= ALTERNATIVES:
                self._constants.popitem(last=False)
            self._constants[tile] = [s.constants for s in stages]
        self._constants.move_to_end(tile)
        return self._constants[tile]

    def _judged(self, i: int) -> Judged:
        """Image ``i`` of the output, channels last; one at a time, so that float64 temporaries stay small."""
        site, relu = self.task.variant.site, self.task.relu
        attrs = {"strides": site.stride, "pads": site.pads, "dilations": site.dilation, "group": site.groups}
        nodes = [Node("convolution", "Conv", ("x", "w", "b"), ("conv",), attrs)]
        feeds = {"x": self._image[i : i + 1]}
        if self._residual is not None:
            nodes.append(Node("residual", "Add", (nodes[-1].outputs[0], "r"), ("sum",)))
            feeds["r"] = self._residual[i : i + 1]
        if relu is not None:
            bounds = {} if math.isinf(relu) else {"min": 0.0, "max": relu}
            nodes.append(Node("relu", "Clip" if bounds else "Relu", nodes[-1].outputs, ("relu",), bounds))
        constants = {"w": self._weight, "b": self._bias}
        graph = Graph(tuple(nodes), constants, tuple(feeds), nodes[-1].outputs, tuple(x.shape for x in feeds.values()))
        roundings = {replace(site, batch=1): self.task.variant.rounding}
        (exact,) = run(graph, feeds, OPERATORS, roundings)
        value, bound = (np.ascontiguousarray(a[0].transpose(1, 2, 0)) for a in (exact.real, exact.bound))
        return Judged(f"of image {i}", value, bound)
