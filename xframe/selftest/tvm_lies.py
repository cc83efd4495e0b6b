"""The TVM backend with one lie each: what it reports is the plan that was asked for, what it runs is another one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from xframe.backends.tvm import Tvm, TvmExecutable
from xframe.protocols import DEFAULTS
from xframe.types import Artifact, ConvSite, Plan

#: What runs where another lowering was asked for.
INSTEAD = "direct"


class SilentFallback(Tvm):
    """Falls back at every site of the asked lowering, and says that it did not."""

    def lied(self, asked: list[ConvSite]) -> Iterable[ConvSite]:
        """The sites to lie at, of those with a lowering that is not the fallback anyway."""
        return asked

    def compile(
        self, artifact: Artifact, plan: Plan, device: str, threads: int, options: Mapping[str, str] = DEFAULTS
    ) -> TvmExecutable:
        """As TVM's, of another plan. Raises what that raises."""
        instead = dict.fromkeys(self.lied([site for site, name in plan.lowerings if name != INSTEAD]), INSTEAD)
        run = replace(plan, lowerings=tuple((site, instead.get(site, name)) for site, name in plan.lowerings), tuned=())
        made = super().compile(artifact, run, device, threads, options)
        made.plan = plan
        made.sites = tuple(replace(s, requested=plan[s.site], selected=plan[s.site]) for s in made.sites)
        return made


class OneNotHonoured(SilentFallback):
    """Falls back at the last site alone: its kernels are missing in the profile."""

    def lied(self, asked: list[ConvSite]) -> Iterable[ConvSite]:
        return asked[-1:]
