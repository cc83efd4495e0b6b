"""What the frameworks share: checks of what goes in, the base of their executables, and layout questions.

Numpy only. The frameworks themselves stay one mapping table each over :data:`xframe.types.OPS`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xframe import zoo
from xframe.errors import UsageError
from xframe.types import Layer, ModelSpec, Profile, SiteRecord


class Network:
    """Base of the frameworks' executables: one input, one output, both canonical (NCHW) float32 numpy arrays.

    A subclass has ``bind``, ``step``, ``sync`` and ``fetch``.
    """

    sites: Sequence[SiteRecord] = ()  # frameworks do not tell which algorithm they picked

    def __init__(self, spec: ModelSpec, batch: int, environment: Mapping[str, Any], notes: Sequence[str] = ()):
        self.seconds: Mapping[str, float] = {}
        self.environment = environment
        self.notes = notes
        self._shape = (batch, *spec.input)

    def checked(self, feeds: list[Any]) -> np.ndarray:
        """The one feed. Raises UsageError when it is not a float32 array of the shape that was built."""
        if len(feeds) != 1 or feeds[0].shape != self._shape or feeds[0].dtype != np.float32:
            got = ", ".join(f"{x.dtype}{list(x.shape)}" for x in feeds) or "nothing"
            raise UsageError(f"this network was built for one float32{list(self._shape)} input and got {got}")
        return feeds[0]

    def profile(self, passes: int) -> list[Profile]:
        """None, unless a subclass can tell."""
        return []

    def close(self) -> None:
        """Drop the network and its tensors; what is known about it stays."""
        for name in [n for n in vars(self) if n.startswith("_")]:
            delattr(self, name)


def checked(spec: ModelSpec, weights: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The spec's weights as float32 arrays, each read once.

    Raises
    ------
    UsageError
        One is missing or has another shape than the spec asks for.
    """
    out = {}
    for name, shape in zoo.tensors(spec).items():
        if name not in weights:
            raise UsageError(f"model {spec.name}: the weights have no {name!r}; make them with zoo.weights(spec)")
        out[name] = np.asarray(weights[name], np.float32)
        if out[name].shape != shape:
            raise UsageError(f"model {spec.name}: {name} has shape {out[name].shape}, the spec needs {shape}")
    return out


def device_index(device: str) -> int | None:
    """``"cpu"`` -> None, ``"cuda"`` -> 0, ``"cuda:2"`` -> 2. Raises UsageError on anything else."""
    kind, colon, index = device.partition(":")
    if device == "cpu":
        return None
    if kind != "cuda" or (colon and not index.isdigit()):
        raise UsageError(f"unknown device {device!r}: use cpu, cuda or cuda:<index>")
    return int(index or 0)


def window_counts(item: Layer, in_hw: tuple[int, int]) -> np.ndarray:
    """How many non-padding pixels each window of a pooling covers: float32, (out height, out width)."""
    axes = []
    for n, k, s, before, after in zip(
        in_hw, item["kernel"], item["stride"], item["pads"][:2], item["pads"][2:], strict=True
    ):
        start = np.arange(0, n + before + after - k + 1, s) - before
        axes.append(np.minimum(start + k, n) - np.maximum(start, 0))
    return np.outer(*axes).astype(np.float32)


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
