"""PyTorch: an eager NCHW ``nn.Module`` under ``inference_mode``; export through ``torch.onnx`` (dynamo)."""

import logging
import os
import shutil
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.nn import functional as F

from xframe import files, zoo
from xframe.errors import Unavailable, XframeError
from xframe.frameworks import common, pytorch_inductor, pytorch_profile
from xframe.protocols import DEFAULTS
from xframe.types import Layer, ModelSpec, Profile


class _Add(nn.Module):
    def forward(self, *xs):
        total = xs[0]
        for x in xs[1:]:
            total = total + x
        return total


class _Concat(nn.Module):
    def forward(self, *xs):
        return torch.cat(xs, 1)


class _Padded(nn.Module):
    """Explicit padding before a layer: torch's own is symmetric, and at most half a pooling window."""

    def __init__(self, pads: tuple[int, ...], value: float, inner: nn.Module):
        super().__init__()
        self.pads, self.value, self.inner = (pads[1], pads[3], pads[0], pads[2]), value, inner

    def forward(self, x):
        return self.inner(F.pad(x, self.pads, value=self.value))


class _Scaled(nn.Module):
    """``inner`` times a constant map: an average over all of a window becomes one over its non-padding pixels."""

    def __init__(self, inner: nn.Module, factor: np.ndarray):
        super().__init__()
        self.inner = inner
        self.register_buffer("factor", torch.from_numpy(factor))

    def forward(self, x):
        return self.inner(x) * self.factor


def _conv(item: Layer, shape: tuple[int, ...]) -> nn.Module:
    top, left, bottom, right = item["pads"]
    even = (top, left) == (bottom, right)
    inner = nn.Conv2d(
        shape[1], item["out"], item["kernel"], item["stride"], (top, left) if even else 0, item["dilation"],
        item["groups"],
        device="meta",
    )  # fmt: skip
    return inner if even else _Padded(item["pads"], 0.0, inner)


def _fits(item: Layer) -> bool:
    top, left, bottom, right = item["pads"]
    return (top, left) == (bottom, right) and 2 * top <= item["kernel"][0] and 2 * left <= item["kernel"][1]


def _maxpool(item: Layer, shape: tuple[int, ...]) -> nn.Module:
    if _fits(item):
        return nn.MaxPool2d(item["kernel"], item["stride"], item["pads"][:2])
    return _Padded(item["pads"], float("-inf"), nn.MaxPool2d(item["kernel"], item["stride"]))


def _avgpool(item: Layer, shape: tuple[int, ...]) -> nn.Module:
    if _fits(item):
        return nn.AvgPool2d(item["kernel"], item["stride"], item["pads"][:2], count_include_pad=False)
    factor = np.float32(np.prod(item["kernel"])) / common.window_counts(item, shape[2:])  # type: ignore[arg-type]
    return _Scaled(_Padded(item["pads"], 0.0, nn.AvgPool2d(item["kernel"], item["stride"])), factor)


#: Op -> module, given the layer and the NCHW shape of its first input. torch's LRN divides alpha by the size, as ours.
MODULES: dict[str, Callable[[Layer, tuple[int, ...]], nn.Module]] = {
    "conv": _conv,
    "fc": lambda item, shape: nn.Linear(shape[1], item["out"], device="meta"),
    "batchnorm": lambda item, shape: nn.BatchNorm2d(shape[1], item["epsilon"]),
    "relu": lambda item, shape: nn.ReLU(),
    "relu6": lambda item, shape: nn.ReLU6(),
    "maxpool": _maxpool,
    "avgpool": _avgpool,
    "lrn": lambda item, shape: nn.LocalResponseNorm(item["size"], item["alpha"], item["beta"], item["bias"]),
    "dropout": lambda item, shape: nn.Dropout(item["rate"]),
    "flatten": lambda item, shape: nn.Flatten(),
    "add": lambda item, shape: _Add(),
    "concat": lambda item, shape: _Concat(),
    "softmax": lambda item, shape: nn.Softmax(1),
}

_PARAMETERS = {"weight": "weight", "bias": "bias", "scale": "weight", "shift": "bias", "mean": "running_mean",
               "var": "running_var"}  # fmt: skip

#: The switch `grad_mode`: how autograd is told to keep out, or not.
_GRAD_MODES = {"inference": torch.inference_mode, "no_grad": torch.no_grad, "grad": torch.enable_grad}

