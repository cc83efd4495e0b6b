"""Rules of matrix products: by a constant they are all ``Gemm`` with weights [out, in] and a bias."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from xframe.equivalence.graph import Node
from xframe.normal import constants
from xframe.normal.form import Weight
from xframe.normal.pointwise import commutative
from xframe.normal.trace import Operand, Rule, Trace, Value
from xframe.normal.windows import zeros

Args = list[Any]
ATTRS = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 1}


def dense(t: Trace, x: Value, w: Weight, bias: Weight | None, final: bool = True) -> Value:
    """``x`` [batch, in] times ``w`` [out, in], plus a bias [out]; the order of x's rows passes into the weights."""
    rows, features = t.shape(x)
    if features != w.array.shape[1]:
        raise t.node.refuse(f"shapes {(rows, features)} and {w.array.shape[::-1]} make no product")
    if x.order is not None:
        w = constants.changed(w, x.order.canonical(w.array, 1), f"inputs {x.order.words}")
        name = x.name
    else:
        name = t.plain(x)
    out = w.array.shape[0]
    return t.emit("Gemm", [name, w, bias or zeros(out)], ATTRS, (rows, out), final=final)


def matmul(t: Trace, node: Node, args: Args) -> Operand:
    a, b = args
    one, two = t.shape(a), t.shape(b)
    if isinstance(b, Weight) and len(one) == len(two) == 2:
        return dense(t, a, constants.transposed(b, (1, 0)), None)
    if not one or not two or one[-1] != two[max(len(two) - 2, 0)]:
        raise node.refuse(f"shapes {one} and {two} make no product")
    return t.other(args)[0]


def gemm(t: Trace, node: Node, args: Args) -> Operand:
    """``alpha`` and ``beta`` go into the constants, a transposed first operand is a Transpose before."""
    a, b, *rest = args
    c = rest[0] if rest else None
    if len(t.shape(a)) != 2 or len(t.shape(b)) != 2:
        raise node.refuse(f"shapes {t.shape(a)} and {t.shape(b)} make no product")
    if not isinstance(b, Weight) or isinstance(a, Weight):
        return t.other(args)[0]
    if node.attrs.get("transA", 0):
        a = t.settled(a)
        a = Value(a.name, a.axes[::-1])
    w = b if node.attrs.get("transB", 0) else constants.transposed(b, (1, 0))
    w = scaled(w, node.attrs.get("alpha", 1.0))
    beta = node.attrs.get("beta", 1.0)
    if isinstance(c, Weight):
        c = scaled(c, beta)
        row = _row(c, w.array.shape[0])
        if row is not None:
            return dense(t, a, w, row)
    elif c is not None and beta != 1:
        return t.other(args)[0]
    made = dense(t, a, w, None, final=c is None)
    return made if c is None else commutative(t, replace(node, op="Add"), [made, c])


def _row(c: Weight, out: int) -> Weight | None:
    """A bias of one value for each output, if ``c`` is that."""
    shape = c.array.shape
    if (len(shape) > 1 and shape[0] != 1) or (shape and shape[-1] not in (1, out)):
        return None
    flat = c.array.reshape(-1)
    return constants.changed(c, flat if flat.size == out else np.broadcast_to(flat, (out,)))


def scaled(w: Weight, factor: float) -> Weight:
    if factor == 1:
        return w
    array = np.empty(w.array.shape, np.float32)
    np.multiply(w.array, factor, out=array, dtype=np.float64, casting="same_kind")
    return constants.changed(w, array, f"scaled by {factor:g}")


RULES: dict[str, Rule] = {"MatMul": matmul, "Gemm": gemm}
