"""``Resize`` and ``Upsample``: along each axis the product with a matrix of which a few entries a row are not zero.

Where an output lies in the input is computed in rational numbers, so that a tie between two pixels is one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from tvm import relax

from xframe.errors import Unsupported
from xframe.lowering.graph import TO_NHWC, Handler, Value, dims

HALF = Fraction(1, 2)


@dataclass(frozen=True)
class Axis:
    """A dimension of the ONNX tensor: its sizes before and after, the scale, and the part of it that is seen."""

    number: int
    before: int
    after: int
    scale: Fraction
    part: tuple[Fraction, Fraction] = (Fraction(0), Fraction(1))

    @property
    def last(self) -> int:
        return self.before - 1


def _centred(axis: Axis, i: int) -> Fraction:
    return (i + HALF) / axis.scale - HALF


def _aligned(axis: Axis, i: int) -> Fraction:
    return Fraction(i * axis.last, axis.after - 1) if axis.after > 1 else Fraction(0)


def _symmetric(axis: Axis, i: int) -> Fraction:
    """The centre of the input lies at that of the output, whatever was rounded off its size."""
    return _centred(axis, i) + Fraction(axis.before, 2) * (1 - axis.after / (axis.scale * axis.before))


def _cropped(axis: Axis, i: int) -> Fraction:
    begin, end = (p * axis.last for p in axis.part)
    return begin + (end - begin) * (Fraction(i, axis.after - 1) if axis.after > 1 else HALF)


#: ONNX's coordinate_transformation_mode -> where an output lies in the input.
PLACES: dict[str, Callable[[Axis, int], Fraction]] = {
    "half_pixel": _centred,
    "half_pixel_symmetric": _symmetric,
    "pytorch_half_pixel": lambda axis, i: _centred(axis, i) if axis.after > 1 else Fraction(0),
    "align_corners": _aligned,
    "asymmetric": lambda axis, i: i / axis.scale,
    "tf_crop_and_resize": _cropped,
}
#: ONNX's nearest_mode.
ROUNDINGS: dict[str, Callable[[Fraction], int]] = {
    "round_prefer_floor": lambda place: math.ceil(place - HALF),
    "round_prefer_ceil": lambda place: math.floor(place + HALF),
    "floor": math.floor,
    "ceil": math.ceil,
}


def _linear(t: float) -> float:
    return max(1 - abs(t), 0.0)


def _cubic(a: float) -> Callable[[float], float]:
    def weight(t: float) -> float:
        t = abs(t)
        near, far = ((a + 2) * t - (a + 3)) * t * t + 1, a * (((t - 5) * t + 8) * t - 4)
        return near if t <= 1 else far if t < 2 else 0.0

    return weight


def resize(g, node, inputs, attrs):
    x = inputs[0]
    if not isinstance(x, Value) or not all(i is None or isinstance(i, np.ndarray) for i in inputs[1:]):
        raise Unsupported(f"{node.op_type} {node.name!r}: its sizes must be constants")
    old = node.op_type == "Upsample" or g.opset < 11
    mode, coordinates, nearest = (
        attrs.get(name, default).decode()
        for name, default in (
            ("mode", b"nearest"),
            ("coordinate_transformation_mode", b"asymmetric" if old else b"half_pixel"),
            ("nearest_mode", b"floor" if old else b"round_prefer_floor"),
        )
    )
    if mode not in ("nearest", "linear", "cubic") or coordinates not in PLACES or nearest not in ROUNDINGS:
        raise Unsupported(f"{node.op_type} {node.name!r}: ONNX has no {mode} with {coordinates} and {nearest}")
    expr, cut = x.expr if x.nhwc else g.plain(x), []
    for axis in _axes(node, x.shape, inputs, attrs, old):
        if axis.scale == 1 and axis.part == (0, 1):
            continue
        held = TO_NHWC.index(axis.number) if x.nhwc else axis.number
        places = [PLACES[coordinates](axis, i) for i in range(axis.after)]
        expr = _product(g, expr, held, _matrix(axis, places, mode, ROUNDINGS[nearest], attrs))
        if coordinates == "tf_crop_and_resize":
            cut.append((held, np.array([0 <= p <= axis.last for p in places])))
    fill = relax.const(np.float32(attrs.get("extrapolation_value", 0.0)))
    for held, inside in cut:
        if not inside.all():
            seen = relax.const(_along(inside, held, len(x.shape)), "bool")
            expr = g.emit(relax.op.where(seen, expr, fill))
    return [Value(expr, x.nhwc)]


def _matrix(
    axis: Axis, places: Sequence[Fraction], mode: str, rounding: Callable[[Fraction], int], attrs
) -> np.ndarray:
    """(after, before): what each output takes of each input. Beyond the border lies the border's pixel once more."""
    kernel, reach = (_linear, 1) if mode == "linear" else (_cubic(attrs.get("cubic_coeff_a", -0.75)), 2)
    shrink = min(axis.scale, Fraction(1)) if attrs.get("antialias", 0) else Fraction(1)
    matrix = np.zeros((axis.after, axis.before))
    for row, place in zip(matrix, places, strict=True):
        if mode == "nearest":
            taps = {rounding(place): 1.0}
        else:
            near = range(math.ceil(place - reach / shrink), math.floor(place + reach / shrink) + 1)
            taps = {at: kernel(float((at - place) * shrink)) for at in near}
        if attrs.get("exclude_outside", 0) and mode != "nearest":
            taps = {at: weight for at, weight in taps.items() if 0 <= at <= axis.last}
        for at, weight in taps.items():
            row[min(max(at, 0), axis.last)] += weight / sum(taps.values())
    return matrix


