"""How an ONNX Runtime session is set up, and what is bound to it."""

import ctypes
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from xframe import nvidia
from xframe.errors import NotHonoured, Unavailable, Unsupported, UsageError, XframeError
from xframe.types import OPTIMIZATIONS, Artifact

#: Its logger repeats on stderr what its exceptions say.
FATAL = 4
#: Labels of a plan, and values of the switch ``graph_optimization_level`` -> how far the graph is optimised.
LEVELS = dict(
    zip(OPTIMIZATIONS, ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"), strict=True),
    auto="ORT_ENABLE_ALL",
)
PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
#: Switch -> option of the CUDA provider and its values, None for its own default. TF32 would round the products to 10
#: bits; the exhaustive search is what a user gets by default, made explicit.
CUDA: dict[str, dict[str, str | None]] = {
    "cudnn_conv_algo_search": {v.lower(): v for v in ("EXHAUSTIVE", "HEURISTIC", "DEFAULT")},
    "prefer_nhwc": {"off": "0", "on": "1"},
    "use_tf32": {"off": "0", "on": "1"},
    "cudnn_conv_use_max_workspace": {"on": "1", "off": "0"},
    "enable_cuda_graph": {"off": "0", "on": "1"},
    "fuse_conv_bias": {"off": None, "on": "1"},
    "gpu_mem_limit": {"none": None, "1GiB": str(1 << 30), "4GiB": str(4 << 30), "16GiB": str(16 << 30)},
}
#: What a session says that would run a node elsewhere than on the GPU.
_ELSEWHERE = "assigned to the default CPU EP"
#: The file of the CUDA provider, and what brings the libraries that it needs.
_PROVIDER = "libonnxruntime_providers_cuda.so"
_LIBRARIES = "pip install 'xframe-eval[ort,cudnn]'; PyTorch for CUDA 13 brings them, too"


@dataclass(frozen=True)
class Settings:
    """What a session is made with. ``switches``: those that are not at their default, by name."""

    path: str | bytes
    threads: int
    device: str
    level: str = "auto"
    switches: Mapping[str, str] = ()  # type: ignore[assignment]

    def __post_init__(self) -> None:
        object.__setattr__(self, "switches", dict(self.switches))
        if self._parallel and self.threads < 2:
            raise Unsupported(
                f"execution_mode=parallel was asked for with {self.threads} thread: ONNX Runtime needs two to run nodes"
                " side by side"
            )

    @property
    def _parallel(self) -> bool:
        return self.switches.get("execution_mode") == "parallel"

    def on(self, switch: str, default: bool = True) -> bool:
        """Whether a switch that can be on or off is on."""
        return self.switches.get(switch, "on" if default else "off") == "on"

    def open(self, profile: str = "") -> "Bound":
        """A session. ``profile`` is the prefix of a profile file; empty: it does not profile.

        Raises
        ------
        Unsupported
            The model has an operator that ONNX Runtime lacks.
        Unavailable
            The build has no CUDA, there is no driver or no such GPU, or the CUDA provider does not load.
        NotHonoured
            The session has other settings, or another provider, than it was given, or would run a node on the CPU that
            was to run on a GPU.
        XframeError
            The model can't be loaded.
        """
        provider, index = provider_of(self.device)
        options = self._provider_options(index) if provider != _cpu() else {}
        if options and hasattr(ort, "preload_dlls"):
            ort.preload_dlls()
        settings = self._options(profile)
        disabled = [] if self.on("nchwc") else ["NchwcTransformer"]
        try:
            session = ort.InferenceSession(
                self.path, settings, providers=[(provider, options)], disabled_optimizers=disabled, enable_fallback=0
            )
        except Exception as e:  # its classes derive from Exception or RuntimeError, depending on the cause
            words = " ".join(str(e).split())
            words = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", words)[:300]
            if _ELSEWHERE in words:
                if why := _missing():  # ONNX Runtime goes on without a provider that does not load
                    raise Unavailable(
                        f"{self.device} was asked for and ONNX Runtime's CUDA provider does not load: {why}:"
                        f" {_LIBRARIES}"
                    ) from e
                raise NotHonoured(
                    f"{self.device} was asked for and ONNX Runtime would run nodes on the CPU, for which its CUDA"
                    f" provider has no kernel: {words}"
                ) from e
            error = Unsupported if re.search(r"NOT_IMPLEMENTED|not a registered|Unrecognized", str(e)) else XframeError
            where = self.path if isinstance(self.path, str) else "a model in memory"
            raise error(f"ONNX Runtime can't load {where}: {words}") from e
        if session.get_providers()[0] != provider:
            raise NotHonoured(f"{self.device} was asked for and ONNX Runtime fell back to {session.get_providers()[0]}")
        self._check(settings, session.get_session_options())
        taken = session.get_provider_options()[provider]
        if wrong := {k: taken.get(k) for k, v in options.items() if taken.get(k) != v}:
            raise NotHonoured(f"ONNX Runtime was given the provider options {options} and has {wrong}")
        return Bound(session, "cpu" if provider == _cpu() else "cuda", index)

    def _provider_options(self, index: int) -> dict[str, str]:
        """Those of the CUDA provider; what is not asked for keeps the provider's own default."""
        chosen = {k: v[self.switches.get(k, _default(k))] for k, v in CUDA.items()}
        return {**{k: v for k, v in chosen.items() if v is not None}, "device_id": str(index)}

    def _options(self, profile: str) -> Any:
        made = ort.SessionOptions()
        made.intra_op_num_threads = self.threads
        made.inter_op_num_threads = self.threads if self._parallel else 1
        made.execution_mode = getattr(ort.ExecutionMode, "ORT_PARALLEL" if self._parallel else "ORT_SEQUENTIAL")
        level = self.switches.get("graph_optimization_level", "all") if self.level == "auto" else self.level
        made.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[level])
        made.enable_cpu_mem_arena = self.on("cpu_mem_arena")
        made.enable_mem_pattern = self.on("mem_pattern")
        for key, value in self._entries().items():
            made.add_session_config_entry(key, value)
        made.log_severity_level = FATAL
        made.enable_profiling = bool(profile)
        made.profile_file_prefix = profile
        return made

    def _entries(self) -> dict[str, str]:
        spinning = str(int(self.on("spinning")))
        whole = {"session.disable_cpu_ep_fallback": "1"} if self.device.startswith("cuda") else {}
        return {
            **whole,
            "session.intra_op.allow_spinning": spinning,
            "session.inter_op.allow_spinning": spinning,
            "session.set_denormal_as_zero": str(int(self.on("denormal_as_zero", default=False))),
        }

    def _check(self, given: Any, taken: Any) -> None:
        names = ("intra_op_num_threads", "inter_op_num_threads", "execution_mode", "graph_optimization_level",
                 "enable_cpu_mem_arena", "enable_mem_pattern")  # fmt: skip
        wrong = [f"{n}={getattr(taken, n)}" for n in names if getattr(taken, n) != getattr(given, n)]
        entries = {key: taken.get_session_config_entry(key) for key in self._entries()}
        wrong += [f"{k}={entries[k]}" for k, v in self._entries().items() if entries[k] != v]
        if wrong:
            raise NotHonoured(f"ONNX Runtime has other settings than it was given: {', '.join(wrong)}")


