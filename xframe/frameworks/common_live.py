"""What the live models of all frameworks share: other people's code kept quiet, the names of weights in an export."""

import contextlib
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

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


@dataclass(frozen=True)
class Places:
    """Where an export keeps weights, by their names; ``taken`` are the names of its initializers."""

    found: Mapping[str, Place] = field(default_factory=dict)
    taken: frozenset[str] = frozenset()

    def arranged(self, gradients: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Gradients by weight, named and arranged as the export has the weights.

        One of a weight that the export has not as it is keeps its name, unless something else is called so there.
        """
        out = {}
        for name, g in gradients.items():
            if name in self.found:
                out[self.found[name].initializer] = self.found[name](g)
            else:
                out[f"{name} (changed)" if name in self.taken else name] = g
        return out


def located(constants: Mapping[str, np.ndarray], weights: Mapping[str, np.ndarray]) -> Places:
    """Find weights among the constants of an export, by value; those of the same name are tried first."""
    left = dict(constants)
    found: dict[str, Place] = {}
    for name, value in weights.items():
        candidates = [name, *(other for other in left if other != name)]
        for other in (c for c in candidates if c in left):
            axes = _transposition(value, left[other])
            if axes is not None:
                found[name] = Place(other, axes, left.pop(other).shape)
                break
    return Places(found, frozenset(constants))


def adopt(graph: onnx.GraphProto, weights: Mapping[str, np.ndarray]) -> Places:
    """:func:`located` among the initializers of a graph, which get the names of the weights."""
    places = located({t.name: numpy_helper.to_array(t) for t in graph.initializer}, weights)
    taken = places.taken | {v.name for v in graph.input} | {name for node in graph.node for name in node.output}
    renamed = {p.initializer: name for name, p in places.found.items() if name not in taken}
    for t in graph.initializer:
        t.name = renamed.get(t.name, t.name)
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
    found = {
        name: replace(p, initializer=renamed.get(p.initializer, p.initializer)) for name, p in places.found.items()
    }
    return Places(found, frozenset(t.name for t in graph.initializer))


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
