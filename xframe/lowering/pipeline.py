"""From an artifact and a plan to a compiled module: the one pass list, and the proof that the plan was honoured."""

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax, s_tir, tirx

from xframe import registry
from xframe.errors import NotHonoured, Unsupported
from xframe.lowering.cuda import compiler
from xframe.lowering.generic import schedule_rest
from xframe.lowering.graph import LOWERING, ROLE, SITE, SMALL, Graph
from xframe.lowering.operators import OPERATORS
from xframe.lowering.patterns import merged
from xframe.lowering.target import Target
from xframe.lowering.tasks import FIXED, Task
from xframe.types import Plan, SiteRecord


def forced(model: onnx.ModelProto, plan: Plan, cpu: Target) -> tuple[tvm.IRModule, list[np.ndarray], list[SiteRecord]]:
    """The module in which every convolution is lowered as ``plan`` says, with its parameters and site records.

    Raises
    ------
    Unsupported
        An operator has no rule, or a lowering refuses its site.
    NotHonoured
        A planned site is missing from the finished module, carries another lowering, or computes one.
    """
    graph = _graph(model, plan, cpu)
    mod, parameters = graph.lower()
    mod = passes(mod, cpu)
    return mod, parameters, prove(mod, plan, graph.sites)


def tasks(model: onnx.ModelProto, plan: Plan, cpu: Target) -> list[Task]:
    """What can be tuned in ``model`` under ``plan``: each kernel once. Raises Unsupported as :func:`forced` does."""
    graph = _graph(model, plan, cpu)
    graph.lower()
    named = {t.name: t for t, s in zip(graph.tasks, graph.sites, strict=True) if s.schedule != FIXED}
    return list(named.values())


def _graph(model: onnx.ModelProto, plan: Plan, cpu: Target) -> Graph:
    lowerings: dict[str, Any] = {n: registry.load(registry.LOWERINGS, n) for n in {n for _, n in plan.lowerings}}
    return Graph(merged(model), plan, lowerings, cpu, OPERATORS)


