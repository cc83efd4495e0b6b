"""From ONNX to Relax, images kept as NHWC throughout, each convolution lowered as the plan says.

TVM has a frontend of its own; it is the route of the ``auto`` plan. A forced plan takes this one instead, because a
site must become its lowering before anything decomposes or moves it, images must stay channels-last between our
kernels without transposes, and weights must stay out of the compiler: here they become parameters of the function.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from tvm import relax, tirx

from xframe.errors import Unsupported
from xframe.lowering.cuda import threads
from xframe.lowering.stage import Epilogue, Stage
from xframe.lowering.target import Gpu, Target
from xframe.lowering.tasks import Task, define
from xframe.lowering.variants import choose, refusal
from xframe.types import ConvSite, Device, Plan, SiteRecord

#: PrimFunc attributes that tie a kernel to its convolution; the proof that a plan was honoured reads them.
SITE, LOWERING, ROLE = "xframe.site", "xframe.lowering", "xframe.role"
OPAQUE = 8  # TVM's OpPatternKind: not to be fused into
SMALL = 64  # constants of fewer elements stay in the code
TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


@dataclasses.dataclass(frozen=True)
class Value:
    """A tensor of the ONNX graph while it is being lowered.

    ``nhwc``: ONNX thinks of it as NCHW, ``expr`` holds it as NHWC. ``flat``: it is (n, c*h*w) in ONNX and
    (n, h*w*c) in ``expr``; (c, h, w) are given, so that a fully connected layer can turn its weights instead.
    """

    expr: relax.Expr
    nhwc: bool = False
    flat: tuple[int, int, int] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape as ONNX sees it."""
        held = dims(self.expr)
        return tuple(held[i] for i in TO_NCHW) if self.nhwc else held


def dims(x: relax.Expr) -> tuple[int, ...]:
    return tuple(int(d) for d in x.ty.shape)


