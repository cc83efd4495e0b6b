"""A spec as Caffe's ``NetParameter``: one table over the layer ops; what Caffe lacks is composed of layers it has.

Padding that differs on two sides is a frame of constants that the image is concatenated with. Caffe rounds sizes of
poolings up unless told otherwise, and its averages count padding: a scale makes up for that. ReLU6 is a ReLU, and
a maximum between two changes of sign.
"""

from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import numpy as np
from caffe.proto import caffe_pb2

from xframe.frameworks.shapes import checked, shapes, window_counts
from xframe.types import Layer, ModelSpec

#: The blob of the network's input.
INPUT = "input"
_LOWEST = float(np.finfo(np.float32).min)


class Network:
    """A spec as Caffe has it.

    Parameters
    ----------
    in_place
        Whether layers may write over what nobody else reads. Gradients need what was there.

    Attributes
    ----------
    proto
        The ``NetParameter``.
    blobs
        Layer of Caffe -> its weights, those that are no weights of the spec among them.
    weights
        Weight of the spec -> (layer of Caffe, number of its blob), of those that Caffe learns.
    owners
        Layer of Caffe -> layer of the spec that it is, or is a part of.
    output
        The blob of the last layer.
    writable
        Whether the layer at hand may write over its input, which nobody else reads.

    Raises
    ------
    UsageError
        The spec makes no sense, or the weights do not fit it.
    """

    def __init__(self, spec: ModelSpec, weights: Mapping[str, Any], batch: int, in_place: bool = True) -> None:
        self.proto = caffe_pb2.NetParameter(name=spec.name)
        self.blobs: Dict[str, List[np.ndarray]] = {}
        self.weights: Dict[str, Tuple[str, int]] = {}
        self.owners: Dict[str, str] = {}
        self._values = checked(spec, weights)
        self._shapes, sources = shapes(spec, batch), spec.sources()
        reads = [s for names in sources.values() for s in names]
        ops = {item.name: item.op for item in spec.layers}
        # A flatten is another view of the data it reads; all other layers make what nobody else holds.
        self._own = {name for name, op in ops.items() if op != "flatten" and reads.count(name) == 1}
        self._in_place = in_place
        self._limits: Dict[Tuple[Tuple[int, ...], float], str] = {}
        self._tops = {INPUT: INPUT}  # layer of the spec -> blob
        self._inputs = {name: self._shapes[names[0]] for name, names in sources.items()}
        first = self.proto.layer.add(name=INPUT, type="Input", top=[INPUT])
        first.input_param.shape.add(dim=self._shapes[INPUT])
        for item in spec.layers:
            bottoms = [self._tops[s] for s in sources[item.name]]
            self.writable = in_place and sources[item.name][0] in self._own
            self._tops[item.name] = LAYERS[item.op](self, item, bottoms)
        self.output = self._tops[spec.layers[-1].name]

    def add(self, item: Layer, type_: str, bottoms: Sequence[str], part: str = "", in_place: bool = False) -> Any:
        """A layer of Caffe for (a ``part`` of) one of the spec; its one top has its name, or that of its bottom."""
        name = "%s/%s" % (item.name, part) if part else item.name
        self.owners[name] = item.name
        top = bottoms[0] if in_place and self._in_place else name
        return self.proto.layer.add(name=name, type=type_, bottom=bottoms, top=[top])

    def shape(self, item: Layer) -> Tuple[int, ...]:
        """Of the first input of a layer."""
        return self._inputs[item.name]

    def learn(self, layer: Any, item: Layer, parts: Sequence[str]) -> None:
        """Give a layer of Caffe weights of the spec."""
        self.blobs[layer.name] = [self._values["%s.%s" % (item.name, part)] for part in parts]
        self.weights.update(("%s.%s" % (item.name, part), (layer.name, i)) for i, part in enumerate(parts))

    def value(self, item: Layer, part: str) -> np.ndarray:
        """A weight of the spec."""
        return self._values["%s.%s" % (item.name, part)]

    def framed(self, item: Layer, bottom: str, value: float) -> Tuple[str, Tuple[int, int]]:
        """The blob to take instead of the input of a window, and the padding (height, width) that is left to Caffe."""
        top, left, below, right = item["pads"]
        if (top, left) == (below, right):
            return bottom, (top, left)
        size = list(self.shape(item))
        for axis, before, after in ((2, top, below), (3, left, right)):
            blobs = [bottom]
            if before:
                shape = [*size[:axis], before, *size[axis + 1 :]]
                blobs.insert(0, self._constant(item, "before %d" % axis, shape, value))
            if after:
                shape = [*size[:axis], after, *size[axis + 1 :]]
                blobs.append(self._constant(item, "after %d" % axis, shape, value))
            size[axis] += before + after
            if len(blobs) > 1:
                joined = self.add(item, "Concat", blobs, "framed %d" % axis)
                joined.concat_param.axis = axis
                bottom = joined.top[0]
        return bottom, (0, 0)

    def limit(self, item: Layer, value: float) -> str:
        """A blob of one value, of the shape of a layer's input; one for all layers of that shape."""
        key = (self.shape(item), value)
        if key not in self._limits:
            self._limits[key] = self._constant(item, "limit", list(key[0]), value)
        return self._limits[key]

    def _constant(self, item: Layer, part: str, shape: List[int], value: float) -> str:
        layer = self.add(item, "DummyData", [], part)
        layer.dummy_data_param.data_filler.add(type="constant", value=value)
        layer.dummy_data_param.shape.add(dim=shape)
        return layer.top[0]


