"""``Resize`` and ``Upsample``: along each axis a fixed weighted sum of some neighbours.

Where an output lies in the input is computed in rational numbers, so that a tie between two pixels is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from xframe.equivalence.bounds import UNIT, Quantity, rounded
from xframe.equivalence.graph import Node, Operator, Roundings

Array = np.ndarray
Args = Sequence[Quantity]

HALF = Fraction(1, 2)
#: Roundings of float32, in u of the coordinate, that the computation of a coordinate takes.
COORDINATE = 4.0


@dataclass(frozen=True)
class Axis:
    """A dimension to resize: its number, sizes before and after, the scale, and which part of the input is seen."""

    number: int
    before: int
    after: int
    scale: Fraction
    roi: tuple[Fraction, Fraction] = (Fraction(0), Fraction(1))

    def coordinate(self, mode: str, i: int) -> Fraction:
        """Where output ``i`` lies in the input; ``mode`` is ONNX's coordinate_transformation_mode.

        Lengths are the tensors' own, whole numbers, but for ``half_pixel_symmetric``, which is about the difference.
        """
        length = Fraction(self.after)
        last = Fraction(self.before - 1)
        if mode == "asymmetric":
            return i / self.scale
        if mode == "align_corners":
            return Fraction(0) if length == 1 else i * last / (length - 1)
        if mode == "tf_crop_and_resize":
            begin, end = self.roi
            return (begin + end) / 2 * last if length == 1 else begin * last + i * (end - begin) * last / (length - 1)
        if mode == "pytorch_half_pixel" and length == 1:
            return Fraction(0)
        centred = (i + HALF) / self.scale - HALF
        if mode == "half_pixel_symmetric":
            return Fraction(self.before, 2) * (1 - length / (self.scale * self.before)) + centred
        return centred


MODES = {
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
}
NEAREST: dict[str, Callable[[Fraction], int]] = {
    "round_prefer_floor": lambda x: math.ceil(x - HALF),
    "round_prefer_ceil": lambda x: math.floor(x + HALF),
    "floor": math.floor,
    "ceil": math.ceil,
}


def _linear(t: Array) -> Array:
    return np.maximum(1 - np.abs(t), 0.0)


def _cubic(a: float) -> Callable[[Array], Array]:
    def weights(t: Array) -> Array:
        t = np.abs(t)
        near = ((a + 2) * t - (a + 3)) * t * t + 1
        far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
        return np.where(t <= 1, near, np.where(t < 2, far, 0.0))

    return weights


def resize(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    x, mode = args[0], node.attrs.get("mode", "nearest")
    old = node.op == "Upsample" or node.opset < 11
    coordinates = node.attrs.get("coordinate_transformation_mode", "asymmetric" if old else "half_pixel")
    nearest = node.attrs.get("nearest_mode", "floor" if old else "round_prefer_floor")
    if mode not in ("nearest", "linear", "cubic") or coordinates not in MODES or nearest not in NEAREST:
        raise node.refuse(f"mode {mode!r} with {coordinates!r} and {nearest!r}, which ONNX does not have")
    integers = x.value.dtype.kind in "iub"
    if integers and mode != "nearest":
        raise node.refuse("integers are interpolated, which rounds")
    for axis in axes_of(node, args, old):
        if axis.before == axis.after and axis.scale == 1 and axis.roi == (0, 1):
            continue
        places = [axis.coordinate(coordinates, i) for i in range(axis.after)]
        if mode == "nearest":
            at = np.clip([NEAREST[nearest](p) for p in places], 0, axis.before - 1)
            x = x.moved(lambda a, at=at, n=axis.number: np.take(a, at, n))  # type: ignore[misc]
        else:
            x = _interpolated(x, axis, places, node)
        if coordinates == "tf_crop_and_resize":
            outside = np.array([p < 0 or p > axis.before - 1 for p in places])
            x = _filled(x, axis.number, outside, node.attrs.get("extrapolation_value", 0.0))
    return x


def _interpolated(x: Quantity, axis: Axis, places: Sequence[Fraction], node: Node) -> Quantity:
    """The errors of neighbours are added as deviations; an error of the coordinate moves the result by the span."""
    cubic = node.attrs["mode"] == "cubic"
    kernel, support = (_cubic(node.attrs.get("cubic_coeff_a", -0.75)), 2) if cubic else (_linear, 1)
    shrink = float(min(axis.scale, Fraction(1))) if node.attrs.get("antialias", 0) else 1.0
    base = np.array([math.floor(p) for p in places])
    within = np.array([float(p - b) for p, b in zip(places, base.tolist(), strict=True)])
    begin = math.floor(-support / shrink) + 1
    offsets = np.arange(begin, 2 - begin)
    weights = kernel((offsets - within[:, None]) * shrink)
    at = base[:, None] + offsets
    if node.attrs.get("exclude_outside", 0):
        weights = np.where((at < 0) | (at >= axis.before), 0.0, weights)
    weights /= weights.sum(1, keepdims=True)
    at = np.clip(at, 0, axis.before - 1)
    shape = (-1, *(1,) * (x.value.ndim - axis.number - 1))

    def total(a: Array, by: Array) -> Array:
        return np.sum([np.take(a, at[:, k], axis.number) * by[:, k].reshape(shape) for k in range(len(offsets))], 0)

    y = total(x.real, weights)
    size = total(np.abs(x.real), np.abs(weights))
    taps = [np.take(x.real, at[:, k], axis.number) for k in range(len(offsets))]
    span = np.maximum.reduce(taps) - np.minimum.reduce(taps)
    shift = COORDINATE * shrink * (1 + np.abs(np.array([float(p) for p in places]))).reshape(shape)
    deviation = math.sqrt(UNIT) * (shift * 2 * span + math.sqrt(len(offsets)) * size)
    if x.variance is not None:
        deviation = deviation + total(np.sqrt(x.variance), np.abs(weights))
    return rounded(y, deviation, 1.0, x)


def _filled(x: Quantity, axis: int, outside: Array, fill: float) -> Quantity:
    value = x.real.copy()
    cut: tuple[Any, ...] = (*(slice(None),) * axis, outside)
    value[cut] = fill
    variance = None if x.variance is None else x.variance.copy()
    if variance is not None:
        variance[cut] = 0.0
    return Quantity(value, variance, x.coherence)


def axes_of(node: Node, args: Args, old: bool) -> list[Axis]:
    given = [None if q is None or not q.value.size else q.value.tolist() for q in (*args[1:], *(None,) * 3)]
    roi, scales, sizes = (None, given[0] or node.attrs.get("scales"), None) if old else given[:3]
    shape = args[0].value.shape
    numbers = [a % len(shape) for a in node.attrs.get("axes") or range(len(shape))]
    parts = [(Fraction(0), Fraction(1))] * len(numbers)
    if roi and node.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        parts = [(meant(b), meant(e)) for b, e in zip(roi, roi[len(numbers) :], strict=False)]
    before = [shape[a] for a in numbers]
    wanted = sizes or scales
    if wanted is None or len(wanted) != len(numbers) or min(wanted) <= 0:
        raise node.refuse(f"scales {scales} and sizes {sizes} do not fit an input of shape {shape}")
    if sizes:
        factors = [Fraction(int(n), b) for n, b in zip(sizes, before, strict=True)]
        after = [int(n) for n in sizes]
        policy = node.attrs.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            factors = [(min if policy == "not_larger" else max)(factors)] * len(factors)
            after = [math.floor(f * b + HALF) for f, b in zip(factors, before, strict=True)]
    else:
        factors = [meant(s) for s in wanted]
        # As shape inference does it, in float32.
        after = [int(np.floor(np.float32(s) * np.float32(b))) for s, b in zip(wanted, before, strict=True)]
    return [Axis(*row) for row in zip(numbers, before, after, factors, parts, strict=True)]


def meant(number: float) -> Fraction:
    """The simplest fraction that is this number in float32: 3/5 for 0.6."""
    for limit in (16, 256, 4096, 65536):
        found = Fraction(number).limit_denominator(limit)
        if np.float32(found.numerator / found.denominator) == np.float32(number):
            return found
    return Fraction(number)


OPERATORS: dict[str, Operator] = {"Resize": resize, "Upsample": resize}
