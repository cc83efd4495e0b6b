"""From models, batches and lowerings to what can be tuned of them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xframe import artifact, environment, exports, planning, registry, zoo
from xframe.comparison import IMPLIED_FALLBACK
from xframe.errors import UsageError
from xframe.subject import is_file
from xframe.tuning.result import Work
from xframe.types import Artifact
from xframe.worker.alone import without_frameworks

if TYPE_CHECKING:
    from xframe.lowering.target import Target


@dataclass(frozen=True)
class Request:
    """What to tune. Names may be aliases; duplicates collapse.

    Parameters
    ----------
    models
        Registered models, taken as ``framework`` exports them, and paths of ONNX files.
    lowerings
        Each is forced on the whole network; ``fallback`` is for the sites that it refuses. None: those that are
        compared when nothing is named.
    batches
        Empty: 1, or the file's own.
    threads
        Of a CPU's kernels. 0: all CPUs that this process may use.
    error_budget
        See ``xframe.types.Plan``; None: the default.
    """

    models: tuple[str, ...]
    lowerings: tuple[str, ...] | None = None
    batches: tuple[int, ...] = ()
    framework: str = "pytorch"
    threads: int = 0
    fallback: str = IMPLIED_FALLBACK
    error_budget: float | None = None

    def resolved(self) -> Request:
        """This request with its defaults filled in and its names checked; nothing heavy is loaded.

        Raises
        ------
        UsageError
            An unknown name or a value that makes no sense.
        """
        for what, values in (("batch", self.batches), ("threads", (self.threads or 1,))):
            if any(v < 1 for v in values):
                raise UsageError(f"--{what} {min(values)} makes no sense: it must be at least 1")
        if self.error_budget is not None and not 0 < self.error_budget < float("inf"):
            raise UsageError(f"--error-budget {self.error_budget:g} makes no sense: it must be above 0, like 1e-4")
        for model in self.models:
            if not is_file(model):
                zoo.spec(model)
        names = registry.defaults(registry.LOWERINGS) if self.lowerings is None else self.lowerings
        return Request(
            tuple(dict.fromkeys(self.models)),
            tuple(dict.fromkeys(registry.resolve(registry.LOWERINGS, n, "lowering") for n in names)),
            tuple(dict.fromkeys(self.batches)),
            registry.resolve(registry.FRAMEWORKS, self.framework, "framework"),
            self.threads or len(environment.allowed_cpus()),
            registry.resolve(registry.LOWERINGS, self.fallback, "lowering"),
            self.error_budget,
        )


def works(request: Request, progress: Callable[[str], None], target: Target | None = None) -> list[Work]:
    """The kernels of each model at each batch under each lowering, in that order; those without a template left out.

    ``target``: what they are compiled for; None: this machine's CPU, with the request's threads.

    Raises
    ------
    UsageError, ModelError
        The request or a model makes no sense.
    Unsupported
        A lowering and its fallback refuse a site, or an operator has no rule.
    Unavailable
        TVM or the framework is not installed.
    """
    asked, found = request.resolved(), []
    for model in asked.models:
        for batch, made in _artifacts(asked, model, progress):
            found += list(_lowered(asked, batch, made, progress, target))
    return found


def _artifacts(asked: Request, model: str, progress: Callable[[str], None]) -> Iterator[tuple[int, Artifact]]:
    """The ONNX file of ``model`` at each batch."""
    if is_file(model):
        loaded = artifact.load(model)
        shape = loaded.inputs[0].shape if loaded.inputs else ()
        own = shape[0] if shape else 1
        if set(asked.batches) - {own}:
            raise UsageError(
                f"--batch {','.join(map(str, asked.batches))} was asked for, and {os.path.basename(model)} is fixed at"
                f" batch {own}: leave --batch out, or export the model again at that batch"
            )
        yield own, loaded
        return
    spec = zoo.spec(model)
    weights = zoo.weights_file(spec)
    for batch in asked.batches or (1,):
        progress(f"{model}: export by {asked.framework}, batch {batch}")
        yield batch, exports.export(asked.framework, spec, weights, batch, asked.threads)[0]


def _lowered(
    asked: Request, batch: int, made: Artifact, progress: Callable[[str], None], target: Target | None
) -> Iterator[Work]:
    import onnx

    model, sites = onnx.load(made.path), [site for _, site in made.conv_sites]
    for lowering in asked.lowerings or ():
        progress(f"{made.model}: the kernels of {lowering}, batch {batch}")
        with without_frameworks():
            from xframe.lowering import pipeline
            from xframe.lowering.graph import device_of
            from xframe.lowering.target import Cpu

            of = target or Cpu.host(asked.threads)
            plan = planning.plan(lowering, sites, device_of(of), asked.fallback, asked.error_budget)
            tasks = pipeline.tasks(model, plan, of)
        yield Work(re.sub(r"[^\w.-]+", "_", made.model), batch, lowering, tuple(tasks))
