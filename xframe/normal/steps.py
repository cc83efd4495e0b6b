"""The nodes of a normal form as they are compared: what is a number, what is a weight, and what is data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np

from xframe.equivalence.graph import Node
from xframe.normal.form import Normal, Weight

#: Operators for which the order of their inputs does not matter.
COMMUTATIVE = {"Add", "Mul", "Sum", "Max", "Min", "Mean", "And", "Or", "Xor", "Equal"}
#: The same values in the same order under another shape: what they do is told by the shape alone.
RESHAPES = {"Reshape", "Flatten", "Squeeze", "Unsqueeze"}
#: Operators that slide a window.
WINDOWED = {"Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool"}

#: What an attribute is when it is absent.
DEFAULTS: dict[str, dict[str, Any]] = {
    "Conv": {"group": 1},
    "ConvTranspose": {"group": 1},
    "MaxPool": {"ceil_mode": 0},
    "AveragePool": {"ceil_mode": 0, "count_include_pad": 0},
    "Gemm": {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0},
    "LRN": {"alpha": 1e-4, "beta": 0.75, "bias": 1.0},
    "BatchNormalization": {"epsilon": 1e-5, "training_mode": 0},
    "InstanceNormalization": {"epsilon": 1e-5},
    "LayerNormalization": {"epsilon": 1e-5, "axis": -1},
    "GroupNormalization": {"epsilon": 1e-5},
    "LeakyRelu": {"alpha": 0.01},
    "Elu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "Gelu": {"approximate": "none"},
    "Clip": {"min": -np.inf, "max": np.inf},
    "Dropout": {"training_mode": 0},
    "Gather": {"axis": 0},
    "Split": {"axis": 0},
    "Pad": {"mode": "constant", "value": 0.0},
    "Resize": {
        "mode": "nearest",
        "coordinate_transformation_mode": "half_pixel",
        "nearest_mode": "round_prefer_floor",
        "cubic_coeff_a": -0.75,
        "exclude_outside": 0,
        "extrapolation_value": 0.0,
        "antialias": 0,
    },
    "DepthToSpace": {"mode": "DCR"},
    **{f"Reduce{kind}": {"keepdims": 1} for kind in ("Mean", "Sum", "Max", "Min", "Prod", "L2")},
}
#: Attributes that do not change what an operator computes at inference, or that the rest tells already.
IDLE = {
    "Conv": {"kernel_shape", "auto_pad"},
    "ConvTranspose": {"kernel_shape", "auto_pad"},
    "MaxPool": {"storage_order", "auto_pad"},
    "AveragePool": {"auto_pad"},
    "BatchNormalization": {"momentum", "spatial", "is_test"},
    "Dropout": {"seed"},
}
#: Inputs that are numbers of the operator wherever they are constants, by position.
PARAMETERS: dict[str, tuple[str, ...]] = {
    "Clip": ("min", "max"),
    "Pad": ("pads", "value", "axes"),
    "Slice": ("starts", "ends", "axes", "steps"),
    "Resize": ("roi", "scales", "sizes"),
    "Upsample": ("scales",),
    "Split": ("split",),
    "Expand": ("shape",),
    "Tile": ("repeats",),
    "Dropout": ("ratio", "training_mode"),
    "Pow": ("exponent",),
    **{name: ("shape",) for name in RESHAPES},
    **{f"Reduce{kind}": ("axes",) for kind in ("Mean", "Sum", "Max", "Min", "Prod", "L2")},
}
#: What the constants of an operator are called, by position.
ROLES: dict[str, tuple[str, ...]] = {
    "Conv": ("", "weights", "bias"),
    "ConvTranspose": ("", "weights", "bias"),
    "Gemm": ("weights", "weights", "bias"),
    "MatMul": ("weights", "weights"),
    "BatchNormalization": ("", "scale", "shift", "mean", "variance"),
    "InstanceNormalization": ("", "scale", "shift"),
    "LayerNormalization": ("", "scale", "shift"),
    "GroupNormalization": ("", "scale", "shift"),
    "PRelu": ("", "slope"),
    "Gather": ("table", "indices"),
}
#: Constants larger than this are weights whatever they are given to.
FEW = 64


@dataclass(frozen=True)
class Step:
    """One node. ``settings``: its attributes and constant parameters, defaults filled in; ``constants``: its weights by
    role; ``data``: what it reads of other nodes, in order, and ``places``: where among its inputs."""

    node: Node
    op: str
    settings: Mapping[str, Any]
    constants: Mapping[str, Weight]
    data: tuple[str, ...]
    places: tuple[int, ...]
    shape: tuple[int, ...]
    title: str

    @cached_property
    def exact(self) -> tuple[Any, ...]:
        """Equal for nodes that compute the same of equal data."""
        weights = tuple((role, weight.digest) for role, weight in self.constants.items())
        return (self.op, tuple(sorted(self.settings.items(), key=lambda item: item[0])), weights, self.places)

    @cached_property
    def weight_shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(w.array.shape for w in self.constants.values())


class Steps:
    """The steps of a normal form in topological order, and which reads which; inputs of the graph are -1, -2, ..."""

    def __init__(self, normal: Normal):
        self.normal = normal
        nodes = normal.graph.needed()
        self.steps = [_step(node, normal) for node in nodes]
        self.maker: dict[str, tuple[int, int]] = {name: (-1 - i, 0) for i, name in enumerate(normal.graph.inputs)}
        self.maker |= {name: (i, j) for i, node in enumerate(nodes) for j, name in enumerate(node.outputs) if name}
        self.producers = [[self.maker[name][0] for name in s.data if name in self.maker] for s in self.steps]
        self.consumers: list[list[int]] = [[] for _ in nodes]
        for i, makers in enumerate(self.producers):
            for maker in dict.fromkeys(makers):
                if maker >= 0:
                    self.consumers[maker].append(i)

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, index: int) -> Step:
        return self.steps[index]

    @cached_property
    def reach(self) -> tuple[np.ndarray, np.ndarray]:
        """``above[i, j]``: node i depends on node j; ``below[i, j]``: j on i. Bool, [nodes, nodes]."""
        above = np.zeros((len(self), len(self)), bool)
        for i, makers in enumerate(self.producers):
            for maker in makers:
                if maker >= 0:
                    above[i] |= above[maker]
                    above[i, maker] = True
        return above, above.T.copy()

    def title(self, index: int) -> str:
        """What to call a node, or an input of the graph (below zero)."""
        return self.steps[index].title if index >= 0 else f"input {self.normal.graph.inputs[-1 - index]}"


def classes(first: Steps, second: Steps) -> tuple[list[int], list[int]]:
    """One number for each node of both; equal numbers are the same computation, from the graph's inputs on."""
    numbers: dict[Any, int] = {}
    fresh = count()

    def of(steps: Steps) -> list[int]:
        found: list[int] = []
        for step in steps.steps:
            made = [steps.maker.get(name, (None, name)) for name in step.data]
            sources: list[Any] = [(found[i], j) if i is not None and i >= 0 else (i, j) for i, j in made]
            if step.op in COMMUTATIVE:
                sources.sort(key=repr)
            key = (step.exact, tuple(sources))
            if key not in numbers:
                numbers[key] = next(fresh)
            found.append(numbers[key])
        return found

    return of(first), of(second)