def _missing() -> str:
    """Why the CUDA provider does not load, in the loader's words; empty if it does.

    To be asked when a session has tried to load it: by itself, before, it would find nobody to be a provider of.
    """
    try:
        ctypes.CDLL(str(Path(ort.__file__).parent / "capi" / _PROVIDER))
    except OSError as e:
        return str(e)
    return ""


def _cpu() -> str:
    return PROVIDERS["cpu"]


def _default(switch: str) -> str:
    """The default of a switch of one device."""
    return next(iter(CUDA[switch])) if switch in CUDA else "on"


def provider_of(device: str) -> tuple[str, int]:
    """Provider and device index for ``cpu`` or ``cuda[:n]``. Raises UsageError or Unavailable."""
    match = re.fullmatch(r"(cpu|cuda)(?::(\d+))?", device)
    if not match:
        raise UsageError(f"unknown device {device!r}: cpu, cuda or cuda:<number>")
    provider, index = PROVIDERS[match[1]], int(match[2] or 0)
    if provider == _cpu():
        return provider, 0
    if provider not in ort.get_available_providers():
        raise Unavailable(
            f"the installed onnxruntime {ort.__version__} was built without CUDA: uninstall it and"
            " pip install 'xframe-eval[ort]', which brings onnxruntime-gpu (never keep both)"
        )
    count = nvidia.devices()
    if index >= count:
        raise Unavailable(f"device {device} was asked for, this process sees {count} GPU(s)")
    return provider, index


class Bound:
    """A session whose inputs and outputs lie on its device."""

    def __init__(self, session: Any, device: str, index: int) -> None:
        self.session = session
        self._device = device, index
        self.arrays: list[np.ndarray] = []
        self._inputs: dict[str, Any] = {}
        self._binding = session.io_binding()
        self._asking = ort.RunOptions()
        self._asking.add_run_config_entry("disable_synchronize_execution_providers", "1")
        self._outputs = []
        for info in session.get_outputs():
            if info.type == "tensor(float)" and all(isinstance(d, int) and d > 0 for d in info.shape):
                value = ort.OrtValue.ortvalue_from_shape_and_type(info.shape, np.float32, *self._device)
                self._outputs.append(value)
                self._binding.bind_ortvalue_output(info.name, value)
            else:  # of unknown size, or not float32: allocated in each step
                self._binding.bind_output(info.name, *self._device)

    def bind(self, artifact: Artifact, feeds: Sequence[np.ndarray]) -> None:
        """Copy the inputs to where the session reads them. Raises XframeError when they are too few or too many."""
        names = [i.name for i in artifact.inputs]
        if len(feeds) != len(names):
            raise XframeError(f"{artifact.path} has inputs {', '.join(names)}; {len(feeds)} were given")
        # On a CPU the value shares the array's memory: keep a copy that no one else writes to.
        self.arrays = [np.array(f, dtype=i.dtype, order="C") for f, i in zip(feeds, artifact.inputs, strict=True)]
        for name, array in zip(names, self.arrays, strict=True):
            known = self._inputs.get(name)
            if known is not None and self._device[0] == "cuda":
                known.update_inplace(array)  # a captured graph reads where its first inputs lay
                continue
            self._inputs[name] = ort.OrtValue.ortvalue_from_numpy(array, *self._device)
            self._binding.bind_ortvalue_input(name, self._inputs[name])
        self._binding.synchronize_inputs()

    def step(self) -> None:
        """One forward pass on the bound values."""
        self.session.run_with_iobinding(self._binding)

    def ask(self) -> None:
        """As :meth:`step`, without waiting for the device."""
        self.session.run_with_iobinding(self._binding, self._asking)

    def sync(self) -> None:
        """Wait for the device."""
        self._binding.synchronize_outputs()

    def fetch(self) -> list[np.ndarray]:
        """Copies of the outputs of the last step."""
        return list(self._binding.copy_outputs_to_cpu())
