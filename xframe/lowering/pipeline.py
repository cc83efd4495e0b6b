"""From an artifact and a plan to a compiled module: the one pass list, and the proof that the plan was honoured."""

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax

from xframe import registry
from xframe.errors import NotHonoured
from xframe.lowering.generic import schedule_rest
from xframe.lowering.graph import LOWERING, SITE, Graph
from xframe.lowering.operators import OPERATORS
from xframe.lowering.target import Cpu
from xframe.types import Plan, SiteRecord


def forced(model: onnx.ModelProto, plan: Plan, cpu: Cpu) -> tuple[tvm.IRModule, list[np.ndarray], list[SiteRecord]]:
    """The module in which every convolution is lowered as ``plan`` says, with its parameters and site records.

    Raises
    ------
    Unsupported
        An operator has no rule, or a lowering refuses its site.
    NotHonoured
        A planned site is missing from the finished module or carries another lowering.
    """
    lowerings: dict[str, Any] = {n: registry.load(registry.LOWERINGS, n) for n in {n for _, n in plan.lowerings}}
    graph = Graph(model, plan, lowerings, cpu, OPERATORS)
    mod, parameters = graph.lower()
    mod = passes(mod, cpu)
    return mod, parameters, prove(mod, plan, graph.sites)


def passes(mod: tvm.IRModule, cpu: Cpu) -> tvm.IRModule:
    """The pass list, for compiling and tuning alike."""
    with cpu.tvm:
        mod = tvm.transform.Sequential(
            [
                relax.transform.LegalizeOps(),
                relax.transform.AnnotateTIROpPattern(),
                relax.transform.FoldConstant(),
                relax.transform.FuseOps(),
                relax.transform.FuseTIR(),
                relax.transform.DeadCodeElimination(["main"]),
            ]
        )(mod)
    return schedule_rest(mod, cpu)


def prove(mod: tvm.IRModule, plan: Plan, sites: list[SiteRecord]) -> list[SiteRecord]:
    """``sites`` with what stands in ``mod`` as ``selected``; raises NotHonoured where that is not what was planned.

    The calls of ``main`` are looked at, not the functions of the module: a kernel that nobody calls proves nothing.
    """
    called: dict[str, set[str]] = {}
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            call = binding.value
            if isinstance(call, relax.Call) and call.op == tvm.ir.Op.get("relax.call_tir"):
                attrs = mod[call.args[0]].attrs or {}
                if SITE in attrs:
                    called.setdefault(str(attrs[SITE]), set()).add(str(attrs[LOWERING]))
    proved = [replace(s, selected="+".join(sorted(called.get(s.site.key, ()))) or None) for s in sites]
    for site, lowering in plan.lowerings:
        found = called.get(site.key, set())
        if found != {lowering}:
            what = " and ".join(sorted(found)) or "nothing that belongs to it"
            raise NotHonoured(f"{lowering} was forced at {site.key}, but the compiled module has {what} there")
    return proved


def stock(model: onnx.ModelProto, cpu: Cpu) -> tvm.IRModule:
    """TVM's own frontend and default pipeline, untouched: what ``auto`` means."""
    from tvm.relax.frontend.onnx import from_onnx

    mod = from_onnx(model, keep_params_in_input=False)
    return relax.transform.DecomposeOpsForInference()(mod)
