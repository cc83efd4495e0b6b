"""PaddlePaddle: an NCHW ``nn.Layer`` run eagerly; export through paddle2onnx.

Runs in the environment of its own that the registry names.
"""

import os
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import paddle
import paddle2onnx
from paddle import nn
from paddle.nn import functional as F

from xframe.errors import XframeError
from xframe.frameworks.shapes import Network, checked, cpu_only, sites
from xframe.protocols import DEFAULTS
from xframe.types import Kernel, Layer, ModelSpec, Profile, Span

Weights = Mapping[str, Any]  # of one layer, without the layer's name

_OPSET = 17
#: Of each profile: layers are timed from outside, one after the other.
_NOTE = "kernels of paddle are whole calls, with what its host does for them: no overhead can be told from them"


def _pads(item: Layer) -> list[int]:
    top, left, bottom, right = item["pads"]
    return [top, bottom, left, right]


def _conv(item: Layer, w: Weights, x: Any) -> Any:
    window = {"stride": item["stride"], "padding": _pads(item), "dilation": item["dilation"]}
    return F.conv2d(x, w["weight"], groups=item["groups"], **window) + w["bias"]


def _maxpool(item: Layer, w: Weights, x: Any) -> Any:
    return F.max_pool2d(x, item["kernel"], item["stride"], _pads(item))


def _avgpool(item: Layer, w: Weights, x: Any) -> Any:
    return F.avg_pool2d(x, item["kernel"], item["stride"], _pads(item), exclusive=True)


def _batchnorm(item: Layer, w: Weights, x: Any) -> Any:
    return F.batch_norm(x, w["mean"], w["var"], w["scale"], w["shift"], training=False, epsilon=item["epsilon"])


def _lrn(item: Layer, w: Weights, x: Any) -> Any:
    """A mean over channels. Of Paddle's own, which pads first, paddle2onnx now and then writes other numbers."""
    n, c, height, width = x.shape
    half = item["size"] // 2
    squares = (x * x).reshape([n, 1, c, height * width])
    mean = F.avg_pool2d(squares, (item["size"], 1), (1, 1), [half, half, 0, 0], exclusive=False)
    return x / (item["bias"] + item["alpha"] * mean.reshape([n, c, height, width])) ** item["beta"]


#: Op -> its form in Paddle, given the layer, its weights and its inputs.
OPS: dict[str, Callable[..., Any]] = {
    "conv": _conv,
    "fc": lambda item, w, x: F.linear(x, w["weight"], w["bias"]),
    "batchnorm": _batchnorm,
    "relu": lambda item, w, x: F.relu(x),
    "relu6": lambda item, w, x: F.relu6(x),
    "maxpool": _maxpool,
    "avgpool": _avgpool,
    "lrn": _lrn,
    "dropout": lambda item, w, x: x,
    "flatten": lambda item, w, x: x.reshape([x.shape[0], int(np.prod(x.shape[1:]))]),
    "add": lambda item, w, *xs: sum(xs[1:], xs[0]),
    "concat": lambda item, w, *xs: paddle.concat(xs, 1),
    "softmax": lambda item, w, x: F.softmax(x, 1),
}
_KIND = {
    "conv": "conv", "fc": "fc", "maxpool": "pool", "avgpool": "pool", "lrn": "norm", "batchnorm": "norm",
    "relu": "activation", "relu6": "activation", "add": "elementwise", "softmax": "softmax", "concat": "copy",
    "dropout": "copy", "flatten": "layout",
}  # fmt: skip


class _Module(nn.Layer):
    """The network. Its parameters have the spec's names; those of fc are [in, out], biases of conv [1, out, 1, 1]."""

    def __init__(self, spec: ModelSpec, weights: Mapping[str, Any]) -> None:
        super().__init__()
        self._spec = spec
        self._fc = {item.name + ".weight" for item in spec.layers if item.op == "fc"}
        self._biases = {item.name + ".bias" for item in spec.layers if item.op == "conv"}
        self._own: dict[str, dict[str, Any]] = {item.name: {} for item in spec.layers}
        for name, value in checked(spec, weights).items():
            turned = self.turned(name, value)
            with paddle.utils.unique_name.guard(name):  # by itself it counts all that this process has made
                made = self.create_parameter(list(turned.shape), default_initializer=nn.initializer.Assign(turned))
            layer, _, part = name.rpartition(".")
            self._own[layer][part] = made
            self.add_parameter(name.replace(".", "_"), made)
        self.eval()

    def turned(self, name: str, value: np.ndarray) -> np.ndarray:
        """A weight from the spec's layout to Paddle's, or back."""
        if name in self._biases:
            return value.reshape((1, -1, 1, 1) if value.ndim == 1 else -1)
        return np.ascontiguousarray(value.T) if name in self._fc else value

    def named(self) -> dict[str, Any]:
        """The parameters by the spec's names."""
        return {f"{layer}.{part}": value for layer, own in self._own.items() for part, value in own.items()}

    def forward(self, x: Any, done: Callable[[], None] | None = None) -> Any:
        """``done`` is called after each layer; Paddle's CPU kernels have run when their call returns."""
        values, sources = {"input": x}, self._spec.sources()
        for item in self._spec.layers:
            xs = [values[s] for s in sources[item.name]]
            values[item.name] = OPS[item.op](item, self._own[item.name], *xs)
            if done is not None:
                done()
        return values[self._spec.layers[-1].name]


