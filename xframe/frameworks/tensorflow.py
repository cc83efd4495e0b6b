"""TensorFlow: an NHWC ``tf.function`` with its weights as graph constants; export through tf2onnx."""

import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

# Read at import: start-up notes are no news, and a GPU's memory is not ours to take whole.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

import tensorflow as tf

from xframe.errors import NotHonoured, Unavailable, Unsupported
from xframe.frameworks import common
from xframe.protocols import DEFAULTS
from xframe.types import Layer, ModelSpec, Profile

Weights = Mapping[str, Any]

#: What the name of a scope can not hold.
_NO_SCOPE = re.compile(r"[^A-Za-z0-9._-]|^[^A-Za-z0-9.]")
#: What an operator without a kernel is refused by. Whatever else fails, memory or a library, is no such refusal.
_NO_KERNEL = (tf.errors.InvalidArgumentError, tf.errors.NotFoundError, tf.errors.UnimplementedError)


def _padding(item: Layer, in_hw: tuple[int, ...]) -> str | None:
    """``"VALID"`` or ``"SAME"`` when that means the layer's pads, else None."""
    dilation = item["dilation"] if item.op == "conv" else (1, 1)
    if not any(item["pads"]):
        return "VALID"
    same = []
    for n, k, s, d in zip(in_hw, item["kernel"], item["stride"], dilation, strict=True):
        total = max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0)
        same.append((total // 2, total - total // 2))
    return "SAME" if item["pads"] == (same[0][0], same[1][0], same[0][1], same[1][1]) else None


def _pads(item: Layer) -> list[list[int]]:
    top, left, bottom, right = item["pads"]
    return [[0, 0], [top, bottom], [left, right], [0, 0]]


def _conv(item: Layer, w: Weights, x, add_bias: Callable[..., Any] = tf.nn.bias_add):
    padding = _padding(item, x.shape[1:3]) or _pads(item)
    y = tf.nn.conv2d(x, w[f"{item.name}.weight"], item["stride"], padding, dilations=item["dilation"])
    return add_bias(y, w[f"{item.name}.bias"])


def _native_conv(item: Layer, w: Weights, x):
    """Without oneDNN, TensorFlow fuses a convolution and its bias into a kernel that refuses groups, at run time. It
    leaves a plain addition alone."""
    plain = item["groups"] > 1 and not _onednn()
    return _conv(item, w, x, tf.add if plain else tf.nn.bias_add)


def _onednn() -> bool:
    """Whether TensorFlow uses oneDNN in this process. By default it does on CPUs with AVX-512 VNNI or newer."""
    from tensorflow.python.util import _pywrap_util_port  # no public name tells what became of the default

    return bool(_pywrap_util_port.IsMklEnabled())


def _maxpool(item: Layer, w: Weights, x):
    padding = _padding(item, x.shape[1:3])
    if padding is None:
        x, padding = tf.pad(x, _pads(item), constant_values=float("-inf")), "VALID"
    return tf.nn.max_pool2d(x, item["kernel"], item["stride"], padding)


def _avgpool(item: Layer, w: Weights, x):
    padding = _padding(item, x.shape[1:3])
    if padding:  # does not count padding
        return tf.nn.avg_pool2d(x, item["kernel"], item["stride"], padding)
    factor = np.float32(np.prod(item["kernel"])) / common.window_counts(item, x.shape[1:3])
    return tf.nn.avg_pool2d(tf.pad(x, _pads(item)), item["kernel"], item["stride"], "VALID") * factor[..., None]


def _batchnorm(item: Layer, w: Weights, x):
    scale, shift, mean, var = (w[f"{item.name}.{part}"] for part in ("scale", "shift", "mean", "var"))
    return tf.compat.v1.nn.fused_batch_norm(x, scale, shift, mean, var, item["epsilon"], is_training=False)[0]


def _lrn(item: Layer, w: Weights, x):
    # TensorFlow's alpha multiplies the sum, ours the mean.
    radius, alpha = item["size"] // 2, item["alpha"] / item["size"]
    return tf.nn.local_response_normalization(x, radius, item["bias"], alpha, item["beta"])


def _flatten(item: Layer, w: Weights, x):
    """In HWC order; :func:`network` transposes before where CHW is needed."""
    return tf.reshape(x, [x.shape[0], int(np.prod(x.shape[1:]))])


#: Op -> its TensorFlow form, given the layer, all weights and its inputs (NHWC).
OPS: dict[str, Callable[..., Any]] = {
    "conv": _conv,
    "fc": lambda item, w, x: tf.nn.bias_add(tf.matmul(x, w[f"{item.name}.weight"]), w[f"{item.name}.bias"]),
    "batchnorm": _batchnorm,
    "relu": lambda item, w, x: tf.nn.relu(x),
    "relu6": lambda item, w, x: tf.nn.relu6(x),
    "maxpool": _maxpool,
    "avgpool": _avgpool,
    "lrn": _lrn,
    "dropout": lambda item, w, x: x,
    "flatten": _flatten,
    "add": lambda item, w, *xs: tf.add_n(xs) if len(xs) > 2 else tf.add(*xs),
    "concat": lambda item, w, *xs: tf.concat(xs, -1),
    "softmax": lambda item, w, x: tf.nn.softmax(x, -1),
}


#: The same where TensorFlow itself runs them.
NATIVE = {**OPS, "conv": _native_conv}


def network(spec: ModelSpec, w: Weights, x, ops: Mapping[str, Callable[..., Any]] = OPS):
    """The network's output for the NHWC tensor ``x``, with the weights of :func:`common.channels_last`."""
    values, sources = {"input": x}, spec.sources()
    absorbed = common.absorbed_flattens(spec).values()
    for item in spec.layers:
        xs = [values[s] for s in sources[item.name]]
        if item.op == "flatten" and len(xs[0].shape) == 4 and item.name not in absorbed:
            xs = [tf.transpose(xs[0], [0, 3, 1, 2])]
        values[item.name] = ops[item.op](item, w, *xs)
    return tf.identity(values[spec.layers[-1].name], "output")


def _threads(threads: int, asked: str | None) -> tuple[str, ...]:
    """Set both thread pools, or tell that the first was made earlier in this process with another size.

    ``asked``: threads of the second pool, which run the nodes of a graph, where it is not the default of one. Raises
    NotHonoured when it was made with another size.
    """
    nodes = int(asked or 1)
    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(nodes)
    except RuntimeError:
        if asked and tf.config.threading.get_inter_op_parallelism_threads() != nodes:
            raise NotHonoured(
                f"tensorflow with inter_op_threads={nodes}: TensorFlow was started with another number here, and keeps "
                "it; use a new process"
            ) from None
        have = tf.config.threading.get_intra_op_parallelism_threads()
        if have != threads:
            return (f"tensorflow was started with {have or 'its default of'} threads and can't change to {threads}",)
    return ()


class _Network(common.Network):
    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        device: str,
        batch: int,
        threads: int,
        options: Mapping[str, str],
        notes: tuple[str, ...],
    ):
        self._nchw = options.get("data_format") == "NCHW"
        self._xla = options.get("xla") == "on"
        kept = options.get("weights", "mixed")
        environment = {
            "tensorflow": tf.__version__,
            "intra_op_threads": tf.config.threading.get_intra_op_parallelism_threads(),
            "inter_op_threads": tf.config.threading.get_inter_op_parallelism_threads(),
            "onednn": _onednn(),
            "tf32": tf.config.experimental.tensor_float_32_execution_enabled(),
            "layout": "NCHW" if self._nchw else "NHWC",
            "xla": self._xla,
            "weights": kept,
        }
        super().__init__(spec, batch, environment, notes)
        self._spec, self._device, self._threads, self._options = spec, device, threads, options
        self._layers: dict[str, str] = {}
        self._profiler: Any = None
        if self._nchw:
            from xframe.frameworks import tensorflow_nchw as nchw

            w, forward, ops = nchw.weights(spec, weights), nchw.network, nchw.NATIVE
            shape: tuple[int, ...] = self._shape
        else:
            w, forward, ops = common.channels_last(spec, weights), network, NATIVE
            shape = common.channels_last_shape(self._shape)
        resident: dict[str, set[str]] = {
            "mixed": {f"{x.name}.weight" for x in spec.layers if x.op == "fc"},
            "arguments": set(w),
        }
        with tf.device(device):
            outside = {name: tf.constant(w[name]) for name in resident.get(kept, ())}

            def run(x):
                with tf.device(device):  # a function does not look at where it is traced or called
                    values = {k: outside[k] if k in outside else tf.constant(v) for k, v in w.items()}
                    return forward(spec, values, x, {op: self._scoped(f) for op, f in ops.items()})

            function = tf.function(
                run,
                input_signature=[tf.TensorSpec(shape, tf.float32)],
                autograph=False,
                jit_compile=self._xla or None,
            )
            self._run = function.get_concrete_function()
            self._function = function if self._xla else None  # it holds the weights once more
        if self._nchw or "GPU" in device:
            self._try()

    def _scoped(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        """``apply`` in a scope of its layer's name, so that a profile can tell whose its nodes are."""

        def inside(item: Layer, w: Weights, *xs):
            with tf.name_scope(_NO_SCOPE.sub(".", item.name)) as scope:
                self._layers[scope.rstrip("/")] = item.name
                return apply(item, w, *xs)

        return inside

    def _try(self) -> None:
        """One step, to know whether all operators have a kernel. Raises Unsupported where one has none."""
        self.bind([np.zeros(self._shape, np.float32)])
        try:
            self.step()
            self.sync()
        except _NO_KERNEL as e:
            other = "data_format=NHWC" if self._nchw else "--device cpu"
            raise Unsupported(
                f"tensorflow in {self.environment['layout']} on {self._device}: TensorFlow has no kernels for it here"
                f" ({e.message.splitlines()[0]}); use {other}"
            ) from e

    def bind(self, feeds: list[Any]) -> None:
        x = self.checked(feeds)
        with tf.device(self._device):
            self._x = tf.constant(x if self._nchw else common.to_channels_last(x))

    def step(self) -> None:
        self._y = self._run(self._x)

    def sync(self) -> None:
        """On a CPU the call of a concrete function returns when it is done."""
        if "GPU" in self._device:
            tf.test.experimental.sync_devices()

    def fetch(self) -> list[np.ndarray]:
        y = self._y.numpy()
        return [y if self._nchw else common.to_canonical(y)]

    def profile(self, passes: int) -> list[Profile]:
        """See :mod:`xframe.frameworks.tensorflow_profile`. Raises XframeError where a GPU leaves no trace."""
        from xframe.frameworks.tensorflow_profile import Profiler, asked

        if self._profiler is None:

            def step() -> None:
                self.step()
                self.sync()

            def hlo() -> str:
                assert self._function is not None
                with tf.device(self._device):  # that of the module, which is else that of any other operation
                    return self._function.experimental_get_compiler_ir(self._x)(stage="optimized_hlo")

            def ask() -> Any:
                return asked(self._spec, self._shape[0], self._threads, self._options)

            self._profiler = Profiler(
                self._spec,
                self._shape[0],
                step,
                self._layers,
                hlo if self._xla else None,
                ask if _onednn() and not self._xla and "GPU" not in self._device else None,
                self._device,
            )
        return self._profiler.passes(passes)


class TensorFlow:
    """See :class:`xframe.protocols.Framework`. An image output of the exported graph is NHWC as well."""

    layout = "NHWC"
    version = tf.__version__

    def build(
        self,
        spec: ModelSpec,
        weights: Weights,
        device: str,
        batch: int,
        threads: int,
        options: Mapping[str, str] = DEFAULTS,
    ) -> _Network:
        """The network as one concrete function; float32 throughout, TF32 off.

        All weights but those of fc are constants of its graph, as in a frozen model: oneDNN then keeps them reordered.
        The fc weights are resident tensors: as constants, Grappler's copies of them cost AlexNet 20 s and 4 GB at the
        first step and save 4 % of a step. The thread pools can be sized once per process.

        Options: ``onednn`` (``auto``: TensorFlow decides, by the CPU), ``xla`` (``jit_compile``), ``data_format``, and
        ``weights``: ``constants`` of the graph or ``arguments`` of the function, all of them, instead of the above,
        ``inter_op_threads``: so many nodes at a time.

        Raises
        ------
        UsageError
            The spec, the weights or the name of the device make no sense.
        Unavailable
            ``device`` is a GPU that TensorFlow does not see.
        Unsupported
            A layer has no kernel in this data format on this device.
        NotHonoured
            oneDNN is on in this process and should be off, or the other way round; or the number of nodes at a time.
        """
        index = common.device_index(device)
        seen = len(tf.config.list_physical_devices("GPU"))
        if index is not None and index >= seen:
            raise Unavailable(
                f"tensorflow on {device}: TensorFlow {self.version} sees {seen} GPUs; use --device cpu, or install "
                "tensorflow[and-cuda] on a machine with a GPU, in an environment of its own (its CUDA is 12, not 13)"
            )
        wanted = options.get("onednn", "auto")
        if wanted != "auto" and _onednn() != (wanted == "on"):
            raise NotHonoured(
                f"tensorflow with onednn={wanted}: TensorFlow was imported with the other choice here; it reads "
                "TF_ENABLE_ONEDNN_OPTS at its import"
            )
        notes = _threads(threads, options.get("inter_op_threads"))
        tf.config.experimental.enable_tensor_float_32_execution(False)
        start = time.perf_counter()
        place = "/CPU:0" if index is None else f"/GPU:{index}"
        tf.config.set_soft_device_placement(index is None)  # on a GPU nothing falls back to the CPU unseen
        network = _Network(spec, weights, place, batch, threads, options, notes)
        network.seconds = {"compile": time.perf_counter() - start}
        return network

    def export(self, spec: ModelSpec, weights: Weights, batch: int) -> Any:
        """``onnx.ModelProto`` by tf2onnx, input NHWC. Raises UsageError as ``build``.

        The weights go through the conversion as inputs and become initializers afterwards, because tf2onnx copies
        constants in each of its passes (AlexNet: 2 s instead of 70).
        """
        from xframe.frameworks.tensorflow_export import export

        return export(spec, common.channels_last(spec, weights), batch, network)
