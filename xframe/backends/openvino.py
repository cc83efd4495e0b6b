"""OpenVINO on a CPU: picks its convolution algorithms itself, and is measured as it is."""

import functools
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np

from xframe.backends import kinds, profiler_cost
from xframe.errors import NotHonoured, Unsupported, XframeError
from xframe.protocols import DEFAULTS
from xframe.types import Artifact, Kernel, Plan, Profile, SiteRecord

# When it is imported, OpenVINO reports over the network from a thread and a fork, unless it can't find what does it.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]

import openvino as ov  # noqa: E402

#: What it appends to the name of a convolution whose bias it took in.
_FUSED = "/WithoutBiases"
#: How it calls what runs a node that was fused into another, and one that has nothing to do.
_NO_IMPLEMENTATION = ("undef", "unknown")
#: Switch -> its property, and the values of that.
_SWITCHES: dict[str, tuple[str, dict[str, Any]]] = {
    "performance_hint": ("PERFORMANCE_HINT", {"latency": "LATENCY", "throughput": "THROUGHPUT"}),
    "cpu_pinning": ("ENABLE_CPU_PINNING", {"off": False, "on": True}),  # off: the process is pinned
    "denormal_as_zero": ("CPU_DENORMALS_OPTIMIZATION", {"off": False, "on": True}),
}


@functools.cache
def _core() -> Any:
    """One for as long as the process lives.

    A second one that ends after the first leaves the thread with an alternate signal stack that is no longer there, and
    the next signal, be it an interrupt, ends the process without a word.
    """
    return ov.Core()


class OpenVino:
    """Compiles an artifact with OpenVINO's CPU plugin."""

    version = ov.__version__.partition("-")[0]

    def compile(
        self, artifact: Artifact, plan: Plan, device: str, threads: int, options: Mapping[str, str] = DEFAULTS
    ) -> "OpenVinoExecutable":
        """One stream of ``threads`` threads, tuned for latency, all arithmetic in float32.

        Raises
        ------
        Unsupported
            The plan forces a lowering, or the device is not a CPU.
        NotHonoured
            OpenVINO took other settings than it was given.
        XframeError
            It can't read the model, or lacks one of its operators; the message has OpenVINO's words.
        """
        if plan.lowerings or plan.label != "auto":
            raise Unsupported(
                f"the plan asks for {plan.label}: OpenVINO picks its convolution algorithm itself and has no switch for"
                " it; use --lowering auto, or the tvm backend"
            )
        if device != "cpu":
            raise Unsupported(f"the OpenVINO backend runs on cpu only, not on {device}")
        return OpenVinoExecutable(artifact, threads, options)


