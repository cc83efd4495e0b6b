"""TensorFlow's network with images channels-first: on a CPU, oneDNN has kernels for it, of most operators."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from xframe.frameworks import common
from xframe.frameworks.tensorflow import NATIVE as CHANNELS_LAST
from xframe.frameworks.tensorflow import Weights, _padding, tf
from xframe.types import Layer, ModelSpec


def weights(spec: ModelSpec, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Convolutions HWIO, fc [in, out] with the rows in CHW order. Raises UsageError when they do not fit the spec."""
    out = common.checked(spec, given)
    for item in spec.layers:
        name = f"{item.name}.weight"
        if item.op == "conv":
            out[name] = np.ascontiguousarray(out[name].transpose(2, 3, 1, 0))
        elif item.op == "fc":
            out[name] = np.ascontiguousarray(out[name].T)
    return out


def _pads(item: Layer) -> list[list[int]]:
    top, left, bottom, right = item["pads"]
    return [[0, 0], [0, 0], [top, bottom], [left, right]]


def _conv(item: Layer, w: Weights, x):
    padding = _padding(item, x.shape[2:]) or _pads(item)
    y = tf.nn.conv2d(x, w[f"{item.name}.weight"], item["stride"], padding, "NCHW", item["dilation"])
    return tf.nn.bias_add(y, w[f"{item.name}.bias"], "NCHW")


def _maxpool(item: Layer, w: Weights, x):
    padding = _padding(item, x.shape[2:])
    if padding is None:
        x, padding = tf.pad(x, _pads(item), constant_values=float("-inf")), "VALID"
    return tf.nn.max_pool2d(x, item["kernel"], item["stride"], padding, "NCHW")


def _avgpool(item: Layer, w: Weights, x):
    padding = _padding(item, x.shape[2:])
    if padding:  # does not count padding
        return tf.nn.avg_pool2d(x, item["kernel"], item["stride"], padding, "NCHW")
    factor = np.float32(np.prod(item["kernel"])) / common.window_counts(item, x.shape[2:])
    return tf.nn.avg_pool2d(tf.pad(x, _pads(item)), item["kernel"], item["stride"], "VALID", "NCHW") * factor


def _batchnorm(item: Layer, w: Weights, x):
    scale, shift, mean, var = (w[f"{item.name}.{part}"] for part in ("scale", "shift", "mean", "var"))
    normed = tf.compat.v1.nn.fused_batch_norm(
        x, scale, shift, mean, var, item["epsilon"], data_format="NCHW", is_training=False
    )
    return normed[0]


def _lrn(item: Layer, w: Weights, x):
    y = CHANNELS_LAST["lrn"](item, w, tf.transpose(x, [0, 2, 3, 1]))  # it has no other form
    return tf.transpose(y, [0, 3, 1, 2])


#: As :data:`xframe.frameworks.tensorflow.NATIVE`, of NCHW inputs.
NATIVE: dict[str, Callable[..., Any]] = {
    **CHANNELS_LAST,
    "conv": _conv,
    "batchnorm": _batchnorm,
    "maxpool": _maxpool,
    "avgpool": _avgpool,
    "lrn": _lrn,
    "concat": lambda item, w, *xs: tf.concat(xs, 1),
    "softmax": lambda item, w, x: tf.nn.softmax(x, 1),
}


def network(spec: ModelSpec, w: Weights, x, ops: Mapping[str, Callable[..., Any]]):
    """The network's output for the NCHW tensor ``x``, with :func:`weights`."""
    values, sources = {"input": x}, spec.sources()
    for item in spec.layers:
        values[item.name] = ops[item.op](item, w, *(values[s] for s in sources[item.name]))
    return tf.identity(values[spec.layers[-1].name], "output")
