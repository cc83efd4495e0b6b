"""Caffe's layers that compute each element on its own, as nodes."""

import math
from typing import Callable, List

from xframe.frameworks.caffe_context import Context, Operand, Rules, Tensor


def _plain(op: str) -> Callable[[Context], List[Tensor]]:
    return lambda c: [c.node(op, [c.x], c.x.shape)]


def _relu(c: Context) -> List[Tensor]:
    slope = c.layer.relu_param.negative_slope
    if slope:
        return [c.node("LeakyRelu", [c.x], c.x.shape, alpha=slope)]
    return [c.node("Relu", [c.x], c.x.shape)]


def _elu(c: Context) -> List[Tensor]:
    return [c.node("Elu", [c.x], c.x.shape, alpha=c.layer.elu_param.alpha)]


def _power(c: Context) -> List[Tensor]:
    param = c.layer.power_param
    y = _affine(c, c.x, param.scale, param.shift)
    if param.power != 1:
        y = c.node("Pow", [y, c.weight("power", param.power)], y.shape)
    return [y]


def _affine(c: Context, x: Tensor, scale: float, shift: float) -> Tensor:
    """``scale`` x + ``shift``, of which only what changes anything becomes a node."""
    if scale != 1:
        x = c.node("Mul", [x, c.weight("factor", scale)], x.shape)
    if shift != 0:
        x = c.node("Add", [x, c.weight("addend", shift)], x.shape)
    return x


def _exp(c: Context) -> List[Tensor]:
    """base ^ (scale x + shift); the base -1 stands for e."""
    param = c.layer.exp_param
    base = _base(c, param.base)
    y = c.node("Exp", [_affine(c, c.x, param.scale * math.log(base), 0)], c.x.shape)
    return [_affine(c, y, base**param.shift, 0)]


def _log(c: Context) -> List[Tensor]:
    """The logarithm of scale x + shift, to a base."""
    param = c.layer.log_param
    y = c.node("Log", [_affine(c, c.x, param.scale, param.shift)], c.x.shape)
    return [_affine(c, y, 1 / math.log(_base(c, param.base)), 0)]


def _base(c: Context, base: float) -> float:
    if base != -1 and (base <= 0 or base == 1):
        raise c.wrong("its base is %g, and must be positive and not 1" % base)
    return math.e if base == -1 else base


def _eltwise(c: Context) -> List[Tensor]:
    param, shapes = c.layer.eltwise_param, [x.shape for x in c.ins]
    if len(c.ins) < 2 or len(set(shapes)) > 1:
        raise c.wrong("it takes two bottoms or more of one shape; they are %s" % ", ".join(map(str, shapes)))
    factors = list(param.coeff) or [1.0] * len(c.ins)
    if len(factors) != len(c.ins) or (param.coeff and param.operation != param.SUM):
        raise c.wrong("it has %d coefficients for %d bottoms; a sum takes one each" % (len(factors), len(c.ins)))
    # Constants last, as numbers: an operand of its own shape decides that of the result.
    terms: List[Operand] = [_affine(c, x, f, 0) for x, f in zip(c.ins, factors) if x.fill is None]
    terms += [c.weight("constant", f * x.fill) for x, f in zip(c.ins, factors) if x.fill is not None]
    if not isinstance(terms[0], Tensor):
        raise c.refused("all its bottoms are constants")
    if param.operation == param.MAX:
        return [c.node("Max", terms, shapes[0])]
    if param.operation == param.SUM and len(terms) > 2:
        return [c.node("Sum", terms, shapes[0])]
    y = terms[0]
    for term in terms[1:]:
        y = c.node("Add" if param.operation == param.SUM else "Mul", [y, term], shapes[0])
    return [y]


def _softmax(c: Context) -> List[Tensor]:
    return [c.node("Softmax", [c.x], c.x.shape, axis=c.axis(c.x, c.layer.softmax_param.axis))]


RULES: Rules = {
    "AbsVal": _plain("Abs"),
    "BNLL": _plain("Softplus"),
    "ELU": _elu,
    "Eltwise": _eltwise,
    "Exp": _exp,
    "Log": _log,
    "Power": _power,
    "ReLU": _relu,
    "Sigmoid": _plain("Sigmoid"),
    "Softmax": _softmax,
    "TanH": _plain("Tanh"),
}
