"""A spec as a CNTK graph: one mapping table over the layer operators.

CNTK 2.7 on a CPU has no dilated convolution, and pads by itself only what is symmetric: both are composed here.
Python 3.6, in CNTK's own environment.
"""

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence, Set, Tuple

import cntk as C
import numpy as np

from xframe.frameworks.shapes import checked, shapes, window_counts
from xframe.types import Layer, ModelSpec

#: What a graph is for. ``run``: forward passes. ``train``: gradients; CNTK differentiates in training mode, in which
#: dropout drops and batch normalisation measures, so both are spelled out. ``export``: the saver; what a CPU can't run
#: may be in it.
RUN, TRAIN, EXPORT = "run", "train", "export"

#: A window, its stride and its padding along one axis: kernel, stride, pad before, pad after, size of the input.
Axis = Tuple[int, int, int, int, int]


class Graph(NamedTuple):
    """A network in CNTK. ``owners``: CNTK's name of each operator -> the spec's layer; ``kinds``: -> its operator.

    ``parameters``: the spec's weights, in CNTK's layouts; ``restored`` brings a gradient back into the spec's.
    """

    input: Any
    output: Any
    parameters: Dict[str, Any]
    owners: Dict[str, str]
    kinds: Dict[str, str]
    restored: Dict[str, Callable[[np.ndarray], np.ndarray]]


def network(spec: ModelSpec, weights: Mapping[str, Any], purpose: str) -> Graph:
    """The graph of ``spec``, input and output canonical, the batch CNTK's own dynamic axis.

    Raises
    ------
    UsageError
        The spec or its weights make no sense.
    """
    return _Builder(spec, weights, purpose).graph()


