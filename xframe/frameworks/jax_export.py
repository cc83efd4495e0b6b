"""JAX to ONNX: a walk over the jaxpr of a function, one row of a table per primitive of convolutional networks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend import core
from onnx import helper

from xframe.errors import Unsupported
from xframe.frameworks.jax import direct
from xframe.frameworks.jax_graph import Const, Graph, Tensor, identity
from xframe.types import Layer

Value = Const | Tensor


def marked(item: Layer, w: Any, *xs: Any) -> Any:
    """:func:`xframe.frameworks.jax.direct`, with the layers that ONNX has one node for kept together under their name
    (``lax.composite``), which the walk then recognises."""
    if item.op not in COMPOSITES:
        return direct(item, w, *xs)
    names = sorted(w)

    def decomposition(*args, **attrs):
        return direct(item, dict(zip(names, args[1:], strict=True)), args[0])

    return lax.composite(decomposition, f"xframe.{item.op}")(*xs, *(w[n] for n in names), **dict(item.attrs))


def _refuse(what: str, why: str) -> Unsupported:
    return Unsupported(f"export of a JAX function: {what} {why}; use operations of convolutional networks")


def _out(eqn: Any, name: str, perm: tuple[int, ...] | None = None) -> Tensor:
    aval = eqn.outvars[0].aval
    return Tensor(name, aval.shape, aval.dtype, identity(aval.shape) if perm is None else perm)


def _ints(values: Any) -> Const:
    return Const(np.asarray(values, np.int64), "shape")


def _thin(x: Value, others: list[Tensor]) -> Value:
    """A broadcast constant without the axes along which one of ``others`` has its full extent."""
    if not isinstance(x, Const):
        return x
    wide = [any(o.shape[i] == n for o in others) for i, n in enumerate(x.shape)]
    cut = tuple(slice(0, 1 if s == 0 and w else None) for s, w in zip(x.array.strides, wide, strict=True))
    return Const(x.array[cut], x.name)


def _elementwise(op: str) -> Callable[..., Tensor]:
    def handler(g: Graph, eqn: Any, *xs: Value) -> Tensor:
        shape = eqn.outvars[0].aval.shape
        if op == "Where" and len(xs) != 3:
            raise _refuse("select_n", f"with {len(xs) - 1} cases")
        full = [x for x in xs if isinstance(x, Tensor) and len(x.shape) == len(shape)]
        perm = full[0].perm if full else identity(shape)
        ordered = [g.ordered(_thin(x, full), perm) if len(x.shape) == len(shape) else g.plain(x) for x in xs]
        if (
            op == "Max"
            and full
            and full[0].shape == shape
            and any(isinstance(x, Const) and x.scalar() == 0 for x in xs)
        ):
            return _out(eqn, g.add("Relu", next(x for x in ordered if isinstance(x, str))), perm)
        if op == "Where":  # select_n(which, case 0, case 1)
            ordered = [ordered[0], ordered[2], ordered[1]]
        return _out(eqn, g.add(op, *ordered), perm)

    return handler


def _power(g: Graph, eqn: Any, x: Tensor) -> Tensor:
    y = eqn.params.get("y", 2)
    other = x.name if y == 2 else Const(np.asarray(y, x.dtype))
    return _out(eqn, g.add("Mul" if y == 2 else "Pow", x.name, other), x.perm)


def _rsqrt(g: Graph, eqn: Any, x: Tensor) -> Tensor:
    return _out(eqn, g.add("Reciprocal", g.add("Sqrt", x.name)), x.perm)


def _erfc(g: Graph, eqn: Any, x: Tensor) -> Tensor:
    return _out(eqn, g.add("Sub", Const(np.asarray(1, x.dtype)), g.add("Erf", x.name)), x.perm)


def _log1p(g: Graph, eqn: Any, x: Tensor) -> Tensor:
    return _out(eqn, g.add("Log", g.add("Add", x.name, Const(np.asarray(1, x.dtype)))), x.perm)


def _slice(g: Graph, eqn: Any, x: Tensor) -> Tensor:
    p, steps = eqn.params, eqn.params["strides"] or (1,) * len(x.shape)
    bounds = [_ints([values[axis] for axis in x.perm]) for values in (p["start_indices"], p["limit_indices"])]
    axes = _ints(range(len(x.perm)))
    return _out(eqn, g.add("Slice", x.name, *bounds, axes, _ints([steps[axis] for axis in x.perm])), x.perm)


def _same(g: Graph, eqn: Any, x: Tensor) -> Tensor:
    return x


def _cast(g: Graph, eqn: Any, x: Tensor) -> Tensor:
    to = np.dtype(eqn.params["new_dtype"])
    return x if to == x.dtype else _out(eqn, g.add("Cast", x.name, to=helper.np_dtype_to_tensor_dtype(to)), x.perm)


def _clamp(g: Graph, eqn: Any, low: Value, x: Tensor, high: Value) -> Tensor:
    return _out(eqn, g.add("Clip", x.name, g.plain(low), g.plain(high)), x.perm)


def _conv(g: Graph, eqn: Any, x: Value, w: Value) -> Tensor:
    p, dims = eqn.params, eqn.params["dimension_numbers"]
    if set(p["lhs_dilation"]) != {1} or p["batch_group_count"] != 1:
        raise _refuse("conv_general_dilated", "with lhs_dilation or batch_group_count (a transposed convolution)")
    if min(n for pair in p["padding"] for n in pair) < 0:
        raise _refuse("conv_general_dilated", "with negative padding")
    before, after = zip(*p["padding"], strict=True)
    name = g.add(
        "Conv", g.ordered(x, tuple(dims.lhs_spec)), g.ordered(w, tuple(dims.rhs_spec)),
        kernel_shape=[w.shape[axis] for axis in dims.rhs_spec[2:]], strides=list(p["window_strides"]),
        pads=[*before, *after], dilations=list(p["rhs_dilation"]), group=p["feature_group_count"],
    )  # fmt: skip
    return _out(eqn, name, tuple(dims.out_spec))


def _pool(op: str) -> Callable[..., Tensor]:
    """Windows over two axes, put last; a window over channels (LRN) is one of two axes as well."""

    def handler(g: Graph, eqn: Any, x: Tensor) -> Tensor:
        p, name = eqn.params, eqn.primitive.name
        window = p["window_dimensions"]
        moved = zip(window, p["window_strides"], p["padding"], strict=True)
        over = [i for i, (k, s, pad) in enumerate(moved) if k > 1 or s > 1 or tuple(pad) != (0, 0)]
        if len(window) != 4 or len(over) > 2:
            raise _refuse(name, f"with window {window}: two of four axes are supported")
        if set(p["base_dilation"]) != {1} or set(p["window_dilation"]) != {1}:
            raise _refuse(name, "with dilation")
        if any(not 0 <= n < window[i] for i in over for n in p["padding"][i]):
            raise _refuse(name, f"with padding {p['padding']} for window {window}")
        kept = set(x.perm[2:]) >= set(over)
        over += [i for i in (3, 2, 1) if i not in over][: 2 - len(over)]
        over.sort()
        perm = x.perm if kept else (*(i for i in range(4) if i not in over), *over)
        attrs: dict[str, Any] = {
            "kernel_shape": [window[i] for i in perm[2:]],
            "strides": [p["window_strides"][i] for i in perm[2:]],
            "pads": [p["padding"][i][end] for end in (0, 1) for i in perm[2:]],
        }
        if op == "AveragePool":
            attrs["count_include_pad"] = 1
        made = g.add(op, g.ordered(x, perm), **attrs)
        if op == "AveragePool":
            made = g.add("Mul", made, Const(np.asarray(np.prod(window), x.dtype)))
        return _out(eqn, made, perm)

    return handler


def _dot(g: Graph, eqn: Any, a: Value, b: Value) -> Tensor:
    contracted, batch = eqn.params["dimension_numbers"]
    if any(batch) or (len(a.shape), len(b.shape), *map(len, contracted)) != (2, 2, 1, 1):
        raise _refuse("dot_general", f"of shapes {a.shape} and {b.shape}: products of two matrices are supported")
    ((ca,), (cb,)) = contracted
    return _out(eqn, g.add("MatMul", g.ordered(a, (1 - ca, ca)), g.ordered(b, (cb, 1 - cb))))


def _reshape(g: Graph, eqn: Any, x: Tensor) -> Tensor:
    return _out(eqn, g.add("Reshape", g.plain(x), _ints(eqn.outvars[0].aval.shape)))


def _transpose(g: Graph, eqn: Any, x: Tensor) -> Tensor:
    order = tuple(eqn.params["permutation"])
    return _out(eqn, x.name, tuple(order.index(axis) for axis in x.perm))


def _broadcast(g: Graph, eqn: Any, x: Value) -> Value:
    shape, axes = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    ones = [1] * len(shape)
    for axis, n in zip(axes, x.shape, strict=True):
        ones[axis] = n
    if isinstance(x, Const):
        return Const(np.broadcast_to(x.array.reshape(ones), shape), x.name)
    name = g.add("Reshape", g.plain(x), _ints(ones))
    return _out(eqn, g.add("Expand", name, _ints(shape)) if tuple(ones) != tuple(shape) else name)


def _reduce(op: str) -> Callable[..., Tensor]:
    def handler(g: Graph, eqn: Any, x: Tensor) -> Tensor:
        axes = eqn.params["axes"]
        kept = [axis for axis in x.perm if axis not in axes]
        name = g.add(op, x.name, _ints([x.perm.index(axis) for axis in axes]), keepdims=0)
        return _out(eqn, name, tuple(sorted(kept).index(axis) for axis in kept))

    return handler


def _concatenate(g: Graph, eqn: Any, *xs: Value) -> Tensor:
    perm = next(x.perm for x in xs if isinstance(x, Tensor))
    name = g.add("Concat", *(g.ordered(x, perm) for x in xs), axis=perm.index(eqn.params["dimension"]))
    return _out(eqn, name, perm)


def _pad(g: Graph, eqn: Any, x: Tensor, value: Value) -> Tensor:
    config = [eqn.params["padding_config"][axis] for axis in x.perm]
    if any(low < 0 or high < 0 or inner for low, high, inner in config):
        raise _refuse("pad", "with negative or interior padding")
    pads = _ints([c[end] for end in (0, 1) for c in config])
    return _out(eqn, g.add("Pad", x.name, pads, g.plain(value), mode="constant"), x.perm)


_ELEMENTWISE = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "max": "Max", "min": "Min", "pow": "Pow", "exp": "Exp",
    "log": "Log", "sqrt": "Sqrt", "neg": "Neg", "abs": "Abs", "tanh": "Tanh", "logistic": "Sigmoid", "gt": "Greater",
    "ge": "GreaterOrEqual", "lt": "Less", "le": "LessOrEqual", "eq": "Equal", "select_n": "Where",
    "erf": "Erf", "sin": "Sin", "cos": "Cos", "floor": "Floor", "ceil": "Ceil", "sign": "Sign",
}  # fmt: skip

#: Primitive -> what adds its nodes, given the graph, the equation and its input values (at least one is a Tensor).
PRIMITIVES: dict[str, Callable[..., Value]] = {
    **{name: _elementwise(op) for name, op in _ELEMENTWISE.items()},
    "integer_pow": _power,
    "square": _power,
    "rsqrt": _rsqrt,
    "erfc": _erfc,
    "log1p": _log1p,
    "slice": _slice,
    **dict.fromkeys(("copy", "copy_p", "stop_gradient", "optimization_barrier"), _same),
    "convert_element_type": _cast,
    "clamp": _clamp,
    "conv_general_dilated": _conv,
    "reduce_window_max": _pool("MaxPool"),
    "reduce_window_sum": _pool("AveragePool"),
    "dot_general": _dot,
    "reshape": _reshape,
    "squeeze": _reshape,
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast,
    "reduce_sum": _reduce("ReduceSum"),
    "reduce_max": _reduce("ReduceMax"),
    "reduce_min": _reduce("ReduceMin"),
    "concatenate": _concatenate,
    "pad": _pad,
}

_FIRST = (0, 3, 1, 2)  # the channels of an NHWC image, first


def _one(op: str, attributes: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[..., Tensor]:
    def handler(g: Graph, eqn: Any, attrs: dict[str, Any], x: Tensor, *weights: Value) -> Tensor:
        perm = _FIRST if len(x.shape) == 4 else identity(x.shape)
        return _out(eqn, g.add(op, g.ordered(x, perm), *map(g.plain, weights), **attributes(attrs)), perm)

    return handler


def _batchnorm(g: Graph, eqn: Any, attrs: dict[str, Any], x: Tensor, mean, scale, shift, var) -> Tensor:
    order = (scale, shift, mean, var)
    return _one("BatchNormalization", lambda a: {"epsilon": a["epsilon"]})(g, eqn, attrs, x, *order)


#: Layer op -> what adds its node, given also the layer's attributes; weights come sorted by name.
COMPOSITES: dict[str, Callable[..., Tensor]] = {
    "avgpool": _one("AveragePool", lambda a: {"kernel_shape": a["kernel"], "strides": a["stride"], "pads": a["pads"]}),
    "batchnorm": _batchnorm,
    "lrn": _one("LRN", lambda a: {k: a[k] for k in ("size", "alpha", "beta", "bias")}),
    "softmax": _one("Softmax", lambda a: {"axis": 1}),
}


_CALLS = ("jit", "pjit", "closed_call", "core_call", "checkpoint", "custom_jvp_call", "custom_vjp_call", "composite")


def _apply(g: Graph, eqn: Any, xs: list[Value]) -> list[Value]:
    name, params = eqn.primitive.name, eqn.params
    if name == "composite" and params["name"].startswith("xframe."):
        attrs = {key: jax.tree.unflatten(tree, leaves) for key, leaves, tree in params["attributes"]}
        return [COMPOSITES[params["name"].removeprefix("xframe.")](g, eqn, attrs, *xs)]
    if name in _CALLS:
        inner = next(params[k] for k in ("jaxpr", "call_jaxpr") if k in params)
        if isinstance(inner, core.ClosedJaxpr):
            return walk(g, inner.jaxpr, [Const(np.asarray(c)) for c in inner.consts], xs)
        return walk(g, inner, [], xs)
    constants = [x.array for x in xs if isinstance(x, Const)]
    if len(constants) == len(xs) and name != "broadcast_in_dim":
        made = eqn.primitive.bind(*constants, **params)
        return [Const(np.asarray(a)) for a in (made if eqn.primitive.multiple_results else [made])]
    if name not in PRIMITIVES:
        raise _refuse(f"the primitive {name!r}", "has no ONNX form here")
    return [PRIMITIVES[name](g, eqn, *xs)]


def walk(g: Graph, jaxpr: Any, consts: list[Value], args: list[Value]) -> list[Value]:
    """Add the nodes of a jaxpr to ``g``; returns its outputs. Raises Unsupported on a primitive with no ONNX form."""
    values: dict[Any, Value] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

    def read(atom: Any) -> Value:
        if isinstance(atom, core.Literal):
            aval: Any = atom.aval
            return Const(np.asarray(atom.val, aval.dtype))
        return values[atom]

    for eqn in jaxpr.eqns:
        for var, value in zip(eqn.outvars, _apply(g, eqn, [read(v) for v in eqn.invars]), strict=True):
            values[var] = value
    return [read(v) for v in jaxpr.outvars]


def to_onnx(function: Callable[..., Any], params: Any, shape: tuple[int, ...], dtype: str = "float32") -> Any:
    """``function(params, x)`` of one array with one result as :func:`convert` writes it: ``input`` and ``output``."""
    return convert(function, params, {"input": (shape, dtype)}, ["output"])


def convert(
    function: Callable[..., Any],
    params: Any,
    inputs: Mapping[str, tuple[tuple[int, ...], str]],
    outputs: Sequence[str],
) -> Any:
    """``function(params, *inputs)`` as an ``onnx.ModelProto``: ``params`` (a pytree) become initializers, named after
    their keys; the inputs have static shapes; the leaves of the result are the outputs.

    Constants are folded, axes are kept channels-first inside (transposes only where the order matters), bias additions
    are merged into Conv and Gemm.

    Raises
    ------
    Unsupported
        The function uses a primitive with no ONNX form here, named in the message, gives another number of results, or
        one that does not depend on the inputs.
    """
    leaves, tree = jax.tree_util.tree_flatten_with_path(params)
    like = [jax.ShapeDtypeStruct(np.shape(leaf), jax.numpy.result_type(leaf)) for _, leaf in leaves]
    with jax.default_matmul_precision("highest"):
        closed = jax.make_jaxpr(function)(
            jax.tree.unflatten(tree, like), *(jax.ShapeDtypeStruct(*kind) for kind in inputs.values())
        )
    g = Graph()
    args: list[Value] = [
        Const(np.asarray(leaf, kind.dtype), jax.tree_util.keystr(path, simple=True, separator=".") or "weight")
        for (path, leaf), kind in zip(leaves, like, strict=True)
    ]
    args += [g.input(name, *kind) for name, kind in inputs.items()]
    made = walk(g, closed.jaxpr, [Const(np.asarray(c)) for c in closed.consts], args)
    results = [value for value in made if isinstance(value, Tensor)]
    if len(results) != len(made) or len(made) != len(outputs):
        number = "one array that depends" if len(outputs) == 1 else f"{len(outputs)} arrays that depend"
        raise _refuse("its result", f"must be {number} on the input")
    return g.finish(dict(zip(outputs, results, strict=True)))
