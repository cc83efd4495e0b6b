"""The kernels of a plan that have a template: each site's product. Named, defined, and scheduled by a record if any.

A record never changes what is computed: it holds a register tile, with which the lowering defines its stages anew, and
a trace, which only reorders the function that it was recorded for. Whether it is for this very function is checked by
structural hash; one that is not is refused in words, and the hand-written schedule stands.
"""

import json
import math
import re
from dataclasses import dataclass, replace

import numpy as np
import tvm
import tvm_ffi
from tvm import s_tir, tirx

from xframe import registry
from xframe.lowering.stage import Epilogue, Stage, Tile
from xframe.lowering.target import Target
from xframe.lowering.variants import Variant
from xframe.types import ConvSite, Tuned

#: What :attr:`xframe.types.SiteRecord.schedule` says where no record is used.
TEMPLATE, FIXED = "template", "fixed"


@dataclass(frozen=True)
class Task:
    """The product of a site under a lowering: what can be tuned. Values of weights do not matter.

    ``residual`` and ``relu`` are those of its :class:`~xframe.lowering.stage.Epilogue`, ``layout`` that of its image.
    """

    lowering: str
    variant: Variant
    residual: bool
    relu: float | None
    layout: str
    threads: int

    @staticmethod
    def of(lowering: str, variant: Variant, epilogue: Epilogue, layout: str, cpu: Target) -> "Task":
        return Task(lowering, variant, epilogue.residual, epilogue.relu, layout, cpu.threads)

    @property
    def name(self) -> str:
        """It in words: all that its definition depends on but the target and the register tile."""
        relu = "" if self.relu is None else "+relu" if math.isinf(self.relu) else f"+relu{self.relu:g}"
        after = "bias" + ("+residual" if self.residual else "") + relu
        detail = self.variant.detail.replace(" ", "_") or "-"
        return f"{self.variant.site.key} {self.lowering} {detail} {self.layout} {after} t{self.threads}"

    @staticmethod
    def named(name: str) -> "Task":
        """The inverse of :attr:`name`. Raises ValueError on what names no task of this version."""
        form = r"(\S+) (\w+) (\S+) (NCHW|NHWC) bias(\+residual)?(\+relu([\d.]+)?)? t(\d+)"
        found = re.fullmatch(form, name)
        if found is None or found[2] not in registry.LOWERINGS:
            raise ValueError(f"not the name of a task: {name!r}")
        key, lowering, _, layout, residual, after, most, threads = found.groups()
        relu = float(most or math.inf) if after else None
        for variant in registry.load(registry.LOWERINGS, lowering).variants(ConvSite.parse(key)):
            task = Task(lowering, variant, bool(residual), relu, layout, int(threads))
            if task.name == name:
                return task
        raise ValueError(f"{lowering} has no such variant any more: {name!r}")

    def stages(self, weight: np.ndarray, bias: np.ndarray, cpu: Target, tile: Tile | None = None) -> list[Stage]:
        """The stages of the site, with the register tile ``tile``, or by hand. ``weight``: OIHW."""
        lowering = registry.load(registry.LOWERINGS, self.lowering)
        epilogue = Epilogue(bias, self.relu, self.residual)
        return lowering.define(replace(self.variant, tile=tile), weight, epilogue, self.layout, cpu)


def workload_of(func: tirx.PrimFunc) -> str:
    """Structural hash of a function, in hexadecimal: the same in every process for the same computation."""
    module = tvm.IRModule({"main": func.without_attr("global_symbol")})
    return f"{tvm_ffi.structural_hash(module) & (1 << 64) - 1:016x}"


def trace_of(sch: s_tir.Schedule) -> str:
    """The trace of a schedule as JSON: instructions and decisions."""

    def plain(value):
        if isinstance(value, tirx.IntImm | tirx.FloatImm):
            return value.value
        return list(value)

    return json.dumps(sch.trace.as_json(), default=plain)


@dataclass(frozen=True)
class Defined:
    """The stages of a site, and where the schedule of its product is from: :data:`TEMPLATE`, :data:`FIXED` (there is
    no template), or a record, or why a record was refused."""

    stages: list[Stage]
    schedule: str


def define(task: Task, weight: np.ndarray, bias: np.ndarray, cpu: Target, tuned: Tuned | None) -> Defined:
    """The stages of ``task``, its template replaced by ``tuned`` if that is a record for it."""
    plain = task.stages(weight, bias, cpu)
    if not any(s.schedule for s in plain):
        return Defined(plain, FIXED)
    if tuned is None:
        return Defined(plain, TEMPLATE)
    tile = Tile(*tuned.tile, cpu.lanes)
    if not any(tile in s.tiles for s in plain):
        return _refused(plain, tuned, f"its register tile {tile.rows}x{tile.vectors} does not fit this processor")
    stages = task.stages(weight, bias, cpu, tile)
    stages = [replace(s, trace=tuned.trace) if s.schedule else s for s in stages]
    product = next((s for s in stages if s.schedule), None)
    if product is None:
        return _refused(plain, tuned, f"with its register tile {tile.rows}x{tile.vectors} there is no template")
    found = workload_of(product.func)
    if found != tuned.workload:
        return _refused(plain, tuned, f"it is of another definition of this kernel ({tuned.workload}, not {found})")
    try:
        product.scheduled()
    except (tvm.error.InternalError, RuntimeError, ValueError, TypeError, KeyError, json.JSONDecodeError) as e:
        first = (str(e).strip().splitlines() or [type(e).__name__])[-1]
        return _refused(plain, tuned, f"its trace does not apply: {first}")
    return Defined(stages, f"tuned, {tuned.origin}")


def _refused(stages: list[Stage], tuned: Tuned, why: str) -> Defined:
    return Defined(stages, f"{TEMPLATE}, as the record in {tuned.origin} is refused: {why}")