class _Builder:
    """Makes a graph layer by layer. Methods named after an operator take the layer and its CNTK inputs."""

    def __init__(self, spec: ModelSpec, weights: Mapping[str, Any], purpose: str) -> None:
        self._spec, self._purpose = spec, purpose
        self._weights, self._shapes = checked(spec, weights), shapes(spec, 1)
        self._parameters: Dict[str, Any] = {}
        self._restored: Dict[str, Callable[[np.ndarray], np.ndarray]] = {}

    def graph(self) -> Graph:
        source = C.input_variable(self._spec.input, needs_gradient=self._purpose == TRAIN, name="input")
        made: Dict[str, Any] = {"input": source}
        owners: Dict[str, str] = {}
        kinds: Dict[str, str] = {}
        seen: Set[str] = set()
        sources = self._spec.sources()
        for item in self._spec.layers:
            ins = [made[name] for name in sources[item.name]]
            self._in_shape = self._shapes[sources[item.name][0]]
            made[item.name] = out = getattr(self, "_" + item.op)(item, *ins)
            for function in _new_functions(out, seen):
                owners[function.uid], kinds[function.uid] = item.name, function.op_name
        output = made[self._spec.layers[-1].name]
        return Graph(source, output, self._parameters, owners, kinds, self._restored)

    def _parameter(self, name: str, value: np.ndarray, restored: Callable[[np.ndarray], np.ndarray]) -> Any:
        self._parameters[name] = C.parameter(init=np.ascontiguousarray(value), name=name)
        self._restored[name] = restored
        return self._parameters[name]

    def _vector(self, name: str, shape: Sequence[int]) -> Any:
        """A weight with one value a channel, as CNTK broadcasts it."""
        value = self._weights[name]
        return self._parameter(name, value.reshape(tuple(shape)), lambda gradient: gradient.reshape(value.shape))

    def _axes(self, item: Layer) -> List[Axis]:
        pads = item["pads"]
        return list(zip(item["kernel"], item["stride"], pads[:2], pads[2:], self._in_shape[2:]))

    def _conv(self, item: Layer, x: Any) -> Any:
        name, dilation = item.name + ".weight", item["dilation"]
        weight = self._weights[name]
        restored: Callable[[np.ndarray], np.ndarray] = np.asarray
        axes = self._axes(item)
        if dilation != (1, 1) and self._purpose != EXPORT:
            weight, restored = _spread(weight, dilation)
            dilation = (1, 1)
            axes = [(k, *axis[1:]) for k, axis in zip(weight.shape[2:], axes)]
        own = dilation == (1, 1) and all(_padded_alike(axis) for axis in axes)
        y = C.convolution(
            self._parameter(name, weight, restored),
            x if own else _pad(item, x, 0.0),
            strides=item["stride"],
            auto_padding=[False] + [own and bool(axis[2]) for axis in axes],
            dilation=(1, *dilation),
            groups=item["groups"],
            name=item.name,
        )
        return C.plus(y, self._vector(item.name + ".bias", (-1, 1, 1)), name=item.name + ".biased")

    def _fc(self, item: Layer, x: Any) -> Any:
        name = item.name + ".weight"
        y = C.times(x, self._parameter(name, self._weights[name].T, np.transpose), name=item.name)
        return C.plus(y, self._vector(item.name + ".bias", (-1,)), name=item.name + ".biased")

    def _batchnorm(self, item: Layer, x: Any) -> Any:
        mean, var = (self._weights[item.name + part] for part in (".mean", ".var"))
        if self._purpose == TRAIN:
            scale, shift = (self._vector(item.name + part, (-1, 1, 1)) for part in (".scale", ".shift"))
            factor = (1 / np.sqrt(var.astype(np.float64) + item["epsilon"])).astype(np.float32)
            centred = C.minus(x, C.constant(mean.reshape(-1, 1, 1)))
            return C.plus(C.element_times(C.element_times(centred, C.constant(factor.reshape(-1, 1, 1))), scale), shift)
        scale, shift = (self._vector(item.name + part, (-1,)) for part in (".scale", ".shift"))
        # What CNTK calls running_inv_std is the variance.
        return C.batch_normalization(
            x,
            scale,
            shift,
            C.constant(mean, name=item.name + ".mean"),
            C.constant(var, name=item.name + ".var"),
            spatial=True,
            epsilon=item["epsilon"],
            running_count=C.constant(0),
            name=item.name,
        )

    def _relu(self, item: Layer, x: Any) -> Any:
        return C.relu(x, name=item.name)

    def _relu6(self, item: Layer, x: Any) -> Any:
        return C.clip(x, 0.0, 6.0, name=item.name)

    def _maxpool(self, item: Layer, x: Any) -> Any:
        return self._pool(item, x, C.MAX_POOLING, float("-inf"))

    def _avgpool(self, item: Layer, x: Any) -> Any:
        if all(_padded_alike(axis) for axis in self._axes(item)):
            return self._pool(item, x, C.AVG_POOLING, 0.0)
        counts = window_counts(item, self._in_shape[2:])  # type: ignore[arg-type]
        factor = np.float32(np.prod(item["kernel"])) / counts
        factor = C.constant(factor[None], name=item.name + ".factor")
        return C.element_times(self._pool(item, x, C.AVG_POOLING, 0.0), factor, name=item.name + ".scaled")

    def _pool(self, item: Layer, x: Any, kind: int, value: float) -> Any:
        """CNTK's own padding of a window takes no part in the maximum, nor in the average."""
        axes = self._axes(item)
        own = all(_padded_alike(axis) for axis in axes)
        x = x if own else _pad(item, x, value)
        own_padding = [False] + [own and bool(axis[2]) for axis in axes]
        return C.pooling(x, kind, item["kernel"], item["stride"], own_padding, name=item.name)

    def _lrn(self, item: Layer, x: Any) -> Any:
        """CNTK divides alpha by the size, as the spec does, but by the number of channels where that is less."""
        channels = self._in_shape[1]
        if item["size"] > channels:
            index = np.arange(channels)
            band = abs(index[:, None] - index) <= item["size"] // 2
            band = (band * (item["alpha"] / item["size"])).astype(np.float32)[:, :, None, None]
            sums = C.convolution(C.constant(band, name=item.name + ".band"), C.square(x), auto_padding=[False])
            # Not C.pow, whose gradient is not a number.
            power = C.element_times(C.log(C.plus(sums, item["bias"])), -item["beta"])
            return C.element_times(x, C.exp(power), name=item.name)
        return C.local_response_normalization(
            x, item["size"] // 2, item["bias"], item["alpha"], item["beta"], name=item.name
        )

    def _dropout(self, item: Layer, x: Any) -> Any:
        return C.alias(x) if self._purpose == TRAIN else C.dropout(x, item["rate"], name=item.name)

    def _flatten(self, item: Layer, x: Any) -> Any:
        return C.reshape(x, self._shapes[item.name][1:], name=item.name)

    def _add(self, item: Layer, *xs: Any) -> Any:
        total = xs[0]
        for number, x in enumerate(xs[1:]):
            total = C.plus(total, x, name="%s.%d" % (item.name, number))
        return total

    def _concat(self, item: Layer, *xs: Any) -> Any:
        return C.splice(*xs, axis=0, name=item.name)

    def _softmax(self, item: Layer, x: Any) -> Any:
        return C.softmax(x, axis=0, name=item.name)


def _new_functions(out: Any, seen: Set[str]) -> List[Any]:
    """The operators that a layer's output added to those seen, the insides of blocks in place of these: they run."""
    found, todo = [], [out]
    while todo:
        function = todo.pop().root_function
        if function.uid in seen:
            continue
        seen.add(function.uid)
        if function.is_block:
            todo.append(function.block_root)
        else:
            found.append(function)
        todo += [variable.owner for variable in function.inputs if variable.is_output]
    return found


def _padded_alike(axis: Axis) -> bool:
    """Is this what CNTK's automatic padding does along an axis: half of an odd window, the same on both sides?"""
    kernel, stride, before, after, size = axis
    return before == after and (before == 0 or (2 * before + 1 == kernel and (size - 1) % stride == 0))


def _pad(item: Layer, x: Any, value: float) -> Any:
    if not any(item["pads"]):
        return x
    top, left, bottom, right = item["pads"]
    pads = [(0, 0), (top, bottom), (left, right)]
    return C.pad(x, pads, mode=C.ops.CONSTANT_PAD, constant_value=value, name=item.name + ".pad")


def _spread(weight: np.ndarray, dilation: Tuple[int, int]) -> Tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """A kernel with zeros between its taps, which does without dilation what it did with it."""
    rows, columns = (slice(None, None, d) for d in dilation)
    size = [d * (k - 1) + 1 for d, k in zip(dilation, weight.shape[2:])]
    wide = np.zeros(weight.shape[:2] + tuple(size), weight.dtype)
    wide[:, :, rows, columns] = weight
    return wide, lambda gradient: gradient[:, :, rows, columns]
