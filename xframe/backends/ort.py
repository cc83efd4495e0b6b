"""ONNX Runtime: picks its convolution algorithms itself, and is measured as it is."""

import ctypes
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from xframe.errors import NotHonoured, Unavailable, Unsupported, UsageError, XframeError
from xframe.protocols import DEFAULTS
from xframe.types import OPTIMIZATIONS, Artifact, ConvSite, Kernel, Plan, Profile, SiteRecord

#: Its logger repeats on stderr what its exceptions say.
_FATAL = 4
#: The CPU kernels pad channels up to a multiple of their vector block.
_BLOCK = 16
#: Labels of a plan -> how far the graph is optimised.
LEVELS = dict(
    zip(OPTIMIZATIONS, ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"), strict=True),
    auto="ORT_ENABLE_ALL",
)
_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


def _cuda_device_count() -> int:
    """GPUs that the NVIDIA driver shows to this process. Raises Unavailable when there is no driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as e:
        raise Unavailable(f"device cuda needs an NVIDIA driver, and there is none here ({e})") from e
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def _provider(device: str) -> tuple[str, int, dict[str, str]]:
    """Provider, device index and provider options for ``cpu`` or ``cuda[:n]``."""
    match = re.fullmatch(r"(cpu|cuda)(?::(\d+))?", device)
    if not match:
        raise UsageError(f"unknown device {device!r}: cpu, cuda or cuda:<number>")
    provider, index = _PROVIDERS[match[1]], int(match[2] or 0)
    if match[1] == "cpu":
        return provider, 0, {}
    if provider not in ort.get_available_providers():
        raise Unavailable(
            f"the installed onnxruntime {ort.__version__} was built without CUDA: uninstall it and"
            " pip install 'xframe-eval[ort]', which brings onnxruntime-gpu (never keep both)"
        )
    count = _cuda_device_count()
    if index >= count:
        raise Unavailable(f"device {device} was asked for, this process sees {count} GPU(s)")
    # TF32 would round the products to 10 bits; the exhaustive search is what a user gets by default, made explicit.
    return provider, index, {"device_id": str(index), "use_tf32": "0", "cudnn_conv_algo_search": "EXHAUSTIVE"}


def _session(
    path: str, threads: int, provider: str, options: Mapping[str, str], level: str = "auto", profile: str = ""
) -> Any:
    """An inference session at an optimisation ``level``. ``profile`` is the prefix of a profile file."""
    settings = ort.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads = threads, 1
    settings.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    settings.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[level])
    settings.log_severity_level = _FATAL
    settings.enable_profiling = bool(profile)
    settings.profile_file_prefix = profile
    try:
        return ort.InferenceSession(path, settings, providers=[(provider, dict(options))])
    except Exception as e:  # its classes derive from Exception or RuntimeError, depending on the cause
        words = " ".join(str(e).split())
        words = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", words)[:300]
        error = Unsupported if re.search(r"NOT_IMPLEMENTED|not a registered|Unrecognized", str(e)) else XframeError
        raise error(f"ONNX Runtime can't load {path}: {words}") from e


class OnnxRuntime:
    """Compiles an artifact into an ONNX Runtime session."""

    version = ort.__version__

    def compile(
        self, artifact: Artifact, plan: Plan, device: str, threads: int, options: Mapping[str, str] = DEFAULTS
    ) -> "OrtExecutable":
        """A session on ``device`` with all graph optimisations, or those of the plan's label (see :data:`LEVELS`).

        Raises
        ------
        Unsupported
            The plan forces a lowering, or the model has an operator that ONNX Runtime lacks.
        Unavailable
            The build has no CUDA, or there is no driver or no such GPU.
        NotHonoured
            The session does not run on the provider it was asked to.
        """
        if plan.lowerings or plan.label not in LEVELS:
            raise Unsupported(
                f"the plan asks for {plan.label}: ONNX Runtime picks its convolution algorithm itself and has no switch"
                " for it; use --lowering auto, or the tvm backend"
            )
        ort.set_default_logger_severity(_FATAL)
        provider, index, options = _provider(device)
        if provider != _PROVIDERS["cpu"] and hasattr(ort, "preload_dlls"):
            ort.preload_dlls()
        session = _session(artifact.path, threads, provider, options, plan.label)
        if session.get_providers()[0] != provider:
            raise NotHonoured(
                f"{device} was asked for and ONNX Runtime fell back to {session.get_providers()[0]}: the CUDA and cuDNN"
                " libraries it needs do not load here"
            )
        return OrtExecutable(session, artifact, threads, provider, index, options, plan.label)


class OrtExecutable:
    """A session with its inputs and outputs bound on its device."""

    def __init__(
        self,
        session: Any,
        artifact: Artifact,
        threads: int,
        provider: str,
        index: int,
        options: Mapping[str, str],
        level: str,
    ) -> None:
        self.sites: Sequence[SiteRecord] = ()  # it can't be asked what it selected
        self.seconds: Mapping[str, float] = {}
        self.notes: Sequence[str] = ()
        self.environment: Mapping[str, Any] = {
            "onnxruntime": ort.__version__,
            "intra_op_threads": threads,
            "inter_op_threads": 1,
            "providers": session.get_providers(),
            "provider_options": session.get_provider_options()[provider],
            "optimization_level": LEVELS[level],
        }
        self._session, self._artifact, self._threads = session, artifact, threads
        self._provider, self._options, self._level = provider, options, level
        self._device = ("cuda" if provider == _PROVIDERS["cuda"] else "cpu", index)
        self._names = [i.name for i in artifact.inputs]
        self._dtypes = [i.dtype for i in artifact.inputs]
        self._bound: list[np.ndarray] = []
        self._binding = session.io_binding()
        self._outputs = []
        for info in session.get_outputs():
            if info.type == "tensor(float)" and all(isinstance(d, int) and d > 0 for d in info.shape):
                value = ort.OrtValue.ortvalue_from_shape_and_type(info.shape, np.float32, *self._device)
                self._outputs.append(value)
                self._binding.bind_ortvalue_output(info.name, value)
            else:  # of unknown size, or not float32: allocated in each step
                self._binding.bind_output(info.name, *self._device)

    def bind(self, feeds: list[np.ndarray]) -> None:
        """Copy the inputs to where the session reads them."""
        if len(feeds) != len(self._names):
            raise XframeError(f"{self._artifact.path} has inputs {', '.join(self._names)}; {len(feeds)} were given")
        # On a CPU the value shares the array's memory: keep a copy that no one else writes to.
        self._bound = [np.array(f, dtype=t, order="C") for f, t in zip(feeds, self._dtypes, strict=True)]
        for name, array in zip(self._names, self._bound, strict=True):
            self._binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, *self._device))
        self._binding.synchronize_inputs()

    def step(self) -> None:
        """One forward pass on the bound values."""
        self._session.run_with_iobinding(self._binding)

    def sync(self) -> None:
        """Wait for the device."""
        self._binding.synchronize_outputs()

    def fetch(self) -> list[np.ndarray]:
        """Copies of the outputs of the last step."""
        return list(self._binding.copy_outputs_to_cpu())

    def profile(self, passes: int) -> list[Profile]:
        """The nodes of one run in a second session that profiles (seconds from the run's start; CPU times).

        Such a session is slower than the timed one. A convolution is joined to its site by shape; one that fits several
        sites, or none, has no site.
        """
        if not self._bound:
            raise XframeError("profile comes after bind")
        with tempfile.TemporaryDirectory(prefix="xframe-ort-") as folder:
            session = _session(
                self._artifact.path,
                self._threads,
                self._provider,
                self._options,
                self._level,
                str(Path(folder) / "profile"),
            )
            feeds = dict(zip(self._names, self._bound, strict=True))
            for _ in range(3):  # the first runs allocate
                session.run(None, feeds)
            events = json.loads(Path(session.end_profiling()).read_text())
        found = kernels(events, {site for _, site in self._artifact.conv_sites})
        return [Profile(max(k.end for k in found), tuple(found))] if found else []

    def close(self) -> None:
        """Drop the session and its buffers."""
        self._binding = self._session = None
        self._outputs, self._bound = [], []


def kernels(events: Sequence[Mapping[str, Any]], sites: set[ConvSite]) -> list[Kernel]:
    """The kernels of the last run in a profile of ONNX Runtime. Microseconds there, seconds here."""
    runs = [e for e in events if e["name"] == "model_run"]
    if not runs:
        return []
    start, end = runs[-1]["ts"], runs[-1]["ts"] + runs[-1]["dur"]
    found = []
    for e in events:
        if e["cat"] == "Node" and e["name"].endswith("_kernel_time") and start <= e["ts"] <= end:
            args = e["args"]
            name = f"{args['op_name']} {e['name'].removesuffix('_kernel_time')}"
            begin = (e["ts"] - start) * 1e-6
            found.append(Kernel(name, begin, begin + e["dur"] * 1e-6, _site(args, sites)))
    return sorted(found, key=lambda k: k.start)


def _site(args: Mapping[str, Any], sites: set[ConvSite]) -> ConvSite | None:
    """The one site whose shapes are those of a profiled node; its channels may have been padded to the block."""
    if args["op_name"] not in ("Conv", "FusedConv"):
        return None
    inputs, outputs = ([next(iter(t.values())) for t in args[k]] for k in ("input_type_shape", "output_type_shape"))
    if len(inputs) < 2 or any(len(s) != 4 for s in (*inputs[:2], *outputs[:1])):
        return None
    (n, _, *in_hw), (out, per_group, *kernel), (_, _, *out_hw) = inputs[0], inputs[1], outputs[0]

    def padded(actual: int, wanted: int) -> bool:
        return wanted <= actual < wanted + _BLOCK

    fits = [
        s
        for s in sites
        if s.batch == n
        and s.in_hw == tuple(in_hw)
        and s.out_hw == tuple(out_hw)
        and s.kernel == tuple(kernel)
        and padded(out, s.out_channels)
        and padded(per_group, s.in_channels // s.groups)
    ]
    return fits[0] if len(fits) == 1 else None