class OpenVinoExecutable:
    """A compiled model and the one request that runs it, inputs and outputs in memory of its own."""

    def __init__(self, artifact: Artifact, threads: int, options: Mapping[str, str]) -> None:
        self.sites: Sequence[SiteRecord] = ()  # it can't be asked what it selected
        self.notes: Sequence[str] = ()
        self._artifact = artifact
        self._settings = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": "f32",  # it may take bfloat16 where the processor has it
        }
        for switch, (name, values) in _SWITCHES.items():
            self._settings[name] = values[options.get(switch, next(iter(values)))]
        start = time.perf_counter()
        compiled = self._compiled(artifact.path)
        self.seconds: Mapping[str, float] = {"compile": time.perf_counter() - start}
        taken = {name: compiled.get_property(name) for name in self._settings}
        taken["INFERENCE_PRECISION_HINT"] = taken["INFERENCE_PRECISION_HINT"].to_string()
        if taken != self._settings:
            raise NotHonoured(f"OpenVINO was given the settings {self._settings} and took {taken}")
        self.environment: Mapping[str, Any] = {"openvino": ov.get_version(), **taken}
        self._request = compiled.create_infer_request()
        self._bound: list[np.ndarray] = []

    def _compiled(self, model: str | bytes, **more: Any) -> Any:
        core = _core()
        try:
            return core.compile_model(core.read_model(model), "CPU", {**self._settings, **more})
        except Exception as e:  # RuntimeError, or a class of one of its frontends
            words = " ".join(str(e).split())[-600:]
            raise XframeError(f"OpenVINO can't load {self._artifact.path}: {words}") from e

    def bind(self, feeds: list[np.ndarray]) -> None:
        """Copy the inputs to where the request reads them."""
        names = [i.name for i in self._artifact.inputs]
        if len(feeds) != len(names):
            raise XframeError(f"{self._artifact.path} has inputs {', '.join(names)}; {len(feeds)} were given")
        self._bound = [np.array(f, dtype=np.float32, order="C") for f in feeds]
        _set_inputs(self._request, self._bound)

    def step(self) -> None:
        """One forward pass on the bound inputs; nothing is copied."""
        _run(self._request)

    def sync(self) -> None:
        """``step`` returns when it is done."""

    def fetch(self) -> list[np.ndarray]:
        """Copies of the outputs of the last step."""
        return [self._request.get_output_tensor(i).data.copy() for i in range(len(self._artifact.outputs))]

    def profile(self, passes: int) -> list[Profile]:
        """Passes of models that count, each its own: the third run of each, of the first two only the counts are read.

        A model tells how long each node took, not when: the kernels are laid end to end from the pass's start, so that
        all that is not in a kernel comes after them. What counting adds is calibrated with a chain of small nodes.
        """
        from xframe.backends.nodes import Nodes  # it needs onnx, which nothing else here does

        if not self._bound:
            raise XframeError("profile comes after bind")
        nodes = Nodes.read(self._artifact.path)
        out = [self._profiled(nodes) for _ in range(passes)]
        each = self._seconds_per_node()
        return [replace(p, cost=each * len(p.kernels)) for p in out]

    def _profiled(self, nodes: Any) -> Profile:
        request = self._compiled(self._artifact.path, PERF_COUNT=True).create_infer_request()
        _set_inputs(request, self._bound)
        for _ in range(2):  # the first allocates
            _run(request)
        before = request.profiling_info
        start = time.perf_counter()
        _run(request)
        wall = time.perf_counter() - start
        kernels = self._kernels(before, request.profiling_info, nodes)
        if kernels and kernels[-1].end > wall:
            raise XframeError("the nodes of OpenVINO's profile add up to more than the pass that they were in")
        return Profile(wall, tuple(kernels))

    def _kernels(self, before: Sequence[Any], after: Sequence[Any], nodes: Any) -> list[Kernel]:
        """The nodes that ran in the third run, of the counts ``before`` and ``after`` it.

        One whose mean is below a microsecond is said not to have run, as is one that was fused into another or has
        nothing to do; it alone has an implementation. It is listed, and takes no time.
        """
        sites, kernels, end = dict(self._artifact.conv_sites), [], 0.0
        for two, node in zip(before, after, strict=True):
            counted = node.status == ov.ProfilingInfo.Status.EXECUTED
            if not counted and node.exec_type.startswith(_NO_IMPLEMENTATION):
                continue
            start, end = end, end + (last_of(3, two.real_time, node.real_time) if counted else 0.0)
            kind = kinds.of_operator(node.node_type)
            layer = nodes.named(node.node_name.removesuffix(_FUSED)) if kind != "layout" else ""
            if kind == "conv" and layer:  # one that took in what follows may be called after the last of it
                layer = next(iter(nodes.before(layer, "Conv")), "")
            name, words = f"{node.exec_type} {node.node_name}", node.exec_type if kind == "conv" else ""
            kernels.append(Kernel(name, start, end, sites.get(layer), "", kind, layer, words))
        return kernels

    def _seconds_per_node(self) -> float:
        """What counting adds to a node in models compiled like this one."""
        model, nodes = profiler_cost.chain("Softmax", 1, 100), 100
        plain, counting = (self._compiled(model, PERF_COUNT=on).create_infer_request() for on in (False, True))
        for request in (plain, counting):
            _set_inputs(request, [np.ones((1, 16), np.float32)])
        return profiler_cost.added(lambda: _run(plain), lambda: _run(counting)) / nodes

    def close(self) -> None:
        """Drop the model and its buffers."""
        self._request, self._bound = None, []


def _set_inputs(request: Any, arrays: Sequence[np.ndarray]) -> None:
    for i, array in enumerate(arrays):
        request.set_input_tensor(i, ov.Tensor(array, shared_memory=True))


def _run(request: Any) -> None:
    request.infer(share_inputs=True, share_outputs=True)


def last_of(runs: int, before: timedelta, after: timedelta) -> float:
    """Seconds of the last of ``runs`` runs, from the means of all but it and of all.

    OpenVINO sums whole microseconds and tells their mean, rounded down: the middle of what the last can have been.
    """
    micro = timedelta(microseconds=1)
    least = runs * (after // micro) - (runs - 1) * (before // micro) - (runs - 2)
    most = least + (runs - 1) + (runs - 2)
    return (max(least, 0) + most) / 2 * 1e-6
