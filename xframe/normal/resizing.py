"""The rule of ``Resize`` and ``Upsample``: of all modes that read the same pixels, one choice."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from xframe.equivalence.bounds import Quantity
from xframe.equivalence.graph import Node
from xframe.equivalence.resizing import MODES, NEAREST, Axis, axes_of
from xframe.normal.form import Weight
from xframe.normal.pointwise import same
from xframe.normal.trace import Operand, Rule, Trace

Args = list[Any]

#: In the order in which they are preferred.
PREFERRED = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric")
ROUNDED = ("round_prefer_floor", "floor", "round_prefer_ceil", "ceil")
DEFAULTS = {
    "antialias": 0, "cubic_coeff_a": -0.75, "exclude_outside": 0, "extrapolation_value": 0.0,
    "keep_aspect_ratio_policy": "stretch", "nearest_mode": "round_prefer_floor",
}  # fmt: skip


def resize(t: Trace, node: Node, args: Args) -> Operand:
    old = node.op == "Upsample" or node.opset < 11
    mode = node.attrs.get("mode", "nearest")
    how = node.attrs.get("coordinate_transformation_mode", "asymmetric" if old else "half_pixel")
    rounding = node.attrs.get("nearest_mode", "floor" if old else "round_prefer_floor")
    given = [a for a in args[1:] if a is not None]
    known = (
        how in MODES and rounding in NEAREST and how != "tf_crop_and_resize" and mode in ("nearest", "linear", "cubic")
    )
    if not known or not all(isinstance(a, Weight) for a in given):
        return t.other(args)[0]
    shape = t.shape(args[0])
    stand = Quantity(np.broadcast_to(np.float32(0), shape))
    operands: list[Any] = [stand, *(None if a is None else Quantity(a.array) for a in args[1:])]
    axes = axes_of(node, operands, old)
    sizes = list(shape)
    for a in axes:
        sizes[a.number] = a.after
    wanted = [_reads(a, mode, how, rounding) for a in axes]
    if all(w == _reads(_still(a), mode, "asymmetric", "floor") for a, w in zip(axes, wanted, strict=True)):
        return same(t, node, args)
    attrs = {**DEFAULTS, "mode": mode, **{k: node.attrs[k] for k in DEFAULTS if k in node.attrs}}
    shrinks = bool(attrs["antialias"]) and any(a.after < a.before for a in axes)
    attrs |= {"antialias": int(shrinks and mode != "nearest"), "extrapolation_value": 0.0}
    attrs |= {"keep_aspect_ratio_policy": "stretch", "nearest_mode": rounding if mode == "nearest" else ROUNDED[0]}
    if mode != "cubic":
        attrs |= {"cubic_coeff_a": -0.75, "exclude_outside": int(attrs["exclude_outside"] and shrinks)}
    target: list[str | Weight] = ["", "", Weight(np.array(sizes, np.int64))]
    if shrinks or mode == "cubic":
        choices = [(how, rounding)] if all(a.scale == Fraction(a.after, a.before) for a in axes) else []
    else:
        choices = [
            (h, r)
            for h in PREFERRED
            for r in (ROUNDED if mode == "nearest" else ROUNDED[:1])
            if all(_reads(_plain(a), mode, h, r) == w for a, w in zip(axes, wanted, strict=True))
        ]
    if choices:
        if mode == "nearest" and choices[0] != (how, rounding):
            t.note(f"{how} with {rounding} picks the same pixels as {choices[0][0]} with {choices[0][1]}")
        how, attrs["nearest_mode"] = choices[0][0], choices[0][1] if mode == "nearest" else ROUNDED[0]
    else:  # the scales are not those of the sizes
        scales = np.ones(len(shape), np.float32)
        for a in axes:
            scales[a.number] = float(a.scale)
        target = ["", Weight(scales)]
    attrs["coordinate_transformation_mode"] = how
    return t.emit("Resize", [t.plain(args[0]), *target], attrs, tuple(sizes))


def _plain(axis: Axis) -> Axis:
    """The same, its scale that of the sizes."""
    return Axis(axis.number, axis.before, axis.after, Fraction(axis.after, axis.before))


def _still(axis: Axis) -> Axis:
    """Each output its own input."""
    return Axis(axis.number, axis.before, axis.before, Fraction(1))


def _reads(axis: Axis, mode: str, how: str, rounding: str) -> list:
    """Where each output reads: the pixel, or the place between two."""
    places = [axis.coordinate(how, i) for i in range(axis.after)]
    if mode == "nearest":
        return [min(max(NEAREST[rounding](p), 0), axis.before - 1) for p in places]
    return [min(max(p, Fraction(0)), Fraction(axis.before - 1)) for p in places] if mode == "linear" else places


RULES: dict[str, Rule] = {"Resize": resize, "Upsample": resize}
