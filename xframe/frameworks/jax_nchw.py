"""JAX's network with images channels-first throughout: what most people write, and XLA has to transpose on a CPU."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from xframe.frameworks import common
from xframe.frameworks.jax import OPS as CHANNELS_LAST
from xframe.frameworks.jax import Weights
from xframe.types import Layer, ModelSpec


def weights(spec: ModelSpec, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Convolutions OIHW, fc [in, out] with the rows in CHW order. Raises UsageError when they do not fit the spec."""
    out = common.checked(spec, given)
    for item in spec.layers:
        if item.op == "fc":
            out[f"{item.name}.weight"] = np.ascontiguousarray(out[f"{item.name}.weight"].T)
    return out


def _pads(item: Layer) -> list[tuple[int, int]]:
    top, left, bottom, right = item["pads"]
    return [(top, bottom), (left, right)]


def _channels(w):
    return w[:, None, None]


def _conv(item: Layer, w: Weights, x):
    y = lax.conv_general_dilated(
        x, w["weight"], item["stride"], _pads(item), rhs_dilation=item["dilation"],
        dimension_numbers=("NCHW", "OIHW", "NCHW"), feature_group_count=item["groups"],
    )  # fmt: skip
    return y + _channels(w["bias"])


def _pool(item: Layer, x, init, reduce):
    window, stride = (1, 1, *item["kernel"]), (1, 1, *item["stride"])
    return lax.reduce_window(x, init, reduce, window, stride, [(0, 0), (0, 0), *_pads(item)])


def _avgpool(item: Layer, w: Weights, x):
    inside = jnp.ones((1, 1, *x.shape[2:]), x.dtype)
    return _pool(item, x, 0.0, lax.add) / _pool(item, inside, 0.0, lax.add)


def _batchnorm(item: Layer, w: Weights, x):
    factor = w["scale"] * lax.rsqrt(w["var"] + item["epsilon"])
    return (x - _channels(w["mean"])) * _channels(factor) + _channels(w["shift"])


def _lrn(item: Layer, w: Weights, x):
    size = item["size"]
    pads = [(0, 0), (size // 2, size // 2), (0, 0), (0, 0)]
    total = lax.reduce_window(x * x, 0.0, lax.add, (1, size, 1, 1), (1, 1, 1, 1), pads)
    return x / (item["bias"] + item["alpha"] / size * total) ** item["beta"]


#: As :data:`xframe.frameworks.jax.OPS`, of NCHW inputs.
OPS = {
    **CHANNELS_LAST,
    "conv": _conv,
    "batchnorm": _batchnorm,
    "maxpool": lambda item, w, x: _pool(item, x, -jnp.inf, lax.max),
    "avgpool": _avgpool,
    "lrn": _lrn,
    "concat": lambda item, w, *xs: jnp.concatenate(xs, 1),
    "softmax": lambda item, w, x: jax.nn.softmax(x, 1),
}
