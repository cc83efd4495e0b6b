"""How far the gradient of a correct float32 implementation may be from the exact one: the bounds of the reverse pass.

The model is that of ``xframe.equivalence.bounds``: beside each exact gradient runs the variance of its error, and an
element is judged against ``Z`` deviations. Errors of a gradient come from three sides:

**Its own rounding.** A vector-Jacobian product is a sum of products like any other, of gradients with weights or
activations: one chain of all its terms is granted. A plain sum of copies, be they of either sign, meets the same
rounding error again and again: its variance grows by their number.

**The gradient that arrives, and the forward pass.** Both reach the sum through the squares of what they are multiplied
by. As they share ancestors, their deviations are added. Neighbouring gradients are often copies of one number (below a
global pooling, a bias or a broadcast), whose one error then adds up instead of averaging out. What arrives is therefore
multiplied by r = S^2/E, or by its mean over the tensor where that is larger: 1 for products of random sign, the number
of terms when all are alike.

**Choices.** A slope is taken at the value and at 2, 4 and ``Z`` deviations beside it. The change per deviation counts,
twice: for a smooth function that is its curvature, at a kink (ReLU, clip) it is the jump or a part of it, by how near
the kink is. Elements of a window that may be its maximum are treated alike. An exact tie is a choice too, as each
framework has its own convention there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from xframe.equivalence.bounds import FLOOR, UNIT, Quantity, U, Z, accumulated
from xframe.equivalence.graph import Node
from xframe.types import Rounding

Array = np.ndarray

#: The gradients of a node's inputs (None: none flows): (node, its inputs, its outputs, gradients of the outputs).
#: An absent input is None, so is an output that nothing reads or the gradient of one that the loss does not depend on.
Adjoint = Callable[
    [Node, Sequence["Quantity | None"], Sequence["Quantity | None"], Sequence["Quantity | None"]],
    "Sequence[Quantity | None]",
]

#: Deviations of x beside it at which a choice is looked at. One that may fall otherwise within n of them counts as a
#: deviation of 2/n of what hangs on it. An even one counts in full: once it has fallen otherwise, its whole difference
#: goes back through sums of random sign, whose results are spread around it as errors are.
STEPS = (2.0, 4.0, Z)
EVEN = 1.0


def summed(g: Quantity, other: Quantity, product: Callable[[Array, Array], Array], terms: int) -> Quantity:
    """A bilinear ``product`` of a gradient with weights or activations, summed over ``terms`` products at most."""
    total = product(g.real, other.real)
    squares, others = np.square(g.real), np.square(other.real)
    energy = product(squares, others)
    deviation: Array | float = 0.0
    if g.variance is not None:
        deviation = np.sqrt(np.maximum(product(g.variance, others), 0.0))
    if other.variance is not None:
        deviation = deviation + np.sqrt(np.maximum(product(squares, other.variance), 0.0))
    arriving = np.broadcast_to(np.square(deviation), total.shape) * _alike(total, energy)
    growth = math.sqrt(_copies(g.value)) if terms > 1 and other.value.size == 1 else 1.0
    return Quantity(total, accumulated(total, energy, arriving, terms, Rounding(terms, growth)))


def _copies(a: Array) -> float:
    """How often a number occurs, averaged over the squares of all."""
    numbers, counts = np.unique(a, return_counts=True)
    energy = np.square(numbers) * counts
    return float((energy * counts).sum() / energy.sum()) if energy.any() else 1.0


def _alike(total: Array, energy: Array) -> Array:
    square = np.square(total)
    each = np.divide(square, energy, out=np.ones_like(square), where=energy > 0)
    whole = energy.sum()
    return np.maximum(each, max(1.0, float(square.sum() / whole) if whole > 0 else 1.0))


def unbroadcast(a: Array, shape: Sequence[int]) -> Array:
    """``a`` summed over the axes along which an operand of ``shape`` was repeated."""
    lead = a.ndim - len(shape)
    axes = (*range(lead), *(lead + i for i, n in enumerate(shape) if n == 1 and a.shape[lead + i] != 1))
    return (a.sum(axis=axes, keepdims=True) if axes else a).reshape(shape)


def shaped(q: Quantity, like: Quantity) -> Quantity:
    """The same elements in the shape of another one."""
    return q.moved(lambda a: a.reshape(like.value.shape))


def scaled(g: Quantity, factor: Quantity, shape: Sequence[int]) -> Quantity:
    """``g * factor``, summed over what was broadcast from ``shape``."""
    size = np.broadcast_shapes(g.value.shape, factor.value.shape)
    terms = max(1, int(np.prod(size, dtype=np.int64)) // max(int(np.prod(shape, dtype=np.int64)), 1))
    return summed(g, factor, lambda a, b: unbroadcast(np.broadcast_to(a * b, size), shape), terms)


def constant(value: Array | float) -> Quantity:
    """What is exact."""
    return Quantity(np.asarray(value, np.float64))


def slope(x: Quantity, at: Callable[[Array], Array], ulps: float = 0.0, size: float = 0.0) -> Quantity:
    """The slope ``at(x)`` with its error: ``ulps`` of itself and of ``size``, and its change beside the value."""
    value = np.asarray(at(x.real), np.float64)
    change = np.zeros(value.shape)
    for steps in STEPS:
        # The last bit of x stands in where x is exact: a kink that is met exactly is a choice as well.
        around = steps * x.deviation + U * np.abs(x.real) + np.sqrt(FLOOR)
        for side in (x.real - around, x.real + around):
            np.maximum(change, 2 / steps * np.abs(at(side) - value), out=change)
    change += ulps * np.sqrt(UNIT) * (np.abs(value) + size)
    return Quantity(value, np.square(change))


def choice(margin: Array, deviation: Array | float) -> Array:
    """Deviation of taking or not taking what loses by ``margin`` >= 0, relative to what hangs on it."""
    found = np.zeros(np.shape(margin))
    for steps in reversed(STEPS):
        found = np.where(margin <= steps * deviation, 2 / steps, found)
    return found


def added(gradients: Sequence[Quantity]) -> Quantity:
    """The gradient of a tensor that several nodes read."""
    if len(gradients) == 1:
        return gradients[0]
    value, deviation, size = gradients[0].real, gradients[0].deviation, np.abs(gradients[0].real)
    for g in gradients[1:]:
        value, deviation, size = value + g.real, deviation + g.deviation, size + np.abs(g.real)
    return Quantity(value, np.square(deviation) + np.square(size) * (len(gradients) * UNIT) + FLOOR)
