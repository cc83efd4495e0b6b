"""The normal form of a graph, and how each part of it came to be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import product
from math import isqrt, prod

import numpy as np

from xframe.equivalence.graph import Graph

#: Bytes of a weight that are made contiguous at a time to be hashed: a transposed view of a file is never copied whole.
BLOCK = 1 << 18


@dataclass(frozen=True)
class Weight:
    """A constant of a normal form.

    ``array`` has the canonical layout (OIHW for convolutions, [out, in] for products) and may be a view of a mapped
    file. ``source`` names the tensors of the file that it was made of, ``how`` what was done to them, in words:
    ``"transposed by (3, 2, 0, 1)"``, ``"inputs reordered from HWC to CHW"``, ``"scaled by bn1"``.
    """

    array: np.ndarray
    source: tuple[str, ...] = ()
    how: tuple[str, ...] = ()

    @cached_property
    def digest(self) -> str:
        """Hash of shape, dtype and values; -0.0 counts as 0.0. Equal arrays in any memory layout have the same."""
        digest = blake2b(repr((self.array.shape, self.array.dtype.str)).encode(), digest_size=32)
        for part in _tiles(self.array):
            whole = np.ascontiguousarray(part)
            digest.update((whole + 0 if whole.dtype.kind == "f" else whole).data)
        return digest.hexdigest()


def _tiles(array: np.ndarray) -> Iterator[np.ndarray]:
    """Blocks of the first two axes, as square as may be: of a transposed view of a file, each page is read once."""
    matrix = array.reshape(array.shape + (1,) * (2 - array.ndim)) if array.ndim < 2 else array
    rows, columns = matrix.shape[:2]
    room = max(BLOCK // max(array.itemsize * prod(matrix.shape[2:]), 1), 1)
    wide = min(max(columns, 1), max(isqrt(room), room // max(rows, 1)))
    high = max(room // wide, 1)
    for i, j in product(range(0, rows, high), range(0, columns, wide)):
        yield matrix[i : i + high, j : j + wide]


@dataclass(frozen=True)
class Normal:
    """A graph in normal form.

    Attributes
    ----------
    graph
        ONNX nodes with canonical attributes, which the float64 reference evaluates like any other graph. Images are
        NCHW, shapes are static.
    shapes
        The shape of each tensor, constants included.
    weights
        The constants, by their names in ``graph``.
    sources
        Node name -> titles of the nodes of the file that it stands for, in their order.
    tensors
        Tensor of ``graph`` -> (tensor of the file, axes): the one is the other transposed by ``axes``, or the same
        where they are empty. Only tensors that the file has too are in it.
    notes
        What was absorbed, in words and counted.
    """

    graph: Graph
    shapes: Mapping[str, tuple[int, ...]]
    weights: Mapping[str, Weight]
    sources: Mapping[str, tuple[str, ...]]
    tensors: Mapping[str, tuple[str, tuple[int, ...]]]
    notes: tuple[str, ...] = ()
