"""A framework and backend with switches: each does what its name says, and two of them do not add up."""

from tests.fake_plugins import Clock, Executable, Honest
from xframe.equivalence.reference import Reference
from xframe.errors import Unsupported
from xframe.protocols import DEFAULTS
from xframe.registry import Switch

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
