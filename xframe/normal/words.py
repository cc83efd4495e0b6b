"""In what two layers that correspond differ, in sentences that a user can act on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from xframe.equivalence.result import Difference
from xframe.normal import weights_words
from xframe.normal.steps import Step

ACTIVATIONS = {
    *("Relu", "LeakyRelu", "PRelu", "Elu", "Selu", "Celu", "Gelu", "Clip", "Sigmoid", "Tanh", "HardSigmoid"),
    *("HardSwish", "Swish", "Mish", "Softplus", "Softsign", "ThresholdedRelu", "Erf", "Softmax", "LogSoftmax"),
}
POOLS = {
    **{"MaxPool": "maximum", "GlobalMaxPool": "maximum", "ReduceMax": "maximum", "LpPool": "norm"},
    **{"AveragePool": "average", "GlobalAveragePool": "average", "ReduceMean": "average", "ReduceSum": "sum"},
}
MULTIPLES = {2: "twice", 3: "three times", 4: "four times", 5: "five times", 7: "seven times", 9: "nine times"}
ORDINALS = ("first", "second", "third", *(f"{n}th" for n in range(4, 1000)))
PLURALS = {"bias": "biases", "constant": "constants"} | {r: f"{r}s" for r in ("scale", "shift", "mean", "variance")}
TYPES = {1: "float32", 6: "int32", 7: "int64", 9: "bool", 10: "float16", 11: "float64", 16: "bfloat16"}


@dataclass(frozen=True)
class Layer:
    """A layer that both subjects have, for the sentences about it. ``image``: what was flattened before a product."""

    a: Step
    b: Step
    names: tuple[str, str]
    image: tuple[int, ...] = ()

    @property
    def where(self) -> str:
        return self.a.title

    @property
    def title(self) -> str:
        """Its name, with that of the other file where it has another."""
        other = "" if self.a.title == self.b.title else f" ({self.b.title} in {self.names[1]})"
        return self.a.title + other

    def says(self, kind: str, first: str, second: str, why: str = "", harmless: bool = False) -> Difference:
        """ "conv1 FIRST in A, and SECOND in B: WHY"."""
        text = f"{self.title} {first} in {self.names[0]}, and {second} in {self.names[1]}"
        return Difference(kind, self.where, text + (f": {why}" if why else ""), harmless)


def of_layer(layer: Layer) -> tuple[Difference, ...]:
    """Every difference in operator, settings and weights; what the two read is not looked at."""
    if layer.a.op != layer.b.op:
        return (_operators(layer),)
    found = (*_settings(layer), *_weights(layer))
    if not found and layer.a.places != layer.b.places and len(layer.a.data) == len(layer.b.data):
        first, second = (f"the {' and '.join(ORDINALS[i] for i in s.places[:4])} operand" for s in (layer.a, layer.b))
        return (layer.says("structure", f"has its data as {first} of {layer.a.op}", f"as {second}"),)
    return found


def _operators(layer: Layer) -> Difference:
    a, b = layer.a, layer.b
    if a.op in POOLS and b.op in POOLS and POOLS[a.op] != POOLS[b.op]:
        return layer.says("pooling", f"takes the {POOLS[a.op]}", f"the {POOLS[b.op]}")
    kind = "structure"
    if {a.op, b.op} <= ACTIVATIONS:
        kind = "clip" if {a.op, b.op} == {"Relu", "Clip"} else "activation"
    elif "BatchNormalization" in (a.op, b.op):
        kind = "batch normalisation"
    return layer.says(kind, f"is {described(a)}", described(b))


def described(step: Step) -> str:
    """An operator with the numbers that make it what it is: "LeakyRelu with a slope of 0.01 below zero"."""
    values = step.settings
    if step.op == "LeakyRelu":
        return f"LeakyRelu with a slope of {_number(values['alpha'])} below zero"
    if step.op == "Clip":
        return _limits(step)
    if step.op == "Gelu":
        return _gelu(step)
    return step.op


def _gelu(step: Step) -> str:
    return "Gelu approximated by tanh" if step.settings["approximate"] == "tanh" else "exact Gelu (erf)"


def _limits(step: Step) -> str:
    low, high = (step.settings.get(key, default) for key, default in (("min", -math.inf), ("max", math.inf)))
    if low == -math.inf or high == math.inf:
        side = f"above {_number(high)}" if low == -math.inf else f"below {_number(low)}"
        return f"Clip of what is {side}" if math.isfinite(low) or math.isfinite(high) else "Clip without limits"
    return f"Clip to {_number(low)} .. {_number(high)}"


def _settings(layer: Layer) -> Iterator[Difference]:
    a, b = layer.a.settings, layer.b.settings
    changed = [k for k in (*a, *(k for k in b if k not in a)) if a.get(k) != b.get(k)]
    if layer.a.op == "Clip" and changed:
        yield layer.says("clip", f"is {_limits(layer.a)}", _limits(layer.b))
        return
    for key in changed:
        special = SPECIAL.get((layer.a.op, key)) or SPECIAL.get(("", key))
        if special is not None and key in a and key in b:
            yield special(layer, a.get(key), b.get(key))
            continue
        kind, phrase = PHRASES.get((layer.a.op, key)) or PHRASES.get(("", key)) or ("attribute", f"has {key} {{}}")
        first, second = (_value(x.get(key), key in SIZES) for x in (a, b))
        yield layer.says(kind, phrase.format(first), second)


def _padding(layer: Layer, a: tuple[int, ...], b: tuple[int, ...]) -> Difference:
    half = len(a) // 2
    if len(a) == 4 and len(b) == 4 and any(a):
        first = "top {}, left {}, bottom {}, right {}".format(*a)
    else:
        first = _list(a) if any(a) else "nothing"
    return layer.says("padding", f"pads {first}", _list(b) if any(b) else "nothing", _padding_why(layer, a, b, half))


def _padding_why(layer: Layer, a: tuple[int, ...], b: tuple[int, ...], half: int) -> str:
    if len(a) != len(b):
        return ""
    sizes = ["x".join(map(str, s.shape[2:])) for s in (layer.a, layer.b)]
    if layer.a.op in POOLS and a[:half] == b[:half] and sizes[0] != sizes[1]:
        return f"an output of {sizes[0]} against {sizes[1]}, as with ceil_mode (or TensorFlow's SAME) in the one alone"
    if b == (*a[half:], *a[:half]) and a != b:
        return "the odd pixel of SAME is at the other end (SAME_UPPER against SAME_LOWER)"
    if half == 2 and b in ((a[0], a[2], a[1], a[3]), (a[1], a[3], a[0], a[2]), (a[0], a[1], a[3], a[2])):
        return "the same four numbers, read in another order"
    ends = {pads: [e - s for s, e in zip(pads[:half], pads[half:], strict=True)] for pads in (a, b)}
    odd = [i for i, pads in enumerate((a, b)) if any(ends[pads])]
    if len(odd) == 1 and set(ends[(a, b)[odd[0]]]) <= {0, 1}:
        if any((a, b)[1 - odd[0]]):
            return "TensorFlow's SAME puts the odd pixel at the end"
        return f"{layer.names[odd[0]]} pads as TensorFlow's SAME does, the odd pixel at the end; the other not at all"
    return ""


def _lrn_alpha(layer: Layer, a: float, b: float) -> Difference:
    size = layer.a.settings.get("size") or 0
    ratio = b / a if a and b else 0.0
    times = MULTIPLES.get(size, f"{size} times")
    why = ""
    if size > 1 and math.isclose(ratio, size, rel_tol=1e-5):
        why = f"{times} as much, its size: one divides alpha by the window's size and the other does not"
    elif size > 1 and math.isclose(ratio * size, 1, rel_tol=1e-5):
        why = f"the first is {times} as much, its size: one divides alpha by the window's size and the other does not"
    return layer.says("LRN", f"has alpha {_number(a)}", _number(b), why)


def _lrn_size(layer: Layer, a: int, b: int) -> Difference:
    small, large = sorted((a or 0, b or 0))
    why = "the one is the radius of the other (TensorFlow's depth_radius)" if large == 2 * small + 1 else ""
    return layer.says("LRN", f"has a window of {a} channels", f"of {b}", why)


def _epsilon(layer: Layer, a: float, b: float) -> Difference:
    why = "the defaults of Keras and of PyTorch" if sorted((_number(a), _number(b))) == ["0.001", "1e-05"] else ""
    return layer.says("epsilon", f"adds epsilon {_number(a)} to the variance", _number(b), why)


def _training(layer: Layer, a: int, b: int) -> Difference:
    """Dropout and batch normalisation, which compute something else in training."""
    if layer.a.op == "Dropout":
        kind, on, off = (
            "dropout in training mode",
            "drops elements at random (training mode)",
            "keeps them all (inference)",
        )
    else:
        kind, on = "batch normalisation", "normalises by the statistics of its batch (training mode)"
        off = "normalises by stored statistics (inference)"
    return layer.says(kind, *((on, off) if a else (off, on)))


def _softmax_axis(layer: Layer, a: int, b: int) -> Difference:
    last = len(layer.a.shape) - 1
    old = "the default was axis 1 before opset 13, and is the last one since"
    return layer.says(
        "softmax axis", f"normalises along axis {a}", f"along axis {b}", old if {a, b} == {1, last} else ""
    )


def _ceil(layer: Layer, a: int, b: int) -> Difference:
    sizes = ["x".join(map(str, s.shape[2:])) for s in (layer.a, layer.b)]
    words = [
        f"{'up' if mode else 'down'}{f' to {size}' if size else ''}" for mode, size in zip((a, b), sizes, strict=True)
    ]
    return layer.says("pooling", f"rounds the size of its output {words[0]}", words[1], "ceil_mode")


def _count_pads(layer: Layer, a: int, b: int) -> Difference:
    if a:
        return layer.says("pooling", "counts the padding in its averages", "does not (count_include_pad)")
    return layer.says("pooling", "leaves the padding out of its averages", "counts it (count_include_pad)")


def _cast(layer: Layer, a: int, b: int) -> Difference:
    return layer.says("precision", f"casts to {TYPES.get(a, a)}", f"to {TYPES.get(b, b)}")


def _approximate(layer: Layer, a: str, b: str) -> Difference:
    return layer.says("activation", f"is {_gelu(layer.a)}", _gelu(layer.b))


SPECIAL: dict[tuple[str, str], Callable[[Layer, Any, Any], Difference]] = {
    ("Conv", "pads"): _padding,
    ("ConvTranspose", "pads"): _padding,
    ("MaxPool", "pads"): _padding,
    ("AveragePool", "pads"): _padding,
    ("LRN", "alpha"): _lrn_alpha,
    ("LRN", "size"): _lrn_size,
    ("", "epsilon"): _epsilon,
    ("", "training_mode"): _training,
    ("Softmax", "axis"): _softmax_axis,
    ("LogSoftmax", "axis"): _softmax_axis,
    ("", "ceil_mode"): _ceil,
    ("", "count_include_pad"): _count_pads,
    ("Cast", "to"): _cast,
    ("Gelu", "approximate"): _approximate,
}
#: Settings that are written as 3x3.
SIZES = {"kernel_shape", "strides", "dilations", "shape", "sizes"}
#: Kind, and how the first value is told; the second stands alone.
PHRASES: dict[tuple[str, str], tuple[str, str]] = {
    ("", "kernel_shape"): ("kernel", "has a window of {}"),
    ("", "strides"): ("stride", "has a stride of {}"),
    ("", "dilations"): ("dilation", "has a dilation of {}"),
    ("", "group"): ("groups", "has groups: {}"),
    ("", "output_padding"): ("padding", "pads its output by {}"),
    ("LRN", "beta"): ("LRN", "has beta {}"),
    ("LRN", "bias"): ("LRN", "has bias (k) {}"),
    ("LeakyRelu", "alpha"): ("activation", "has a slope below zero of {}"),
    ("Elu", "alpha"): ("activation", "has alpha {}"),
    ("HardSigmoid", "alpha"): ("activation", "has a slope of {}"),
    ("HardSigmoid", "beta"): ("activation", "has beta {}"),
    ("Gemm", "alpha"): ("weights", "multiplies its product by {}"),
    ("Gemm", "beta"): ("bias", "multiplies its bias by {}"),
    ("Pad", "pads"): ("padding", "pads {}"),
    ("Pad", "value"): ("padding", "pads with {}"),
    ("Pad", "mode"): ("padding", "pads in mode {}"),
    ("Transpose", "perm"): ("layout", "transposes by {}"),
    ("Reshape", "shape"): ("layout", "gives the shape {}"),
    ("Concat", "axis"): ("layout", "concatenates along axis {}"),
    ("Split", "axis"): ("layout", "splits along axis {}"),
    ("DepthToSpace", "mode"): ("layout", "orders its blocks by {}"),
    ("Resize", "mode"): ("resize", "interpolates by {}"),
    ("Resize", "coordinate_transformation_mode"): ("resize", "has the coordinate transformation {}"),
    ("Resize", "nearest_mode"): ("resize", "rounds to the nearest pixel by {}"),
    ("Resize", "cubic_coeff_a"): ("resize", "has the cubic coefficient {}"),
    ("Resize", "scales"): ("resize", "scales by {}"),
    ("Resize", "sizes"): ("resize", "gives the size {}"),
    ("Resize", "antialias"): ("resize", "has antialias {}"),
}


def _weights(layer: Layer) -> Iterator[Difference]:
    a, b = layer.a.constants, layer.b.constants
    for role in (*a, *(r for r in b if r not in a)):
        if role not in a or role not in b:
            yield _one_sided(layer, role)
        elif a[role].digest != b[role].digest:
            zero = [not np.any(w.array) for w in (a[role], b[role])]
            if role == "bias" and any(zero):  # the normal form gives every layer a bias
                yield layer.says(
                    "bias", *(("has no bias", "one") if zero[0] else ("has a bias", "none")), "", all(zero)
                )
            else:
                yield from _compared(layer, role)


def _one_sided(layer: Layer, role: str) -> Difference:
    """A bias, or another constant, that only one has; a bias of zeros is none."""
    what = "a bias" if role == "bias" else f"weights ({role})"
    array = layer.a.constants[role].array if role in layer.a.constants else layer.b.constants[role].array
    zero = role == "bias" and not np.any(array)
    kind = "bias" if role == "bias" else "weights"
    why = "it is zero everywhere" if zero else ""
    return layer.says(kind, *((f"has {what}", "none") if role in layer.a.constants else ("has none", what)), why, zero)


def _compared(layer: Layer, role: str) -> Iterator[Difference]:
    x, y = layer.a.constants[role], layer.b.constants[role]
    a, b = (_outputs_first(s, role, w.array) for s, w in ((layer.a, x), (layer.b, y)))
    convolution = layer.a.op in ("Conv", "ConvTranspose") and role == "weights"
    if convolution and a.ndim == b.ndim and a.shape[2:] != b.shape[2:]:
        first, second = ("x".join(map(str, v.shape[2:])) for v in (a, b))
        if sorted(a.shape) != sorted(b.shape):
            yield layer.says("kernel", f"has a kernel of {first}", f"of {second}")
            return
    found = weights_words.diagnose(
        a,
        b,
        spatial=convolution,
        image=layer.image if role == "weights" else (),
        rows="filters" if convolution else "outputs" if role == "weights" else "rows",
        folded=bool(_folds(x.how) or _folds(y.how)),
    )
    kind = role if role in ("weights", "bias") else "weights"
    if layer.a.op.endswith("Normalization"):
        kind = "batch normalisation"
    text = f"{layer.title}: {PLURALS.get(role, role)} {weights_words.renamed(found, layer.names).words}"
    made = [f"those of {name}: {', '.join(w.how)}" for name, w in zip(layer.names, (x, y), strict=True) if w.how]
    text += f" ({'; '.join(made)})" if made else ""
    yield Difference(found.kind or kind, layer.where, text, found.harmless)


def _folds(how: tuple[str, ...]) -> bool:
    return any(word in step for step in how for word in ("scaled", "folded", "merged", "shifted", "added"))


def _outputs_first(step: Step, role: str, array: np.ndarray) -> np.ndarray:
    """A product's weights as [out, in]."""
    product = step.op == "MatMul" or (step.op == "Gemm" and not step.settings.get("transB"))
    return array.T if role == "weights" and product and array.ndim == 2 and step.places == (0,) else array


def _value(value: Any, size: bool) -> str:
    if isinstance(value, tuple):
        return "x".join(map(str, value)) if size else _list(value)
    return "nothing" if value is None else _number(value) if isinstance(value, float) else str(value)


def _list(values: tuple[Any, ...]) -> str:
    return ", ".join(_number(v) if isinstance(v, float) else str(v) for v in values)


def _number(value: float) -> str:
    return f"{value:.6g}"
