"""What the frameworks of this environment share: layout questions, and all of :mod:`xframe.frameworks.shapes`.

Numpy only. The frameworks themselves stay one mapping table each over :data:`xframe.types.OPS`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from xframe import zoo
from xframe.frameworks.shapes import Network, checked, device_index, window_counts
from xframe.types import ModelSpec

__all__ = [
    "Network",
    "absorbed_flattens",
    "channels_last",
    "channels_last_shape",
    "checked",
    "device_index",
    "to_canonical",
    "to_channels_last",
    "window_counts",
]


def absorbed_flattens(spec: ModelSpec) -> dict[str, str]:
    """fc -> the flatten whose columns it counts, where a channels-last framework can permute the fc's weights instead
    of the data: the flatten is read, possibly through dropout and relu, by fc layers only. Other flattens need a
    transpose to CHW."""
    sources = spec.sources()
    ops = {x.name: x.op for x in spec.layers}
    origin: dict[str, str] = {}
    readers: dict[str, list[str]] = {}
    for item in spec.layers:
        source = sources[item.name][0]
        if item.op == "flatten" and ops.get(source) != "flatten":
            origin[item.name] = item.name
        elif item.op in ("dropout", "relu", "relu6") and source in origin:
            origin[item.name] = origin[source]
        for s in sources[item.name]:
            if s in origin and origin.get(item.name) != origin[s]:
                readers.setdefault(origin[s], []).append(item.name)
    last = origin.get(spec.layers[-1].name)
    return {
        fc: flatten
        for flatten, names in readers.items()
        if flatten != last and all(ops[n] == "fc" for n in names)
        for fc in names
    }


def channels_last(spec: ModelSpec, weights: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Weights as a channels-last framework stores them: convolutions HWIO, fc [in, out] with the rows in HWC order
    where :func:`absorbed_flattens` says so. Raises UsageError as :func:`checked` does."""
    out = checked(spec, weights)
    absorbed, sources, shapes = absorbed_flattens(spec), spec.sources(), zoo.shapes(spec, 1)
    for item in spec.layers:
        name = f"{item.name}.weight"
        if item.op == "conv":
            out[name] = np.ascontiguousarray(out[name].transpose(2, 3, 1, 0))
        elif item.op == "fc":
            w = out[name].T
            image = shapes[sources[absorbed[item.name]][0]][1:] if item.name in absorbed else ()
            if len(image) == 3:
                w = w.reshape(*image, -1).transpose(1, 2, 0, 3).reshape(w.shape)
            out[name] = np.ascontiguousarray(w)
    return out


def to_channels_last(x: np.ndarray) -> np.ndarray:
    """NCHW -> NHWC."""
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1))


def channels_last_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape (N, C, H, W) as (N, H, W, C)."""
    return (shape[0], *shape[2:], shape[1])


def to_canonical(x: np.ndarray) -> np.ndarray:
    """NHWC -> NCHW; anything but an image passes through."""
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if x.ndim == 4 else x
