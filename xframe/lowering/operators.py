"""How each ONNX operator is lowered, images channels-last. One small function an operator, one row in ``OPERATORS``."""

import math
from typing import Any

import numpy as np
from tvm import relax, topi

from xframe.artifact import attributes, explicit_pads
from xframe.errors import Unsupported
from xframe.lowering import resizing, shaping
from xframe.lowering.dense import dense_stages
from xframe.lowering.graph import TO_NHWC, Graph, Handler, Value
from xframe.lowering.shaping import axes_of, reshaped
from xframe.lowering.windows import LOWEST, lrn_stage, pool_stage
from xframe.types import ConvSite


def window(shape, kernel, attrs) -> tuple[tuple, tuple, tuple]:
    """(stride, pads, dilation) of a convolution or pooling over an image of ``shape``; auto_pad made explicit."""
    stride, dilation = tuple(attrs.get("strides", (1, 1))), tuple(attrs.get("dilations", (1, 1)))
    auto = attrs.get("auto_pad", b"NOTSET").decode()
    return stride, explicit_pads(auto, attrs.get("pads"), shape[2:], kernel, stride, dilation), dilation


def conv(g: Graph, node, inputs, attrs):
    x, weight = inputs[:2]
    if not isinstance(weight, np.ndarray) or weight.ndim != 4 or not isinstance(x, Value):
        raise Unsupported(f"Conv {node.name!r}: only 2-D convolutions with constant weights have forced lowerings")
    bias = inputs[2] if len(inputs) > 2 and inputs[2] is not None else np.zeros(len(weight), np.float32)
    stride, pads, dilation = window(x.shape, weight.shape[2:], attrs)
    n, c, h, w = x.shape
    site = ConvSite(n, c, (h, w), len(weight), weight.shape[2:], stride, pads, dilation, attrs.get("group", 1))
    last = node
    norm = g.follow(node.output[0], "BatchNormalization")
    training = norm is not None and any(a.name == "training_mode" and a.i for a in norm.attribute)
    if norm is not None and not training and all(isinstance(g.values.get(i), np.ndarray) for i in norm.input[1:]):
        scale, shift = _batchnorm([g.values[i] for i in norm.input[1:]], norm)
        weight, bias = weight * scale.reshape(-1, 1, 1, 1), bias * scale + shift
        g.done.add(id(norm))
        last = norm
    last, residual = _with_residual(g, last, (n, len(weight), *site.out_hw))
    y, name = _with_relu(g, last, lambda relu: g.convolve(x, site, weight, bias, relu, residual))
    g.values[name] = y
    return []


def _with_residual(g: Graph, node, shape) -> tuple[Any, Value | None]:
    """The Add, or Sum of two, that alone follows ``node``, and what it adds: an image that is there already."""
    add = g.follow(node.output[0], "Add") or g.follow(node.output[0], "Sum")
    if add is None or len(add.input) != 2:
        return node, None
    other = g.values.get(next((i for i in add.input if i != node.output[0]), ""))
    if not isinstance(other, Value) or other.shape != shape:
        return node, None
    g.done.add(id(add))
    return add, other


def _with_relu(g: Graph, node, make):
    """``make(relu)`` and the name of its result: a Relu, or a Clip from 0 up, that alone follows ``node`` is fused."""
    relu, clip = (g.follow(node.output[0], op) for op in ("Relu", "Clip"))
    low, top = _bounds(clip, [g.values.get(i) for i in clip.input[1:]]) if clip else (0.0, math.inf)
    last = relu or clip
    if last is None or low != 0 or not top > 0:
        return make(None), node.output[0]
    g.done.add(id(last))
    return make(top), last.output[0]


def _batchnorm(constants, node):
    scale, shift, mean, variance = (c.astype(np.float64) for c in constants)
    epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
    factor = scale / np.sqrt(variance + epsilon)
    return factor.astype(np.float32), (shift - mean * factor).astype(np.float32)


