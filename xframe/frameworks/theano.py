"""Theano: an NCHW expression over shared variables, compiled through C++; export by a walk over the expression.

Runs in the environment of its own that the registry names: Python 3.8 upwards, Theano and numpy alone.
"""

import time
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import numpy as np
import theano
import theano.tensor as T
from theano.gof.graph import ancestors
from theano.tensor.nnet import bn, conv2d
from theano.tensor.signal.pool import pool_2d

from xframe import neutral
from xframe.frameworks import theano_graph, theano_layers, theano_profile, theano_runtime
from xframe.frameworks.shapes import Network, checked, cpu_only, shapes, window_counts
from xframe.protocols import DEFAULTS
from xframe.types import Layer, ModelSpec, Profile

Shape = Tuple[int, ...]
Weights = Mapping[str, Any]  # of one layer, without the layer's name


def _channels(vector: Any) -> Any:
    """One number for each channel, against an image."""
    return vector.dimshuffle("x", 0, "x", "x")


def _into(shape: Shape, place: Tuple[slice, ...], value: float, x: Any) -> Any:
    """``x`` at its place in an array of ``shape`` that is ``value`` elsewhere: how Theano pads."""
    return T.set_subtensor(T.alloc(np.float32(value), *shape)[place], x)


def _padded(item: Layer, x: Any, shape: Shape, value: float) -> Any:
    top, left, bottom, right = item["pads"]
    n, c, h, w = shape
    place = (slice(None), slice(None), slice(top, top + h), slice(left, left + w))
    return _into((n, c, top + h + bottom, left + w + right), place, value, x)


def _even(item: Layer) -> bool:
    top, left, bottom, right = item["pads"]
    return (top, left) == (bottom, right)


def _conv(item: Layer, w: Weights, shape: Shape, x: Any) -> Any:
    top, left, bottom, right = item["pads"]
    y = conv2d(
        x,
        w["weight"],
        input_shape=shape,
        filter_shape=w["weight"].get_value(borrow=True).shape,
        border_mode=(top, left) if _even(item) else ((top, bottom), (left, right)),
        subsample=item["stride"],
        filter_flip=False,  # networks correlate; Theano's default is the convolution of the books
        filter_dilation=item["dilation"],
        num_groups=item["groups"],
    )
    return y + _channels(w["bias"])


def _pool(item: Layer, x: Any, mode: str, pads: Tuple[int, int] = (0, 0)) -> Any:
    return pool_2d(x, item["kernel"], ignore_border=True, stride=item["stride"], pad=pads, mode=mode)


def _maxpool(item: Layer, w: Weights, shape: Shape, x: Any) -> Any:
    if _even(item):
        return _pool(item, x, "max", item["pads"][:2])
    return _pool(item, _padded(item, x, shape, -np.inf), "max")


def _avgpool(item: Layer, w: Weights, shape: Shape, x: Any) -> Any:
    if not any(item["pads"]):
        return _pool(item, x, "average_exc_pad")
    # Theano's mean without padding has no gradient where there is padding: the mean with it, times a constant map.
    whole = np.float32(item["kernel"][0] * item["kernel"][1])
    factor = whole / window_counts(item, (shape[2], shape[3]))
    if _even(item):
        mean = _pool(item, x, "average_inc_pad", item["pads"][:2])
    else:
        mean = _pool(item, _padded(item, x, shape, 0.0), "average_inc_pad")
    return mean * T.constant(factor[None, None], name="factor")


def _lrn(item: Layer, w: Weights, shape: Shape, x: Any) -> Any:
    """Theano has none: sums of squares shifted by channels, which it fuses into one loop."""
    n, c, height, width = shape
    half = item["size"] // 2
    squares = _into((n, c + 2 * half, height, width), (slice(None), slice(half, half + c)), 0.0, T.sqr(x))
    total = squares[:, 0:c]
    for first in range(1, item["size"]):
        total = total + squares[:, first : first + c]
    scale = np.float32(item["bias"]) + np.float32(item["alpha"] / item["size"]) * total
    return x / scale ** np.float32(item["beta"])


def _batchnorm(item: Layer, w: Weights, shape: Shape, x: Any) -> Any:
    parts = (_channels(w[part]) for part in ("scale", "shift", "mean", "var"))
    # The operator itself: the function around it takes no epsilon that cuDNN would not.
    return bn.AbstractBatchNormInference((0, 2, 3))(x, *parts, epsilon=np.float32(item["epsilon"]))


def _softmax(item: Layer, w: Weights, shape: Shape, x: Any) -> Any:
    """Theano's own takes matrices: of an image, its pixels become the rows."""
    if len(shape) == 2:
        return T.nnet.softmax(x)
    n, c, height, width = shape
    rows = x.dimshuffle(0, 2, 3, 1).reshape((n * height * width, c))
    return T.nnet.softmax(rows).reshape((n, height, width, c)).dimshuffle(0, 3, 1, 2)


#: Op -> its expression, given the layer, its weights, the NCHW shape of its first input, and its inputs.
OPS: Dict[str, Callable[..., Any]] = {
    "conv": _conv,
    "fc": lambda item, w, shape, x: T.dot(x, w["weight"]) + w["bias"],
    "batchnorm": _batchnorm,
    "relu": lambda item, w, shape, x: T.nnet.relu(x),
    "relu6": lambda item, w, shape, x: T.clip(x, np.float32(0), np.float32(6)),
    "maxpool": _maxpool,
    "avgpool": _avgpool,
    "lrn": _lrn,
    "dropout": lambda item, w, shape, x: x,
    "flatten": lambda item, w, shape, x: x.reshape((shape[0], int(np.prod(shape[1:])))),
    "add": lambda item, w, shape, *xs: sum(xs[1:], xs[0]),
    "concat": lambda item, w, shape, *xs: T.concatenate(xs, axis=1),
    "softmax": _softmax,
}


