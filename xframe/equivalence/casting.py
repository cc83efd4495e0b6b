"""Changes of the number format: casts, and the quantisation of constants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from xframe.equivalence.bounds import Quantity, Z
from xframe.equivalence.decisions import stepped
from xframe.equivalence.graph import Node, Operator, Roundings

Array = np.ndarray
Args = Sequence[Quantity]

#: Floating formats narrower than float32: unit roundoff, where numbers round to infinity, half the smallest step.
NARROW = {
    "float16": (2.0**-11, 65520.0, 2.0**-25),
    "bfloat16": (2.0**-8, 2.0**128 * (1 - 2.0**-9), 2.0**-134),
}


def cast(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    x, dtype = args[0], np.dtype(onnx.helper.tensor_dtype_to_np_dtype(node.attrs["to"]))
    if dtype in (np.float32, np.float64):
        return x.moved(lambda a: a.astype(np.float64))
    if dtype.name in NARROW:
        return _narrowed(x, dtype)
    if dtype.kind not in "iub":
        raise node.refuse(f"a cast to {dtype}, for which there is no error bound: export the network in float32")
    if dtype.kind == "b":
        zero = False if x.variance is None else (np.abs(x.real) <= Z * x.deviation) & (x.deviation > 0)
        return Quantity(x.value.astype(bool), np.square(1 / Z) * zero if np.any(zero) else None)
    if x.variance is not None and stepped(x, np.trunc).variance is not None:
        raise node.refuse("rounding errors decide to which integers some computed numbers are cast")
    return Quantity(x.value.astype(dtype))


def _narrowed(x: Quantity, dtype: np.dtype) -> Quantity:
    """Exact numbers are rounded as everybody rounds them; computed ones get the variance of that rounding."""
    if x.variance is None:
        return x.moved(lambda a: a.astype(dtype))
    unit, largest, step = NARROW[dtype.name]
    value = np.where(np.abs(x.real) < largest, x.real, np.copysign(np.inf, x.real))
    return Quantity(value, x.variance + (np.square(unit * x.real) + step**2) / 3, x.coherence)


def quantize(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    x, scale = args[0], _spread(node, args[0], args[1])
    if x.variance is not None:
        raise node.refuse("computed numbers are quantised, a step that is larger than any rounding error")
    zero = _spread(node, x, args[2]) if len(args) > 2 and args[2] is not None else None
    dtype = np.dtype(np.uint8) if zero is None else zero.dtype
    if dtype.kind not in "iu":
        raise node.refuse(f"quantises to {dtype}, which the float64 reference does not know")
    levels = np.rint(x.value / scale) + (0 if zero is None else zero.astype(np.int64))
    limits = np.iinfo(dtype)
    return Quantity(np.clip(levels, limits.min, limits.max).astype(dtype))


def dequantize(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    """One product of two float32 numbers, which rounds the same everywhere: exact."""
    x, scale = args[0], _spread(node, args[0], args[1])
    levels = x.real
    if len(args) > 2 and args[2] is not None:
        levels = levels - _spread(node, x, args[2]).astype(np.float64)
    return Quantity((levels.astype(np.float32) * scale.astype(np.float32)).astype(scale.dtype))


def _spread(node: Node, x: Quantity, per: Quantity) -> Array:
    """A number for the tensor, or one for each slice along ``axis``, broadcast to ``x``."""
    if node.attrs.get("block_size", 0):
        raise node.refuse("quantised by blocks, which the float64 reference does not know")
    if per.value.size == 1:
        return per.value.reshape(())
    axis = node.attrs.get("axis", 1) % x.value.ndim
    if per.value.shape != (x.value.shape[axis],):
        raise node.refuse(f"{per.value.shape} numbers do not fit axis {axis} of {x.value.shape}")
    return per.value.reshape(-1, *(1,) * (x.value.ndim - axis - 1))


OPERATORS: dict[str, Operator] = {
    "Cast": cast,
    "QuantizeLinear": quantize,
    "DequantizeLinear": dequantize,
}