class Graph:
    """One ONNX graph being turned into a Relax module. ``operators`` is the table of ``xframe.lowering.operators``."""

    def __init__(self, model: onnx.ModelProto, plan: Plan, lowerings: dict[str, Any], cpu: Target, operators: dict):
        self.model, self.plan, self.lowerings, self.cpu, self.operators = model, plan, lowerings, cpu, operators
        self.opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
        self.builder = relax.BlockBuilder()
        self.parameters: list[tuple[relax.Var, np.ndarray]] = []
        self.sites: list[SiteRecord] = []
        self.values: dict[str, Value | np.ndarray] = {}
        self.tuned = {t.task: t for t in plan.tuned}
        self.tasks: list[Task] = []
        self.dense = 0  # fully connected layers so far
        self.done: set[int] = set()
        self.users: dict[str, list[onnx.NodeProto]] = {}
        for node in model.graph.node:
            for name in node.input:
                self.users.setdefault(name, []).append(node)

    def lower(self) -> tuple[Any, list[np.ndarray]]:
        """(module, parameters): ``main`` takes the graph's inputs, then the parameters in order."""
        graph = self.model.graph
        self.values = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
        inputs: list[relax.Var] = []
        for info in graph.input:
            if info.name not in self.values:
                shape = tuple(d.dim_value for d in info.type.tensor_type.shape.dim)
                inputs.append(relax.Var(f"input{len(inputs)}", relax.TensorType(shape, "float32")))
                self.values[info.name] = Value(inputs[-1])
        with self.builder.function("main", attrs={"num_input": len(inputs)}):
            with self.builder.dataflow():
                for node in graph.node:
                    if id(node) not in self.done:
                        self._node(node)
                results = [self.plain(self.value(self.values[o.name])) for o in graph.output]
                out = self.builder.emit_output(results[0] if len(results) == 1 else relax.Tuple(results))
            self.builder.emit_func_output(out, params=[*inputs, *(v for v, _ in self.parameters)])
        return self.builder.get(), [a for _, a in self.parameters]

    def _node(self, node: onnx.NodeProto) -> None:
        inputs = [self.values[name] if name else None for name in node.input]
        attrs = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        constants = [x for x in inputs if not isinstance(x, Value)]
        if node.op_type == "Shape":
            outputs = [np.array(self.values[node.input[0]].shape, dtype=np.int64)]
        elif len(constants) == len(inputs):
            outputs = fold(node, constants, self.opset)
        elif node.op_type in self.operators and node.domain in ("", "ai.onnx"):
            outputs = self.operators[node.op_type](self, node, inputs, attrs)
        else:
            raise Unsupported(
                f"operator {node.op_type} (node {node.name or node.output[0]!r}) has no channels-last rule, which a "
                "forced plan needs; the plan 'auto' leaves the graph to TVM's own frontend"
            )
        for name, value in zip(node.output, outputs, strict=False):
            self.values.setdefault(name, value)

    def follow(self, name: str, op: str) -> onnx.NodeProto | None:
        """The node that alone reads tensor ``name``, if it is an ``op``: it may be fused into the node before."""
        users = self.users.get(name, [])
        kept = any(o.name == name for o in self.model.graph.output)
        return users[0] if len(users) == 1 and not kept and users[0].op_type == op else None

    # Values

    def value(self, x: "Value | np.ndarray") -> Value:
        return x if isinstance(x, Value) else Value(self.constant(x))

    def constant(self, x: np.ndarray) -> relax.Expr:
        """A constant as an expression: a parameter of the function unless it is small."""
        x = np.ascontiguousarray(x)
        if x.size < SMALL or x.dtype != np.float32:
            return relax.const(x, str(x.dtype))
        var = relax.Var(f"w{len(self.parameters)}", relax.TensorType(x.shape, "float32"))
        self.parameters.append((var, x))
        return var

    def plain(self, x: Value) -> relax.Expr:
        """``x`` as ONNX sees it."""
        if x.flat:
            c, h, w = x.flat
            image = self.turn(self.reshape(x.expr, (x.shape[0], h, w, c)), TO_NCHW)
            return self.reshape(image, x.shape)
        return self.turn(x.expr, TO_NCHW) if x.nhwc else x.expr

    def nhwc(self, x: Value) -> relax.Expr:
        """The image ``x`` with channels last."""
        return x.expr if x.nhwc else self.turn(self.plain(x), TO_NHWC)

    def turn(self, x: relax.Expr, axes: tuple[int, ...]) -> relax.Expr:
        """Permute dimensions; where only dimensions of extent 1 trade places, nothing has to move."""
        shape = dims(x)
        if [a for a in axes if shape[a] > 1] == sorted(a for a in axes if shape[a] > 1):
            return self.reshape(x, tuple(shape[a] for a in axes))
        return self.builder.emit(relax.op.permute_dims(x, list(axes)))

    def reshape(self, x: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
        """``x`` seen with another shape; row-major, so nothing moves."""
        return x if dims(x) == tuple(shape) else self.builder.emit(relax.op.reshape(x, shape))

    def emit(self, expr: relax.Expr) -> relax.Expr:
        return self.builder.emit(expr)

    def stages(
        self,
        x: relax.Expr,
        stages: list[Stage],
        name: str,
        attrs: dict[str, str] | None = None,
        more: Sequence[relax.Expr] = (),
    ) -> relax.Expr:
        """Call the stages one after the other on ``x``; each is named ``<name>_<role>`` and carries ``attrs``.

        The last one takes ``more``, too.
        """
        for stage in stages:
            func = prepared(stage, attrs or {})
            if self.cpu.kind == "cuda":
                func = threads.bound(func)
            args = [self.reshape(x, dims(func.params[0])), *map(self.constant, stage.constants)]
            for extra in more if stage is stages[-1] else ():
                args.append(self.reshape(extra, dims(func.params[len(args)])))
            var = self.builder.add_func(func, f"{name}_{stage.role}")
            x = self.emit(relax.call_tir(var, args, relax.TensorType(stage.shape, "float32")))
        return x

    def convolve(self, x: Value, site: ConvSite, weight, bias, relu: float | None, residual: Value | None) -> Value:
        """The convolution of ``site`` by the lowering that the plan names; ``residual`` is added before the ReLU."""
        chosen = self.plan[site]
        if chosen is None:
            raise Unsupported(f"the plan {self.plan.label!r} names no lowering for convolution {site.key}")
        lowering = self.lowerings[chosen]
        reason = refusal(lowering, site, device_of(self.cpu), self.plan.error_budget)
        if reason:
            raise Unsupported(f"{chosen} refuses {site.key}: {reason}")
        name = f"conv{len(self.sites) + 1}"
        variant = choose(lowering, site, self.cpu, self.plan.error_budget)
        layout = "NHWC" if x.nhwc else "NCHW"
        epilogue = Epilogue(bias, relu, residual is not None)
        task = Task.of(chosen, variant, epilogue, layout, self.cpu)
        self.tasks.append(task)
        defined = define(task, weight, bias, self.cpu, self.tuned.get(task.name))
        self.sites.append(SiteRecord(site, name, chosen, None, variant.detail, variant.rounding, defined.schedule))
        attrs = {SITE: site.key, LOWERING: chosen}
        added = [] if residual is None else [self.nhwc(residual)]
        y = self.stages(x.expr if x.nhwc else self.plain(x), defined.stages, f"{name}_{chosen}", attrs, added)
        return Value(self.reshape(y, (site.batch, *site.out_hw, site.out_channels)), nhwc=True)


def device_of(target: Target) -> Device:
    """What lowerings are asked about: a device like those that ``target`` is for."""
    arch = target.arch if isinstance(target, Gpu) else target.architecture
    return Device(target.text, target.kind, target.text, arch, target.threads)


def prepared(stage: Stage, attrs: dict[str, str]) -> tirx.PrimFunc:
    """The stage's scheduled PrimFunc, closed to fusion and marked with ``attrs``."""
    func = stage.scheduled().without_attr("global_symbol")
    for key, value in {"tirx.is_scheduled": True, "op_pattern": OPAQUE, ROLE: stage.role, **attrs}.items():
        func = func.with_attr(key, value)
    return func


def fold(node: onnx.NodeProto, inputs: list[np.ndarray | None], opset: int) -> list[np.ndarray]:
    """The outputs of a node whose inputs are all constants."""
    from onnx.reference import ReferenceEvaluator

    names = [n for n in node.input if n]
    graph = onnx.helper.make_graph(
        [node],
        "fold",
        [onnx.helper.make_value_info(n, onnx.TypeProto()) for n in dict.fromkeys(names)],
        [onnx.helper.make_value_info(n, onnx.TypeProto()) for n in node.output],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    feeds = {n: x for n, x in zip(node.input, inputs, strict=True) if n}
    return [np.asarray(y) for y in ReferenceEvaluator(model).run(None, feeds)]


Handler = Callable[[Graph, onnx.NodeProto, list, dict], list]