def passes(mod: tvm.IRModule, cpu: Target) -> tvm.IRModule:
    """The pass list, for compiling and tuning alike."""
    with cpu.tvm:
        mod = tvm.transform.Sequential(
            [
                relax.transform.LegalizeOps(skip_ops=["relax.reshape"]),  # a view, not a kernel
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
    Nor does a label alone: the kernels must have the parts of their algorithm, and of no other.
    """
    called: dict[str, set[str]] = {}
    parts: dict[str, set[str]] = {}
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            call = binding.value
            if isinstance(call, relax.Call) and call.op == tvm.ir.Op.get("relax.call_tir"):
                func = mod[call.args[0]]
                attrs = func.attrs or {}
                if SITE in attrs:
                    called.setdefault(str(attrs[SITE]), set()).add(str(attrs[LOWERING]))
                    parts.setdefault(str(attrs[SITE]), set()).update(_parts(func))
    proved = [replace(s, selected="+".join(sorted(called.get(s.site.key, ()))) or None) for s in sites]
    for site, lowering in plan.lowerings:
        found = called.get(site.key, set())
        if found != {lowering}:
            what = " and ".join(sorted(found)) or "nothing that belongs to it"
            raise NotHonoured(f"{lowering} was forced at {site.key}, but the compiled module has {what} there")
        own, found = set(_marks(lowering)), parts[site.key]
        strange = found & (set().union(*map(_marks, registry.LOWERINGS)) - own)
        lacking = own - found if site.kernel != (1, 1) else set()  # a 1x1's column matrix may be the image itself
        if strange or lacking:
            what = " and ".join(["no " + p for p in sorted(lacking)] + sorted(strange))
            raise NotHonoured(f"{lowering} was forced at {site.key}, but the kernels there have {what}")
    return proved


def _parts(func: tirx.PrimFunc) -> set[str]:
    """What a kernel is made of: its role or roles in the lowering, and the names of its blocks."""
    sch = s_tir.Schedule(func)
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    return {*str(func.attrs[ROLE]).split("_"), *(str(sch.get(b).name_hint) for b in blocks)}


def _marks(lowering: str) -> frozenset[str]:
    return registry.load(registry.LOWERINGS, lowering).parts


def stock(model: onnx.ModelProto, cpu: Target) -> tuple[tvm.IRModule, list[np.ndarray]]:
    """TVM's own frontend and legalisation, with its constants made parameters afterwards.

    The constants are folded as TVM's default pipeline folds them; only then are they taken out, so that the code is
    what it would be with them inside, and compiles in seconds.

    Raises
    ------
    Unsupported
        The frontend refuses an operator.
    """
    mod = relax.transform.DecomposeOpsForInference()(_imported(model))
    stock_passes = (relax.backend.cuda if cpu.kind == "cuda" else relax.backend.cpu_generic).legalize_passes
    with cpu.tvm:
        mod = tvm.transform.Sequential(stock_passes(cpu.tvm))(mod)
    main = mod["main"]
    lift = _LiftConstants()
    body = lift.visit_expr(main.body)
    params = [*main.params, *(v for v, _ in lift.parameters)]
    mod["main"] = relax.Function(params, body, main.ret_ty, main.is_pure, main.attrs)
    return mod, [a for _, a in lift.parameters]


def _imported(model: onnx.ModelProto) -> tvm.IRModule:
    """``from_onnx`` of a model that was checked before; a refusal names the operator, which the frontend only prints.

    It prints the operand's weights, too, hence its silence.
    """
    from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

    class Importer(ONNXGraphImporter):
        def _convert_operator(self, op_name, *args):
            try:
                return super()._convert_operator(op_name, *args)
            except (tvm.error.OpError, NotImplementedError, ValueError, TypeError, AssertionError) as e:
                raise Unsupported(f"TVM's ONNX frontend refuses {op_name}: {e}") from e

    opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            return Importer(None, "float32").from_onnx(model.graph, opset)
        except tvm.error.OpNotImplemented as e:
            raise Unsupported(f"TVM's ONNX frontend: {e}; another backend, or a forced lowering, may have them") from e


@relax.expr_functor.mutator
class _LiftConstants(relax.PyExprMutator):
    """Large float32 constants become variables, collected in ``parameters``."""

    def __init__(self) -> None:
        super().__init__()
        self.parameters: list[tuple[relax.Var, np.ndarray]] = []

    def visit_generic_const_(self, op):
        array = np.from_dlpack(op.value)  # not a copy of all weights
        if array.dtype != np.float32 or array.size < SMALL:
            return op
        var = relax.Var(f"w{len(self.parameters)}", relax.TensorType(array.shape, "float32"))
        self.parameters.append((var, array))
        return var


@dataclass(frozen=True)
class Built:
    """A compiled module: ``main`` takes the inputs of the graph, then ``parameters``."""

    executable: Any
    parameters: list[np.ndarray]
    sites: list[SiteRecord]
    notes: list[str]


def build(model: onnx.ModelProto, plan: Plan, cpu: Target) -> Built:
    """Compile ``model``: as ``plan`` says, or the way TVM does by itself where the plan is empty."""
    if plan.lowerings:
        mod, parameters, sites = forced(model, plan, cpu)
        return Built(compiled(mod, cpu), parameters, sites, list(_narrow(plan)))
    mod, parameters = stock(model, cpu)
    return Built(compiled(mod, cpu), parameters, [], ["TVM's own frontend and untuned default schedules"])


def _narrow(plan: Plan) -> Iterator[str]:
    """What there is to tell of lowerings whose products are not float32."""
    for name in sorted({name for _, name in plan.lowerings}):
        if products := registry.LOWERINGS[name].products:
            yield f"{name}: operands of products are rounded to {products}; sums and tensors are float32"


def compiled(mod: tvm.IRModule, cpu: Target):
    """The executable of ``mod``. Inside the target, as the compiler of CUDA code asks for the current one."""
    if cpu.kind == "cpu":
        return tvm.compile(mod, target=cpu.tvm)
    with cpu.tvm, compiler.exact():
        return tvm.compile(mod, target=cpu.tvm, relax_pipeline=_scheduled(cpu))


def _scheduled(cpu: Target) -> tvm.transform.Pass:
    """TVM's pipeline for CUDA without what would fuse kernels anew: parts of the fused would have no threads."""

    @tvm.transform.module_pass(opt_level=0)
    def run(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        views = [
            relax.transform.LegalizeOps(),
            relax.transform.RewriteDataflowReshape(),
            relax.transform.DeadCodeElimination(["main"]),
        ]
        lower = [
            relax.transform.ToNonDataflow(),
            relax.transform.RemovePurityChecking(),
            relax.transform.CallTIRRewrite(),
            *relax.backend.cuda.finalize_passes(cpu.tvm),
        ]
        with cpu.tvm:
            return tvm.transform.Sequential(lower)(schedule_rest(tvm.transform.Sequential(views)(mod), cpu))

    return run
