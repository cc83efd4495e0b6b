"""OpenVINO on a CPU: picks its convolution algorithms itself, and is measured as it is."""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xframe.errors import NotHonoured, Unsupported, XframeError
from xframe.protocols import DEFAULTS
from xframe.types import Artifact, Kernel, Plan, Profile, SiteRecord

# When it is imported, OpenVINO reports over the network from a thread and a fork, unless it can't find what does it.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]

import openvino as ov  # noqa: E402

#: What it appends to the name of a convolution whose bias it took in.
_FUSED = "/WithoutBiases"


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
        return OpenVinoExecutable(artifact, threads)


class OpenVinoExecutable:
    """A compiled model and the one request that runs it, inputs and outputs in memory of its own."""

    def __init__(self, artifact: Artifact, threads: int) -> None:
        self.sites: Sequence[SiteRecord] = ()  # it can't be asked what it selected
        self.notes: Sequence[str] = ()
        self._artifact = artifact
        self._settings = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",  # it may take bfloat16 where the processor has it
            "ENABLE_CPU_PINNING": False,  # the process is pinned
        }
        start = time.perf_counter()
        compiled = self._compiled()
        self.seconds: Mapping[str, float] = {"compile": time.perf_counter() - start}
        taken = {name: compiled.get_property(name) for name in self._settings}
        taken["INFERENCE_PRECISION_HINT"] = taken["INFERENCE_PRECISION_HINT"].to_string()
        if taken != self._settings:
            raise NotHonoured(f"OpenVINO was given the settings {self._settings} and took {taken}")
        self.environment: Mapping[str, Any] = {"openvino": ov.get_version(), **taken}
        self._request = compiled.create_infer_request()
        self._bound: list[np.ndarray] = []

    def _compiled(self, **more: Any) -> Any:
        core = ov.Core()
        try:
            return core.compile_model(core.read_model(self._artifact.path), "CPU", {**self._settings, **more})
        except Exception as e:  # RuntimeError, or a class of one of its frontends
            words = " ".join(str(e).split())[-600:]
            raise XframeError(f"OpenVINO can't load {self._artifact.path}: {words}") from e

    def bind(self, feeds: list[np.ndarray]) -> None:
        """Copy the inputs to where the request reads them."""
        names = [i.name for i in self._artifact.inputs]
        if len(feeds) != len(names):
            raise XframeError(f"{self._artifact.path} has inputs {', '.join(names)}; {len(feeds)} were given")
        self._bound = [np.array(f, dtype=np.float32, order="C") for f in feeds]
        self._set_inputs(self._request)

    def _set_inputs(self, request: Any) -> None:
        for i, array in enumerate(self._bound):
            request.set_input_tensor(i, ov.Tensor(array, shared_memory=True))

    def step(self) -> None:
        """One forward pass on the bound inputs; nothing is copied."""
        self._request.infer(share_inputs=True, share_outputs=True)

    def sync(self) -> None:
        """``step`` returns when it is done."""

    def fetch(self) -> list[np.ndarray]:
        """Copies of the outputs of the last step."""
        return [self._request.get_output_tensor(i).data.copy() for i in range(len(self._artifact.outputs))]

    def profile(self, passes: int) -> list[Profile]:
        """The nodes of one run of a second compiled model, which counts; it tells how long each took, not when.

        A node has its site where it is still called after the ONNX convolution: those that took in a batch
        normalisation are not.
        """
        if not self._bound:
            raise XframeError("profile comes after bind")
        request = self._compiled(PERF_COUNT=True).create_infer_request()
        self._set_inputs(request)
        for _ in range(3):  # the first runs allocate
            request.infer(share_inputs=True, share_outputs=True)
        sites, kernels, end = dict(self._artifact.conv_sites), [], 0.0
        for node in request.profiling_info:
            if node.status == ov.ProfilingInfo.Status.EXECUTED:
                start, end = end, end + node.real_time.total_seconds()
                site = sites.get(node.node_name.removesuffix(_FUSED))
                kernels.append(Kernel(f"{node.exec_type} {node.node_name}", start, end, site))
        return [Profile(end, tuple(kernels))]

    def close(self) -> None:
        """Drop the model and its buffers."""
        self._request, self._bound = None, []