class _Network(Network):
    def __init__(self, spec: ModelSpec, weights: Mapping[str, Any], batch: int, threads: int) -> None:
        paddle.set_device("cpu")
        paddle.base.core.set_num_threads(threads)
        environment = {
            "paddle": paddle.__version__,
            "threads": threads,
            "onednn": bool(paddle.get_flags(["FLAGS_use_mkldnn"])["FLAGS_use_mkldnn"]),
            "convolution": "im2col + GEMM",
        }
        super().__init__(spec, batch, environment)
        started = time.perf_counter()
        self._spec, self._module = spec, _Module(spec, weights)
        self._sites = sites(spec, batch)
        self.seconds = {"load": time.perf_counter() - started}

    def bind(self, feeds: list[Any]) -> None:
        self._x = paddle.to_tensor(self.checked(feeds))

    def step(self) -> None:
        with paddle.no_grad():
            self._y = self._module(self._x)

    def sync(self) -> None:
        """On a CPU a call has done its work when it returns."""

    def fetch(self) -> list[np.ndarray]:
        return [np.array(self._y.numpy())]

    def profile(self, passes: int) -> list[Profile]:
        """Each layer timed, from the end of the one before: all of a pass is kernels, and the note says so."""
        found = []
        for _ in range(passes):
            self.step()
            times: list[float] = []
            start = time.perf_counter()
            with paddle.no_grad():
                self._module(self._x, lambda times=times: times.append(time.perf_counter()))
            wall = time.perf_counter() - start
            ends = [t - start for t in times]
            kernels = [self._kernel(*x) for x in zip(self._spec.layers, [0.0, *ends[:-1]], ends, strict=True)]
            found.append(Profile(wall, tuple(kernels), (Span("step", 0.0, wall, "python"),), note=_NOTE))
        return found

    def _kernel(self, item: Layer, start: float, end: float) -> Kernel:
        algorithm = "im2col+gemm" if item.op == "conv" else ""
        site = self._sites.get(item.name)
        return Kernel(item.op, start, end, site, "", _KIND[item.op], item.name, algorithm)


def _plain(model: Any, names: Mapping[str, str]) -> Any:
    """The model with its constants as initializers, called by ``names`` where they are in it, and without nodes that
    hand on what they are given."""
    graph = model.graph
    constants = [node for node in graph.node if node.op_type == "Constant"]
    called = {n.output[0]: names.get(n.output[0], f"constant_{i}") for i, n in enumerate(constants)}
    for node in constants:
        (value,) = (a.t for a in node.attribute if a.name == "value")
        value.name = called[node.output[0]]
        graph.initializer.append(value)
    ends = {value.name for value in graph.output}
    same = {n.output[0]: n.input[0] for n in graph.node if n.op_type == "Identity" and n.output[0] not in ends}
    nodes = [node for node in graph.node if node.op_type != "Constant" and node.output[0] not in same]
    for node in nodes:
        for i, name in enumerate(node.input):
            while name in same:
                name = same[name]
            node.input[i] = called.get(name, name)
    del graph.node[:]
    graph.node.extend(nodes)
    return model


class Paddle:
    """The plugin."""

    layout = "NCHW"
    version = paddle.__version__

    def build(
        self,
        spec: ModelSpec,
        weights: Mapping[str, Any],
        device: str,
        batch: int,
        threads: int,
        options: Mapping[str, str] = DEFAULTS,
    ) -> Network:
        """The network in eager mode, without autograd.

        Raises
        ------
        UsageError
            The spec, the weights or the name of the device make no sense.
        Unavailable
            ``device`` is a GPU.
        """
        cpu_only("paddle", device)
        return _Network(spec, weights, batch, threads)

    def export(self, spec: ModelSpec, weights: Mapping[str, Any], batch: int) -> bytes:
        """The ONNX file that paddle2onnx writes of the network as a static program.

        Raises
        ------
        UsageError
            As ``build``.
        XframeError
            paddle2onnx wrote none.
        """
        shape = paddle.static.InputSpec([batch, *spec.input], "float32", "input")
        with tempfile.TemporaryDirectory(prefix="xframe-paddle-") as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path = os.path.join(folder, "model")
            module = _Module(spec, weights)
            paddle.jit.save(module, path, [shape])
            # Not paddle.onnx.export: what it has the file optimised by installs packages while it runs.
            given = (path + ".json", path + ".pdiparams", path + ".onnx")
            paddle2onnx.export(*given, opset_version=_OPSET, optimize_tool="None")
            try:
                model = onnx.load(path + ".onnx")
            except FileNotFoundError:
                raise XframeError(f"paddle2onnx wrote no file of {spec.name}: its log has the reason") from None
        return _plain(model, {value.name: name for name, value in module.named().items()}).SerializeToString()

    def gradients(
        self,
        spec: ModelSpec,
        weights: Mapping[str, Any],
        batch: int,
        feeds: Sequence[np.ndarray],
        cotangents: Sequence[np.ndarray],
    ) -> dict[str, np.ndarray]:
        """Gradients of the sum of cotangent times output by the weights that the output depends on, of their shapes,
        and by the input under ``input``. Raises UsageError where the spec, the weights or the input make no sense."""
        module = _Module(spec, weights)
        x = paddle.to_tensor(Network(spec, batch, {}).checked(list(feeds)), stop_gradient=False)
        (module(x) * paddle.to_tensor(cotangents[0])).sum().backward()
        found = {name: value.grad for name, value in dict(module.named(), input=x).items()}
        return {n: np.ascontiguousarray(module.turned(n, g.numpy())) for n, g in found.items() if g is not None}
