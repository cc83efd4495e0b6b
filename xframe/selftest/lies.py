"""The lies that are planted, and where the tool must find each of them."""

from __future__ import annotations

from typing import NamedTuple

from xframe.types import Outcome

#: Share of a lie's time that must be in its part of a term. Making a tensor is an operator; freeing one is none,
#: and looks like the interpreter's own time.
PART = 0.25
#: Where a lie must show that no outcome tells: in the note of a row.
NOTE = "note"


class Lie(NamedTuple):
    """A lie and its place.

    ``where`` is the plugin that tells it, ``module:Class``; empty for what is done from outside. ``lands``: the term of
    the decomposition in which its time must be, an outcome, or :data:`NOTE`. ``part``: of that term, which must have
    :data:`PART` of the time. ``at_layer``: its time must be at the layer that it was planted in, and at no other.
    """

    what: str
    where: str
    lands: str
    part: str = ""
    at_layer: bool = False

    @property
    def of_framework(self) -> bool:
        """Whether a framework tells it, rather than a backend or nobody."""
        return self.timed or self.lands == Outcome.MISMATCH.value

    @property
    def timed(self) -> bool:
        """Whether it takes time, of which a decomposition must tell where it went."""
        return self.lands not in (*(o.value for o in Outcome), NOTE)


_PYTORCH, _TVM = "xframe.selftest.pytorch_lies", "xframe.selftest.tvm_lies"

LIES: dict[str, Lie] = {
    "sleep": Lie("a sleep before the first layer", f"{_PYTORCH}:SleepInDispatch", "overhead"),
    "spin": Lie("a busy loop before the first layer", f"{_PYTORCH}:SpinInDispatch", "overhead"),
    "kernel": Lie("one convolution computed again", f"{_PYTORCH}:SlowKernel", "convolutions", at_layer=True),
    "transpose": Lie("an image to channels-last and back", f"{_PYTORCH}:NeedlessTranspose", "layout"),
    "allocation": Lie("large tensors made and freed", f"{_PYTORCH}:AllocationStorm", "overhead", "allocation"),
    "cached": Lie("an output computed once, shown ever after", f"{_PYTORCH}:CachedOutput", Outcome.MISMATCH.value),
    "fallback": Lie("direct run for winograd at every site", f"{_TVM}:SilentFallback", Outcome.NOT_HONOURED.value),
    "unhonoured": Lie("direct run for winograd at one site", f"{_TVM}:OneNotHonoured", Outcome.NOT_HONOURED.value),
    "load": Lie("another process busy on every CPU", "", NOTE),
}