class Expression:
    """A network as symbols. ``x`` and ``y``: its input and output; ``weights``: shared variables by the spec's names,
    those of fc as [in, out]. A batch of one is said to be one: products are then of a matrix and a vector.
    """

    def __init__(self, spec: ModelSpec, weights: Mapping[str, Any], batch: int) -> None:
        self._fc = {item.name + ".weight" for item in spec.layers if item.op == "fc"}
        self.weights = {
            name: theano.shared(self.turned(name, value), name, borrow=True)
            for name, value in checked(spec, weights).items()
        }
        self.x = T.TensorType("float32", (batch == 1, False, False, False))("input")
        known, sources = shapes(spec, batch), spec.sources()
        values = {"input": self.x}
        for item in spec.layers:
            own = {n.rpartition(".")[2]: v for n, v in self.weights.items() if n.rpartition(".")[0] == item.name}
            xs = [values[s] for s in sources[item.name]]
            values[item.name] = OPS[item.op](item, own, known[sources[item.name][0]], *xs)
            theano_layers.mark(values[item.name], item.name, [self.x, *xs])
        self.y = values[spec.layers[-1].name]

    def turned(self, name: str, value: np.ndarray) -> np.ndarray:
        """A weight from the spec's layout to Theano's, or back."""
        return value.T if name in self._fc else value


class _Network(Network):
    def __init__(self, spec: ModelSpec, weights: Mapping[str, Any], batch: int, threads: int) -> None:
        environment, notes = theano_runtime.prepare(threads)
        super().__init__(spec, batch, environment, notes)
        self._spec = spec
        started = time.perf_counter()
        self._made = Expression(spec, weights, batch)
        pattern = self._made.x.broadcastable
        self._x = theano.shared(np.zeros(self._shape, np.float32), "input", borrow=True, broadcastable=pattern)
        built = time.perf_counter()
        self._run = self._compiled(None)
        self.seconds = {"load": built - started, "compile": time.perf_counter() - built}
        self._profiler: Any = None

    def _compiled(self, mode: Any) -> Any:
        # The output is lent: the next step may write over it.
        y = theano.Out(self._made.y, borrow=True)
        return theano.function([], [y], givens={self._made.x: self._x}, mode=mode)

    def bind(self, feeds: List[Any]) -> None:
        self._x.set_value(np.array(self.checked(feeds)), borrow=True)

    def step(self) -> None:
        (self._y,) = self._run()

    def sync(self) -> None:
        """Theano has no work under way when a call returns."""

    def fetch(self) -> List[np.ndarray]:
        return [np.array(self._y)]

    def profile(self, passes: int) -> List[Profile]:
        """The same code, each of its nodes timed."""
        if self._profiler is None:
            function = self._compiled(theano_profile.mode())
            self._profiler = theano_profile.Profiler(self._spec, self._shape[0], function, theano_runtime.ALGORITHM)
        return self._profiler.passes(passes, self.step)


class Theano:
    """The plugin."""

    layout = "NCHW"
    version = theano.__version__

    def build(
        self,
        spec: ModelSpec,
        weights: Mapping[str, Any],
        device: str,
        batch: int,
        threads: int,
        options: Mapping[str, str] = DEFAULTS,
    ) -> Network:
        """The network compiled, float32 throughout. Threads are set for the whole process.

        Raises
        ------
        UsageError
            The spec, the weights or the name of the device make no sense.
        Unavailable
            ``device`` is a GPU, or there is no BLAS or C++ compiler for Theano to use.
        """
        cpu_only("theano", device)
        return _Network(spec, weights, batch, threads)

    def export(self, spec: ModelSpec, weights: Mapping[str, Any], batch: int) -> neutral.Graph:
        """The network as a neutral graph, by a walk over its expression as it was written, before any optimisation.

        Raises
        ------
        UsageError
            As ``build``.
        """
        made = Expression(spec, weights, batch)
        inputs = [("input", made.x, (batch, *spec.input))]
        return theano_graph.graph(spec.name, inputs, [("output", made.y)])

    def gradients(
        self,
        spec: ModelSpec,
        weights: Mapping[str, Any],
        batch: int,
        feeds: Sequence[np.ndarray],
        cotangents: Sequence[np.ndarray],
    ) -> Dict[str, np.ndarray]:
        """Gradients of the sum of cotangent times output, by ``theano.grad``.

        Returns
        -------
        dict
            For each weight of the spec that the output depends on its gradient, of its shape; the gradient by the input
            is ``"input"``.

        Raises
        ------
        UsageError
            The spec, the weights or the input make no sense.
        """
        made = Expression(spec, weights, batch)
        x = Network(spec, batch, {}).checked(list(feeds))
        (cotangent,) = cotangents
        given = made.y.type("cotangent")
        reached = set(ancestors([made.y]))
        wanted = {name: v for name, v in dict(made.weights, input=made.x).items() if v in reached}
        run = theano.function([made.x, given], theano.grad((made.y * given).sum(), list(wanted.values())))
        values = run(x, np.asarray(cotangent, np.float32))
        return {name: np.ascontiguousarray(made.turned(name, np.asarray(v))) for name, v in zip(wanted, values)}