#: Layers whose output is theirs alone; the others may hand on, or look into, the tensor they were given.
_FRESH = ("conv", "fc", "batchnorm", "maxpool", "avgpool", "lrn", "add", "concat", "softmax")


def module(spec: ModelSpec, weights: Mapping[str, Any]) -> nn.Module:
    """The network as an ``nn.Module`` in evaluation mode, input NCHW.

    ``torch.fx`` writes its ``forward``: plain code that drops every value after its last use, as a hand-written one
    does. ReLU works in place where that can't be seen elsewhere, as in torchvision.
    """
    values = common.checked(spec, weights)
    shapes, sources = zoo.shapes(spec, 1), spec.sources()
    ops = {item.name: item.op for item in spec.layers}
    reads = [s for names in sources.values() for s in names]
    graph = fx.Graph()
    nodes = {"input": graph.placeholder("input")}
    modules: dict[str, nn.Module] = {}
    for item in spec.layers:
        source = sources[item.name][0]
        made = modules[item.name] = MODULES[item.op](item, shapes[source])
        if isinstance(made, nn.ReLU | nn.ReLU6):
            made.inplace = ops.get(source) in _FRESH and reads.count(source) == 1
        target = made.inner if isinstance(made, _Padded) else made
        for part, attribute in _PARAMETERS.items():
            if f"{item.name}.{part}" in values:
                value = torch.tensor(values[f"{item.name}.{part}"])
                setattr(target, attribute, value if attribute.startswith("running") else nn.Parameter(value))
        nodes[item.name] = graph.call_module(item.name, tuple(nodes[s] for s in sources[item.name]))
    graph.output(nodes[spec.layers[-1].name])
    return fx.GraphModule(modules, graph, spec.name).eval().requires_grad_(False)


