"""The normal form of a graph, and how each part of it came to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

import numpy as np

from xframe.equivalence.graph import Graph

#: Bytes of a weight that are made contiguous at a time to be hashed: a transposed view of a file is never copied whole.
BLOCK = 1 << 24


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
        digest = sha256(repr((self.array.shape, self.array.dtype.str)).encode())
        rows = self.array.reshape(1) if not self.array.ndim else self.array
        step = max(1, BLOCK // max(rows[:1].nbytes, 1))
        for start in range(0, len(rows), step):
            part = np.ascontiguousarray(rows[start : start + step])
            digest.update((part + 0 if part.dtype.kind == "f" else part).tobytes())
        return digest.hexdigest()


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
