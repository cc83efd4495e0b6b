"""Parameters of compiled networks that are seeded weights in another order: they need not travel, as they can be made.

Those of transforms are not among them: sums round otherwise on other machines.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from xframe import files, zoo
from xframe.backends import tvm_parameters
from xframe.errors import XframeError
from xframe.prebuilt.folder import PARAMETERS
from xframe.types import ModelSpec

#: The file, in a folder of compiled networks, that says how what is missing there is made.
RECIPES = "seeds.json"
#: Values by which arrays are told apart before they are compared.
_PROBES = 64


@dataclass(frozen=True)
class Recipe:
    """``weight`` of ``model``, (outputs, *``shape``): the outputs of each of ``groups``, zeros added, in tiles of
    ``tile``, those of a tile side by side at the end; ``shape`` with its axes in the order ``axes`` before them."""

    model: str
    weight: str
    groups: int
    tile: int
    shape: tuple[int, ...]
    axes: tuple[int, ...]

    def size(self, weight: np.ndarray) -> int:
        """Values of the parameter."""
        share = len(weight) // self.groups
        return self.groups * (share + -share % self.tile) * math.prod(self.shape)

    def of(self, weight: np.ndarray) -> np.ndarray:
        """The parameter."""
        share = weight.reshape(self.groups, -1, *self.shape)
        if more := -share.shape[1] % self.tile:
            share = np.pad(share, [(0, 0), (0, more), *[(0, 0)] * len(self.shape)])
        tiles = share.reshape(self.groups, share.shape[1] // self.tile, self.tile, *self.shape)
        return tiles.transpose(0, 1, *(3 + axis for axis in self.axes), 2)


def recipes(built: Path, models: Sequence[str]) -> dict[str, Recipe]:
    """Name of a file of ``built/parameters`` -> how it is made of the weights of ``models``; those that can be."""
    found: dict[str, Recipe] = {}
    stored = sorted(p for p in (built / PARAMETERS).glob("*") if p.stat().st_size)
    unknown = {path.name: np.memmap(path, np.float32, "r") for path in stored}
    for model in dict.fromkeys(models if unknown else ()):
        spec = zoo.spec(model)
        for name, weight in zoo.weights(spec).items():
            for recipe in _forms(spec, name, weight.shape):
                if not any(kept.size == recipe.size(weight) for kept in unknown.values()):
                    continue
                made = recipe.of(weight)
                for file in [f for f, kept in unknown.items() if kept.size == made.size and _alike(kept, made)]:
                    if tvm_parameters.name(made) == file:
                        found[file] = recipe
                        del unknown[file]
    return found


def write(folder: Path, found: Mapping[str, Recipe]) -> Path:
    """Keep what :func:`recipes` found, for :func:`restore`."""
    path = folder / RECIPES
    path.write_text(json.dumps({file: asdict(recipe) for file, recipe in found.items()}), encoding="utf-8")
    return path


def restore(built: Path) -> None:
    """Make what was left out of a folder of compiled networks; what is there stays.

    Raises
    ------
    XframeError
        The weights that this version of numpy makes of their seeds are others.
    """
    if not (built / RECIPES).is_file():
        return
    told = json.loads((built / RECIPES).read_text(encoding="utf-8"))
    missing = {file: Recipe(**data) for file, data in told.items() if not (built / PARAMETERS / file).exists()}
    for model in dict.fromkeys(r.model for r in missing.values()):
        weights = zoo.weights(zoo.spec(model))
        for file, recipe in missing.items():
            if recipe.model != model:
                continue
            made = recipe.of(weights[recipe.weight])
            if tvm_parameters.name(made) != file:
                raise XframeError(
                    f"numpy {np.__version__} makes another {recipe.weight} of {model} of its seed than where it was"
                    " compiled: bring the parameters along (xframe build's folder as it is), or that version of numpy"
                )
            with files.atomic(built / PARAMETERS / file) as part:
                part.write_bytes(tvm_parameters.content(made))


def _forms(spec: ModelSpec, name: str, shape: tuple[int, ...]) -> Iterator[Recipe]:
    """The orders in which lowerings, frontends and frameworks lay out a weight."""
    outputs, *rest = shape
    layers = {layer.name: layer for layer in spec.layers}
    layer = layers[name.rpartition(".")[0]]
    groups = layer["groups"] if layer.op == "conv" else 1
    shares = [tuple(rest)]
    if layer.op == "fc" and rest:  # perhaps behind a flattened image, whose channels may come last
        images = (s[1:] for s in zoo.shapes(spec, 1).values() if len(s) == 4)
        shares += [image for image in dict.fromkeys(images) if math.prod(image) == rest[0] > image[0]]
    own = outputs // groups
    for share in shares:
        for axes in itertools.permutations(range(len(share))):
            for tile in dict.fromkeys([1, own, *(2**k for k in range(1, 9))]):
                yield Recipe(spec.name, name, groups, tile, share, axes)


def _alike(kept: np.ndarray, made: np.ndarray) -> bool:
    at = np.unique(np.linspace(0, made.size - 1, _PROBES).astype(int))
    return np.array_equal(kept[at], made[np.unravel_index(at, made.shape)])