class _Network(common.Network):
    def __init__(
        self,
        spec: ModelSpec,
        weights: Mapping[str, Any],
        device: torch.device,
        batch: int,
        threads: int,
        options: Mapping[str, str],
    ):
        self._options = dict(options)
        channels_last, grad_mode = options.get("channels_last") == "on", options.get("grad_mode", "inference")
        environment = {
            "torch": torch.__version__,
            "threads": threads,
            "mkldnn": torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled,
            "channels_last": channels_last,
            "grad_mode": grad_mode,
            "matmul_precision": torch.get_float32_matmul_precision(),
        }
        if device.type == "cuda":
            environment |= {
                "gpu": torch.cuda.get_device_name(device),
                "cuda": torch.version.cuda,
                "cudnn": torch.backends.cudnn.version(),
                "cudnn_benchmark": torch.backends.cudnn.benchmark,
                "tf32": torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32,
            }
        super().__init__(spec, batch, environment)
        self._spec = spec
        self._device = device
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        self._mode = _GRAD_MODES[grad_mode]
        made: Any = module(spec, weights)
        self._module: Any = made.to(device, memory_format=self._format).requires_grad_(grad_mode == "grad")
        self._calls: Sequence[pytorch_inductor.Call] | None = None

    def compile(self) -> None:
        """Put the module through Inductor, the default backend of ``torch.compile``, weights as constants."""
        compiler = os.environ.get("CXX", "g++")
        if self._device.type == "cpu" and shutil.which(compiler) is None:
            raise Unavailable(f"torch.compile needs the C++ compiler {compiler}, which is not here: install g++")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(files.home() / "inductor")
        start = time.perf_counter()
        freezing = self._options.get("freezing", "on") == "on"
        options: dict[str, Any] = {
            "freezing": freezing,
            "cpp_wrapper": self._options.get("cpp_wrapper", "off") == "on",
            # Generated kernels can be seen by a profiler, once there is one; until then it is below 0.2 us a kernel.
            "cpp.enable_kernel_profile": True,
            "fx_graph_cache": False,  # code from a cache does not tell its layers; what g++ made of it is kept
            "compile_threads": 1,  # no processes that stay
        }
        self._module = torch.compile(self._module, fullgraph=True, dynamic=False, options=options)
        self.bind([np.zeros(self._shape, np.float32)])
        try:
            # Not an option of torch.compile alone: what reads the module asks before Inductor is asked.
            with torch._inductor.config.patch(freezing=freezing), pytorch_inductor.watched(self._spec) as self._calls:
                self.step()
        except Exception as e:  # it has many classes, and the cause at the end of long texts
            raise XframeError(f"torch.compile failed: {type(e).__name__}: {' '.join(str(e).split())[:600]}") from e
        self.sync()
        self.seconds = {**self.seconds, "compile": time.perf_counter() - start}
        self.environment = {**self.environment, "inductor_freezing": freezing}

    def bind(self, feeds: list[Any]) -> None:
        self._x = torch.tensor(self.checked(feeds), device=self._device).contiguous(memory_format=self._format)

    def step(self) -> None:
        with self._mode():
            self._y = self._module(self._x)

    def sync(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def fetch(self) -> list[np.ndarray]:
        return [self._y.detach().cpu().numpy().copy()]

    def profile(self, passes: int) -> list[Profile]:
        """Through ``torch.profiler``.

        Raises
        ------
        XframeError
            The parts of it that are not public have changed; or its code of Inductor, in C++ throughout, does not tell
            a profiler of the convolutions it calls.
        """

        def step() -> None:
            self.step()
            self.sync()

        network = (self._spec, self._shape[0], self._module)
        try:
            found = pytorch_profile.profiles(*network, step, passes, self._device.type == "cuda", self._calls)
        except (AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError) as e:
            raise XframeError(f"torch {torch.__version__} can't be profiled: {type(e).__name__}: {e}") from e
        convolves = any(item.op == "conv" for item in self._spec.layers)
        if convolves and not all(any(k.kind == "conv" for k in profile.kernels) for profile in found):
            raise XframeError(f"torch {torch.__version__} runs convolutions here that its profiler does not see")
        return found


class PyTorch:
    """See :class:`xframe.protocols.Framework`."""

    layout = "NCHW"
    version = torch.__version__

    def build(
        self,
        spec: ModelSpec,
        weights: Mapping[str, Any],
        device: str,
        batch: int,
        threads: int,
        options: Mapping[str, str] = DEFAULTS,
    ) -> _Network:
        """The network in eager mode; float32 throughout, TF32 off.

        Threads, oneDNN and cuDNN are set for the whole process: one network at a time.

        Raises
        ------
        UsageError
            The spec, the weights or the name of the device make no sense.
        Unavailable
            ``device`` is a GPU that torch does not see.
        """
        index = common.device_index(device)
        seen = torch.cuda.device_count()
        if index is not None and index >= seen:
            raise Unavailable(
                f"pytorch on {device}: torch {self.version} sees {seen} CUDA devices; use --device cpu, or install "
                "a CUDA build of torch on a machine with a GPU"
            )
        torch.set_num_threads(threads)
        torch.backends.cudnn.benchmark = options.get("cudnn_benchmark") == "on"
        torch.backends.mkldnn.set_flags(_enabled=options.get("mkldnn", "on") == "on", _fp32_precision=None)
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        start = time.perf_counter()
        place = torch.device("cpu" if index is None else f"cuda:{index}")
        network = _Network(spec, weights, place, batch, threads, options)
        network.seconds = {"load": time.perf_counter() - start}
        return network

    def export(self, spec: ModelSpec, weights: Mapping[str, Any], batch: int) -> Any:
        """``onnx.ModelProto`` by ``torch.onnx.export(dynamo=True)``, input NCHW. Raises UsageError as ``build``."""
        net = module(spec, weights)
        x = torch.zeros(batch, *spec.input)
        logger = logging.getLogger("torch.onnx")
        level = logger.level
        logger.setLevel(logging.ERROR)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # notes of the exporter on its own deprecated parts
                program = torch.onnx.export(
                    net, (x,), dynamo=True, input_names=["input"], output_names=["output"], verbose=False
                )
        finally:
            logger.setLevel(level)
        assert program is not None
        model = program.model_proto
        for item in [*model.graph.node, *model.graph.value_info]:
            del item.metadata_props[:]  # stack traces, with the paths of this machine
        return model


class Compiled(PyTorch):
    """The same module through ``torch.compile``; its export is PyTorch's."""

    def build(
        self,
        spec: ModelSpec,
        weights: Mapping[str, Any],
        device: str,
        batch: int,
        threads: int,
        options: Mapping[str, str] = DEFAULTS,
    ) -> _Network:
        """The network compiled, one step run. Its cache is below :func:`xframe.files.home`.

        Raises
        ------
        UsageError, Unavailable
            As ``PyTorch``; Unavailable also where there is no C++ compiler.
        XframeError
            Inductor failed; the message has its words.
        """
        # Inductor does not freeze a network that it meets in inference mode.
        network = super().build(spec, weights, device, batch, threads, {**options, "grad_mode": "no_grad"})
        network.compile()
        return network
