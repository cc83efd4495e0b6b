"""ONNX Runtime: picks its convolution algorithms itself, and is measured as it is."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort

from xframe.backends.ort_session import FATAL, LEVELS, Settings
from xframe.errors import Unsupported, XframeError
from xframe.protocols import DEFAULTS
from xframe.types import Artifact, Plan, Profile, SiteRecord


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
            The plan forces a lowering, the model has an operator that ONNX Runtime lacks, or nodes are to run side by
            side on one thread.
        Unavailable
            The build has no CUDA, or there is no driver or no such GPU.
        NotHonoured
            The session has other settings, or another provider, than it was asked for.
        """
        if plan.lowerings or plan.label not in LEVELS:
            raise Unsupported(
                f"the plan asks for {plan.label}: ONNX Runtime picks its convolution algorithm itself and has no switch"
                " for it; use --lowering auto, or the tvm backend"
            )
        ort.set_default_logger_severity(FATAL)
        return OrtExecutable(Settings(artifact.path, threads, device, plan.label, options), artifact)


class OrtExecutable:
    """A session with its inputs and outputs bound on its device."""

    def __init__(self, settings: Settings, artifact: Artifact) -> None:
        self.sites: Sequence[SiteRecord] = ()  # it can't be asked what it selected
        self.seconds: Mapping[str, float] = {}
        self.notes: Sequence[str] = ()
        self._settings, self._artifact = settings, artifact
        self._bound: Any = settings.open()
        session = self._bound.session
        taken = session.get_session_options()
        self.environment: Mapping[str, Any] = {
            "onnxruntime": ort.__version__,
            "intra_op_threads": taken.intra_op_num_threads,
            "inter_op_threads": taken.inter_op_num_threads,
            "providers": session.get_providers(),
            "provider_options": session.get_provider_options()[session.get_providers()[0]],
            "optimization_level": taken.graph_optimization_level.name,
            "execution_mode": taken.execution_mode.name,
            "cpu_mem_arena": taken.enable_cpu_mem_arena,
            "mem_pattern": taken.enable_mem_pattern,
            "spinning": taken.get_session_config_entry("session.intra_op.allow_spinning"),
            "denormal_as_zero": taken.get_session_config_entry("session.set_denormal_as_zero"),
            "nchwc": settings.on("nchwc"),
            "cpu_fallback": "refused" if settings.device != "cpu" else None,
            "io_binding": True,
        }

    def bind(self, feeds: list[np.ndarray]) -> None:
        """Copy the inputs to where the session reads them."""
        self._bound.bind(self._artifact, feeds)

    def step(self) -> None:
        """One forward pass on the bound values."""
        self._bound.step()

    def ask(self) -> None:
        """As :meth:`step`, which waits for the device in ONNX Runtime itself, without waiting."""
        self._bound.ask()

    def sync(self) -> None:
        """Wait for the device."""
        self._bound.sync()

    def fetch(self) -> list[np.ndarray]:
        """Copies of the outputs of the last step."""
        return self._bound.fetch()

    def profile(self, passes: int) -> list[Profile]:
        """Passes in a second session, which profiles: see :mod:`xframe.backends.ort_profile`; on a GPU in a process of
        its own: see :mod:`xframe.backends.ort_gpu_profile`.

        On a CPU the session that is timed is then made anew, too. One session is a little faster or slower than another
        for as long as it lives, presumably by where its weights lie: over many rounds of both, that evens out.
        """
        from xframe.backends import ort_gpu_profile, ort_profile  # they need onnx, which nothing else here does

        if not self._bound.arrays:
            raise XframeError("profile comes after bind")
        if self._settings.device != "cpu":
            return ort_gpu_profile.profiles(self._settings, self._artifact, self._bound.arrays, passes)
        profiles = ort_profile.profiles(self._settings, self._artifact, self._bound.arrays, passes)
        renewed = self._settings.open()
        renewed.bind(self._artifact, self._bound.arrays)
        renewed.step()  # the last step's outputs may be fetched
        self._bound = renewed
        return profiles

    def close(self) -> None:
        """Drop the session and its buffers."""
        self._bound = None