def batchnorm(g, node, inputs, attrs):
    if attrs.get("training_mode", 0):
        raise Unsupported(f"BatchNormalization {node.name!r}: it is in training mode, which changes its statistics")
    if not all(isinstance(i, np.ndarray) for i in inputs[1:]):
        raise Unsupported(f"BatchNormalization {node.name!r}: its statistics are not constants")
    scale, shift = _batchnorm(inputs[1:5], node)
    x = inputs[0]
    if len(x.shape) == 4:
        y = relax.op.multiply(g.nhwc(x), g.constant(scale))
        return [Value(g.emit(relax.op.add(g.emit(y), g.constant(shift))), nhwc=True)]
    wide = (-1, *[1] * (len(x.shape) - 2))
    y = g.emit(relax.op.multiply(g.plain(x), g.constant(scale.reshape(wide))))
    return [Value(g.emit(relax.op.add(y, g.constant(shift.reshape(wide)))))]


def gemm(g, node, inputs, attrs):
    x, weight = inputs[0], inputs[1]
    if not isinstance(weight, np.ndarray) or not isinstance(x, Value) or attrs.get("transA", 0):
        raise Unsupported(f"Gemm {node.name!r}: its weight must be a constant and its input not transposed")
    weight = weight.T if attrs.get("transB", 0) else weight
    if attrs.get("alpha", 1.0) != 1.0:
        weight = weight * np.float32(attrs["alpha"])
    bias = inputs[2] if len(inputs) > 2 and inputs[2] is not None else np.zeros(1, np.float32)
    if not isinstance(bias, np.ndarray) or bias.size not in (1, weight.shape[1]):
        raise Unsupported(f"Gemm {node.name!r}: its bias must be a constant, one value an output")
    bias = np.broadcast_to(bias.reshape(-1) * np.float32(attrs.get("beta", 1.0)), weight.shape[1:])
    y, name = _with_relu(g, node, lambda relu: _dense(g, x, weight, bias, relu))
    g.values[name] = y
    return []


def matmul(g, node, inputs, attrs):
    x, weight = inputs
    if not (isinstance(x, Value) and isinstance(weight, np.ndarray) and weight.ndim == 2 and len(x.shape) == 2):
        both = [g.plain(g.value(i)) for i in inputs]
        return [Value(g.emit(relax.op.matmul(*both)))]
    last, bias = node, np.zeros(weight.shape[1], np.float32)
    add = g.follow(node.output[0], "Add")
    if add is not None:
        other = g.values.get(next((i for i in add.input if i != node.output[0]), ""))
        if isinstance(other, np.ndarray) and other.size == weight.shape[1] == other.shape[-1]:
            g.done.add(id(add))
            last, bias = add, other.reshape(-1)
    y, name = _with_relu(g, last, lambda relu: _dense(g, x, weight, bias, relu))
    g.values[name] = y
    return []


def _dense(g, x: Value, weight, bias, relu) -> Value:
    expr = x.expr
    if x.flat:  # the image lies there as HWC: turn the weights' rows, once, rather than the image each time
        c, h, w = x.flat
        weight = weight.reshape(c, h, w, -1).transpose(1, 2, 0, 3).reshape(weight.shape)
    elif x.nhwc:
        expr = g.plain(x)
    g.dense += 1
    return Value(g.stages(expr, dense_stages(x.shape[0], weight, bias, relu, g.cpu), f"fc{g.dense}"))


