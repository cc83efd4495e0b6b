"""JAX: an NHWC function of weights and input under ``jit``; export by a walk over its jaxpr."""

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from xframe.errors import Unavailable
from xframe.frameworks import common
from xframe.protocols import DEFAULTS
from xframe.types import Layer, ModelSpec

Weights = Mapping[str, Any]  # of one layer, without the layer's name


def _pads(item: Layer) -> list[tuple[int, int]]:
    top, left, bottom, right = item["pads"]
    return [(top, bottom), (left, right)]


def _conv(item: Layer, w: Weights, x):
    y = lax.conv_general_dilated(
        x, w["weight"], item["stride"], _pads(item), rhs_dilation=item["dilation"],
        dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=item["groups"],
    )  # fmt: skip
    return y + w["bias"]


def _pool(item: Layer, x, init, reduce):
    window, stride = (1, *item["kernel"], 1), (1, *item["stride"], 1)
    return lax.reduce_window(x, init, reduce, window, stride, [(0, 0), *_pads(item), (0, 0)])


def _avgpool(item: Layer, w: Weights, x):
    inside = jnp.ones((1, *x.shape[1:3], 1), x.dtype)  # XLA folds its sums
    return _pool(item, x, 0.0, lax.add) / _pool(item, inside, 0.0, lax.add)


def _batchnorm(item: Layer, w: Weights, x):
    factor = w["scale"] * lax.rsqrt(w["var"] + item["epsilon"])
    return (x - w["mean"]) * factor + w["shift"]


def _lrn(item: Layer, w: Weights, x):
    size = item["size"]
    pads = [(0, 0)] * 3 + [(size // 2, size // 2)]
    total = lax.reduce_window(x * x, 0.0, lax.add, (1, 1, 1, size), (1, 1, 1, 1), pads)
    return x / (item["bias"] + item["alpha"] / size * total) ** item["beta"]


def _flatten(item: Layer, w: Weights, x):
    """In HWC order; :func:`network` transposes before where CHW is needed."""
    return x.reshape(x.shape[0], -1)


#: Op -> its JAX form, given the layer, its weights and its inputs (NHWC).
OPS: dict[str, Callable[..., Any]] = {
    "conv": _conv,
    "fc": lambda item, w, x: x @ w["weight"] + w["bias"],
    "batchnorm": _batchnorm,
    "relu": lambda item, w, x: jax.nn.relu(x),
    "relu6": lambda item, w, x: lax.clamp(0.0, x, 6.0),
    "maxpool": lambda item, w, x: _pool(item, x, -jnp.inf, lax.max),
    "avgpool": _avgpool,
    "lrn": _lrn,
    "dropout": lambda item, w, x: x,
    "flatten": _flatten,
    "add": lambda item, w, *xs: sum(xs[1:], xs[0]),
    "concat": lambda item, w, *xs: jnp.concatenate(xs, -1),
    "softmax": lambda item, w, x: jax.nn.softmax(x, -1),
}


def direct(item: Layer, w: Weights, *xs):
    """A layer as it is run. Export applies layers through another function, which marks some by name."""
    return OPS[item.op](item, w, *xs)


def network(spec: ModelSpec, w: Mapping[str, Any], x, apply: Callable[..., Any] = direct):
    """The network's output for the NHWC array ``x``, with the weights of :func:`common.channels_last`."""
    values, sources = {"input": x}, spec.sources()
    absorbed = common.absorbed_flattens(spec).values()
    for item in spec.layers:
        xs = [values[s] for s in sources[item.name]]
        if item.op == "flatten" and xs[0].ndim == 4 and item.name not in absorbed:
            xs = [xs[0].transpose(0, 3, 1, 2)]
        own = {name.rpartition(".")[2]: value for name, value in w.items() if name.rpartition(".")[0] == item.name}
        values[item.name] = apply(item, own, *xs)
    return values[spec.layers[-1].name]


class _Network(common.Network):
    def __init__(self, spec: ModelSpec, weights: Mapping[str, Any], device: jax.Device, batch: int, threads: int):
        environment = {
            "jax": jax.__version__,
            "threads": int(os.environ.get("NPROC", os.cpu_count() or 1)),
            "platform": device.platform,
            "device": device.device_kind,
            "matmul_precision": "highest",
            "layout": "NHWC",
            "xla_flags": os.environ.get("XLA_FLAGS", ""),
        }
        have = environment["threads"]
        notes = () if have == threads else (f"jax was started with {have} threads and can't change to {threads}",)
        super().__init__(spec, batch, environment, notes)
        self._device = device
        self._weights = jax.device_put(common.channels_last(spec, weights), device)
        x = jax.ShapeDtypeStruct(common.channels_last_shape(self._shape), jnp.float32)
        start = time.perf_counter()
        with jax.default_device(device), jax.default_matmul_precision("highest"):
            self._run = jax.jit(lambda w, x: network(spec, w, x)).lower(self._weights, x).compile()
        self.seconds = {"compile": time.perf_counter() - start}

    def bind(self, feeds: list[Any]) -> None:
        self._x = jax.block_until_ready(jax.device_put(common.to_channels_last(self.checked(feeds)), self._device))

    def step(self) -> None:
        self._y = self._run(self._weights, self._x)

    def sync(self) -> None:
        self._y.block_until_ready()

    def fetch(self) -> list[np.ndarray]:
        return [common.to_canonical(np.array(self._y))]


class Jax:
    """See :class:`xframe.protocols.Framework`. An image output of the exported graph is NHWC as well.

    NHWC is XLA's own layout for convolutions on a CPU: AlexNet took 23 ms with it and 28 with NCHW at batch 1, 176 and
    207 at batch 16.
    """

    layout = "NHWC"
    version = jax.__version__

    def build(
        self,
        spec: ModelSpec,
        weights: Mapping[str, Any],
        device: str,
        batch: int,
        threads: int,
        options: Mapping[str, str] = DEFAULTS,
    ) -> _Network:
        """The network compiled ahead of time, weights as arguments; float32 throughout (precision ``highest``).

        XLA sizes its thread pool once per process, when its first device is made, from ``$NPROC``.

        Raises
        ------
        UsageError
            The spec, the weights or the name of the device make no sense.
        Unavailable
            ``device`` is a GPU that JAX does not see.
        """
        index = common.device_index(device)
        os.environ.setdefault("NPROC", str(threads))
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # a GPU's memory is not ours to take whole
        try:
            seen = jax.devices("cpu" if index is None else "cuda")
        except RuntimeError:
            seen = []
        if (index or 0) >= len(seen):
            raise Unavailable(
                f"jax on {device}: JAX {self.version} sees {len(seen)} CUDA devices; use --device cpu, or install "
                "jax[cuda13] on a machine with a GPU"
            )
        return _Network(spec, weights, seen[index or 0], batch, threads)

    def export(self, spec: ModelSpec, weights: Mapping[str, Any], batch: int) -> Any:
        """``onnx.ModelProto`` from the jaxpr of the function that ``build`` compiles, input NHWC.

        Raises UsageError as ``build``.
        """
        from xframe.frameworks.jax_export import marked, to_onnx

        shape = common.channels_last_shape((batch, *spec.input))
        return to_onnx(lambda w, x: network(spec, w, x, marked), common.channels_last(spec, weights), shape)
