"""A framework and backend with switches: each does what its name says, and two of them do not add up."""

from tests.fake_plugins import Clock, Executable, Honest
from xframe.equivalence.reference import Reference
from xframe.errors import Unsupported
from xframe.protocols import DEFAULTS
from xframe.registry import Switch
from xframe.types import Kernel, Profile, SiteRecord

SWITCHES = tuple(Switch(name, ("off", "on")) for name in ("fast", "extra", "slow", "wrong", "refused"))
OTHER = Switch("level", ("all", "basic", "none"))


class _Switched(Executable):
    options = DEFAULTS

    def step(self):
        on = {name for name, value in self.options.items() if value == "on"}
        pause = 0.005 if "fast" in on else 0.010 if "extra" in on else 0.020
        Clock.lasts(pause * (3 if "slow" in on else 1))
        self.out = [y + 1 for y in self.right] if "wrong" in on else self.right


class Switched(Honest):
    executable = _Switched

    def build(self, spec, weights, device, batch, threads, options=DEFAULTS):
        return self._made(Reference.of_spec(spec, weights), options)

    def compile(self, artifact, plan, device, threads, options=DEFAULTS):
        return self._made(Reference.of_onnx(artifact), options)

    def _made(self, reference, options):
        if options.get("refused") == "on":
            raise Unsupported("this build has no such kernels")
        made = self.executable(reference)
        made.options = dict(options)
        return made


class Faster(Switched):
    """Without switches, and faster than the other with any."""

    executable = type("_Faster", (_Switched,), {"step": Executable.step})


class _Telling(_Switched):
    def profile(self, passes):
        words = "winograd" if self.options.get("level") == "basic" else "implicit_gemm"
        kernels = tuple(Kernel("k", 0.0, 1e-3, s.site, "", "conv", s.name, words) for s in self.sites)
        return [Profile(1e-3, kernels)] * passes


class Telling(Switched):
    """Its profile tells by what its convolutions are computed: at another level by another algorithm."""

    def compile(self, artifact, plan, device, threads, options=DEFAULTS):
        made = _Telling(Reference.of_onnx(artifact), [SiteRecord(s, n, None, None) for n, s in artifact.conv_sites])
        made.options = dict(options)
        return made