def _conv(net: Network, item: Layer, bottoms: List[str]) -> str:
    bottom, pad = net.framed(item, bottoms[0], 0.0)
    layer = net.add(item, "Convolution", [bottom])
    param = layer.convolution_param
    param.num_output, param.group = item["out"], item["groups"]
    param.kernel_size.extend(item["kernel"])
    param.stride.extend(item["stride"])
    param.dilation.extend(item["dilation"])
    param.pad.extend(pad)
    net.learn(layer, item, ("weight", "bias"))
    return layer.top[0]


def _fc(net: Network, item: Layer, bottoms: List[str]) -> str:
    layer = net.add(item, "InnerProduct", bottoms)
    layer.inner_product_param.num_output = item["out"]
    net.learn(layer, item, ("weight", "bias"))
    return layer.top[0]


def _batchnorm(net: Network, item: Layer, bottoms: List[str]) -> str:
    layer = net.add(item, "BatchNorm", bottoms, in_place=net.writable)
    layer.batch_norm_param.eps = item["epsilon"]
    layer.batch_norm_param.use_global_stats = True
    net.blobs[layer.name] = [net.value(item, "mean"), net.value(item, "var"), np.ones(1, np.float32)]
    scale = net.add(item, "Scale", layer.top, "scale")
    scale.scale_param.bias_term = True
    net.learn(scale, item, ("scale", "shift"))
    return scale.top[0]


def _relu(net: Network, item: Layer, bottoms: List[str]) -> str:
    return net.add(item, "ReLU", bottoms, in_place=net.writable).top[0]


def _relu6(net: Network, item: Layer, bottoms: List[str]) -> str:
    """-max(-relu(x), -6): exact, where sums and differences with 6 would round."""
    top = net.add(item, "ReLU", bottoms, in_place=net.writable).top[0]
    minus = net.add(item, "Power", [top], "minus", in_place=True)
    limit = net.limit(item, -6.0)
    largest = net.add(item, "Eltwise", [minus.top[0], limit], "at most 6")
    largest.eltwise_param.operation = largest.eltwise_param.MAX
    back = net.add(item, "Power", largest.top, "back", in_place=True)
    minus.power_param.scale = back.power_param.scale = -1
    return back.top[0]


def _pool(net: Network, item: Layer, bottoms: List[str]) -> str:
    largest = item.op == "maxpool"
    bottom, pad = net.framed(item, bottoms[0], _LOWEST if largest else 0.0)
    layer = net.add(item, "Pooling", [bottom])
    param = layer.pooling_param
    param.pool, param.round_mode = param.MAX if largest else param.AVE, param.FLOOR
    param.kernel_h, param.kernel_w = item["kernel"]
    param.stride_h, param.stride_w = item["stride"]
    param.pad_h, param.pad_w = pad
    if largest or not any(item["pads"]):
        return layer.top[0]
    height, width = net.shape(item)[2:]
    scale = net.add(item, "Scale", layer.top, "not padding", in_place=True)
    scale.scale_param.axis, scale.scale_param.num_axes = 2, 2
    area = np.float32(item["kernel"][0] * item["kernel"][1])
    net.blobs[scale.name] = [area / window_counts(item, (height, width))]
    return scale.top[0]


def _lrn(net: Network, item: Layer, bottoms: List[str]) -> str:
    layer = net.add(item, "LRN", bottoms)
    param = layer.lrn_param
    param.local_size, param.alpha, param.beta, param.k = item["size"], item["alpha"], item["beta"], item["bias"]
    return layer.top[0]


def _dropout(net: Network, item: Layer, bottoms: List[str]) -> str:
    layer = net.add(item, "Dropout", bottoms, in_place=net.writable)
    layer.dropout_param.dropout_ratio = item["rate"]
    return layer.top[0]


def _plain(type_: str) -> Callable[[Network, Layer, List[str]], str]:
    """Of a type whose defaults are right: along channels, from the channels on, the sum."""
    return lambda net, item, bottoms: net.add(item, type_, bottoms).top[0]


#: Op -> what adds its layers to a network and gives the blob of its output.
LAYERS: Dict[str, Callable[[Network, Layer, List[str]], str]] = {
    "conv": _conv,
    "fc": _fc,
    "batchnorm": _batchnorm,
    "relu": _relu,
    "relu6": _relu6,
    "maxpool": _pool,
    "avgpool": _pool,
    "lrn": _lrn,
    "dropout": _dropout,
    "flatten": _plain("Flatten"),
    "add": _plain("Eltwise"),
    "concat": _plain("Concat"),
    "softmax": _plain("Softmax"),
}