def pool(kind, everything=False) -> Handler:
    def lower(g, node, inputs, attrs):
        x = inputs[0]
        if len(x.shape) != 4:
            raise Unsupported(
                f"{node.op_type} {node.name!r}: only images are pooled, this has {len(x.shape)} dimensions"
            )
        n, c, h, w = x.shape
        kernel = (h, w) if everything else tuple(attrs["kernel_shape"])
        stride, pads, dilation = ((1, 1), (0, 0, 0, 0), (1, 1)) if everything else window(x.shape, kernel, attrs)
        up = attrs.get("ceil_mode", 0)
        out = []
        for i in (0, 1):
            span = x.shape[2 + i] + pads[i] + pads[i + 2] - dilation[i] * (kernel[i] - 1) - 1
            size = (-(-span // stride[i]) if up else span // stride[i]) + 1
            if up and (size - 1) * stride[i] >= x.shape[2 + i] + pads[i]:
                size -= 1  # a last window wholly in the padding does not count
            out.append(size)
        count = bool(attrs.get("count_include_pad", 0))
        stage = pool_stage(kind, (n, h, w, c), tuple(out), kernel, stride, pads, dilation, count, g.cpu)
        return [Value(g.stages(g.nhwc(x), [stage], kind), nhwc=True)]

    return lower


def lrn(g, node, inputs, attrs):
    x = inputs[0]
    n, c, h, w = x.shape
    numbers = attrs["size"], attrs.get("alpha", 1e-4), attrs.get("beta", 0.75), attrs.get("bias", 1.0)
    return [Value(g.stages(g.nhwc(x), [lrn_stage((n, h, w, c), *numbers, g.cpu)], "lrn"), nhwc=True)]


def unary(op) -> Handler:
    def lower(g, node, inputs, attrs):
        x = inputs[0]
        return [Value(g.emit(op(x.expr, attrs)), x.nhwc, x.flat)]

    return lower


def tanh(g, node, inputs, attrs):
    """As a fraction of polynomials: TVM's own is made of exp(-2x), which says nothing of a small x."""
    x = inputs[0]
    return [Value(g.builder.emit_te(topi.fast_tanh, x.expr, primfunc_name_hint="tanh"), x.nhwc, x.flat)]


def nary(op) -> Handler:
    """Element-wise over any number of operands, broadcast as numpy does."""

    def lower(g, node, inputs, attrs):
        images = [x for x in inputs if isinstance(x, Value) and x.nhwc]
        last = bool(images) and all(isinstance(x, np.ndarray) or len(x.shape) == 4 for x in inputs)

        def operand(x):
            if isinstance(x, np.ndarray):
                x = x.astype(np.float32)
            if not last:
                return g.plain(g.value(x))
            if isinstance(x, Value):
                return g.nhwc(x)
            return g.constant(x.reshape((1,) * (4 - x.ndim) + x.shape).transpose(TO_NHWC))

        total, *rest = map(operand, inputs)
        for x in rest:
            total = g.emit(op(total, x))
        return [Value(total, last)]

    return lower


def _bounds(node, given) -> list[float]:
    """Lower and upper bound of a Clip, attributes or (from opset 11 on) inputs; NaN for one that is no constant."""
    attrs = attributes(node)
    bounds = [attrs.get("min", -np.inf), attrs.get("max", np.inf)]
    for i, (name, x) in enumerate(zip(node.input[1:], given, strict=True)):
        if name:
            bounds[i] = x.item() if isinstance(x, np.ndarray) else math.nan
    return bounds


def clip(g, node, inputs, attrs):
    bounds = _bounds(node, inputs[1:])
    if any(map(math.isnan, bounds)):
        raise Unsupported(f"Clip {node.name!r}: its bounds are not constants")
    x = inputs[0]
    low, high = (float(np.clip(b, LOWEST, -LOWEST)) for b in bounds)
    low = min(low, high)  # where they cross, ONNX says that the upper bound wins
    return [Value(g.emit(relax.op.clip(x.expr, low, high)), x.nhwc, x.flat)]


def reduce(kind) -> Handler:
    def lower(g, node, inputs, attrs):
        x = inputs[0]
        axes = axes_of(inputs, attrs, 1, len(x.shape))
        if not axes and attrs.get("noop_with_empty_axes", 0):
            return [x]
        axes = axes or list(range(len(x.shape)))
        keep = bool(attrs.get("keepdims", 1))
        if kind == "mean" and axes == [2, 3] and len(x.shape) == 4:
            (y,) = pool("average", everything=True)(g, node, inputs, {})
            return [y] if keep else reshaped(g, y, x.shape[:2])
        op = {"mean": relax.op.mean, "sum": relax.op.sum, "max": relax.op.max}[kind]
        return [Value(g.emit(op(g.plain(x), axes, keep)))]

    return lower


def softmax(op) -> Handler:
    def lower(g, node, inputs, attrs):
        x = inputs[0]
        rank = len(x.shape)
        axis = attrs.get("axis", 1 if g.opset < 13 else -1) % rank
        if g.opset >= 13:
            return [Value(g.emit(op(g.plain(x), axis)))]
        rows = g.reshape(g.plain(x), (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
        return [Value(g.reshape(g.emit(op(rows, 1)), x.shape))]  # before opset 13 all axes from `axis` on are one

    return lower


def same(g, node, inputs, attrs):
    return [inputs[0]]


def dropout(g, node, inputs, attrs):
    if len(inputs) > 2 and inputs[2] is not None and np.any(inputs[2]):
        raise Unsupported(f"Dropout {node.name!r}: it is in training mode and would be random")
    return [inputs[0]]


def _scaled(x, attrs, alpha, beta):
    slope, offset = (relax.const(np.float32(attrs.get(n, d))) for n, d in (("alpha", alpha), ("beta", beta)))
    return relax.op.clip(relax.op.add(relax.op.multiply(x, slope), offset), 0.0, 1.0)


def _is_tanh(attrs) -> bool:
    return attrs.get("approximate", b"none") == b"tanh"


OPERATORS: dict[str, Handler] = {
    "Conv": conv,
    "Gemm": gemm,
    "MatMul": matmul,
    "BatchNormalization": batchnorm,
    "MaxPool": pool("max"),
    "AveragePool": pool("average"),
    "GlobalMaxPool": pool("max", everything=True),
    "GlobalAveragePool": pool("average", everything=True),
    "LRN": lrn,
    "Relu": unary(lambda x, a: relax.op.nn.relu(x)),
    "LeakyRelu": unary(lambda x, a: relax.op.nn.leakyrelu(x, a.get("alpha", 0.01))),
    "Sigmoid": unary(lambda x, a: relax.op.sigmoid(x)),
    "HardSigmoid": unary(lambda x, a: _scaled(x, a, 0.2, 0.5)),
    "HardSwish": unary(lambda x, a: relax.op.multiply(x, _scaled(x, {}, 1 / 6, 0.5))),
    "Tanh": tanh,
    "Gelu": unary(lambda x, a: relax.op.nn.gelu_tanh(x) if _is_tanh(a) else relax.op.nn.gelu(x)),
    "Erf": unary(lambda x, a: relax.op.erf(x)),
    "Exp": unary(lambda x, a: relax.op.exp(x)),
    "Log": unary(lambda x, a: relax.op.log(x)),
    "Sqrt": unary(lambda x, a: relax.op.sqrt(x)),
    "Neg": unary(lambda x, a: relax.op.negative(x)),
    "Abs": unary(lambda x, a: relax.op.abs(x)),
    "Reciprocal": unary(lambda x, a: relax.op.divide(relax.const(np.float32(1)), x)),
    "Clip": clip,
    "Add": nary(relax.op.add),
    "Sum": nary(relax.op.add),
    "Sub": nary(relax.op.subtract),
    "Mul": nary(relax.op.multiply),
    "Div": nary(relax.op.divide),
    "Pow": nary(relax.op.power),
    "Max": nary(relax.op.maximum),
    "Min": nary(relax.op.minimum),
    "ReduceMean": reduce("mean"),
    "ReduceSum": reduce("sum"),
    "ReduceMax": reduce("max"),
    "Softmax": softmax(relax.op.nn.softmax),
    "LogSoftmax": softmax(relax.op.nn.log_softmax),
    "Dropout": dropout,
    "Identity": same,
    **shaping.OPERATORS,
    **resizing.OPERATORS,
}