def _product(g, x: relax.Expr, axis: int, matrix: np.ndarray) -> relax.Expr:
    """``matrix`` times ``x`` along ``axis``: a sum over as many pixels as a row has entries."""
    count = int(np.count_nonzero(matrix, 1).max())
    chosen = np.argsort(matrix == 0, 1, kind="stable")[:, :count]
    weights = np.take_along_axis(matrix, chosen, 1)
    chosen = np.where(weights == 0, chosen[:, :1], chosen)  # what counts for nothing might be infinite
    total = None
    for at, by in zip(chosen.T, weights.T, strict=True):
        term = g.emit(relax.op.take(x, relax.const(at, "int64"), axis, "clip"))
        if (by != 1).any():
            factor = g.constant(_along(by.astype(np.float32), axis, len(dims(x))))
            term = g.emit(relax.op.multiply(term, factor))
        total = term if total is None else g.emit(relax.op.add(total, term))
    return total


def _along(values: np.ndarray, axis: int, rank: int) -> np.ndarray:
    return values.reshape([-1 if a == axis else 1 for a in range(rank)])


def _axes(node, shape: tuple[int, ...], inputs, attrs, old: bool) -> list[Axis]:
    given = [None if x is None or not x.size else x.tolist() for x in (*inputs[1:], None, None, None)]
    roi, scales, sizes = (None, given[0] or attrs.get("scales"), None) if old else given[:3]
    numbers = [a % len(shape) for a in attrs.get("axes") or range(len(shape))]
    before = [shape[a] for a in numbers]
    wanted = sizes or scales
    misfit = Unsupported(f"{node.op_type} {node.name!r}: scales {scales} and sizes {sizes} do not fit {shape}")
    if wanted is None or len(wanted) != len(numbers) or min(wanted) <= 0:
        raise misfit
    if sizes:
        after, factors = sizes, [Fraction(s, b) for s, b in zip(sizes, before, strict=True)]
        policy = attrs.get("keep_aspect_ratio_policy", b"stretch")
        if policy != b"stretch":
            factors = [(min if policy == b"not_larger" else max)(factors)] * len(factors)
            after = [math.floor(f * b + HALF) for f, b in zip(factors, before, strict=True)]
    else:
        factors = [_meant(s) for s in wanted]
        after = [math.floor(np.float32(s) * np.float32(b)) for s, b in zip(wanted, before, strict=True)]
    if min(after) < 1:
        raise misfit
    parts = [Axis.part] * len(numbers)
    if roi and attrs.get("coordinate_transformation_mode") == b"tf_crop_and_resize":
        parts = [(_meant(b), _meant(e)) for b, e in zip(roi, roi[len(numbers) :], strict=False)]
    return [Axis(*row) for row in zip(numbers, before, after, factors, parts, strict=True)]


def _meant(number: float) -> Fraction:
    """The simplest fraction that is this number in float32: 3/5 for 0.6."""
    exact = Fraction(number)
    tries = (exact.limit_denominator(limit) for limit in (16, 256, 4096, 65536))
    return next((f for f in tries if np.float32(float(f)) == np.float32(number)), exact)


OPERATORS: dict[str, Handler] = {"Resize": resize, "Upsample": resize}
