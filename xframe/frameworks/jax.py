"""JAX: an NHWC function of weights and input under ``jit``; export by a walk over its jaxpr."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from xframe.errors import Unavailable, Unsupported
from xframe.frameworks import common
from xframe.protocols import DEFAULTS
from xframe.types import Layer, ModelSpec, Profile

Weights = Mapping[str, Any]  # of one layer, without the layer's name

#: Option and value -> the flag of XLA that they set, and to what.
FLAGS: dict[tuple[str, str], tuple[str, Any]] = {
    ("fast_math", "on"): ("xla_cpu_enable_fast_math", True),
    ("ynnpack", "off"): ("xla_cpu_experimental_ynn_fusion_type", ""),
}


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


def network(spec: ModelSpec, w: Mapping[str, Any], x, apply: Callable[..., Any] = direct, layout: str = "NHWC"):
    """The network's output for the array ``x``: NHWC with the weights of :func:`common.channels_last`, or NCHW with
    those of :func:`xframe.frameworks.jax_nchw.weights` and an ``apply`` for them."""
    values, sources = {"input": x}, spec.sources()
    absorbed = common.absorbed_flattens(spec).values()
    for item in spec.layers:
        xs = [values[s] for s in sources[item.name]]
        if layout == "NHWC" and item.op == "flatten" and xs[0].ndim == 4 and item.name not in absorbed:
            xs = [xs[0].transpose(0, 3, 1, 2)]
        own = {name.rpartition(".")[2]: value for name, value in w.items() if name.rpartition(".")[0] == item.name}
        values[item.name] = apply(item, own, *xs)
    return values[spec.layers[-1].name]


class _Network(common.Network):
    def __init__(
        self,
        spec: ModelSpec,
        weights: Mapping[str, Any],
        device: jax.Device,
        batch: int,
        threads: int,
        options: Mapping[str, str],
    ):
        self._layout = options.get("layout", "NHWC")
        self._nchw = self._layout == "NCHW"
        self._jit = options.get("jit") != "off"
        self._precision = options.get("matmul_precision", "highest")
        flags = dict(FLAGS[option] for option in options.items() if option in FLAGS)
        if flags and not self._jit:
            raise Unsupported(f"jax with jit=off and {next(iter(flags))}: that flag is for whole programs; use jit=on")
        environment = {
            "jax": jax.__version__,
            "threads": int(os.environ.get("NPROC", os.cpu_count() or 1)),
            "platform": device.platform,
            "device": device.device_kind,
            "matmul_precision": self._precision,
            "layout": self._layout,
            "jit": self._jit,
            "xla_flags": os.environ.get("XLA_FLAGS", ""),
            "compiler_options": flags,
        }
        if device.platform != "cpu":
            environment["tf32"] = self._precision != "highest"
        have = environment["threads"]
        notes = () if have == threads else (f"jax was started with {have} threads and can't change to {threads}",)
        super().__init__(spec, batch, environment, notes)
        self._spec, self._device = spec, device
        self._profiler: Any = None
        if self._nchw:
            from xframe.frameworks import jax_nchw

            w, ops = jax_nchw.weights(spec, weights), jax_nchw.OPS
            shape: tuple[int, ...] = self._shape
        else:
            w, ops = common.channels_last(spec, weights), OPS
            shape = common.channels_last_shape(self._shape)
        self._weights = jax.device_put(w, device)

        def scoped(item: Layer, own: Weights, *xs):
            with jax.named_scope(item.name.replace("/", "_")):  # so that a profile can tell whose the kernels are
                return ops[item.op](item, own, *xs)

        def run(values, x):
            return network(spec, values, x, scoped, self._layout)

        self._apply = scoped
        start = time.perf_counter()
        with self._context():
            self._run: Any = run
            if self._jit:
                lowered = jax.jit(run).lower(self._weights, jax.ShapeDtypeStruct(shape, jnp.float32))
                self._run = lowered.compile(flags or None)
        self.seconds = {"compile": time.perf_counter() - start}

    @contextlib.contextmanager
    def _context(self) -> Iterator[None]:
        with jax.default_device(self._device), jax.default_matmul_precision(self._precision):
            yield

    def bind(self, feeds: list[Any]) -> None:
        x = self.checked(feeds)
        x = x if self._nchw else common.to_channels_last(x)
        self._x = jax.block_until_ready(jax.device_put(x, self._device))

    def step(self) -> None:
        if self._jit:
            self._y = self._run(self._weights, self._x)
        else:
            with self._context():
                self._y = self._run(self._weights, self._x)

    def sync(self) -> None:
        self._y.block_until_ready()

    def fetch(self) -> list[np.ndarray]:
        y = np.array(self._y)
        return [y if self._nchw else common.to_canonical(y)]

    def profile(self, passes: int) -> list[Profile]:
        """See :mod:`xframe.frameworks.jax_profile`. Raises XframeError where a GPU leaves no trace."""
        from xframe.frameworks import jax_eager, jax_profile

        if self._profiler is None:

            def step() -> None:
                self.step()
                self.sync()

            network = self._spec, self._shape[0]
            if self._jit:
                kernels = jax_profile.of_program(*network, self._run.as_text(), jax_profile.on_gpu(self._device))
            else:
                kernels = jax_eager.kernels(*network, self._layer_by_layer, self._device)
            self._profiler = jax_profile.Profiler(step, kernels, self._device)
        return self._profiler.passes(passes)

    def _layer_by_layer(self, mark: Callable[[str], AbstractContextManager[Any]]) -> None:
        """A step that waits for each layer, inside ``mark`` of its name."""

        def waited(item: Layer, own: Weights, *xs):
            with mark(item.name):
                return jax.block_until_ready(self._apply(item, own, *xs))

        with self._context():
            network(self._spec, self._weights, self._x, waited, self._layout)


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

        Options: ``jit`` (``off``: one operation after the other), ``matmul_precision`` (of convolutions
        too; a CPU runs the same kernels either way),
        ``layout`` of images throughout, ``fast_math`` (XLA may reorder and approximate), ``ynnpack`` (``off``: Eigen
        does the convolutions and products that this library does by default, at times whole stacks of layers in one
        kernel, which a profile can't tell apart).

        Raises
        ------
        UsageError
            The spec, the weights or the name of the device make no sense.
        Unavailable
            ``device`` is a GPU that JAX does not see.
        Unsupported
            An option of the compiler without the compiler.
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
        return _Network(spec, weights, seen[index or 0], batch, threads, options)

    def export(self, spec: ModelSpec, weights: Mapping[str, Any], batch: int) -> Any:
        """``onnx.ModelProto`` from the jaxpr of the function that ``build`` compiles, input NHWC.

        Raises UsageError as ``build``.
        """
        from xframe.frameworks.jax_export import marked, to_onnx

        shape = common.channels_last_shape((batch, *spec.input))
        return to_onnx(lambda w, x: network(spec, w, x, marked), common.channels_last(spec, weights), shape)
