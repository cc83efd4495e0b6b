"""Frameworks whose profiles can be explained; see ``fake_plugins``."""

from fake_plugins import Executable, Honest

from xframe.analysis import floors
from xframe.equivalence.reference import Reference
from xframe.protocols import DEFAULTS
from xframe.types import Kernel, Profile, Span


class Profiled(Executable):
    """2 ms a convolution, by the definition; half of that for all else; and 1 ms before anything runs."""

    words = "jit:avx512_core"

    def profile(self, passes):
        now, kernels = 1e-3, []
        for work in self.layers:
            spent = 2e-3 if work.site else 1e-3
            words = self.words if work.site else ""
            kernels.append(Kernel(work.name, now, now + spent, work.site, "", work.kind, work.name, words))
            now += spent
        return [Profile(now, tuple(kernels), (Span("step", 0.0, 1e-3, "dispatch"),))] * passes


class Native(Honest):
    def build(self, spec, weights, device, batch, threads, options=DEFAULTS):
        made = Profiled(Reference.of_spec(spec, weights))
        made.layers = floors.layers(spec, batch)
        return made


class Vague(Native):
    """It does not say what its convolutions are."""

    def build(self, spec, weights, device, batch, threads, options=DEFAULTS):
        made = super().build(spec, weights, device, batch, threads, options)
        made.words = ""
        return made


class Blind(Honest):
    """It has no profile."""

    def build(self, spec, weights, device, batch, threads, options=DEFAULTS):
        made = Executable(Reference.of_spec(spec, weights))
        made.profile = lambda passes: []
        return made