def _step(node: Node, normal: Normal) -> Step:
    settings = {k: _plain(v) for k, v in node.attrs.items() if k not in IDLE.get(node.op, ())}
    constants: dict[str, Weight] = {}
    data: dict[int, str] = {}
    names, roles = PARAMETERS.get(node.op, ()), ROLES.get(node.op, ())
    for i, name in enumerate(node.inputs):
        weight = _constant(normal, name)
        parameter = names[i - 1] if 1 <= i <= len(names) else ""
        if weight is None:
            data |= {i: name} if name else {}
        elif parameter and weight.array.size <= FEW:
            settings |= {parameter: _plain(weight.array)} if weight.array.size else {}
        else:
            role = roles[i] if i < len(roles) and roles[i] else "constant"
            constants[role if role not in constants else f"{role} {i}"] = weight
    shape = tuple(normal.shapes.get(node.outputs[0], ()))
    rank = len(normal.shapes.get(node.inputs[0], ())) if node.inputs else 0
    op = "Reshape" if node.op in RESHAPES and shape else node.op
    settings = {"shape": shape} if op != node.op or op in RESHAPES else settings
    for key, value in _defaults(node, rank, constants):
        settings.setdefault(key, _plain(value))
    _tidy(op, settings, rank)
    places = tuple(range(len(data))) if op in COMMUTATIVE else tuple(data)
    title = _title(normal.sources.get(node.name) or (node.name,))
    return Step(node, op, settings, constants, tuple(data.values()), places, shape, title)


def _tidy(op: str, settings: dict[str, Any], rank: int) -> None:
    """Drop numbers that play no part beside the others, and write the rest in one way."""
    if isinstance(settings.get("axis"), int) and settings["axis"] < 0:
        settings["axis"] += rank
    if isinstance(settings.get("axes"), tuple) and rank:
        axes = [a % rank for a in settings["axes"]]
        settings["axes"] = tuple(sorted(axes) if op.startswith("Reduce") else axes)
    mode, idle = settings.get("mode"), set[str]()
    if op == "Clip":
        settings |= {k: v if abs(v) < 3.4e38 else math.copysign(math.inf, v) for k, v in settings.items()}
    elif op == "Pad" and mode != "constant":
        idle = {"value"}
    elif op in ("Resize", "Upsample"):
        idle = {"nearest_mode"} if mode != "nearest" else {"antialias"}
        idle |= {"cubic_coeff_a"} if mode != "cubic" else set()
        if settings.get("coordinate_transformation_mode") != "tf_crop_and_resize":
            idle |= {"roi", "extrapolation_value"}
    elif op == "Dropout" and not settings["training_mode"]:
        idle = {"ratio"}
    for key in idle:
        settings.pop(key, None)


def _defaults(node: Node, rank: int, constants: Mapping[str, Weight]) -> Iterator[tuple[str, Any]]:
    yield from DEFAULTS.get(node.op, {}).items()
    spatial = max(rank - 2, 0) or max(constants["weights"].array.ndim - 2 if "weights" in constants else 0, 0)
    if node.op in WINDOWED:
        yield from (("strides", (1,) * spatial), ("pads", (0,) * 2 * spatial), ("dilations", (1,) * spatial))
    elif node.op in ("Softmax", "LogSoftmax", "Hardmax"):
        yield "axis", 1 if node.opset < 13 else -1


def _constant(normal: Normal, name: str) -> Weight | None:
    if name in normal.weights:
        return normal.weights[name]
    array = normal.graph.constants.get(name)
    return None if array is None else Weight(array)


def _title(sources: Sequence[str]) -> str:
    return " + ".join(sources) if len(sources) <= 3 else f"{sources[0]} ... {sources[-1]}"


def _plain(value: Any) -> Any:
    """Hashable, floats as the float32 that ONNX stores: 1e-4 in any spelling is one number."""
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, float | np.floating):
        return float(np.float32(value))
    if isinstance(value, list | tuple):
        return tuple(_plain(v) for v in value)
    if isinstance(value, bool | np.bool_ | np.integer):
        return int(value)
    return value
