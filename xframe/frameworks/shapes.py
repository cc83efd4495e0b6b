"""What every framework's plugin needs of a spec and its weights: checks of what goes in, the base of its executables.

Numpy only, and written for Python 3.6 upwards, so that the plugins of old frameworks have it too.
"""

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from xframe.errors import Unavailable, UsageError
from xframe.geometry import shapes, sites, tensors
from xframe.types import Layer, ModelSpec, Profile, SiteRecord

__all__ = ["Network", "checked", "cpu_only", "device_index", "shapes", "sites", "tensors", "window_counts"]


class Network:
    """Base of the frameworks' executables: one input, one output, both canonical (NCHW) float32 numpy arrays.

    A subclass has ``bind``, ``step``, ``sync`` and ``fetch``.
    """

    sites: Sequence[SiteRecord] = ()  # frameworks do not tell which algorithm they picked

    def __init__(self, spec: ModelSpec, batch: int, environment: Mapping[str, Any], notes: Sequence[str] = ()) -> None:
        self.seconds: Mapping[str, float] = {}
        self.environment = environment
        self.notes = notes
        self._shape = (batch, *spec.input)

    def checked(self, feeds: List[Any]) -> np.ndarray:
        """The one feed. Raises UsageError when it is not a float32 array of the shape that was built."""
        if len(feeds) != 1 or feeds[0].shape != self._shape or feeds[0].dtype != np.float32:
            got = ", ".join(f"{x.dtype}{list(x.shape)}" for x in feeds) or "nothing"
            raise UsageError(f"this network was built for one float32{list(self._shape)} input and got {got}")
        return feeds[0]

    def profile(self, passes: int) -> List[Profile]:
        """None, unless a subclass can tell."""
        return []

    def close(self) -> None:
        """Drop the network and its tensors; what is known about it stays."""
        for name in [n for n in vars(self) if n.startswith("_")]:
            delattr(self, name)


def checked(spec: ModelSpec, weights: Mapping[str, Any]) -> Dict[str, np.ndarray]:
    """The spec's weights as float32 arrays, each read once.

    Raises
    ------
    UsageError
        One is missing or has another shape than the spec asks for.
    """
    out = {}
    for name, shape in tensors(spec).items():
        if name not in weights:
            raise UsageError(f"model {spec.name}: the weights have no {name!r}; make them with zoo.weights(spec)")
        out[name] = np.asarray(weights[name], np.float32)
        if out[name].shape != shape:
            raise UsageError(f"model {spec.name}: {name} has shape {out[name].shape}, the spec needs {shape}")
    return out


def device_index(device: str) -> Optional[int]:
    """``"cpu"`` -> None, ``"cuda"`` -> 0, ``"cuda:2"`` -> 2. Raises UsageError on anything else."""
    kind, colon, index = device.partition(":")
    if device == "cpu":
        return None
    if kind != "cuda" or (colon and not index.isdigit()):
        raise UsageError(f"unknown device {device!r}: use cpu, cuda or cuda:<index>")
    return int(index or 0)


def cpu_only(framework: str, device: str) -> None:
    """Of a framework whose environment has the build for CPUs. Raises Unavailable where ``device`` is a GPU, UsageError
    where it is no device."""
    if device_index(device) is not None:
        raise Unavailable(f"{framework} on {device}: its environment has the build for CPUs: use --device cpu")


def window_counts(item: Layer, in_hw: Tuple[int, int]) -> np.ndarray:
    """How many non-padding pixels each window of a pooling covers: float32, (out height, out width)."""
    axes = []
    for n, k, s, before, after in zip(in_hw, item["kernel"], item["stride"], item["pads"][:2], item["pads"][2:]):
        start = np.arange(0, n + before + after - k + 1, s) - before
        axes.append(np.minimum(start + k, n) - np.maximum(start, 0))
    return np.outer(*axes).astype(np.float32)
