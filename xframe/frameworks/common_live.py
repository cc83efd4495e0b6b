"""What the live models of all frameworks share: other people's code kept quiet, the names of weights in an export."""

import contextlib
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import numpy_helper

from xframe.errors import XframeError


@contextlib.contextmanager
def guarded(what: str) -> Iterator[None]:
    """Other people's code: warnings are kept back; an exception becomes one XframeError that begins with ``what``."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except XframeError:
        raise
    except Exception as e:  # a model can raise anything
        raise XframeError(f"{what}: {type(e).__name__}: {' '.join(str(e).split())[:600]}") from e


def described(feeds: Sequence[np.ndarray]) -> str:
    """Feeds in words: ``float32[1, 3, 8, 8], float32[1, 4]``."""
    return ", ".join(f"{x.dtype}{list(x.shape)}" for x in feeds) or "nothing"


def output_names(count: int) -> list[str]:
    """``output``, or ``output_0``, ``output_1`` and so on: the same for every framework."""
    return ["output"] if count == 1 else [f"output_{i}" for i in range(count)]


def input_names(count: int) -> list[str]:
    """``input``, or ``input_0``, ``input_1`` and so on."""
    return [name.replace("out", "in") for name in output_names(count)]


@dataclass(frozen=True)
class Place:
    """Where an export keeps a weight: in ``initializer``, transposed by ``axes``, then reshaped to ``shape``."""

    initializer: str
    axes: tuple[int, ...]
    shape: tuple[int, ...]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return x.transpose(self.axes).reshape(self.shape)


def adopt(graph: onnx.GraphProto, weights: Mapping[str, np.ndarray]) -> dict[str, Place]:
    """Find the weights among the initializers, by value, and give these the weights' names.

    A weight that the export changed or left out is not in the result.
    """
    arrays = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    found: dict[str, Place] = {}
    for name, value in weights.items():
        candidates = [name, *(other for other in arrays if other != name)]
        for other in (c for c in candidates if c in arrays):
            axes = _transposition(value, arrays[other])
            if axes is not None:
                found[name] = Place(other, axes, arrays.pop(other).shape)
                break
    taken = {t.name for t in graph.initializer} | {v.name for v in graph.input}
    taken |= {name for node in graph.node for name in node.output}
    renamed = {p.initializer: name for name, p in found.items() if p.initializer != name and name not in taken}
    for t in graph.initializer:
        t.name = renamed.get(t.name, t.name)
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
    return {name: replace(p, initializer=renamed.get(p.initializer, p.initializer)) for name, p in found.items()}


def _transposition(value: np.ndarray, other: np.ndarray) -> tuple[int, ...] | None:
    """Axes by which ``value`` transposed is ``other``, but for axes of length 1; None where there are none."""
    wide = [n for n in other.shape if n != 1]
    if value.dtype != other.dtype or sorted(n for n in value.shape if n != 1) != sorted(wide) or value.ndim > 5:
        return None
    for axes in itertools.permutations(range(value.ndim)):
        moved = value.transpose(axes)
        if [n for n in moved.shape if n != 1] == wide and np.array_equal(moved.reshape(other.shape), other):
            return axes
    return None


def exported_places(weights: Mapping[str, np.ndarray]) -> dict[str, Place]:
    """What :func:`adopt` finds in a channels-last framework's export of a spec: convolutions are HWIO, there OIHW."""
    axes = {name: (3, 2, 0, 1) if w.ndim == 4 else tuple(range(w.ndim)) for name, w in weights.items()}
    return {name: Place(name, axes[name], w.transpose(axes[name]).shape) for name, w in weights.items()}


def as_exported(gradients: Mapping[str, np.ndarray], places: Mapping[str, Place]) -> dict[str, np.ndarray]:
    """Gradients by weight, named and arranged as the export has the weights; as they are where it has them not."""
    return {
        places[name].initializer if name in places else name: places[name](g) if name in places else g
        for name, g in gradients.items()
    }
